"""Tests the level and tightness of bounds from many canaries per run."""

import numpy as np
import pytest
from scipy import special

from audit.evidence.canaries import Coins, Counted, RunErrors, Sets
from audit.laws import conversions
from audit.methods import betting, exact, lifted
from audit.methods.lifted import LIFTED, LIFTED_GAUSSIAN, METHODS
from tests.cases import mostly_slow

DELTA, CONFIDENCE = 1e-5, 0.95
FINITE = [name for name, method in METHODS.items() if "wilson" not in name]


def normal_coins(mu, runs, canaries, seed=0, common=0.0):
    """Coins of a Gaussian mechanism; a share of the noise's variance is common to a run."""
    rng = np.random.default_rng(seed)
    present, noise = rng.random((runs, canaries)) < 0.5, rng.normal(size=(runs, canaries))
    shift = np.sqrt(common) * rng.normal(size=(runs, 1))
    return Coins(mu * present + np.sqrt(1 - common) * noise + shift, present)


def normal_sets(mu, runs, canaries, seed=0):
    rng = np.random.default_rng(seed)
    return Sets(rng.normal(mu, 1, (runs, canaries)), rng.normal(0, 1, (runs, canaries)))


DESIGNS = {"coins": normal_coins, "sets": normal_sets}
design_of = pytest.mark.parametrize("draw", DESIGNS.values(), ids=DESIGNS)


def found(name, design):
    return METHODS[name].bound(design, DELTA, CONFIDENCE)


@design_of
@pytest.mark.parametrize(("mu", "least"), mostly_slow([(1.768, 1.5), (1.0, 0.8), (3.953, 3.2)]))
def test_the_bound_on_mu_is_below_the_truth_and_near_it(draw, mu, least):
    bounds = [found(LIFTED_GAUSSIAN, draw(mu, 250, 32, seed)) for seed in range(3)]
    assert all(least <= bound.mu <= mu for bound in bounds)
    assert all(bound.epsilon == conversions.epsilon_from_mu(bound.mu, DELTA) for bound in bounds)


@design_of
def test_nothing_is_proven_where_nothing_leaks_and_more_where_there_is_more(draw):
    design = draw(0.0, 100, 16)
    assert max(found(name, design).epsilon for name in METHODS) < 0.2
    assert found(LIFTED, draw(-2.0, 100, 16)).epsilon == 0
    sizes = ((50, 4), (50, 64), (200, 64))
    proven = [
        np.mean([found(LIFTED_GAUSSIAN, draw(1.768, *size, seed)).mu for seed in range(3)])
        for size in sizes
    ]
    assert proven[0] < proven[1] < proven[2]


def test_sets_of_runs_assume_that_runs_out_hold_the_other_canaries():
    """Only where runs in hold several, and where no coins decide."""

    def find_words(design):
        return {bound.method: bound.assumes.text for bound in lifted.bounds(design, 1e-5, 0.95)}

    words = find_words(normal_sets(1.0, 100, 4))
    assert (
        words["lifted"]
        == words["lidp_bernstein_4"]
        == "runs without a canary contain the other K - 1 canaries"
    )
    assert find_words(normal_coins(1.0, 100, 4))["lifted"] == "nothing"
    single = Sets(*normal_sets(1.0, 100, 1))
    assert find_words(single)["lifted"] == "nothing"


def randomised_response(epsilon, delta, shape, rng):
    """Scores whose rates at any threshold lie on the curve of (epsilon, delta)-DP, inserted and not."""
    truthful = np.exp(epsilon) / (1 + np.exp(epsilon))
    flags, told = rng.random(shape) < delta, rng.random(shape) < truthful
    return np.where(flags, 2.0, told), np.where(flags, -1.0, ~told)


def tied(matrix, equal):
    return np.repeat(matrix[:, :1], matrix.shape[1], 1) if equal else matrix


@pytest.mark.slow
@pytest.mark.parametrize("coins", [True, False], ids=["coins", "sets"])
@pytest.mark.parametrize("equal", [True, False], ids=["equal", "independent"])
def test_a_mechanism_at_the_claimed_level_is_not_rejected_too_often(coins, equal, assert_covers):
    delta, epsilon, methods = 0.02, 1.0, [name for name in FINITE if name != LIFTED_GAUSSIAN]

    def exceeding(seed):
        rng = np.random.default_rng(seed)
        into, out = (tied(one, equal) for one in randomised_response(epsilon, delta, (60, 8), rng))
        present = rng.random((60, 8)) < 0.5
        other = tied(randomised_response(epsilon, delta, (60, 8), rng)[1], equal)
        design = Coins(np.where(present, into, out), present) if coins else Sets(into, other)
        return [METHODS[name].bound(design, delta, 0.9).epsilon > epsilon for name in methods]

    def draw(first, audits):
        return dict(
            zip(methods, np.sum([exceeding(first + i) for i in range(audits)], 0), strict=True)
        )

    assert_covers(draw, 150, 0.1, 1e-4)


def lower(counted, family=exact.GAUSSIAN):
    return betting.lower_bound(family, counted, 0.05)


@design_of
def test_pilot_runs_are_never_counted(draw):
    design = draw(1.768, 80, 8)
    pilot, rest = design.split()
    counted = lifted.count(design, exact.GAUSSIAN, 0.05)
    assert np.array_equal(counted.rest.misses, rest.errors(counted.threshold).misses)
    assert np.array_equal(counted.pilot.misses, pilot.errors(counted.threshold).misses)
    bound = found(LIFTED_GAUSSIAN, design)
    assert bound.n_in == sum(map(len, rest.pooled())) / 2


