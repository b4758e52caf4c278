"""Claims about matrix mechanisms (DP-FTRL): DP-SGD with noise correlated across steps.

Let u (T,) be 1 at the steps that insert the canary and 0 elsewhere, and S the strategy
(`audit.claims.strategies`). Training is mu-GDP, with

    all models     mu = |S u| / sigma
    last model     mu = 1'u / (sigma |S^-T 1|), if losses are linear

Together, the models reveal S G + z for the gradients G and the raw noise z, and the canary shifts S G by S u.
Momentum and varying learning rates affect only the last model.
"""

import dataclasses
import functools

import numpy as np
from numpy.typing import ArrayLike

from audit.claims.claim import GaussianClaim
from audit.claims.strategies import Strategy, find_strategy
from audit.errors import LAST, insert_step, number, plain, require, whole_number
from audit.evidence.arrays import Array
from audit.laws import conversions
from audit.methods.method import ACCOUNTED

MAX_STEPS = 10**6


@dataclasses.dataclass(frozen=True)
class MatrixMechanism(GaussianClaim):
    """The claim for a matrix mechanism: clipping to C and Gaussian noise correlated across steps.

    Args:
      strategy: "independent", "lambda:0.9", "sqrt", "bsr:16" or "bisr:16" (`audit.claims.strategies`), a
        file, or the coefficients (n,) or matrix (T, T) of S.
      noise_multiplier: sigma, the standard deviation of the raw noise divided by C; 0 gives no guarantee.
      steps: T, the number of steps.
      k: the number of steps in a period; one of them inserts the canary.
      insert: the step of each period that inserts the canary: "last", "first", or a number from 1 to k.
      min_separation: the minimum distance, in steps, between an example's participations, if a sampler
        chooses the steps. `k` and `insert` are then ignored.
      participations: the maximum number of steps that use an example; by default, limited only by `steps`.

    Raises InputError for out-of-range values.

    >>> claim = audit.MatrixMechanism("bsr:16", noise_multiplier=2.482, steps=1250, k=25)
    >>> round(claim.epsilon(1e-5), 1), round(claim.last_model_if_linear(1e-5), 1)
    (24.0, 13.4)
    """

    strategy: str | ArrayLike
    noise_multiplier: float
    steps: int
    k: int = 1
    insert: str | int = LAST
    min_separation: int | None = None
    participations: int | None = None
    assumes = ACCOUNTED

    def __post_init__(self) -> None:
        """Checks and stores the arguments; `insert` becomes a step number."""
        steps = whole_number("steps", self.steps, 1, MAX_STEPS)
        sigma = number("noise_multiplier", self.noise_multiplier, float)
        require(0 <= sigma < np.inf, f"`noise_multiplier` must be at least 0, got {sigma:g}")
        k = whole_number("k", self.k, 1, steps)
        place = insert_step(plain(self.insert), k)
        self._store(noise_multiplier=sigma, steps=steps, k=k, insert=place)
        self._sensitivity()  # checks the strategy and `min_separation`

    @functools.cached_property
    def encoder(self) -> Strategy:
        """The strategy S (`audit.claims.strategies`)."""
        return find_strategy(self.strategy, self.steps)

    @property
    def gaussian_mu(self) -> float:
        """Returns mu for all models together; infinite without noise."""
        if self.noise_multiplier == 0:
            return np.inf
        return self._sensitivity() / self.noise_multiplier

    def last_model_if_linear(self, delta: float) -> float:
        """Returns the last model's epsilon at delta if losses are linear.

        This is not a bound: with other losses, the last model may leak up to `epsilon`. Raises InputError if
        `min_separation` is set, because insertion steps must be fixed.
        """
        return conversions.epsilon_from_mu(self.linear_mu(), delta)

    def linear_mu(self) -> float:
        """Returns the last model's mu if losses are linear; raises InputError if `min_separation` is set.

        With linear losses, the last model reveals only the sum of all steps. Each insertion adds C. For the
        strategy S (`encoder`) and raw noise z, the sum of all noise is 1'S^-1 z, with standard deviation
        sigma C * norm(S^-T 1).
        """
        require(
            self.min_separation is None,
            "the last model needs a fixed pattern: leave out `min_separation`",
        )
        weights = self.encoder.solve_transposed(np.ones(self.steps))
        insertions = np.sum(self._pattern())
        return float(insertions / (self.noise_multiplier * np.linalg.norm(weights)))

    def with_epsilon(self, epsilon: float, delta: float) -> "MatrixMechanism":
        """Returns this claim with the noise multiplier at which all models together leak epsilon at delta."""
        mu = conversions.mu_from_epsilon(epsilon, delta)
        return dataclasses.replace(self, noise_multiplier=self._sensitivity() / mu)

    def _pattern(self) -> Array:
        """Returns u, of shape (T,): 1 at the steps that insert the canary.

        With `min_separation`, insertions happen at the earliest possible steps. This is the worst case if the
        coefficients of S are non-negative and non-increasing (Kalinin and Lampert, 2024, Theorem 2). Raises
        InputError for other strategies and out-of-range values.
        """
        pattern = np.zeros(self.steps)
        if self.min_separation is None:
            pattern[int(self.insert) - 1 :: self.k] = 1  # `insert` counts from 1
            return pattern
        separation = whole_number("min_separation", self.min_separation, 1, MAX_STEPS)
        count = self.steps  # no limit; the slice below ends at step T
        if self.participations is not None:
            count = whole_number("participations", self.participations, 1, MAX_STEPS)
        first_step_only = np.eye(1, self.steps)[0]
        column = self.encoder.multiply(first_step_only)  # the first column of S
        is_decreasing = np.all(column >= 0) and np.all(np.diff(column) <= 0)
        require(
            is_decreasing,
            "`min_separation` needs a Toeplitz strategy with non-negative, non-increasing coefficients",
        )
        pattern[: separation * count : separation] = 1
        return pattern

    def _sensitivity(self) -> float:
        """Returns |S u| for the pattern u: the sensitivity of all models together, in units of C."""
        return float(np.linalg.norm(self.encoder.multiply(self._pattern())))
