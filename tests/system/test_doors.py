"""Tests that the same scores give the same table, byte for byte, however they are read.

The table comes from Python, from `bound`, and from the audit of a store.
"""

import functools
import html
import json

import numpy as np
import pytest

import audit
from audit.conclusions import verdicts
from audit.conclusions.concluded import conclude, conclude_each_run
from audit.conclusions.finish import finish
from audit.conclusions.results import result_json
from audit.evidence.ranks import rank_among
from audit.report.bounds_table import bounds_table
from audit.report.subjects import describe_setting
from audit.settings.make import setting_of
from audit.settings.setting import identity
from audit.storage.store import Scores, Store
from tests.cases import mostly_slow

RNG = np.random.default_rng(51)
DIMENSION = 10_000
BITS = RNG.random((40, 8)) < 0.5
ONE_RUN_BITS = RNG.random((1, 300)) < 0.5
SCORES_IN, SCORES_OUT = RNG.normal(2, 1, 300), RNG.normal(0, 1, 250)
COINS = RNG.normal(2.0 * BITS, 1.0)
RANKED, FRESH = RNG.normal(3, 1, (12, 60)), RNG.normal(0, 1, (12, 2_000))
LOSSES = -RNG.exponential(
    np.where(ONE_RUN_BITS, 0.05, 1.0)
)  # of one run: a membership attack by the loss
COSINES = RNG.normal(3, 1, (12, 60)) / DIMENSION**0.5
ONE_RUN = RNG.normal(3, 1, (1, 300)) / DIMENSION**0.5
CLAIMED = (
    "upper_bound",
    "mu_upper_bound",
    "composition",
    "hidden_state",
    "uncovered",
    "epsilon_if_linear",
    "why_gaussian",
    "claim",
)
ONE_RUN_COINS = RNG.normal(3.0 * ONE_RUN_BITS, 1.0) / DIMENSION**0.5


RANKS = rank_among(RANKED, FRESH)


def cosines(values, **more):
    return audit.cosines(values, DIMENSION, **more)


STEPS = ("--noise_multiplier=4", "--insertions=250")
OF_COSINES = (f"--dimension={DIMENSION}",)
COINS_OF_ONE_RUN = {"scores": ONE_RUN_COINS[0], "presence": ONE_RUN_BITS[0]}

# name -> (arrays of a file, flags next to --scores, what Python's `bounds` gets)
FORMS = {
    "two worlds": ({"in": SCORES_IN, "out": SCORES_OUT}, (), lambda: (SCORES_IN, SCORES_OUT)),
    "two worlds of several canaries": (
        {"in": COINS[:20], "out": COINS[20:]},
        (),
        lambda: (COINS[:20], COINS[20:]),
    ),
    "coins of several runs": (
        {"scores": COINS, "presence": BITS},
        (),
        lambda: (audit.coins(COINS, BITS),),
    ),
    "coins of one run, any scores": (
        {"scores": LOSSES, "presence": ONE_RUN_BITS},
        (),
        lambda: (audit.coins(LOSSES, ONE_RUN_BITS),),
    ),
    "cosines": ({"in": COSINES}, OF_COSINES, lambda: (cosines(COSINES),)),
    "cosines in the order of runs": (
        {"in": COSINES},
        (*OF_COSINES, "--in_order"),
        lambda: (cosines(COSINES, in_order=True),),
    ),
    "scores among fresh draws": (
        {"scores": RANKED, "fresh": FRESH},
        (),
        lambda: (audit.ranks(RANKED, FRESH),),
    ),
    "ranks in the order of runs": (
        {"scores": RANKED, "fresh": FRESH},
        ("--in_order",),
        lambda: (audit.ranks(RANKED, FRESH, in_order=True),),
    ),
    "cosines of one run": ({"observed": ONE_RUN[0]}, OF_COSINES, lambda: (cosines(ONE_RUN),)),
    "cosines of one run by coins": (
        COINS_OF_ONE_RUN,
        OF_COSINES,
        lambda: (cosines(ONE_RUN_COINS, presence=ONE_RUN_BITS),),
    ),
}


@functools.cache
def call_python(form):
    """Returns the result that Python gives of a form."""
    return audit.bounds(*FORMS[form][2]())


@pytest.mark.parametrize("form", mostly_slow(FORMS, quick=4))
def test_a_file_and_arrays_give_the_same_table(form, tmp_path, run_command):
    arrays, flags, _ = FORMS[form]
    np.savez(tmp_path / "scores.npz", **arrays)
    ended = run_command("bound", "--scores=scores.npz", *flags, folder=tmp_path)
    assert (ended.status, ended.stderr) == (0, "")
    assert ended.stdout == f"{call_python(form)}\n"


@pytest.mark.parametrize("form", mostly_slow(FORMS, quick=6))
def test_a_result_says_the_same_in_every_way(form):
    result = call_python(form)
    values = result.to_dict()
    rows = {row["method"]: row["epsilon"] for row in values["bounds"]}
    assert rows and all(rows[bound.method] == bound.epsilon for bound in result.bounds.values())
    assert ("assumption_free" in result.bounds) != result.conclusion.is_one_run
    assert repr(result) == str(result)
    assert result.verdict in ("leaks", "leaks, if Gaussian", "nothing proven")
    assert result.epsilon in {
        bound.epsilon for bound in result.bounds.values() if not bound.assumes.gaussian
    }


