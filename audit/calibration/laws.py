"""Laws of the evidence of audits with an exactly known truth, to calibrate the methods.

    GAUSSIAN            one canary per run: independent scores N(mu, 1) inserted, N(0, 1) left out
    INDEPENDENT_COINS   several canaries per run, each inserted by its own coin, with the same scores
    FAILING_COINS       the same, but half of the runs do not insert canaries
    DIRECTIONS          cosines of R runs with K inserted canaries in R^d, with the exact null distribution

The laws in DIRECTIONS:

    gaussian   a Gaussian mechanism of mu, leave-one-out scores
    equal      the same, with one cosine for all canaries of a run
    failing    the same as `gaussian`, but half of the runs do not insert canaries
    laplace    mu is epsilon: Laplace noise along the direction
    bound      mu is epsilon: at every t, P_in(cosine > t) = min(e^epsilon a(t) + delta, 1), the most that
               (epsilon, delta)-DP allows; at mu = 0 it reveals everything with probability delta
"""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.calibration.calibration import (
    GAUSSIAN_CURVE,
    INDEPENDENT,
    KnownMechanism,
    Law,
    Truth,
    Value,
)
from audit.evidence.arrays import Array
from audit.evidence.canaries import Coins, Fresh, Sets, make_sets
from audit.laws import conversions, cosine_law, known_laws
from audit.methods import estimate, exact_null, lifted
from audit.methods.estimate import Finding

Generator = np.random.Generator
DrawCosines = Callable[[Generator, KnownMechanism], Array]
_TIED = frozenset([INDEPENDENT])
_CURVED = frozenset([GAUSSIAN_CURVE])


def make_values(findings: Iterable[Finding]) -> list[Value]:
    """Returns bounds and estimates as values to calibrate."""
    return [Value(finding.method, finding.epsilon, finding.mu) for finding in findings]


def gaussian_truth(setting: KnownMechanism) -> Truth:
    """Returns the true epsilon of a Gaussian mechanism with the setting's mu."""
    return Truth(conversions.epsilon_from_mu(setting.mu, setting.delta))


def mu_is_epsilon(setting: KnownMechanism) -> Truth:
    """Returns the setting's mu as the true epsilon, for laws with epsilon as their parameter."""
    return Truth(setting.mu)


def score_truth(family: known_laws.ScoreFamily, setting: KnownMechanism) -> Truth:
    """Returns the true epsilon, at delta, of independent scores of a family with the parameter mu."""
    return Truth(family.epsilon(setting.mu, setting.delta))


# One canary per run.