def test_the_threshold_follows_counts_that_no_normal_distribution_gives():
    rng = np.random.default_rng(0)
    shape = 100, 32
    design = Sets(rng.normal(size=shape) + 6 * (rng.random(shape) < 0.3), rng.normal(size=shape))
    assert found(LIFTED, design).threshold > 1.5 and found(LIFTED, design).epsilon > 1


@design_of
@pytest.mark.parametrize("worst", mostly_slow([1.0, 0.0]))
def test_an_adverse_pilot_makes_no_bound_exceed_the_truth(draw, worst):
    """Bets are chosen on the pilot, whatever it says; only what they win is at stake."""
    for seed in range(3):
        counted = lifted.count(draw(1.0, 60, 8, seed), exact.GAUSSIAN, 0.05)
        wrong = {"misses": np.full_like(counted.pilot.misses, 4 * worst, float)}
        wrong["alarms"] = np.full_like(counted.pilot.alarms, 4 * (1 - worst), float)
        assert lower(counted._replace(pilot=counted.pilot._replace(**wrong))) <= 1.0


FAMILIES = {"Gaussian": exact.GAUSSIAN, "any": exact.approximate_dp(DELTA)}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_corners_of_cells_are_just_below_the_curve(family):
    levels = betting._LEVELS
    for parameter in (0.0, 0.3, 0.8, 1.5):
        corners = betting._find_lowest_fnrs(family, parameter, levels)
        on_curve = family.trade_off(parameter, levels[1:])
        assert (levels[corners] <= np.maximum(on_curve, 0)).all()
        assert (levels[np.minimum(corners + 1, len(levels) - 1)] >= on_curve).all()


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_least_capital_of_coins_at_corners_is_not_above_that_on_the_curve(family):
    counted = lifted.count(normal_coins(1.0, 60, 8), family, 0.05)
    on_corners = betting._bet_on_weighted_rates(family, counted, np.log(20))
    parts, stakes = betting._choose_weighted_bets(family, counted, np.log(20))
    rates = special.ndtr(np.linspace(-6, 6, 4001))
    for parameter in (0.0, 0.3, 0.8, 1.5):
        growth = []
        for part, stake in zip(parts, stakes, strict=True):
            means = part * family.trade_off(parameter, rates) + (1 - part) * rates
            stakes_of_bet = np.array([stake])
            growth.append(
                betting._compute_weighted_growth(counted.rest, part, means, stakes_of_bet)
            )
        on_curve = betting.mix_bets(np.concatenate(growth), betting.STARTING_CAPITAL)
        assert on_corners(parameter) <= on_curve.min() + 1e-9


SEPARATED = Coins(np.tile([[0.0, 1.0]], (20, 1)), np.tile([[False, True]], (20, 1)))


@pytest.mark.parametrize(
    "design",
    [SEPARATED, Coins(SEPARATED.scores * 0 + 1, SEPARATED.presence), normal_coins(1.0, 8, 1)],
)
def test_pilots_without_a_spread_or_a_world_are_no_trouble(design):
    assert all(bound.epsilon >= 0 for bound in lifted.bounds(design, DELTA, CONFIDENCE))


def test_separation_is_seen_and_what_cannot_be_used_said():
    assert found(LIFTED, SEPARATED).epsilon > 0.3 and found(LIFTED, SEPARATED).false_negatives == 0
    # 20 runs without an error: no test rules out that a share of log(20) / 20 of runs is all errors.
    errors = RunErrors(np.zeros(20), np.zeros(20), 1000, 1000, 1.0, 1.0, False)
    bound = lower(Counted(0.0, errors, errors), exact.approximate_dp(0.0))
    best = float(conversions.epsilon_from_rates(np.log(20) / 40, np.log(20) / 40, 0.0))
    assert 0.5 * best < bound < np.log(20 / np.log(20)) + 0.5


def biased(share, seed, runs=200, mu=0.0):
    rng = np.random.default_rng([seed, 1])
    present = rng.random((runs, 8)) < share
    return Coins(mu * present + rng.normal(size=present.shape), present, from_user=True)


@pytest.mark.slow
def test_coins_of_a_caller_may_be_of_any_common_probability():
    """All canaries are guessed in: 2 P(out) is below 1 where most coins are in, and nothing leaks."""
    proven = {True: 0, False: 0}
    for seed in range(10):
        design = biased(0.56, seed)
        pilot, rest = (part.errors(-10.0) for part in design.split())
        for given in proven:
            errors, _ = design._replace(from_user=given).widen(rest, 0.05)
            for family in FAMILIES.values():
                proven[given] += (
                    betting.lower_bound(family, Counted(-10.0, pilot, errors), 0.05) > 0
                )
    assert proven[True] == 0 and proven[False] >= 5
    assert all(bound.confidence == CONFIDENCE for bound in lifted.bounds(design, DELTA, CONFIDENCE))


def test_limits_of_a_callers_coins_are_exact_and_take_a_tenth_of_the_error():
    design = biased(0.5, 0)
    errors = design.errors(0.0)
    widened, error = design.widen(errors, 0.05)
    total, coins = int(design.presence.sum()), design.presence.size
    assert special.bdtrc(total - 1, coins, 1 / widened.scale_in) == pytest.approx(0.0025)
    assert special.bdtr(total, coins, 1 - 1 / widened.scale_out) == pytest.approx(0.0025)
    assert error == pytest.approx(0.045)
    assert errors == widened._replace(scale_in=2.0, scale_out=2.0)
    for own in (design._replace(from_user=False), normal_sets(1.0, 9, 2)):
        assert own.widen(errors, 0.05) == (errors, 0.05)
