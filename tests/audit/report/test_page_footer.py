"""How to read a page: only what is on the page is explained."""

import numpy as np
import pytest

import audit
from audit.claims.claim import EpsilonDelta
from audit.conclusions.concluded import conclude
from audit.evidence import canaries, given
from audit.evidence.canaries import single
from audit.laws import cosine_law
from audit.report import audit_page, audit_panels, subjects

pytestmark = pytest.mark.usefixtures("powerful")

RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=(2, 60))
COINS = RNG.random((40, 8)) < 0.5
ROWS = [cosine_law.simulate(RNG, 16, 387, 0.3) for _ in range(4)]
RUN = cosine_law.simulate(RNG, 60, 2000, 0.3)

SINGLE = single(NORMAL[0] + 1, NORMAL[1])
EVIDENCE = {
    "single": SINGLE,
    "coins": canaries.make_coins(COINS + RNG.normal(size=COINS.shape), COINS),
    "in order": audit.cosines(ROWS, 387, in_order=True),
    "in any order": audit.cosines(ROWS, 387),
    "one run": given.paired_cosines(RUN, None, 2000),
}
EXPLAINED = {
    "single": {"Choose the number of runs", "test of the Gaussian curve", "in-sample"},
    "coins": {"Choose the number of runs"},
    "in order": set(),
    "in any order": {"Choose the number of runs"},
    "one run": {"An estimate assumes", "One run proves little"},
}
WORDS = (
    "Choose the number of runs",
    "test of the Gaussian curve",
    "in-sample",
    "upper bound means",
    "An estimate assumes",
    "One run proves little",
)


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(audit_panels, "audit_panels", lambda conclusion: {})


def describe(evidence, claim=None):
    return subjects.describe_arrays("mine", conclude(evidence, claim))


def explained(*audits):
    _, text = audit_page.report("A page", audits).decode().split("How to read this")
    assert "rounded down" in text
    return {word for word in WORDS if word in text}


@pytest.mark.parametrize("name", EVIDENCE)
def test_only_what_is_on_the_page_is_explained(name):
    assert explained(describe(EVIDENCE[name])) == EXPLAINED[name]


def test_an_upper_bound_is_explained_where_there_is_one():
    assert "upper bound means" in explained(describe(SINGLE, EpsilonDelta(3.0, 1e-5)))
