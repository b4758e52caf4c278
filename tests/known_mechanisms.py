"""Distributions of dependent canaries with a known epsilon, for the tests of coverage.

COINS and SETS: runs of K canaries with scores mu * signal + noise. All canaries have the same distribution,
and depend on each other within a run. The true parameter is the largest one that the average error rates show
at any threshold.

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

DIRECTIONS: those of the library, and `bound equal`, which is `bound` with one cosine for all canaries.
"""

import math
from functools import partial

import numpy as np
from scipy import special

from audit.calibration import laws
from audit.calibration.calibration import GAUSSIAN_CURVE, INDEPENDENT, Law, Value
from audit.evidence.canaries import Coins, Sets
from audit.evidence.one_run import Cosines
from audit.laws import conversions, cosine_law
from audit.methods import exact_null, one_run_bounds, one_shot

_REACH = 5.0  # standard deviations of thresholds beyond the means of both worlds, at least
_DIMENSIONS = 100  # dimensions of `cosines` for each canary
_REVEALED = 3.0  # `leaking` reveals this times sqrt(K) coins at once
_TIED = frozenset([INDEPENDENT])
_CURVED = frozenset([GAUSSIAN_CURVE])


def _find_failing(failing_runs, setting):
    """Returns the probability that a run fails, from the mean number of failing runs."""
    return min(failing_runs / setting.runs, 1.0)


def _draw_signal(failing_runs, rng, setting):
    """Draws the signal (n, 1) of inserted canaries, mu or 0."""
    works = np.ones((setting.runs, 1))
    failing = _find_failing(failing_runs, setting)
    if failing:
        works = (rng.random(works.shape) >= failing).astype(np.float64)
    return setting.mu * works


def _draw_noise(common, rng, setting):
    """Draws noise (n, K) of variance 1; a fraction `common` of it is common to the canaries of a run."""
    noise = np.zeros((setting.runs, setting.canaries))
    if common < 1:
        noise += math.sqrt(1 - common) * rng.standard_normal(noise.shape)
    if common > 0:
        noise += math.sqrt(common) * rng.standard_normal((setting.runs, 1))
    return noise


def _draw_coins(common, failing_runs, rng, setting):
    present = laws.toss(rng, setting)
    signal = _draw_signal(failing_runs, rng, setting)
    return Coins(signal * present + _draw_noise(common, rng, setting), present)


def _draw_sets(common, failing_runs, rng, setting):
    signal = _draw_signal(failing_runs, rng, setting)
    noise_in = _draw_noise(common, rng, setting)
    return Sets(signal + noise_in, _draw_noise(common, rng, setting))


def _find_tied_truth(failing_runs, setting):
    """Returns the largest epsilon that the error rates of any threshold show.

    Scores are N(mu, 1) for inserted canaries in runs that work, otherwise N(0, 1).
    """
    epsilons = conversions.epsilon_from_rates(*_tied_rates(failing_runs, setting), setting.delta)
    return max(float(epsilons.max()), 0.0)


def find_tied_mu(tie, setting):
    """Returns the largest mu that the error rates of any threshold show, for runs with a dependence `tie`."""
    mus = conversions.mu_from_rates(*_tied_rates(_DEPENDENCES[tie][1], setting))
    return max(float(mus.max()), 0.0)


def _tied_rates(failing_runs, setting):
    """Returns false-positive and false-negative rates of many thresholds."""
    failing = _find_failing(failing_runs, setting)
    # The probability beyond these thresholds is below delta in both worlds.
    reach = max(_REACH, -special.ndtri(setting.delta))
    thresholds = np.linspace(-reach, setting.mu + reach, 20_001)
    misses_of_working = special.ndtr(thresholds - setting.mu)
    misses = (1 - failing) * misses_of_working + failing * special.ndtr(thresholds)
    return special.ndtr(-thresholds), misses


# The common part of a run's noise, the mean number of failing runs, and the assumptions that this breaks.
_DEPENDENCES = {
    "independent": (0.0, 0.0, frozenset()),
    "shifted": (0.5, 0.0, _TIED),
    "equal": (1.0, 0.0, _TIED),
    "failing": (0.0, 3.0, _TIED | _CURVED),
}