def draw_scores(family: known_laws.ScoreFamily, rng: Generator, setting: KnownMechanism) -> Sets:
    """Draws the scores of an audit with one canary per run, half of the runs in each world."""
    scores_in = family.sample(rng, setting.mu, True, setting.runs // 2)
    return make_sets(scores_in, family.sample(rng, setting.mu, False, setting.runs // 2))


def audit_scores(design: Sets, setting: KnownMechanism) -> list[Value]:
    """Returns the values of all methods for one canary per run."""
    scores_in, scores_out = design.pooled()
    return make_values(estimate.findings(scores_in, scores_out, setting.delta, setting.confidence))


# Coins.


def audit_several(design: Coins | Sets, setting: KnownMechanism) -> list[Value]:
    """Returns the values of all methods for several canaries per run."""
    return make_values(lifted.bounds(design, setting.delta, setting.confidence))


def toss(rng: Generator, setting: KnownMechanism) -> NDArray[np.bool_]:
    """Draws fair coins (R, K), a coin for each of the setting's K canaries in each of its R runs."""
    return rng.random((setting.runs, setting.canaries)) < 0.5


def _draw_coins(can_fail: bool, rng: Generator, setting: KnownMechanism) -> Coins:
    """Draws independent scores (R, K): N(mu, 1) for inserted canaries, otherwise N(0, 1).

    If `can_fail`, half of the runs do not insert the canaries that their coins chose.
    """
    presence = toss(rng, setting)
    are_inserted = presence
    if can_fail:
        are_inserted = presence & (rng.random((setting.runs, 1)) < 0.5)
    noise = rng.standard_normal(presence.shape)
    return Coins(setting.mu * are_inserted + noise, presence)


# Directions, all inserted.


def audit_directions(design: Fresh, setting: KnownMechanism) -> list[Value]:
    """Returns the values of methods for fresh directions.

    The method that bounds mu is left out for laws without a mu.
    """
    bounds = []
    for method in exact_null.METHODS.values():
        if setting.law.truth is gaussian_truth or method.name != exact_null.EXACT_NULL_GDP:
            bounds.append(method.compute(design, setting.delta, setting.confidence))
    # We compare the epsilon of a mu.
    return [Value(bound.method, bound.epsilon) for bound in bounds]


def _draw_gaussian(can_fail: bool, rng: Generator, setting: KnownMechanism) -> Array:
    """Draws leave-one-out cosines (R, K) of directions with the release of a Gaussian mechanism of mu.

    The part of direction v_j orthogonal to the K - 1 others has a squared length with the law Beta((d - K +
    1) / 2, (K - 1) / 2). In the d - K + 1 dimensions orthogonal to the others, the release u_j is mu times
    that part, plus standard normal noise. The cosine is that of v_j and u_j. If `can_fail`, half of the runs
    do not insert canaries.
    """
    shape = (setting.runs, setting.canaries)
    free = setting.dimension - setting.canaries
    signal = np.full((setting.runs, 1), setting.mu)
    if can_fail:
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


def draw_on_bound(rng: Generator, setting: KnownMechanism) -> Array:
    """Draws the largest cosines (R, K) of inserted canaries under (epsilon, delta)-DP with epsilon = mu."""
    uniform = rng.random((setting.runs, setting.canaries))
    tail = np.maximum(uniform - setting.delta, 0) * np.exp(-setting.mu)  # a(cosine)
    return -cosine_law.quantile(tail, setting.dimension)


def _draw_directions(
    draw_cosines: DrawCosines, are_equal: bool, rng: Generator, setting: KnownMechanism
) -> Fresh:
    """Draws cosines (R, K) of inserted directions; if equal, all cosines of a run are its first."""
    cosines = draw_cosines(rng, setting)
    if are_equal:
        cosines = np.repeat(cosines[:, :1], setting.canaries, 1)
    return Fresh(cosines, np.ones(cosines.shape, bool), setting.dimension)


def make_direction_law(
    name: str,
    draw_cosines: DrawCosines,
    breaks: frozenset[str] = frozenset(),
    truth: Callable[[KnownMechanism], Truth] = gaussian_truth,
    are_equal: bool = False,
) -> Law:
    """Returns a law of inserted directions; see `Law` and `_draw_directions`."""
    draw = partial(_draw_directions, draw_cosines, are_equal)
    return Law(name, draw, truth, audit_directions, breaks)


def _make_direction_laws() -> dict[str, Law]:
    """Returns the laws of directions by name (module's docstring)."""
    steady = partial(_draw_gaussian, False)
    failing = partial(_draw_gaussian, True)
    laws = (
        make_direction_law("gaussian", steady),
        make_direction_law("equal", steady, _TIED, are_equal=True),
        make_direction_law("failing", failing, _TIED | _CURVED),
        make_direction_law("laplace", _draw_laplace, _CURVED, mu_is_epsilon),
        make_direction_law("bound", draw_on_bound, _CURVED, mu_is_epsilon),
    )
    return {law.name: law for law in laws}


GAUSSIAN = Law(
    "gaussian",
    partial(draw_scores, known_laws.GAUSSIAN),
    partial(score_truth, known_laws.GAUSSIAN),
    audit_scores,
)
INDEPENDENT_COINS = Law("independent", partial(_draw_coins, False), gaussian_truth, audit_several)
FAILING_COINS = Law("failing", partial(_draw_coins, True), gaussian_truth, breaks=_TIED)
DIRECTIONS = _make_direction_laws()
