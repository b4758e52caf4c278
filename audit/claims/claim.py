"""Claims: stated privacy guarantees for a training run.

A claim is a trade-off curve f: any test with false-positive rate alpha has a true-positive rate (power) of at
most `power(alpha)` = 1 - f(alpha). The curve determines epsilon at any delta. The main kinds:

    DpSgd(noise_multiplier=4, insertions=250)   Gaussian steps, the mechanism itself
    Gdp(mu=3.95)                                the trade-off curve of N(0, 1) against N(mu, 1)
    EpsilonDelta(epsilon=3, delta=1e-5)         a pair from any accountant

Neighbouring relation: add or remove a single example.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit.claims import accounting
from audit.claims.accounting import Composition
from audit.claims.brackets import LEAST_ALLOCATION_NOISE, bracket_allocation
from audit.claims.hidden_state import (
    MAX_MU,
    HiddenState,
    Periods,
    bound_periods,
    make_hidden_state,
)
from audit.claims.random_allocation import account_allocation
from audit.errors import LAST, insert_step, number, plain, require
from audit.evidence import arrays
from audit.evidence.arrays import Array
from audit.laws import conversions
from audit.methods.method import ACCOUNTED, GIVEN, Assumption

# For a sampled mechanism, the deltas at these epsilons limit the power of tests.
_EPSILONS = np.concatenate([np.linspace(0.0, 5.0, 201), np.geomspace(5.05, 200.0, 200)])
_SECRET = ACCOUNTED._replace(
    sentence=f"{ACCOUNTED.sentence} and batches that the adversary does not know"
)


class Claim:
    """A claim about a mechanism. Subclasses define its trade-off curve, and its steps if known."""

    def _store(self, **checked: Any) -> None:
        """Sets fields to validated values, since a frozen dataclass forbids assignment."""
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def assumes(self) -> Assumption:
        """Returns the assumption of the claim: by default, that another accountant is correct."""
        return GIVEN

    @property
    def composition(self) -> Composition | None:
        """Returns the steps that may insert the canary; None if the mechanism is unknown."""
        return None

    @property
    def gaussian_mu(self) -> float | None:
        """Returns mu if the claimed trade-off curve is Gaussian; else None."""
        return None

    def epsilon(self, delta: float) -> float:
        """Returns epsilon at delta; infinite if the claim does not cover this delta."""
        raise NotImplementedError

    def power(self, alpha: ArrayLike) -> Array:
        """Returns the largest true-positive rate of any test with false-positive rate alpha."""
        raise NotImplementedError

    def last_model(self, delta: float) -> HiddenState | None:
        """Returns an upper bound on the last model's leakage; None if Lipschitz constants are unknown."""
        return None


class GaussianClaim(Claim):
    """A claim of mu-GDP. Subclasses define mu as `gaussian_mu`."""

    @property
    def gaussian_mu(self) -> float:
        """Returns mu; infinite if there is no guarantee."""
        raise NotImplementedError

    def epsilon(self, delta: float) -> float:
        """Returns epsilon at delta (Balle and Wang, 2018)."""
        return conversions.epsilon_from_mu(self.gaussian_mu, delta)

    def power(self, alpha: ArrayLike) -> Array:
        """Returns the largest power of any test at each false-positive rate in alpha."""
        return _gaussian_power(_check_rates(alpha), self.gaussian_mu)


