"""The laws with an exact truth for the calibration of methods, by their evidence.

ONE_CANARY: independent scores in and out, from a law of `known_laws` with the parameter mu.

COINS and SETS: runs of K canaries with scores signal * mu * presence + noise, from one law for all canaries,
dependent within a run. The truth is the supremum over thresholds of the parameter for the average error
rates, the smallest compatible value, which a bound may reach.

    independent    independent noise for every canary
    shifted        half of the noise's variance is common to the canaries of a run
    equal          the same noise for all canaries of a run
    failing        3 / n of n runs do not insert canaries, which is hard to see in n runs

ONE_RUN: one run of K canaries. All laws except `leaking` are Gaussian mechanisms with the truth mu, for any
dependence between canaries.

    independent    orthogonal canaries with coins
    overlapping    canaries with coins and inner products of 1/2: scores share noise and signals
    failing        half of the runs do not insert canaries
    leaking        a score guesses each coin with the odds e^mu, and with probability delta it reveals the
                   coins of many canaries at once: a tight case of (mu, delta)-DP
    cosines        uniform canaries that are all inserted (`cosine_law.simulate`)

DIRECTIONS: the cosines of R runs with K inserted canaries in R^d, with the exact law in the world without.

    gaussian     a Gaussian mechanism of mu, leave-one-out scores
    equal        the same, with one cosine for all canaries of a run
    failing      the same as `gaussian`, but half of the runs do not insert canaries
    laplace      mu is epsilon: Laplace noise along the direction
    bound        mu is epsilon: at every t, P_in(cosine > t) = min(e^epsilon a(t) + delta, 1), the most that
                 (epsilon, delta)-DP allows; at mu = 0 it reveals everything with probability delta
    bound equal  the same, with one cosine for all canaries of a run
"""

import math
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import special

from audit.calibration.calibration import (
    GAUSSIAN_CURVE,
    INDEPENDENT,
    KnownMechanism,
    Law,
    Truth,
    Value,
)
from audit.evidence.canaries import Coins, Design, Fresh, Sets, make_sets
from audit.evidence.one_run import Cosines
from audit.laws import conversions, cosine_law, known_laws
from audit.laws.known_laws import KnownLaw
from audit.methods import estimate, exact_null, lifted, one_run_bounds, one_shot
from audit.methods.estimate import Finding

Array = NDArray[np.float64]
Generator = np.random.Generator
_REACH = 5.0  # standard deviations of thresholds beyond the means of both worlds, at least
_DIMENSIONS = 100  # dimensions of `cosines` for each canary
_REVEALED = 3.0  # `leaking` reveals this times sqrt(K) coins at once
_NOTHING: frozenset[str] = frozenset()
_TIED = frozenset([INDEPENDENT])
_CURVED = frozenset([GAUSSIAN_CURVE])


def _values(findings: Iterable[Finding]) -> list[Value]:
    """Returns bounds and estimates as values to calibrate."""
    values = []
    for finding in findings:
        mu = math.nan if finding.mu is None else finding.mu
        values.append(Value(finding.method, finding.epsilon, mu))
    return values


def gaussian_truth(setting: KnownMechanism) -> Truth:
    """Returns the truth of a Gaussian mechanism of the setting's mu."""
    return Truth(conversions.epsilon_from_mu(setting.mu, setting.delta))


def _mu_is_epsilon(setting: KnownMechanism) -> Truth:
    """Returns the truth of a law with the setting's mu as epsilon."""
    return Truth(setting.mu)


# One canary per run.