WORLDS = np.concatenate([SCORES_IN, SCORES_OUT])[:, None]
IS_IN = (np.arange(len(WORLDS)) < len(SCORES_IN))[:, None]
# form -> the scores, who was in, the dimension, the draws, and the fields of a setting that gives such scores
STORES = {
    "two worlds": (WORLDS, IS_IN, 0, 0, {}),
    "coins of several runs": (COINS, BITS, 0, 0, {"adversary": "cots"}),
    "coins of one run, any scores": (LOSSES, ONE_RUN_BITS, 0, 0, {"adversary": "loss"}),
    "cosines of one run": (
        *(ONE_RUN, np.ones(ONE_RUN.shape, bool), DIMENSION, 0),
        {"adversary": "one_shot"},
    ),
    "cosines of one run by coins": (
        *(ONE_RUN_COINS, ONE_RUN_BITS, DIMENSION, 0),
        {"adversary": "one_shot"},
    ),
    "cosines in the order of runs": (
        *(COSINES, np.ones(COSINES.shape, bool), DIMENSION, 0),
        {"adversary": "sphere"},
    ),
    "ranks in the order of runs": (
        *(2_001.0 - RANKS, np.ones(RANKS.shape, bool), 0, 2_000),
        {"adversary": "examples", "fresh": 2_000},
    ),
}


def store_audit(root, form):
    """Returns the folder of an audit of a form's scores."""
    scores, presence, dimension, draws, fields = STORES[form]
    canaries = scores.shape[1]
    setting = setting_of("fcnn", **fields, **({"canaries": canaries} if canaries > 1 else {}))
    store = Store(root, {**identity(setting), "data_sha256": "0" * 64})
    store.save(Scores(0, scores, presence, dimension, draws))
    return store.path


def conclude_ours(form):
    """Returns the conclusion where the game, not a caller, drew coins and directions.

    Its cosines of fresh directions leave the other canaries out.
    """
    evidence = call_python(form).conclusion.evidence
    facts = {name: False for name in ("from_user", "separate") if hasattr(evidence, name)}
    return conclude(evidence._replace(**facts))


@pytest.mark.parametrize("form", mostly_slow(STORES, quick=2))
def test_a_stored_audit_gives_the_same_table(form, tmp_path):
    """Beside the scores a store knows the mechanism, which adds lines on its upper bounds."""
    folder = store_audit(tmp_path, form)
    kept = describe_setting(folder).conclusion
    assert show_without_claim(kept) == bounds_table(conclude_ours(form))


@pytest.mark.slow
def test_a_federated_run_gives_the_same_table():
    scores = Scores(0, ONE_RUN_COINS, ONE_RUN_BITS)
    (kept,) = conclude_each_run(scores, DIMENSION, law_holds=False)
    assert bounds_table(kept) == bounds_table(conclude_ours("cosines of one run by coins"))


def show_without_claim(kept):
    """Returns the table of a kept conclusion as if nothing were claimed of its mechanism."""
    unclaimed = call_python("two worlds").conclusion
    fields = {name: getattr(unclaimed, name) for name in CLAIMED}
    return bounds_table(finish(kept._replace(**fields)))


@pytest.mark.parametrize("form", mostly_slow(STORES))
def test_list_and_report_say_what_is_concluded_from_the_scores(form, tmp_path, run_command):
    folder = store_audit(tmp_path / "results", form)
    kept = describe_setting(folder).conclusion
    store = Store.at(folder)
    store.write_text("audit.json", result_json(kept, runs=store.runs_held()))
    epsilon = conclude_ours(form).epsilon
    assert epsilon > 0
    (row,) = json.loads(run_command("list", "--json", folder=tmp_path).stdout)
    assert row["epsilon"] == epsilon
    ended = run_command("list", "--report=page.html", folder=tmp_path)
    assert ended.status == 0, ended.stderr
    page = html.unescape((tmp_path / "page.html").read_text())
    assert f"≥\N{NO-BREAK SPACE}{verdicts.at_least(epsilon)}" in page


@pytest.mark.parametrize(
    ("given", "claim"),
    mostly_slow(
        [
            (STEPS, audit.DpSgd(4, 250)),
            ((*STEPS, "--k=5", "--lipschitz=1"), audit.DpSgd(4, 250, k=5, lipschitz=1.0)),
            (("--claim=3",), audit.EpsilonDelta(3, 1e-5)),
        ]
    ),
)
def test_a_claim_is_the_same_through_both_doors(tmp_path, run_command, given, claim):
    np.savez(tmp_path / "scores.npz", **{"in": SCORES_IN, "out": SCORES_OUT})
    np.savez(tmp_path / "run.npz", scores=LOSSES, presence=ONE_RUN_BITS)
    ended = run_command("bound", "--scores=scores.npz", *given, folder=tmp_path)
    assert ended.stdout == f"{audit.bounds(SCORES_IN, SCORES_OUT, claim)}\n"
    of_one_run = audit.bounds(audit.coins(LOSSES, ONE_RUN_BITS), claim=claim)
    ended = run_command("bound", "--scores=run.npz", *given, folder=tmp_path)
    assert ended.stdout == f"{of_one_run}\n"


def audit_one_run(root, **fields):
    """Trains a single run of 64 canaries, which five steps with little noise give away."""
    given = {"insertions": 5, "noise_multiplier": 0.1, "canaries": 64, "runs": 1, "out": root}
    return audit.audit("fcnn", **{**given, **fields})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "methods"),
    [
        ({"adversary": "loss"}, {"one_run_guesses", "one_run_gaussian"}),
        ({"adversary": "one_shot"}, {"one_run_guesses", "one_run_gaussian"}),
    ],
)
def test_a_single_run_is_trained_stored_and_concluded(fields, methods, tmp_path):
    result = audit_one_run(tmp_path, **fields)
    assert set(result.bounds) == methods
    (folder,) = tmp_path.iterdir()
    kept = describe_setting(folder).conclusion
    assert bounds_table(kept) == str(result)
    assert Store.at(folder).result().epsilon == result.epsilon
