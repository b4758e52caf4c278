"""Tests of the worst-case game with a loader's own batches."""

import json

import numpy as np
import pytest

import audit
from audit.check import refutation
from audit.check.refutation import WorstCase
from tests.cases import mostly_slow

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
        pytest.param(shuffled, EXAMPLES, 1 / BATCHES, marks=pytest.mark.slow),
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


def opacus_poisson(seed):
    """Opacus's own Poisson loader."""
    torch = pytest.importorskip("torch")
    samplers = pytest.importorskip("opacus.utils.uniform_sampler")
    coins = torch.Generator().manual_seed(seed)
    sampler = samplers.UniformWithReplacementSampler(
        num_samples=EXAMPLES, sample_rate=1 / BATCHES, generator=coins, steps=BATCHES
    )
    return [np.array(batch, np.int64) for batch in sampler]


def opacus_without_poisson(seed):
    """The loader that Opacus's engine makes with poisson_sampling=False."""
    torch = pytest.importorskip("torch")
    opacus = pytest.importorskip("opacus")
    torch.manual_seed(seed)
    model = torch.nn.Linear(1, 1)
    indices = torch.utils.data.TensorDataset(torch.arange(EXAMPLES))
    *_, loader = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(indices, batch_size=3, shuffle=True),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    return [batch.numpy() for (batch,) in loader]


def torch_shuffled(seed):
    """torch's DataLoader with shuffle=True."""
    torch = pytest.importorskip("torch")
    coins = torch.Generator().manual_seed(seed)
    loader = torch.utils.data.DataLoader(
        audit.Indices(EXAMPLES), batch_size=3, shuffle=True, generator=coins
    )
    return [batch.numpy() for batch in loader]


def torch_distributed(seed):
    """The first of two ranks of torch's DistributedSampler."""
    torch = pytest.importorskip("torch")
    sampler = torch.utils.data.distributed.DistributedSampler(
        audit.Indices(2 * EXAMPLES), num_replicas=2, rank=0, shuffle=True
    )
    sampler.set_epoch(seed)
    order = np.array(list(sampler))
    return order.reshape(BATCHES, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "examples", "rate"),
    [
        (opacus_without_poisson, EXAMPLES, 1 / BATCHES),
        (torch_shuffled, EXAMPLES, 1 / BATCHES),
        (torch_distributed, 2 * EXAMPLES, 0.5 / BATCHES),
    ],
)
def test_loaders_in_use_refute_the_claim_of_poisson_sampling(draw, examples, rate):
    claim = audit.DpSgd(noise_multiplier=0.5, insertions=BATCHES, sampling_rate=rate)
    assert audit.refute_sampler(draw, examples, claim, passes=200).refuted


@pytest.mark.slow
@pytest.mark.parametrize("draw", [poisson, balls_in_bins, opacus_poisson])
def test_of_1000_audits_of_batches_by_coins_at_most_5_percent_refute(draw):
    refuted = 0
    for audit_seed in range(1000):
        result = audit.refute_sampler(
            lambda seed, first=audit_seed: draw(1000 * first + seed),
            EXAMPLES,
            SHORT,
            passes=12,
            seed=audit_seed,
        )
        refuted += result.refuted
    assert refuted <= 50


def test_training_shorter_than_a_pass_is_played_with_its_own_steps():
    """A pass of 100 batches refuted a right claim of two steps."""
    claim = audit.DpSgd(0.5, insertions=2, sampling_rate=0.01)

    def draw(seed):
        rng = np.random.default_rng(seed)
        return [np.flatnonzero(rng.random(1000) < 0.01) for _ in range(100)]

    result = audit.refute_sampler(draw, 1000, claim, passes=400)
    assert not result.refuted and result.e_value < 20


def test_a_pass_of_two_steps_that_takes_everyone_refutes_a_claim_of_sampling():
    claim = audit.DpSgd(0.5, insertions=2, sampling_rate=0.01)
    assert audit.refute_sampler(lambda seed: [np.arange(60)] * 9, 60, claim, passes=40).refuted


@pytest.mark.parametrize("insertions", [1, 10])
def test_a_pass_may_be_a_single_batch(insertions):
    claim = audit.DpSgd(2.0, insertions, 0.7)

    def draw(seed):
        return np.flatnonzero(np.random.default_rng(seed).random(EXAMPLES) < 0.7)

    assert not audit.refute_sampler(draw, EXAMPLES, claim, passes=40).refuted