def _tie(draw):
    """Returns the laws of runs of several canaries, by their dependence."""
    found = {}
    for name, (common, failing_runs, breaks) in _DEPENDENCES.items():
        drawn = partial(draw, common, failing_runs)
        truth = partial(_find_tied_truth, failing_runs)
        found[name] = Law(drawn, truth, laws.audit_several, breaks)
    return found


def _audit_coins(coins, setting):
    """Returns the values of methods for a single run's coins, except those that assume a wrong curve."""
    bounds = one_run_bounds.bound_by_guesses(coins, setting.delta, setting.confidence)
    if GAUSSIAN_CURVE in setting.law.breaks:
        bounds = [bound for bound in bounds if not bound.assumes.gaussian]
    return laws.make_values(bounds)


def _audit_cosines(cosines, setting):
    """Returns a single run's bounds from cosines, and the one-shot paper's eps_lo with Jeffreys' limits."""
    name = one_shot.ONE_SHOT_JEFFREYS
    prior = one_shot.PRIORS[name]
    jeffreys = one_shot.in_sample(cosines, setting.delta, 1 - setting.confidence, prior)
    bound = one_run_bounds.bound_uniform_canaries(cosines, setting.delta, setting.confidence)
    return [*laws.make_values([bound]), Value(name, jeffreys)]


def _draw_overlapping(rng, setting):
    """Draws the scores of a single run's canaries along (e_0 + e_i) / sqrt(2), with inner products of 1/2.

    The release is mu times the sum of the inserted canaries, plus standard normal noise.
    """
    bits = laws.toss(rng, setting)
    common = np.sqrt(0.5) * setting.mu * bits.sum() + rng.standard_normal()
    own = np.sqrt(0.5) * setting.mu * bits + rng.standard_normal(bits.shape)
    return Coins(np.sqrt(0.5) * (common + own), bits)


def _draw_leaking(rng, setting):
    """Draws scores that guess each coin with odds e^mu, and that rarely reveal many coins at once.

    About 3 sqrt(K) coins are revealed at once, by 2 or -2, which at mu = 0 raises the number of right guesses
    by three standard deviations.
    """
    canaries = setting.canaries
    bits = laws.toss(rng, setting)
    is_right = rng.random(bits.shape) < special.expit(setting.mu)
    scores = np.where(bits == is_right, 1.0, -1.0) + 0.1 * rng.random(bits.shape)  # all differ
    revealed = min(round(_REVEALED * np.sqrt(canaries)), canaries)
    if rng.random() < setting.delta * canaries / revealed:
        places = rng.permutation(canaries)[:revealed]
        scores[0, places] = np.where(bits[0, places], 2.0, -2.0)
    return Coins(scores, bits)


def _draw_cosines(rng, setting):
    """Draws the cosines of a single run's uniformly random, inserted canaries with their noisy sum."""
    dimension = _DIMENSIONS * setting.canaries
    sigma = 1 / max(setting.mu, 1e-6)  # finite for mu = 0
    observed = cosine_law.simulate(rng, setting.canaries, dimension, sigma)
    return Cosines(observed, np.empty(0), dimension)


COINS = _tie(_draw_coins)
SETS = _tie(_draw_sets)
ONE_RUN = {
    "independent": laws.INDEPENDENT_COINS._replace(audit=_audit_coins),
    "overlapping": Law(_draw_overlapping, laws.gaussian_truth, _audit_coins, breaks=_TIED),
    "failing": laws.FAILING_COINS._replace(audit=_audit_coins),
    "leaking": Law(_draw_leaking, laws.mu_is_epsilon, _audit_coins, breaks=_CURVED),
    "cosines": Law(_draw_cosines, laws.gaussian_truth, _audit_cosines),
}


def _audit_directions(design, setting):
    """Returns the values of all methods for fresh directions, excluding bounds on mu if the law has no mu."""
    bounds = []
    for method in exact_null.METHODS.values():
        if setting.law.truth is laws.gaussian_truth or method.name != exact_null.EXACT_NULL_GDP:
            bounds.append(method.compute(design, setting.delta, setting.confidence))
    return laws.make_values(bounds)


_BOUND_EQUAL = laws.DIRECTIONS["bound"]._replace(
    draw=partial(laws.draw_equal, laws.draw_on_bound), breaks=_TIED | _CURVED
)
DIRECTIONS = {
    name: law._replace(audit=_audit_directions)
    for name, law in (laws.DIRECTIONS | {"bound equal": _BOUND_EQUAL}).items()
}
