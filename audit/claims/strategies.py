"""Strategies of matrix mechanisms: how the noise is correlated across steps.

A strategy is a lower-triangular matrix S (T, T). With raw noise z ~ N(0, (sigma C)^2 I) for T steps, step t
adds the noise (S^-1 z)_t (DP-FTRL: Kairouz et al., 2021; Denisov et al., 2022).

    independent   S = I, DP-SGD
    lambda:l      S^-1 = I - l L, where L shifts by one step (lambda-CGD, Koloskova et al., 2023)
    sqrt          S = (I - L)^(-1/2), the square root of the prefix sum (Henzinger et al., 2023)
    bsr:b         the first b coefficients of the square root (Kalinin and Lampert, 2024)
    bisr:p        S^-1 has the first p coefficients of (I - L)^(1/2) (Kalinin et al., 2025)

We do not scale S.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from audit.errors import InputError, require, shown
from audit.evidence.arrays import Array

INDEPENDENT = "independent"
_NAMES = (INDEPENDENT, "lambda", "sqrt", "bsr", "bisr")


def _filter(numerator: tuple[float, ...], denominator: tuple[float, ...], values: Array) -> Array:
    """Returns B(L) / A(L) times values (T, ...), for polynomials in the one-step shift L (`Toeplitz`)."""
    from scipy import signal  # slow to load

    return signal.lfilter(numerator, denominator, values, axis=0)


class Toeplitz(NamedTuple):
    """A strategy with constant diagonals: S = B(L) / A(L), for polynomials in the one-step shift L.

    Attributes:
      numerator: (b,) the coefficients of B, in ascending powers of L.
      denominator: (a,) the coefficients of A, in ascending powers of L.
    """

    numerator: tuple[float, ...] = (1.0,)
    denominator: tuple[float, ...] = (1.0,)

    def multiply(self, values: Array) -> Array:
        """Returns S x for x of shape (T, ...)."""
        return _filter(self.numerator, self.denominator, values)

    def solve(self, values: Array) -> Array:
        """Returns S^-1 x = A(L) / B(L) x for x of shape (T, ...)."""
        return _filter(self.denominator, self.numerator, values)

    def solve_transposed(self, values: Array) -> Array:
        """Returns S^-T x for x of shape (T,)."""
        # Reversing rows and columns transposes a Toeplitz matrix.
        return self.solve(values[::-1])[::-1]

    def noise_coefficients(self) -> tuple[Array, Array]:
        """Returns the coefficients of B and A. The noise n = S^-1 z satisfies B(L) n = A(L) z."""
        return np.array(self.numerator), np.array(self.denominator)


class Dense(NamedTuple):
    """A strategy of T steps as a lower-triangular matrix S (T, T), with the same methods as `Toeplitz`."""

    matrix: Array

    def multiply(self, values: Array) -> Array:
        # As for `Toeplitz`, the first steps need only the first rows and columns.
        steps = len(values)
        return self.matrix[:steps, :steps] @ values

    def solve(self, values: Array) -> Array:
        return np.asarray(np.linalg.solve(self.matrix, values))

    def solve_transposed(self, values: Array) -> Array:
        return np.asarray(np.linalg.solve(self.matrix.T, values))

    def noise_coefficients(self) -> tuple[Array, Array]:
        """Returns B = [1] and A (T, T). The noise n = S^-1 z satisfies n_t = sum_(i <= t) A[t, i] z_(t-i)."""
        inverse = np.linalg.inv(self.matrix)
        step = np.arange(len(self.matrix))[:, None]
        # `tril` drops entries with t - i < 0.
        return np.ones(1), np.tril(inverse[step, step - step.T])


Strategy = Toeplitz | Dense


def expand_power(exponent: float, count: int) -> tuple[float, ...]:
    """Returns the first `count` coefficients of the power series of (1 - L)^exponent in L."""
    powers = np.arange(1, count)
    # The ratios of consecutive coefficients.
    ratios = (powers - 1 - exponent) / powers
    return (1.0, *np.cumprod(ratios).tolist())


def find_strategy(strategy: str | ArrayLike, steps: int) -> Strategy:
    """Reads a strategy for T steps from a string (`read_strategy`) or numbers (`make_strategy`)."""
    if isinstance(strategy, str):
        return read_strategy(strategy, steps)
    return make_strategy(strategy, steps)


def pin_file(text: str) -> str:
    """Appends a checksum to the name of a strategy file; returns other strings unchanged.

    The checksum lets a setting identify the file's content. `read_strategy` verifies it.
    """
    if text.partition(":")[0] in _NAMES or not Path(text).is_file():
        return text
    return f"{text}#{_compute_checksum(text)}"


def _compute_checksum(path: str) -> str:
    """Returns the first 16 digits of the SHA-256 of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def read_strategy(text: str, steps: int) -> Strategy:
    """Returns the strategy that a string names.

    Args:
      text: "independent", "sqrt", "lambda:l" (lambda-CGD), "bsr:b" (banded square root), "bisr:p" (banded
        inverse square root), or a file (.npy, or text that numpy.loadtxt reads) with the first column of S,
        (n,), or all of S, (T, T). The file name may end with a checksum (`pin_file`).
      steps: T, the number of steps.

    Raises:
      InputError: the string names no strategy, or its file has changed or does not fit T steps.
    """
    if text == INDEPENDENT:
        return Toeplitz()
    if text == "sqrt":
        # S = 1 / (1 - L)^(1/2)
        return Toeplitz(denominator=expand_power(0.5, steps))
    name, _, parameter = text.partition(":")
    if name not in ("lambda", "bsr", "bisr"):
        return make_strategy(_read_file(text), steps)
    try:
        value = float(parameter)
    except ValueError:
        raise InputError(_list_strategies(text)) from None
    if name == "lambda":
        require(0 <= value < 1, f"`noise={text}`: give at least 0 and below 1, such as 0.9")
        return Toeplitz(denominator=(1.0, -value))  # S = 1 / (1 - l L)
    is_count = 1 <= value < 1e9 and value.is_integer()
    require(is_count, f"`noise={text}`: give a whole number of at least 1, such as 16")
    count = min(int(value), steps)
    if name == "bsr":  # S has the first b terms of (1 - L)^(-1/2)
        return Toeplitz(numerator=expand_power(-0.5, count))
    # bisr: 1 / S has the first p terms of (1 - L)^(1/2)
    return Toeplitz(denominator=expand_power(0.5, count))