@dataclasses.dataclass(frozen=True)
class Gdp(GaussianClaim):
    """The claim of mu-GDP (Dong et al., 2022).

    No test has more power than the best test of N(0, 1) against N(mu, 1).

    Args:
      mu: The distance between the means of the two normal distributions, from 0 to 1e12.

    Raises InputError if mu is out of range.

    >>> round(audit.Gdp(mu=3.95).epsilon(1e-5), 1)
    24.0
    """

    mu: float

    def __post_init__(self) -> None:
        mu = number("mu", self.mu, float)
        require(0 <= mu <= MAX_MU, f"`mu={mu:g}`: give a number from 0 to {MAX_MU:g}")
        self._store(mu=mu)

    @property
    def gaussian_mu(self) -> float:
        """Returns mu."""
        return self.mu


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class EpsilonDelta(Claim):
    """The claim of (epsilon, delta)-differential privacy, from any accountant.

    Args:
      epsilon: at least 0; infinity means no guarantee.
      delta: at least 0 and below 1; 0 means pure differential privacy.

    Raises InputError for out-of-range values.

    >>> audit.EpsilonDelta(epsilon=3.0, delta=1e-5).epsilon(1e-4)
    3.0
    """

    stated_epsilon: float
    stated_delta: float

    def __init__(self, epsilon: float, delta: float) -> None:
        """Validates and stores the values, under names that do not clash with the method `epsilon`."""
        epsilon = number("epsilon", epsilon, float)
        delta = number("delta", delta, float)
        require(epsilon >= 0, f"`epsilon={epsilon:g}`: give at least 0")
        require(0 <= delta < 1, f"`delta={delta:g}`: give at least 0 and less than 1")
        self._store(stated_epsilon=epsilon, stated_delta=delta)

    def __repr__(self) -> str:
        return f"EpsilonDelta(epsilon={self.stated_epsilon:g}, delta={self.stated_delta:g})"

    def epsilon(self, delta: float) -> float:
        """Returns the stated epsilon if delta is at least the stated delta, otherwise infinity."""
        if delta < self.stated_delta:
            return math.inf
        return self.stated_epsilon

    def power(self, alpha: ArrayLike) -> Array:
        """Returns the largest power of any test at each false-positive rate in alpha.

        The largest power is min(e^epsilon alpha + delta, 1 - e^-epsilon (1 - alpha - delta), 1) (Kairouz, Oh
        and Viswanath, 2015).
        """
        return _power_of_pairs(_check_rates(alpha), self.stated_epsilon, self.stated_delta)


@dataclasses.dataclass(frozen=True)
class DpSgd(Claim):
    """The claim for DP-SGD: clipping to norm C and Gaussian noise of standard deviation noise_multiplier * C.

    Args:
      noise_multiplier: sigma; 0 gives no guarantee.
      insertions: The number of steps that may insert the canary.
      sampling_rate: The probability of insertion per step (Poisson sampling); 1 if the adversary knows the
        batches.
      k: The number of steps in a period; one of them inserts the canary.
      insert: The step of each period that inserts the canary: "last", "first", or a number from 1 to k.
      lipschitz: The Lipschitz constant of a noiseless step without the canary, as a map between models: a
        number, or one for each step. `last_model`, `k` and `insert` require it.

    Raises InputError for out-of-range values.

    >>> claim = audit.DpSgd(noise_multiplier=4.0, insertions=250, k=5, lipschitz=1.0)
    >>> round(claim.epsilon(1e-5), 2), round(claim.last_model(1e-5).bound.epsilon, 2)
    (24.0, 8.68)
    """

    noise_multiplier: float
    insertions: int
    sampling_rate: float = 1.0
    k: int = 1
    insert: str | int = LAST
    lipschitz: ArrayLike | None = None

    def __post_init__(self) -> None:
        """Checks and stores the values. `insert` becomes a step number from 1 to k."""
        sigma = number("noise_multiplier", self.noise_multiplier, float)
        insertions = number("insertions", self.insertions, int)
        rate = number("sampling_rate", self.sampling_rate, float)
        accounting.mu_upper_bound(sigma, insertions)  # checks both
        require(0 < rate <= 1, f"`sampling_rate={rate}`: give a number above 0 and at most 1")
        k = number("k", self.k, int)
        step = insert_step(plain(self.insert), k)
        if self.lipschitz is None:
            # Both affect only the bound on the last model, which needs the constants.
            require(k == 1, "`k` and `insert` require `lipschitz`")
        else:
            arrays.floats("values of `lipschitz`", self.lipschitz)  # checks their type
        self._store(
            noise_multiplier=sigma, insertions=insertions, sampling_rate=rate, k=k, insert=step
        )

    @property
    def assumes(self) -> Assumption:
        """Returns the assumptions: sensitivity C, Gaussian noise and, with sampling, secret batches."""
        return ACCOUNTED if self.sampling_rate == 1 else _SECRET

    @property
    def composition(self) -> Composition:
        """Returns the steps that may insert the canary."""
        return Composition(self.noise_multiplier, self.insertions, self.sampling_rate)

    @property
    def gaussian_mu(self) -> float | None:
        """Returns mu = sqrt(insertions) / sigma; infinite without noise, None with sampling."""
        if self.sampling_rate < 1:
            return None
        return accounting.mu_upper_bound(self.noise_multiplier, self.insertions)

    def epsilon(self, delta: float) -> float:
        """Returns an upper bound on epsilon at delta for an adversary who sees all models."""
        return accounting.participant_upper_bound(self.composition, delta)

    def power(self, alpha: ArrayLike) -> Array:
        """Returns the largest power of any test at each false-positive rate in alpha.

        Without sampling, the power is Phi(Phi^-1(alpha) + mu). With sampling, we return an upper bound, the
        largest power that dp-accounting's (epsilon, delta) pairs allow. For very small noise, we ignore
        sampling (`counts_sampling`).
        """
        rates = _check_rates(alpha)
        if accounting.counts_sampling(self.composition):
            return _power_of_pairs(rates, _EPSILONS, _sampled_deltas(self.composition))
        mu = accounting.mu_upper_bound(self.noise_multiplier, self.insertions)
        return _gaussian_power(rates, mu)

    def last_model(self, delta: float) -> HiddenState | None:
        """Returns an upper bound on how much the last model leaks; None if `lipschitz` is not given.

        The bound ignores `sampling_rate`, since steps that skip the canary leak less.
        """
        if self.lipschitz is None:
            return None
        # `insert` is a number after `__post_init__`.
        schedule = Periods(self.lipschitz, self.k, int(self.insert))
        compute_bound = functools.partial(bound_periods, self.composition, delta=delta)
        return make_hidden_state(compute_bound, schedule)


