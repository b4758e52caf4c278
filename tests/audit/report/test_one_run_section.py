"""One-run audits' pages: what they claim, what they carry, and what they make of a folder."""

import json
import re

import numpy as np
import pytest
from absl import flags

from audit.claims.accounting import Composition
from audit.claims.claim import EpsilonDelta
from audit.conclusions import concluded
from audit.errors import InputError
from audit.evidence import given
from audit.laws import cosine_law
from audit.methods.level import Level
from audit.report import audit_page, audit_panels, federated_table, subjects, verdicts
from audit.report.federated_table import FederatedAudit
from audit.report.subjects import RequestedLevels
from audit.settings import stored
from audit.settings.federated import FederatedSetting, federated_identity
from audit.storage.store import Scores, Store
from tests.audit.report.outline import Outline

D = 10_000


def observed(sigma, upper=None):
    drawn = cosine_law.simulate(np.random.default_rng(0), 90, D, sigma)
    claim = None if upper is None else EpsilonDelta(upper, 1e-5)
    return concluded.conclude(given.paired_cosines(drawn, None, D), claim)


def coins(sigma, canaries=300, seed=0):
    rng = np.random.default_rng(seed)
    bits = rng.random(canaries) < 0.5
    scores = cosine_law.draw(rng, (canaries,), D)
    scores[bits] = cosine_law.simulate(rng, int(bits.sum()), D, sigma)
    return scores[None], bits[None]


def subject(conclusion):
    return subjects.describe_arrays("<script>it</script>", conclusion)


@pytest.fixture
def plain(monkeypatch):
    panels = dict.fromkeys(("cosines", "epsilons"), b"<svg/>")
    monkeypatch.setattr(audit_panels, "audit_panels", lambda conclusion: panels)


def test_a_page_tells_bounds_from_estimates_and_asks_for_nothing():
    made = Outline(audit_page.report("Audit", [subject(observed(0.1))]).decode())
    assert "No upper bound was given" in made.text  # the rest is a golden output
    assert "script" not in {tag for tag, _ in made.tags}
    images = [attributes for tag, attributes in made.tags if tag == "svg"]
    assert len(images) == 2 and all(len(image["aria-label"]) > 40 for image in images)


@pytest.mark.parametrize(
    ("sigma", "upper", "kind", "says"),
    [
        (50.0, 3.0, "nothing", "That is no proof of privacy. The claim is at most 3."),
        (0.1, 100.0, "leaks", "The claim is at most 100."),
        (0.1, 1.0, "violated", "there is a bug"),
        (0.1, np.inf, "leaks", "The claim says nothing at this delta."),
    ],
)
def test_the_verdict_claims_what_is_proven(sigma, upper, kind, says):
    verdict = verdicts.verdict(observed(sigma)._replace(upper_bound=upper))
    assert verdict.kind == kind
    assert says in verdict.sentence


@pytest.mark.slow
def test_a_bound_on_a_gaussian_curve_alone_is_told_as_that():
    scores = Scores(0, *coins(0.25))
    (conclusion,) = concluded.conclude_each_run(scores, D, False)
    epsilons = {bound.method: bound.epsilon for bound in conclusion.bounds}
    between = (epsilons["one_run_guesses"] + epsilons["one_run_gaussian"]) / 2
    verdict = verdicts.verdict(conclusion._replace(upper_bound=between))
    assert verdict.headline == "The guarantee is violated, or the trade-off curve is not Gaussian."


def test_no_bound_is_no_verdict(plain):
    about = subject(observed(0.1)._replace(bounds=()))
    assert "estimates alone" in verdicts.verdict(about.conclusion).sentence
    assert "No bound: save coins" in audit_page.report("A", [about]).decode()


def save_federated(root, /, **changes):
    """Returns a folder of federated runs, as ./run.sh federated leaves it, with changes to its result."""
    setting = FederatedSetting("linear", canaries=300)
    store = Store(root, federated_identity(setting, "0" * 64, None), "federated-linear")
    drawn = [coins(0.25, seed=i) for i in range(2)]
    matrix = np.concatenate([scores for scores, _ in drawn])
    presence = np.concatenate([bits for _, bits in drawn])
    store.save(Scores(0, matrix, presence))
    runs = concluded.conclude_each_run(Scores(0, matrix, presence), D, True, Level(1e-6, 0.9))
    audit = FederatedAudit(runs, Composition(4.0, 1), Composition(4.0, 5), [0.8, 0.8])
    about = {
        "setting": {"model": "linear", "canaries": 300},
        "data": "made up",
        "out": str(store.path),
    }
    fields = json.loads(federated_table.federated_json(audit, about))
    store.write_text("federated.json", json.dumps({**fields, **changes}))
    return store.path


@pytest.mark.slow
def test_a_saved_run_is_read_again_at_its_levels_or_others(tmp_path, plain):
    folder = save_federated(tmp_path)
    assert stored.federated(tmp_path) == [folder]
    about = subjects.describe_federated_folder(folder, RequestedLevels())
    assert (about.runs[0].delta, about.runs[0].confidence, len(about.runs)) == (1e-6, 0.9, 2)
    text = Outline(audit_page.report("A", [about]).decode()).text
    for words in (
        "784-10 on Fashion-MNIST",
        "Over all runs",
        "accounted, client",
        "0.8000",
        "made up",
    ):
        assert words in text, words
    other = subjects.describe_federated_folder(folder, RequestedLevels(delta=1e-3))
    assert other.runs[0].delta == 1e-3 and other.uppers[0].epsilon < about.uppers[0].epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"compositions": None}, {"runs": []}, {"setting": 3}, {"delta": "x"}]
)
def test_an_older_or_damaged_result_is_one_line(tmp_path, changes):
    with pytest.raises(InputError, match="start the same federated audit again") as caught:
        subjects.describe_federated_folder(save_federated(tmp_path, **changes), RequestedLevels())
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_panels_are_the_same_bits_each_time_and_say_what_is_drawn():
    panels = audit_panels.audit_panels(observed(0.3, 5.0))
    assert audit_panels.audit_panels(observed(0.3, 5.0)) == panels
    assert set(panels) == {"cosines", "epsilons"}
    assert all(re.match(rb"<\?xml", image) for image in panels.values())


@pytest.mark.slow
def test_report_makes_the_page_of_a_saved_run_by_its_hash_and_the_newest(
    tmp_path, capsys, monkeypatch
):
    from audit.commands import report

    folder = save_federated(tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    for argv in ((), (f"--setting={folder.name[-16:-10]}",)):
        flags.FLAGS.unparse_flags()
        flags.FLAGS(["report", f"--out={tmp_path / 'results'}", *argv])
        report.main()
        assert capsys.readouterr().out.strip() == f"report: {folder}/report.html"
        (folder / "report.html").unlink()


def test_the_json_of_federated_runs_without_noise_has_no_infinity():
    scores, bits = coins(0.1)
    runs = concluded.conclude_each_run(Scores(0, scores, bits), D, law_holds=True)
    steps = Composition(noise_multiplier=0.0, insertions=1)
    audit = FederatedAudit(runs, canary=steps, client=steps, accuracies=[])

    def refuse(constant):
        raise AssertionError(f"{constant} is no number of JSON")

    fields = json.loads(federated_table.federated_json(audit, {}), parse_constant=refuse)
    assert set(fields["epsilon"].values()) == {None}