def _draw_scores(law: known_laws.ScoreFamily, rng: Generator, setting: KnownMechanism) -> Sets:
    """Draws the scores of an audit with one canary per run, half of the runs in each world."""
    return make_sets(*KnownLaw(law, setting.mu).scores(rng, setting.runs // 2))


def score_truth(law: known_laws.ScoreFamily, setting: KnownMechanism) -> Truth:
    """Returns the true epsilon of independent scores of a family at the parameter mu, at delta."""
    return Truth(KnownLaw(law, setting.mu).epsilon(setting.delta))


def _audit_scores(design: Sets, setting: KnownMechanism) -> list[Value]:
    """Returns the values of all methods for one canary per run."""
    return _values(estimate.findings(*design.pooled(), setting.delta, setting.confidence))


def _audit_several(design: Design, setting: KnownMechanism) -> list[Value]:
    """Returns the values of all methods for several canaries per run."""
    return _values(lifted.bounds(design, setting.delta, setting.confidence))


# Several canaries per run. A score is mu * signal + noise. The signal is 1 if its canary is inserted and the
# run works, otherwise 0.


def _find_failing(failing_runs: float, setting: KnownMechanism) -> float:
    """Returns the probability that a run fails, from the mean number of failing runs."""
    return min(failing_runs / setting.runs, 1.0)


def _draw_signal(failing_runs: float, rng: Generator, setting: KnownMechanism) -> Array:
    """Draws the signal (n, 1) of canaries that are in, mu or 0."""
    works = np.ones((setting.runs, 1))
    failing = _find_failing(failing_runs, setting)
    if failing:
        works = (rng.random(works.shape) >= failing).astype(np.float64)
    return setting.mu * works


def _draw_noise(common: float, rng: Generator, setting: KnownMechanism) -> Array:
    """Draws noise (n, K) of variance 1, with a share `common` for all canaries of a run."""
    noise = np.zeros((setting.runs, setting.canaries))
    if common < 1:
        independent = rng.standard_normal(noise.shape)
        noise += math.sqrt(1 - common) * independent
    if common > 0:
        shared = rng.standard_normal((setting.runs, 1))
        noise += math.sqrt(common) * shared
    return noise


def _draw_coins(
    common: float, failing_runs: float, rng: Generator, setting: KnownMechanism
) -> Coins:
    """Draws runs with canaries that are inserted by coins."""
    present = _draw_bits(rng, setting)
    signal = _draw_signal(failing_runs, rng, setting)
    return Coins(signal * present + _draw_noise(common, rng, setting), present)


def _draw_sets(common: float, failing_runs: float, rng: Generator, setting: KnownMechanism) -> Sets:
    """Draws a set of runs with canaries, and a set without."""
    signal = _draw_signal(failing_runs, rng, setting)
    noise_in = _draw_noise(common, rng, setting)
    _draw_signal(failing_runs, rng, setting)  # advances the generator for the runs without canaries
    return Sets(signal + noise_in, _draw_noise(common, rng, setting))


def _find_tied_truth(failing_runs: float, setting: KnownMechanism) -> Truth:
    """Returns the largest epsilon and the largest mu that the error rates of any threshold show.

    Scores are N(mu, 1) for inserted canaries in runs that work, otherwise N(0, 1).
    """
    failing = _find_failing(failing_runs, setting)
    # From below N(0, 1) to above N(mu, 1). The probability beyond these thresholds is below delta in both
    # worlds.
    reach = max(_REACH, -special.ndtri(setting.delta))
    thresholds = np.linspace(-reach, setting.mu + reach, 20_001)
    misses_of_working = special.ndtr(thresholds - setting.mu)
    misses = (1 - failing) * misses_of_working + failing * special.ndtr(thresholds)
    rates = (special.ndtr(-thresholds), misses)
    epsilons = conversions.epsilon_from_rates(*rates, setting.delta)
    mus = conversions.mu_from_rates(*rates)
    return Truth(max(float(epsilons.max()), 0.0), max(float(mus.max()), 0.0))


# One run.


def _audit_coins(coins: Coins, setting: KnownMechanism) -> list[Value]:
    """Returns the values of methods for a single run's coins, without those that assume a wrong curve."""
    bounds = one_run_bounds.bound_by_guesses(coins, setting.delta, setting.confidence)
    if GAUSSIAN_CURVE in setting.law.breaks:
        bounds = [bound for bound in bounds if not bound.assumes.gaussian]
    return _values(bounds)


def _audit_cosines(cosines: Cosines, setting: KnownMechanism) -> list[Value]:
    """Returns the bounds from a single run's cosines, and the one-shot paper's eps_lo by Jeffreys' limits."""
    name = one_shot.ONE_SHOT_JEFFREYS
    error = 1 - setting.confidence
    jeffreys = one_shot.in_sample(cosines, setting.delta, error, one_shot.LIMITS[name])
    bound = one_run_bounds.bound_uniform_canaries(cosines, setting.delta, setting.confidence)
    return [*_values([bound]), Value(name, jeffreys)]


def _draw_bits(rng: Generator, setting: KnownMechanism) -> NDArray[np.bool_]:
    """Draws fair coins (R, K), a coin for each canary of each run."""
    return rng.random((setting.runs, setting.canaries)) < 0.5


def _draw_orthogonal(can_fail: bool, rng: Generator, setting: KnownMechanism) -> Coins:
    """Draws the scores (R, K) of orthogonal canaries: N(mu, 1) if inserted, otherwise N(0, 1)."""
    bits = _draw_bits(rng, setting)
    are_inserted = bits
    if can_fail:
        works = rng.random((setting.runs, 1)) < 0.5
        are_inserted = bits & works
    noise = rng.standard_normal(bits.shape)
    return Coins(setting.mu * are_inserted + noise, bits)


def _draw_overlapping(rng: Generator, setting: KnownMechanism) -> Coins:
    """Draws the scores of a single run's canaries along (e_0 + e_i) / sqrt(2), with inner products of 1/2.

    The release is mu times the sum of the inserted canaries, plus standard normal noise. A score is its inner
    product with the canary.
    """
    bits = _draw_bits(rng, setting)
    common = np.sqrt(0.5) * setting.mu * bits.sum() + rng.standard_normal()
    own = np.sqrt(0.5) * setting.mu * bits + rng.standard_normal(bits.shape)
    return Coins(np.sqrt(0.5) * (common + own), bits)


def _draw_leaking(rng: Generator, setting: KnownMechanism) -> Coins:
    """Draws scores that guess each coin with odds e^mu, and that rarely reveal many coins at once.

    A positive score guesses an insertion. About 3 sqrt(K) coins are revealed at once, by 2 or -2, which at mu
    = 0 raises the number of right guesses by three standard deviations.
    """
    canaries = setting.canaries
    bits = _draw_bits(rng, setting)
    is_right = rng.random(bits.shape) < special.expit(setting.mu)
    # All scores differ.
    scores = np.where(bits == is_right, 1.0, -1.0) + 0.1 * rng.random(bits.shape)
    revealed = min(round(_REVEALED * np.sqrt(canaries)), canaries)
    if rng.random() < setting.delta * canaries / revealed:
        places = rng.permutation(canaries)[:revealed]
        scores[0, places] = np.where(bits[0, places], 2.0, -2.0)
    return Coins(scores, bits)


def _draw_cosines(rng: Generator, setting: KnownMechanism) -> Cosines:
    """Draws the cosines of a single run's uniformly random, inserted canaries with their noisy sum."""
    dimension = _DIMENSIONS * setting.canaries
    sigma = 1 / max(setting.mu, 1e-6)  # finite for mu = 0
    observed = cosine_law.simulate(rng, setting.canaries, dimension, sigma)
    unobserved = np.empty(0)
    return Cosines(observed, unobserved, dimension)


# Directions, all inserted.


def _audit_directions(design: Fresh, setting: KnownMechanism) -> list[Value]:
    """Returns the values of methods for fresh directions, after each of the setting's numbers of runs.

    The method that bounds mu is left out for laws without a mu.
    """
    has_gdp = setting.law.truth is gaussian_truth
    values = []
    for method in exact_null.METHODS.values():
        if method.name == exact_null.EXACT_NULL_GDP and not has_gdp:
            continue
        bound = method.compute(design, setting.delta, setting.confidence)
        for runs in setting.stops or (setting.runs,):
            value = Value(method.name, bound.epsilon, runs=runs)
            if bound.path:
                value = value._replace(epsilon=bound.path[runs - 1])
            values.append(value)
    return values


def _draw_gaussian(fails: bool, rng: Generator, setting: KnownMechanism) -> Array:
    """Draws leave-one-out cosines (R, K) of directions with the release of a Gaussian mechanism of mu.

    The part of direction v_j orthogonal to the K - 1 others has a squared length with the law Beta((d - K +
    1) / 2, (K - 1) / 2). In the d - K + 1 dimensions orthogonal to the others, the release u_j is mu times
    that part, plus standard normal noise. The cosine is that of v_j and u_j.
    """
    shape = (setting.runs, setting.canaries)
    free = setting.dimension - setting.canaries
    signal = np.full((setting.runs, 1), setting.mu)
    if fails:
        signal *= rng.random(signal.shape) < 0.5
    outside = np.ones(shape)  # squared lengths of v_j's parts orthogonal to the others
    if setting.canaries > 1:
        outside = rng.beta((free + 1) / 2, (setting.canaries - 1) / 2, shape)
    along = signal * np.sqrt(outside) + rng.standard_normal(shape)
    length = np.sqrt(along**2 + rng.chisquare(free, shape))
    return np.asarray(np.sqrt(outside) * along / length)


def _draw_laplace(rng: Generator, setting: KnownMechanism) -> Array:
    """Draws cosines (R, K) of inserted canaries: a shift of epsilon = mu hidden by Laplace noise."""
    along = setting.mu + rng.laplace(size=(setting.runs, setting.canaries))
    return -cosine_law.quantile(scipy.stats.laplace.sf(along), setting.dimension)


def _draw_on_bound(rng: Generator, setting: KnownMechanism) -> Array:
    """Draws the largest cosines (R, K) of inserted canaries under (epsilon, delta)-DP with epsilon = mu."""
    uniform = rng.random((setting.runs, setting.canaries))
    tail = np.maximum(uniform - setting.delta, 0) * np.exp(-setting.mu)  # a(cosine)
    return -cosine_law.quantile(tail, setting.dimension)


def _draw_directions(
    draw_cosines: Callable[[Generator, KnownMechanism], Array],
    are_equal: bool,
    rng: Generator,
    setting: KnownMechanism,
) -> Fresh:
    """Draws cosines (R, K) of inserted directions; if equal, all cosines of a run are its first."""
    cosines = draw_cosines(rng, setting)
    if are_equal:
        cosines = np.repeat(cosines[:, :1], setting.canaries, 1)
    return Fresh(cosines, np.ones(cosines.shape, bool), setting.dimension)


def _name(*laws: Law) -> dict[str, Law]:
    """Returns laws by their names."""
    return {law.name: law for law in laws}


def _make_score_law(law: known_laws.ScoreFamily) -> Law:
    """Returns the calibration law of a family of scores. Only normal scores have a Gaussian curve."""
    breaks = _CURVED
    if law is known_laws.GAUSSIAN:
        breaks = _NOTHING
    draw_scores = partial(_draw_scores, law)
    return Law(law.name, draw_scores, partial(score_truth, law), _audit_scores, breaks)


def _tie(draw: Callable[..., Design]) -> dict[str, Law]:
    """Returns the laws of runs of several canaries, by their dependence."""

    def make(name: str, common: float, failing_runs: float, breaks: frozenset[str]) -> Law:
        return Law(
            name,
            partial(draw, common, failing_runs),
            partial(_find_tied_truth, failing_runs),
            _audit_several,
            breaks,
        )

    return _name(
        make("independent", 0.0, 0.0, _NOTHING),
        make("shifted", 0.5, 0.0, _TIED),
        make("equal", 1.0, 0.0, _TIED),
        make("failing", 0.0, 3.0, _TIED | _CURVED),
    )


def _of_directions(
    name: str,
    draw_cosines: Callable[[Generator, KnownMechanism], Array],
    breaks: frozenset[str],
    truth: Callable[[KnownMechanism], Truth] = gaussian_truth,
    are_equal: bool = False,
) -> Law:
    """Returns a law of inserted directions."""
    draw = partial(_draw_directions, draw_cosines, are_equal)
    return Law(name, draw, truth, _audit_directions, breaks)


ONE_CANARY = _name(*map(_make_score_law, known_laws.LAWS.values()))
GAUSSIAN = ONE_CANARY[known_laws.GAUSSIAN.name]
COINS = _tie(_draw_coins)
SETS = _tie(_draw_sets)
_coin_law = partial(Law, truth=gaussian_truth, audit=_audit_coins)
ONE_RUN = _name(
    _coin_law("independent", partial(_draw_orthogonal, False)),
    _coin_law("overlapping", _draw_overlapping, breaks=_TIED),
    _coin_law("failing", partial(_draw_orthogonal, True), breaks=_TIED),
    _coin_law("leaking", _draw_leaking, truth=_mu_is_epsilon, breaks=_CURVED),
    _coin_law("cosines", _draw_cosines, audit=_audit_cosines),
)
_steady = partial(_draw_gaussian, False)
DIRECTIONS = _name(
    _of_directions("gaussian", _steady, _NOTHING),
    _of_directions("equal", _steady, _TIED, are_equal=True),
    _of_directions("failing", partial(_draw_gaussian, True), _TIED | _CURVED),
    _of_directions("laplace", _draw_laplace, _CURVED, _mu_is_epsilon),
    _of_directions("bound", _draw_on_bound, _CURVED, _mu_is_epsilon),
    _of_directions("bound equal", _draw_on_bound, _TIED | _CURVED, _mu_is_epsilon, are_equal=True),
)