@dataclasses.dataclass(frozen=True)
class RandomAllocation(Claim):
    """The claim for DP-SGD that uses each example in one random, secret step per epoch (balls in bins).

    An epoch has `batches` steps. Neighbouring relation: zero-out (replace the example's gradient with 0).
    """

    noise_multiplier: float
    batches: int
    epochs: int
    assumes = _SECRET

    def epsilon(self, delta: float) -> float:
        """Returns an upper bound on epsilon at delta for an adversary who sees all models."""
        return bracket_allocation(self.noise_multiplier, self.batches, self.epochs, delta).upper

    def power(self, alpha: ArrayLike) -> Array:
        """Returns an upper bound on the power of any test at each false-positive rate in alpha.

        The composition of epochs is mu-GDP. Since the steps are secret, the (epsilon, delta) pairs of
        `account_allocation` also limit the power. For noise multipliers below 0.1, the pairs are too
        imprecise to use.
        """
        rates = _check_rates(alpha)
        mu = accounting.mu_upper_bound(self.noise_multiplier, self.epochs)
        composed = _gaussian_power(rates, mu)
        if self.noise_multiplier < LEAST_ALLOCATION_NOISE:
            return composed
        return np.minimum(composed, _power_of_pairs(rates, _EPSILONS, _allocation_deltas(self)))


@functools.lru_cache
def _allocation_deltas(claim: RandomAllocation) -> Array:
    """Returns upper bounds (401,) on the delta of random allocation at each epsilon in _EPSILONS."""
    losses = account_allocation(
        claim.noise_multiplier, claim.batches, claim.epochs, pessimistic=True
    )
    return np.asarray(losses.get_delta_for_epsilon(_EPSILONS.tolist()), np.float64)


@functools.lru_cache
def _sampled_deltas(steps: Composition) -> Array:
    """Returns upper bounds (401,) on the delta of Poisson sampling at each epsilon in _EPSILONS."""
    accountant = accounting.account_curve(steps)
    return np.array([accountant.get_delta(float(epsilon)) for epsilon in _EPSILONS])


def _gaussian_power(rates: Array, mu: float) -> Array:
    """Returns the largest power that mu-GDP allows at false-positive rates a: Phi(Phi^-1(a) + mu)."""
    if math.isinf(mu):
        return np.ones_like(rates)  # the formula would give NaN at 0
    return special.ndtr(special.ndtri(rates) + mu)


def _power_of_pairs(rates: Array, epsilons: Array | float, deltas: Array | float) -> Array:
    """Returns the largest power that all P pairs (epsilon, delta) allow at each false-positive rate.

    The result, shaped like `rates`, is the minimum over the pairs (`EpsilonDelta.power`). `epsilons` and
    `deltas` are numbers or have shape (P,).
    """
    alpha = rates[..., None]  # the last axis runs over the pairs
    # If exp(epsilon) overflows to infinity, its product with a rate of 0 is NaN. `fmin` then returns
    # `flat_line`, which is 1.
    with np.errstate(over="ignore", invalid="ignore"):
        steep_line = np.exp(epsilons) * alpha + deltas
        flat_line = 1 - np.exp(-epsilons) * (1 - alpha - deltas)
    return np.clip(np.fmin(steep_line, flat_line), 0.0, 1.0).min(axis=-1)


def _check_rates(alpha: ArrayLike) -> Array:
    """Returns false-positive rates as float64; raises InputError unless all are between 0 and 1."""
    rates = arrays.floats("values of `alpha`", alpha)
    require(((rates >= 0) & (rates <= 1)).all(), "`alpha` must be between 0 and 1")
    return rates