# (sigma, batches of an epoch, epochs, passes of the method's note).
NOTED = [(0.5, 1000, 1, 5), (0.8, 100, 3, 11), (1.0, 100, 10, 11), (1.0, 100, 30, 4)]


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "batches", "epochs", "noted"), NOTED)
def test_few_passes_of_shuffled_batches_are_enough(sigma, batches, epochs, noted):
    claim = audit.DpSgd(sigma, batches * epochs, 1 / batches)

    def draw(seed):
        order = np.random.default_rng(seed).permutation(2 * batches)
        return order.reshape(batches, 2)

    passes = []
    for audit_seed in range(20):
        result = audit.refute_sampler(
            lambda seed, first=audit_seed: draw(10_000 * first + seed),
            2 * batches,
            claim,
            seed=audit_seed,
        )
        assert result.refuted
        passes.append(result.passes)
    assert np.median(passes) <= 2 * noted


def test_batches_that_come_one_by_one_make_passes():
    one_by_one = [batch for seed in range(200) for batch in shuffled(seed)]
    result = audit.refute_sampler(lambda seed: one_by_one[seed], EXAMPLES, SHORT, passes=100)
    assert result.refuted and result.epochs == 1


@pytest.mark.parametrize("once", mostly_slow([False, True]))
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


def draw_laplace(rng):
    """Noise with Laplace's tails, of deviation 0.5 a coordinate."""
    return rng.laplace(scale=0.5 / np.sqrt(2), size=300)


def draw_of_random_scale(rng):
    """Noise along a line and of a random scale, of which no coordinate is normal."""
    line = np.linspace(-1, 1, 50)
    return rng.standard_cauchy() * line + 0.3 * rng.standard_normal(50)


def test_noise_of_any_law_can_be_refuted():
    result = audit.refute_sampler(shuffled, EXAMPLES, SHORT, passes=200, noise=draw_laplace)
    assert result.refuted


@pytest.mark.parametrize("noise", [draw_laplace, draw_of_random_scale])
@pytest.mark.parametrize("in_target", [0.0, 1.0])
def test_rates_without_the_target_hold_for_any_noise(noise, in_target):
    rng = np.random.default_rng(3)
    rates = []
    for _ in range(1500):
        vectors = np.array([noise(rng) for _ in range(6)])
        direction = rng.standard_normal(vectors.shape[1])
        sums = (vectors @ (direction / np.linalg.norm(direction))).reshape(2, 3)
        sums[:, 0] += in_target
        lengths = np.linalg.norm(vectors, axis=1).reshape(2, 3)
        rates.append(
            refutation._bound_rate_of_lengths(
                float(sums.max()), lengths, vectors.shape[1], in_target
            )
        )
    for level in (0.3, 0.1, 0.02):
        spread = 4 * np.sqrt(level * (1 - level) / len(rates))
        assert np.mean(np.array(rates) <= level) <= level + spread
        assert in_target or np.mean(np.array(rates) <= level) > level / 2


def test_a_sum_below_the_target_is_not_rare_where_noise_is_short():
    # The batch with hardly any noise may be the one whose sum is 1: it surely exceeds 0.9.
    lengths = np.array([[1e-12, 1.0]])
    assert refutation._bound_rate_of_lengths(0.9, lengths, 2, 1.0) >= 1
    assert refutation._bound_rate_of_lengths(1.5, lengths, 2, 1.0) < 0.5


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
        ({"claim": audit.DpSgd(0.5, 0, 0.01)}, "at least 1 insertion"),
        ({"claim": audit.DpSgd(0.5, 10, 1e-310)}, "`sampling_rate=1e-310`: give at least 1e-09"),
        ({"passes": 0}, "`passes=0`"),
        ({"confidence": 1.0}, "confidence"),
        ({"noise": 1.0}, "`noise=1.0`"),
        ({"noise": lambda rng: 1.0}, "`noise` gave no vector"),
        ({"noise": lambda rng: [np.nan, 1.0]}, "`noise` gave no vector"),
        ({"noise": lambda rng: 1 // 0}, "`noise` failed"),
        ({"noise": lambda rng: np.ones(rng.integers(2, 9))}, "several lengths"),
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
