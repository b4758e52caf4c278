"""Claims of matrix mechanisms (DP-FTRL): DP-SGD with noise that is correlated across steps.

u (T,) is 1 at the steps that insert the canary and 0 elsewhere, S the strategy (`audit.claims.strategies`).

    all models     mu = |S u| / sigma
    last model     mu = 1'u / (sigma |S^-T 1|), if losses are linear

Releasing every model releases S G + z, and the canary shifts it by S u. With linear losses the last model is
the sum of all gradients and of the noise S^-1 z. By Cauchy and Schwarz, on (S^-T 1)'(S u), it leaks at most
as much as all models. Momentum and learning rates that vary change only the last model's leak.
"""

import dataclasses
import functools

import numpy as np
from numpy.typing import ArrayLike

from audit.claims.accounting import LAST, insert_step
from audit.claims.claim import Claim, Gdp
from audit.claims.strategies import Strategy, find_strategy, require_steps
from audit.errors import number, plain, require
from audit.evidence.arrays import Array
from audit.laws import conversions
from audit.methods.method import ACCOUNTED, Assumption


@dataclasses.dataclass(frozen=True)
class MatrixMechanism(Claim):
    """The claim of a matrix mechanism: clipping to C, and Gaussian noise that is correlated across steps.

    Args:
      strategy: "independent", "lambda:0.9", "sqrt", "bsr:16" or "bisr:16" (`audit.claims.strategies`), a
        file, or the coefficients (n,) or matrix (T, T) of S.
      noise_multiplier: sigma, the raw noise's standard deviation over C; 0 gives no guarantee.
      steps: T, the number of steps.
      k: the number of steps in a period; one of them takes the canary.
      insert: the step of a period with the canary: "last", "first", or a number from 1 to k.
      min_separation: the smallest distance of two steps that a sampler may choose for an example, instead of
        a fixed pattern. Then `k` is not used.
      participations: the largest number of these steps; by default as many as fit.

    Raises InputError for values out of range.

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

    def __post_init__(self) -> None:
        """Checks and stores the values; `insert` becomes the number of a step."""
        steps = require_steps(self.steps)
        sigma = number("noise_multiplier", self.noise_multiplier, float)
        require(0 <= sigma < np.inf, f"`noise_multiplier` must be at least 0, got {sigma:g}")
        k = number("k", self.k, int)
        place = insert_step(plain(self.insert), k)
        require(k <= steps, f"`k` must be at most the {steps} steps, got {k}")
        self._store(noise_multiplier=sigma, steps=steps, k=k, insert=place)
        self._sensitivity()  # checks numbers

    @functools.cached_property
    def encoder(self) -> Strategy:
        """The strategy S as functions."""
        return find_strategy(self.strategy, self.steps)

    @property
    def assumes(self) -> Assumption:
        """Returns the assumptions: sensitivity C and Gaussian noise."""
        return ACCOUNTED

    @property
    def gaussian_mu(self) -> float:
        """Returns mu of all models; infinite without noise."""
        sensitivity = self._sensitivity()
        return np.inf if self.noise_multiplier == 0 else sensitivity / self.noise_multiplier

    def epsilon(self, delta: float) -> float:
        """Returns epsilon at delta of all models."""
        return conversions.epsilon_from_mu(self.gaussian_mu, delta)

    def power(self, alpha: ArrayLike) -> Array:
        """Returns the largest power of a test of false-positive rate alpha, of alpha's shape."""
        return Gdp(self.gaussian_mu).power(alpha)

    def last_model_if_linear(self, delta: float) -> float:
        """Returns epsilon at delta of the last model if losses are linear.

        It is not a bound: other losses may leak up to `epsilon`.

        Raises:
          InputError: the claim is for patterns that a sampler chooses.
        """
        return conversions.epsilon_from_mu(self.linear_mu(), delta)

    def linear_mu(self) -> float:
        """Returns mu of the last model if losses are linear; raises InputError with `min_separation`."""
        fixed = self.min_separation is None
        require(fixed, "the last model needs a fixed pattern: leave out `min_separation`")
        weights = self.encoder.solve_transposed(np.ones(self.steps))
        inserted = np.sum(self._pattern())
        return float(inserted / (self.noise_multiplier * np.linalg.norm(weights)))

    def with_epsilon(self, epsilon: float, delta: float) -> "MatrixMechanism":
        """Returns the claim with the noise multiplier for which all models leak epsilon at delta."""
        mu = conversions.mu_from_epsilon(epsilon, delta)
        return dataclasses.replace(self, noise_multiplier=self._sensitivity() / mu)

    def _pattern(self) -> Array:
        """Returns u (T,), 1 at the steps that insert the canary."""
        pattern = np.zeros(self.steps)
        pattern[int(self.insert) - 1 :: self.k] = 1
        return pattern

    def _sensitivity(self) -> float:
        """Returns the largest |S u|, in units of C, over the patterns u that are allowed.

        With `min_separation` the pattern is the earliest possible one, which is the worst if the coefficients
        of S are not negative and do not increase (Kalinin and Lampert, 2024, Theorem 2).
        """
        if self.min_separation is None:
            return float(np.linalg.norm(self.encoder.multiply(self._pattern())))
        separation = number("min_separation", self.min_separation, int)
        require(separation >= 1, f"`min_separation` must be at least 1, got {separation}")
        fitting = -(-self.steps // separation)  # rounded up
        count = fitting
        if self.participations is not None:
            count = number("participations", self.participations, int)
            require(count >= 1, f"`participations` must be at least 1, got {count}")
        start = np.zeros(self.steps)
        start[0] = 1
        column = self.encoder.multiply(start)
        is_decreasing = np.all(column >= 0) and np.all(np.diff(column) <= 0)
        shape = "coefficients that are not negative and do not increase"
        require(is_decreasing, f"`min_separation` needs a Toeplitz strategy of {shape}")
        pattern = np.zeros(self.steps)
        pattern[: separation * min(count, fitting) : separation] = 1
        return float(np.linalg.norm(self.encoder.multiply(pattern)))
