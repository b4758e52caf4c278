"""Tests of the worst-case game with a loader's own batches."""

import json

import numpy as np
import pytest

import audit
from audit.check import refutation
from audit.check.refutation import WorstCase

BATCHES = 20
EXAMPLES = 60
SHORT = audit.DpSgd(noise_multiplier=0.5, insertions=BATCHES, sampling_rate=1 / BATCHES)


def shuffled(seed):
    """A permutation a pass."""
    return np.random.default_rng(seed).permutation(EXAMPLES).reshape(BATCHES, -1)


def shuffled_in_a_buffer(seed):
    """Each next example is drawn from a buffer of the next ten."""
    rng = np.random.default_rng(seed)
    buffer = list(range(10))
    coming = list(range(10, EXAMPLES))
    order = []
    while buffer:
        order.append(buffer.pop(rng.integers(len(buffer))))
        if coming:
            buffer.append(coming.pop(0))
    return np.array(order).reshape(BATCHES, -1)


def shuffled_once(seed):
    """The same batches in every pass."""
    return shuffled(0)


def without_the_last(seed):
    """A smaller last batch is dropped: 61 examples make 20 batches of 3."""
    return np.random.default_rng(seed).permutation(EXAMPLES + 1)[:-1].reshape(BATCHES, -1)


def of_one_rank(seed):
    """Every second batch, as the first of two ranks sees them."""
    return np.random.default_rng(seed).permutation(2 * EXAMPLES).reshape(-1, 3)[::2]


def poisson(seed):
    """A coin for every example and batch."""
    rng = np.random.default_rng(seed)
    return [np.flatnonzero(rng.random(EXAMPLES) < 1 / BATCHES) for _ in range(BATCHES)]


def balls_in_bins(seed):
    """Every example in one batch of a pass, by a die of its own."""
    places = np.random.default_rng(seed).integers(0, BATCHES, EXAMPLES)
    return [np.flatnonzero(places == step) for step in range(BATCHES)]


@pytest.mark.parametrize(
    ("draw", "examples", "rate"),
    [
        (shuffled, EXAMPLES, 1 / BATCHES),
        pytest.param(shuffled_in_a_buffer, EXAMPLES, 1 / BATCHES, marks=pytest.mark.slow),
        pytest.param(shuffled_once, EXAMPLES, 1 / BATCHES, marks=pytest.mark.slow),
        pytest.param(without_the_last, EXAMPLES + 1, 1 / BATCHES, marks=pytest.mark.slow),
        pytest.param(of_one_rank, 2 * EXAMPLES, 0.5 / BATCHES, marks=pytest.mark.slow),
    ],
)
def test_shuffled_batches_refute_the_claim_of_poisson_sampling(draw, examples, rate):
    claim = audit.DpSgd(noise_multiplier=0.5, insertions=BATCHES, sampling_rate=rate)
    result = audit.refute_sampler(draw, examples, claim, passes=200)
    assert result.refuted and result.e_value >= 20 and result.passes < 200
    assert result.verdict.startswith("REFUTED") and refutation.WORST_CASE in str(result).replace(
        "\n  ", " "
    )
    assert json.loads(result.to_json())["passes"] == result.passes


@pytest.mark.slow
@pytest.mark.parametrize("draw", [poisson, balls_in_bins])
def test_batches_by_coins_seldom_refute(draw):
    refuted = 0
    for audit_seed in range(30):
        result = audit.refute_sampler(
            lambda seed, first=audit_seed: draw(1000 * first + seed),
            EXAMPLES,
            SHORT,
            passes=12,
            seed=audit_seed,
        )
        refuted += result.refuted
    assert refuted <= 4  # 1.5 at most are expected


def test_batches_that_come_one_by_one_make_passes():
    one_by_one = [batch for seed in range(200) for batch in shuffled(seed)]
    result = audit.refute_sampler(lambda seed: one_by_one[seed], EXAMPLES, SHORT, passes=100)
    assert result.refuted and result.epochs == 1


@pytest.mark.parametrize("once", [True, False])
def test_limits_of_rates_lie_above_simulated_ones_and_near_them(once):
    game = WorstCase(noise_multiplier=1.0, batches=10, epochs=2, once=once)
    tests = refutation._choose_tests(game, audit.DpSgd(1.0, 20, 0.1))
    rng = np.random.default_rng(1)
    sums = rng.standard_normal((200_000, 2, 10))
    if once:
        sums += np.arange(10) == rng.integers(0, 10, (200_000, 2))[..., None]
    ratios = refutation._compute_ratios(sums, game)
    largest = sums.max(axis=(1, 2))
    for by_largest, threshold, log_rate in zip(*tests, strict=True):
        rate = np.mean((largest if by_largest else ratios) > threshold)
        spread = 4 * np.sqrt(rate / len(sums)) + 1e-4
        assert rate - spread <= np.exp(log_rate)
        assert by_largest or np.exp(log_rate) <= 1.3 * rate + spread


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"draw": 3}, "`draw=3`"),
        ({"draw": lambda seed: []}, "gave no batch"),
        ({"draw": lambda seed: [[0.5]]}, "gave no batches of indices"),
        ({"draw": lambda seed: [[EXAMPLES], [0]]}, "outside the data set"),
        ({"draw": lambda seed: 1 // 0}, "`draw` failed with seed 0"),
        ({"examples": 1}, "`examples=1`"),
        ({"claim": audit.Gdp(1.0)}, "`claim="),
        ({"claim": audit.DpSgd(1.0, 20)}, "`claim="),
        ({"passes": 0}, "`passes=0`"),
        ({"confidence": 1.0}, "confidence"),
    ],
)
def test_a_wrong_argument_is_named(given, message):
    arguments = {"draw": shuffled, "examples": EXAMPLES, "claim": SHORT, **given}
    draw = arguments.pop("draw")
    examples = arguments.pop("examples")
    claim = arguments.pop("claim")
    with pytest.raises(audit.InputError) as raised:
        audit.refute_sampler(draw, examples, claim, **arguments)
    assert message in str(raised.value) and "\n" not in str(raised.value)
