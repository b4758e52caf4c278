"""Tests the pages of one-run audits: their claims and contents."""

import json
import re

import numpy as np
import pytest

from audit.claims.accounting import Composition
from audit.claims.claim import DpSgd, EpsilonDelta
from audit.conclusions import concluded
from audit.conclusions.finish import finish
from audit.evidence import given
from audit.laws import cosine_law
from audit.report import audit_page, federated_table, subjects
from audit.report.federated_table import FederatedAudit
from audit.storage.store import Scores
from tests.audit.report.outline import Outline
from tests.cases import draw_null_cosines

D = 10_000


def observed(sigma, upper=None):
    drawn = cosine_law.simulate(np.random.default_rng(0), 90, D, sigma)
    claim = None if upper is None else EpsilonDelta(upper, 1e-5)
    return concluded.conclude(given.paired_cosines(drawn, None, D), claim)


def coins(sigma, canaries=300, seed=0):
    rng = np.random.default_rng(seed)
    bits = rng.random(canaries) < 0.5
    scores = draw_null_cosines(rng, (canaries,), D)
    scores[bits] = cosine_law.simulate(rng, int(bits.sum()), D, sigma)
    return scores[None], bits[None]


def subject(conclusion):
    return subjects.describe_arrays("<script>it</script>", conclusion)


def test_a_page_tells_bounds_from_estimates_and_asks_for_nothing():
    made = Outline(audit_page.make_page(subject(observed(0.1))).decode())
    assert "No upper bound was given" in made.text  # the rest is a golden output
    assert "script" not in {tag for tag, _ in made.tags}
    images = [attributes for tag, attributes in made.tags if tag == "img"]
    assert len(images) == 2 and all(len(image["alt"]) > 40 for image in images)


@pytest.mark.slow
def test_a_bound_on_a_gaussian_curve_alone_is_told_as_that():
    scores = Scores(0, *coins(0.25))
    (conclusion,) = concluded.conclude_each_run(scores, D, False)
    epsilons = {bound.method: bound.epsilon for bound in conclusion.bounds}
    between = (epsilons["one_run_guesses"] + epsilons["one_run_gaussian"]) / 2
    verdict = finish(conclusion._replace(upper_bound=between)).verdict
    assert (
        verdict.headline
        == "Not rejected, but the guarantee is violated if the trade-off curve is Gaussian."
    )


@pytest.mark.slow
def test_a_claim_that_federated_runs_refute_together_is_a_violation():
    rng = np.random.default_rng(0)
    presence = rng.random((8, 100)) < 0.5
    cosines = (rng.normal(size=(8, 100)) + 2 * presence) / np.sqrt(D)
    scores = Scores(0, cosines, presence, D)
    canary = Composition(1.0, 1)  # mu is at most 1, and 2 here
    claim = DpSgd(*canary)
    runs = concluded.conclude_each_run(scores, D, True, claim=claim)
    assert not runs[0].claim_test.refuted
    together = concluded.conclude_together(scores, claim=claim)
    audit = FederatedAudit(runs, canary, canary, [], together)
    terminal = federated_table.federated_table(audit)
    assert re.search(r"^claim: +rejected by \d training runs", terminal, re.MULTILINE)
    assert "\nverdict:    The guarantee is violated" in terminal
    fields = json.loads(federated_table.federated_json(audit, {}))
    assert fields["together"]["claim_test"]["refuted"]
