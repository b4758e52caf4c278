"""Tests audit cards, and that a card agrees with a recomputed one unless it was changed."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import audit
from audit.settings.make import setting_of
from audit.settings.setting import identity
from audit.storage.store import Scores, Store
from tests.cases import mostly_slow

RNG = np.random.default_rng(0)
MATRIX = RNG.normal(size=(60, 8))
PRESENCE = RNG.random(MATRIX.shape) < 0.5
SCORES = MATRIX + 2 * PRESENCE
DIRECTIONS = RNG.normal(4, 1, (12, 16)) / 500**0.5
RUN = PRESENCE.reshape(1, -1)
DRAWS = RNG.normal(size=(60, 39))
# evidence: (arrays of a file, flags that read it, the method that decides, looks)
KINDS = {
    "two_worlds": ({"in": MATRIX[:, 0] + 2, "out": MATRIX[:, 1]}, (), "assumption_free", 1),
    "coins": ({"scores": SCORES, "presence": PRESENCE}, (), "lifted", 1),
    "cosines": ({"observed": DIRECTIONS}, ("--dimension=500", "--in_order"), "exact_null", 12),
    "ranks": ({"scores": MATRIX[:, :4] + 2, "fresh": DRAWS}, (), "exact_null", 1),
    "one_run": (
        {"scores": SCORES.reshape(1, -1), "presence": RUN},
        ("--one_run",),
        "one_run_guesses",
        1,
    ),
    "one_run_cosines": ({"observed": DIRECTIONS[:1]}, ("--dimension=500",), "exact_null", 1),
}
CLAIM = ("--noise_multiplier=1", "--insertions=4")
SCHEMA = json.loads((Path(audit.__file__).parent / "card.schema.json").read_text())


@pytest.fixture
def bound(forked, tmp_path):
    """bound(*flags) -> Ended, in tmp_path, which holds scores.npz of two worlds."""
    np.savez(tmp_path / "scores.npz", **KINDS["two_worlds"][0])
    return lambda *flags: forked("bound", "--scores=scores.npz", *flags, folder=tmp_path)


@pytest.fixture
def card(bound, tmp_path):
    """The card of the scores and a claim, which may be changed."""
    assert bound(*CLAIM, "--write_card=card.json").status == 0
    return json.loads((tmp_path / "card.json").read_text())


@pytest.mark.parametrize("kind", mostly_slow([*KINDS], quick=2))
def test_a_card_is_valid_and_agrees_with_its_scores(bound, tmp_path, kind):
    arrays, flags, method, looks = KINDS[kind]
    np.savez(tmp_path / "scores.npz", **arrays)
    written = bound(*flags, *CLAIM, "--write_card=card.json")
    assert written.status == 0, written.stderr
    card = json.loads((tmp_path / "card.json").read_text())
    jsonschema.validate(card, SCHEMA, jsonschema.Draft202012Validator)
    assert (card["method"]["name"], card["looks"]) == (method, looks)
    found = bound(*flags, "--card=card.json")
    assert found.status == 0, found.stderr
    assert found.stdout.startswith("the card agrees: epsilon at least ")
    assert f"({method}), verdict {card['verdict']}, commitment {card['commitment'][:16]}\n" in (
        found.stdout
    )


@pytest.mark.parametrize(
    "setting",
    mostly_slow(
        [{}, {"sampler": "balls_in_bins:4", "insertions": 8}, {"noise": "bsr:4", "insertions": 8}]
    ),
)
def test_a_card_of_a_trained_audit_agrees_with_its_folder(forked, tmp_path, setting):
    store = Store(tmp_path, {**identity(setting_of("fcnn", **setting)), "data_sha256": "0" * 64})
    presence = np.arange(60)[:, None] % 2 == 1
    store.save(Scores(0, presence + MATRIX[:, :1], presence))
    folder = f"--scores={store.path}"
    assert forked("bound", folder, "--write_card=card.json", folder=tmp_path).status == 0
    card = json.loads((tmp_path / "card.json").read_text())
    jsonschema.validate(card, SCHEMA, jsonschema.Draft202012Validator)
    assert {"sees", "inserts"} <= set(card["threat_model"]) and card["provenance"]["Seed"] == "0"
    found = forked("bound", folder, "--card=card.json", folder=tmp_path)
    assert found.status == 0, found.stderr


@pytest.mark.parametrize(
    "place",
    mostly_slow(
        [
            "bounds 1 epsilon",
            "commitment",
            "claim_test runs",
            "verdict",
            "evidence runs",
            "evidence sha256",
            "privacy_loss privacy_parameters epsilon",
            "privacy_loss privacy_parameters delta",
            "implementation parameters insertions",
            "confidence",
            "looks",
            "method name",
            "threat_model given",
        ],
    ),
)
def test_a_card_with_a_changed_value_does_not_agree(bound, card, tmp_path, place):
    path = [int(name) if name.isdigit() else name for name in place.split()]
    part = card
    for name in path[:-1]:
        part = part[name]
    value = part[path[-1]]
    changed = f"{value[:-1]}?" if isinstance(value, str) else value * (1 + 1e-7)
    part[path[-1]] = value + 1 if isinstance(value, int) else changed
    (tmp_path / "card.json").write_text(json.dumps(card))
    found = bound("--card=card.json")
    assert (found.status, found.stdout) == (3, "")
    assert found.stderr.startswith("error: card.json does not agree: ")
    assert found.stderr.count("\n") == 1


def test_a_card_agrees_on_other_machines(bound, card, tmp_path):
    card["provenance"] = {}
    card["bounds"][0]["epsilon"] *= 1 + 1e-12
    (tmp_path / "card.json").write_text(json.dumps(card))
    assert bound("--card=card.json").status == 0


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"card": "hidden-state-audit/2"}',
        '{"card": "hidden-state-audit/2"}',
        "[" * 10**5,
        None,
    ],
)
def test_a_file_that_is_not_a_card_is_one_line(bound, tmp_path, content):
    if content is not None:
        (tmp_path / "card.json").write_text(content)
    found = bound("--card=card.json")
    fix = "is not an audit card: give a file written by --write_card"
    assert (found.status, found.stderr) == (2, f"error: --card=card.json {fix}\n")


@pytest.mark.parametrize("flag", ["--claim=3", "--noise_multiplier=3", "--delta=1e-5", "--json"])
def test_what_a_card_states_is_not_stated_again(bound, flag):
    found = bound("--card=card.json", flag)
    assert found.status == 2 and "conflicts with --card: drop it" in found.stderr


@pytest.mark.slow
def test_the_commitment_is_known_before_the_scores():
    claims = [audit.Gdp(1), audit.Gdp(2), audit.EpsilonDelta(float("inf"), 1e-6), None]
    found = []
    for claim in claims:
        cards = [audit.card(audit.bounds(MATRIX[:, i] + i, MATRIX[:, 2], claim)) for i in (0, 1)]
        assert cards[0]["evidence"]["sha256"] != cards[1]["evidence"]["sha256"]
        assert cards[0]["commitment"] == cards[1]["commitment"]
        found.append(cards[0]["commitment"])
    assert len(set(found)) == len(claims)


@pytest.mark.slow
def test_a_page_shows_how_to_cite_it(tmp_path):
    result = audit.bounds(MATRIX[:, 0] + 2, MATRIX[:, 1], audit.Gdp(1), name="ours")
    page = result.report(tmp_path / "page.html").read_text()
    commitment = audit.card(result)["commitment"][:16]
    assert f"Cite as: ours. hidden-state-audit {audit.__version__}, 20" in page
    assert f", card {commitment}<" in page
