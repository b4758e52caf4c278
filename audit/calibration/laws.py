"""Distributions of audit evidence whose leakage is known exactly, for calibrating the methods.

The laws are:

    GAUSSIAN            one canary per run: independent scores, N(mu, 1) if inserted, N(0, 1) if left out
    INDEPENDENT_COINS   several canaries per run, each inserted by a coin flip, with scores as in GAUSSIAN
    FAILING_COINS       INDEPENDENT_COINS in which half of the runs do not insert canaries
    DIRECTIONS          cosines of R runs with K inserted canaries in R^d, with the exact null distribution
"""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import scipy
from numpy.random import Generator

from audit.calibration.calibration import GAUSSIAN_CURVE, INDEPENDENT, KnownMechanism, Law, Value
from audit.evidence.arrays import Array, Bits
from audit.evidence.canaries import Coins, Fresh, Sets, make_sets
from audit.laws import conversions, cosine_law, known_laws
from audit.laws.known_laws import ScoreFamily
from audit.methods import estimate, lifted
from audit.methods.estimate import Finding

_DEPENDENT = frozenset([INDEPENDENT])
_NOT_GAUSSIAN = frozenset([GAUSSIAN_CURVE])


def make_values(findings: Iterable[Finding]) -> list[Value]:
    """Converts bounds and estimates to `Value`s."""
    return [Value(finding.method, finding.epsilon) for finding in findings]


def gaussian_truth(setting: KnownMechanism) -> float:
    """Returns the true epsilon of a Gaussian mechanism with the setting's mu."""
    return conversions.epsilon_from_mu(setting.mu, setting.delta)


def mu_is_epsilon(setting: KnownMechanism) -> float:
    """Returns the setting's mu, which is the true epsilon of laws parameterised by epsilon."""
    return setting.mu


def score_truth(family: ScoreFamily, setting: KnownMechanism) -> float:
    """Returns the true epsilon at delta for independent scores from a family with parameter mu."""
    if family is known_laws.GAUSSIAN:
        return gaussian_truth(setting)
    return known_laws.compute_epsilon(family, setting.mu, setting.delta)


# One canary per run.


def _draw_scores(rng: Generator, setting: KnownMechanism) -> Sets:
    """Draws N(mu, 1) scores for runs with the canary, and as many N(0, 1) scores for runs without it."""
    runs = setting.runs // 2
    scores_in = setting.mu + rng.standard_normal(runs)
    return make_sets(scores_in, rng.standard_normal(runs))


def _audit_scores(design: Sets, setting: KnownMechanism) -> list[Value]:
    """Returns the values of all methods for one canary per run."""
    return make_values(estimate.findings(*design.pooled(), setting.delta, setting.confidence))


# Coins.


def audit_several(design: Coins | Sets, setting: KnownMechanism) -> list[Value]:
    """Returns the values of all methods for several canaries per run."""
    return make_values(lifted.bounds(design, setting.delta, setting.confidence))


def toss(rng: Generator, setting: KnownMechanism) -> Bits:
    """Flips fair coins (R, K), one for each of K canaries in each of R runs."""
    return rng.random((setting.runs, setting.canaries)) < 0.5


def _draw_coins(rng: Generator, setting: KnownMechanism, can_fail: bool = False) -> Coins:
    """Draws independent scores (R, K): N(mu, 1) for inserted canaries, otherwise N(0, 1).

    If `can_fail`, each run has probability 1/2 of inserting none of the chosen canaries.
    """
    presence = toss(rng, setting)
    are_inserted = presence
    if can_fail:
        are_inserted = presence & (rng.random((setting.runs, 1)) < 0.5)
    noise = rng.standard_normal(presence.shape)
    return Coins(setting.mu * are_inserted + noise, presence)


# Directions, all inserted.


def _make_evidence(cosines: Array, setting: KnownMechanism) -> Fresh:
    """Returns cosines (R, K) as evidence from R runs that insert all K canaries."""
    return Fresh(cosines, np.ones_like(cosines, bool), setting.dimension)


