"""Tests that correct epsilons pass, and that wrong ones are reported with their cause."""

import numpy as np
import pytest
from scipy import stats

import audit
from audit.claims.accounting import Composition, participant_upper_bound
from audit.claims.brackets import compute_shuffled_epsilon
from tests.cases import flatten

DELTA = 1e-5
TRAINING = {"noise_multiplier": 1.1, "steps": 1000, "sampling_rate": 0.01}


def account(noise_multiplier, steps, sampling_rate):
    return participant_upper_bound(Composition(noise_multiplier, steps, sampling_rate), DELTA)


def test_a_claim_is_held_against_accounting():
    accounted = account(**TRAINING)
    passed = audit.check_accounting(accounted, DELTA, **TRAINING)
    assert passed.passed
    assert "(tolerance 0.2% plus 0.001)" in flatten(passed)


@pytest.mark.slow
def test_a_claim_that_is_too_low_has_a_finding_whose_advice_is_accepted():
    report = audit.check_accounting(0.95 * account(**TRAINING), DELTA, **TRAINING)
    assert report.findings[0].name == "a claim that is too low"
    advised = report.findings[0].fix.split()[1].rstrip(",")
    assert float(advised) >= report.figures["accounted"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stated", "steps", "rate", "cause"),
    [
        (0.01, 100, 0.01, "only one epoch is counted"),
        (0.01, 10, 0.01, "epochs are counted as steps"),
        (0.01, 1000, 0.01 / 4, "the rate is that of one of 4 workers, 0.0025"),
        (0.01, 4000, 0.01 / 4, "each of 4 parts of a batch is counted as a step, at rate 0.0025"),
        (0.064, 1000, 1 / 16, "the rate is 1 / len(loader) = 0.0625"),
    ],
)
def test_a_mistake_that_gives_the_claim_is_named(stated, steps, rate, cause):
    training = TRAINING | {"sampling_rate": stated}
    report = audit.check_accounting(account(1.1, steps, rate), DELTA, **training)
    assert cause in flatten(report)


@pytest.mark.slow
def test_causes_that_give_the_same_claim_are_all_named():
    """One epoch, and sigma counted with C = 2, give 0.550 and 0.552."""
    text = flatten(audit.check_accounting(0.551, DELTA, **TRAINING))
    assert "only one epoch is counted, or if sigma is computed with C = 2" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claimed", "sigma", "steps"),
    [(0.20942, 5, 100_000), (0.0273, 100, 1_000_000), (9.03, 0.29, 10)],
)
def test_a_right_claim_is_not_accused_by_a_grid_that_is_coarse_beside_losses(claimed, sigma, steps):
    """On a fine grid dp-accounting proves 0.2093, 0.02725 and 9.02; on its own grid it gives more."""
    training = {"noise_multiplier": sigma, "steps": steps, "sampling_rate": 0.001}
    assert audit.check_accounting(claimed, DELTA, **training).passed
    assert audit.check_accounting(0.95 * claimed, DELTA, **training).findings


@pytest.mark.slow
def test_the_largest_losses_have_a_grid():
    training = {"noise_multiplier": 0.05, "steps": 10**4, "sampling_rate": 0.5}
    report = audit.check_accounting(1e6, DELTA, **training)
    assert 5e5 < report.figures["accounted"] < 2e6 and not report.passed


@pytest.mark.parametrize(
    ("released", "result", "text"),
    [
        (0.06, "passed", "is 0.06 / n for 60,000 examples"),
        (0.6, "passed", "is 0.6 / n for 60,000 examples; 1e-06 or less is advised"),
        (
            1,
            "failed",
            "is 1 / n for 60,000 examples: publishing one whole example would satisfy it",
        ),
    ],
)
def test_delta_is_told_with_the_number_of_examples(released, result, text):
    given = {"noise_multiplier": 1, "steps": 10, "examples": 60_000}
    report = audit.check_accounting(1000, released / 60_000, **given)
    (check,) = [check for check in report.checks if check.name == "delta"]
    assert check.result == result and text in flatten(report)


@pytest.mark.parametrize(("sigma", "batches"), [(0.5, 1000), (1.0, 20)])
def test_shuffled_batches_leak_what_their_worst_pair_does(sigma, batches):
    epsilon = compute_shuffled_epsilon(sigma, batches, 1, DELTA)
    cuts = np.linspace(0, 12, 20_001)

    def compute_tail(shift):
        """Returns the probability that the largest of all batches' sums lies above each cut."""
        own = stats.norm.logcdf((cuts - shift) / sigma)
        others = (batches - 1) * stats.norm.logcdf(cuts / sigma)
        return -np.expm1(own + others)

    def compute_delta(value):
        return float(np.max(compute_tail(2.0) - np.exp(value) * compute_tail(1.0)))

    assert compute_delta(epsilon) >= DELTA
    assert compute_delta(epsilon + 0.05) < DELTA
    assert compute_shuffled_epsilon(sigma, batches, 2, DELTA) > epsilon


def test_a_report_says_where_it_comes_from(tmp_path):
    def draw(seed):
        return np.random.default_rng(seed).permutation(600).reshape(20, 30)

    report = audit.check_batches(draw, 600, 0.05)
    provenance = report.provenance
    assert {"date", "audit", "python", "numpy", "sampling_rate"} <= set(provenance)
    assert "draw in " in provenance["code"] and "test_accounting.py, line" in provenance["code"]
    text = report.page(tmp_path / "page.html").read_text()
    assert "Provenance" in text and provenance["date"] in text


@pytest.mark.slow
def test_a_mistake_with_noise_out_of_range_is_left_out():
    """The square of this noise multiplier is more than accounting takes."""
    report = audit.check_accounting(
        epsilon=0.001, delta=1e-5, noise_multiplier=6000.0, steps=10**6, sampling_rate=0.9
    )
    assert report.findings[0].name == "a claim that is too low"