def _read_file(text: str) -> Array:
    """Returns the numbers in a strategy file. The name may end with a checksum (`pin_file`).

    Raises InputError if there is no such file, if it has changed, or if it contains no numbers.
    """
    path, _, checksum = text.partition("#")
    require(Path(path).is_file(), _list_strategies(text))
    is_same = not checksum or checksum == _compute_checksum(path)
    require(is_same, f"`noise={path}` has changed since the audit: restore it, or audit again")
    try:
        values = np.load(path) if path.endswith(".npy") else np.loadtxt(path)
        return np.asarray(values, np.float64)
    except (OSError, ValueError) as error:
        raise InputError(f"`noise={path}` contains no numbers: {error}") from error


def _list_strategies(text: str) -> str:
    """Returns the error message for a string that does not name a strategy."""
    return (
        f"`noise={shown(text)}` is not a strategy: give independent, lambda:0.9, sqrt, bsr:16, bisr:16, or a "
        "file of coefficients"
    )


def make_strategy(values: ArrayLike, steps: int) -> Strategy:
    """Returns the strategy for the first column of S, (n,), or for all of S, (T, T).

    The first T coefficients of a column determine a Toeplitz matrix; missing ones are 0.

    Raises InputError for other shapes and for values that do not define a strategy.
    """
    array = np.asarray(values, np.float64)
    require(np.all(np.isfinite(array)), "the strategy's numbers must be finite")
    if array.ndim == 1 and array.size:
        require(array[0] > 0, f"the first coefficient must be positive, got {array[0]:g}")
        return Toeplitz(numerator=tuple(array[:steps].tolist()))
    require(
        array.shape == (steps, steps),
        f"the strategy has shape {array.shape}: give (n,) or {(steps, steps)}",
    )
    is_lower = np.array_equal(array, np.tril(array)) and np.all(np.diag(array) > 0)
    require(is_lower, "the matrix must be lower triangular, with a positive diagonal")
    return Dense(array)
