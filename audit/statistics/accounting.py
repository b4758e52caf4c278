"""Upper bounds on epsilon, through Google's dp-accounting.

Only the steps at which the canary is inserted count: the others are post-processing once the batches
are known to the adversary (hidden-state paper, Sections 5.1 and 5.3).
"""

from typing import NamedTuple

import dp_accounting
import numpy as np
from dp_accounting.rdp import RdpAccountant

from audit.errors import require
from audit.statistics import conversions

LEAST_NOISE, MOST_NOISE, MOST_INSERTIONS = 1e-6, 1e12, 10**12
_ADD_OR_REMOVE_ONE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


class Composition(NamedTuple):
    """Gaussian steps of sensitivity C and noise of deviation noise_multiplier * C: as many as the canary is
    inserted in."""

    noise_multiplier: float
    insertions: int


def epsilon_upper_bound(noise_multiplier: float, insertions: int, delta: float) -> float:
    """epsilon at delta of `insertions` Gaussian steps of sensitivity C and noise noise_multiplier * C;
    infinite without noise, 0 without insertions.

    Their composition is one Gaussian mechanism with a noise multiplier smaller by sqrt(insertions), for
    which dp-accounting has the exact value (Balle and Wang, 2018). Neighbouring relation: add or remove
    one. Raises InputError for values out of range.
    """
    _require_steps(noise_multiplier, insertions, delta)
    if insertions == 0 or noise_multiplier == 0:
        return np.inf if insertions else 0.0
    with np.errstate(divide="ignore"):
        sigma = noise_multiplier / np.sqrt(insertions)
        return float(dp_accounting.get_epsilon_gaussian(sigma, delta, tol=1e-10))


def renyi_upper_bound(noise_multiplier: float, insertions: int, delta: float) -> float:
    """epsilon of such a composition by Renyi DP: looser, and computed independently; for tests."""
    _require_steps(noise_multiplier, insertions, delta)
    if insertions == 0 or noise_multiplier == 0:
        return np.inf if insertions else 0.0
    accountant = RdpAccountant(neighboring_relation=_ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier), insertions)
    return float(accountant.get_epsilon(delta))


def mu_upper_bound(noise_multiplier: float, insertions: int) -> float:
    """mu of the composition: sqrt(insertions) / noise_multiplier (Dong et al. 2022, Corollary 3.3)."""
    _require_steps(noise_multiplier, insertions, 0.5)
    if insertions == 0 or noise_multiplier == 0:
        return np.inf if insertions else 0.0
    return float(np.sqrt(insertions) / noise_multiplier)


def _require_steps(noise_multiplier: float, insertions: int, delta: float) -> None:
    """Values in range, or InputError."""
    in_range = noise_multiplier == 0 or LEAST_NOISE <= noise_multiplier <= MOST_NOISE
    range_ = f"give 0, or a number from {LEAST_NOISE:g} to {MOST_NOISE:g}"
    require(in_range, f"`noise_multiplier={noise_multiplier}`: {range_}")
    whole = 0 <= insertions <= MOST_INSERTIONS and insertions == int(insertions)
    require(whole, f"`insertions={insertions}`: give a whole number from 0 to {MOST_INSERTIONS:,}")
    conversions.require_delta(delta)