def _draw_gaussian(rng: Generator, setting: KnownMechanism, can_fail: bool = False) -> Fresh:
    """Draws leave-one-out cosines (R, K) between directions and the release of a mu-GDP Gaussian mechanism.

    Let w_j be the component of direction v_j orthogonal to the other K - 1 directions. The squared length of
    w_j follows Beta((d - K + 1) / 2, (K - 1) / 2). In the d - K + 1 dimensions orthogonal to the other
    directions, the release u_j is mu w_j plus standard normal noise. We return the cosine between v_j and
    u_j. If `can_fail`, each run has probability 1/2 of inserting no canaries.
    """
    shape = (setting.runs, setting.canaries)
    # The number of dimensions orthogonal to all canaries of a run.
    orthogonal = setting.dimension - setting.canaries
    signal = np.full((setting.runs, 1), setting.mu)  # 0 in failed runs
    if can_fail:
        signal *= rng.random(signal.shape) < 0.5
    squared = np.ones(shape)  # |w_j|^2; a single direction has no part along others
    if setting.canaries > 1:
        squared = rng.beta((orthogonal + 1) / 2, (setting.canaries - 1) / 2, shape)
    w_length = np.sqrt(squared)
    along = signal * w_length + rng.standard_normal(shape)  # u_j's component along w_j
    # |u_j|: one coordinate along w_j, and noise in the other d - K dimensions.
    u_length = np.sqrt(along**2 + rng.chisquare(orthogonal, shape))
    return _make_evidence(w_length * along / u_length, setting)


def _draw_laplace(rng: Generator, setting: KnownMechanism) -> Fresh:
    """Draws cosines (R, K) of canaries inserted by a Laplace mechanism with epsilon = mu."""
    along = setting.mu + rng.laplace(size=(setting.runs, setting.canaries))
    tail_out = scipy.stats.laplace.sf(along)  # of a left-out canary
    # By symmetry around 0, -quantile(a) has the tail probability a.
    return _make_evidence(-cosine_law.quantile(tail_out, setting.dimension), setting)


def draw_on_bound(rng: Generator, setting: KnownMechanism) -> Fresh:
    """Draws cosines (R, K) of inserted canaries, as large as (epsilon, delta)-DP allows.

    `setting.mu` is epsilon. An inserted canary's cosine exceeds t with probability min(e^epsilon a(t) +
    delta, 1), where a(t) is the probability for a left-out canary.
    """
    tail_in = rng.random((setting.runs, setting.canaries))  # uniform for inserted canaries
    tail_out = np.maximum(tail_in - setting.delta, 0) * np.exp(-setting.mu)  # a(t)
    return _make_evidence(-cosine_law.quantile(tail_out, setting.dimension), setting)


def draw_equal(
    draw: Callable[[Generator, KnownMechanism], Fresh], rng: Generator, setting: KnownMechanism
) -> Fresh:
    """Draws cosines (R, K) with `draw`, then sets every cosine of a run to the run's first."""
    design = draw(rng, setting)
    return design._replace(cosines=np.repeat(design.cosines[:, :1], setting.canaries, axis=1))


GAUSSIAN = Law(_draw_scores, gaussian_truth, _audit_scores)
INDEPENDENT_COINS = Law(_draw_coins, gaussian_truth, audit_several)
FAILING_COINS = Law(partial(_draw_coins, can_fail=True), gaussian_truth, breaks=_DEPENDENT)
DIRECTIONS = {
    "gaussian": Law(_draw_gaussian, gaussian_truth),
    "equal": Law(partial(draw_equal, _draw_gaussian), gaussian_truth, breaks=_DEPENDENT),
    "failing": Law(
        partial(_draw_gaussian, can_fail=True), gaussian_truth, breaks=_DEPENDENT | _NOT_GAUSSIAN
    ),
    "laplace": Law(_draw_laplace, mu_is_epsilon, breaks=_NOT_GAUSSIAN),
    "bound": Law(draw_on_bound, mu_is_epsilon, breaks=_NOT_GAUSSIAN),
}
