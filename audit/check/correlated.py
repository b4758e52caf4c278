"""Checks the noise of many steps of a matrix mechanism: undoes the strategy, and tests what is left.

With the right strategy S the noise N (T, d) of T steps gives W = S N / (sigma C eta / B): independent normal
numbers of deviation 1. A single step shows neither a lost state nor another strategy.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from audit.check.findings import CheckFinding
from audit.check.loaders import call_user
from audit.check.noise import compute_two_sided_p_value
from audit.check.report import LEVEL, CheckOutcome, CheckReport, make_report
from audit.claims.strategies import Strategy, Toeplitz, find_strategy, read_strategy
from audit.errors import number, require
from audit.evidence import arrays

Array = NDArray[np.float64]
_REPEATED = 0.9  # the correlation of two steps above which they share a draw
_FIT = 0.02  # the relative error up to which a deviation agrees with a cause
_OTHERS = ("sqrt", *(f"{name}:{bands}" for name in ("bsr", "bisr") for bands in range(2, 65)))

_REPEATS = CheckFinding(
    "whiteness",
    "steps {first} and {second} share their noise",
    "The raw noise of the two steps has correlation {correlation:.2f}: their difference shows gradients.",
    "make the generator once, and restore its state together with the step when training resumes",
)
_LOST = CheckFinding(
    "whiteness",
    "the noise's state is lost at step {step}",
    "Noise before and from this step on is each as stated, but they are not correlated as the strategy "
    "assumes: the accountant's sensitivity does not apply.",
    "store the state of the noise in checkpoints, and restore it when training resumes",
)
_INDEPENDENT = CheckFinding(
    "whiteness",
    "independent noise, not that of the strategy",
    "The steps' noise is independent, with {ratio:.3g} times the stated deviation of raw noise.",
    "add the strategy's noise, or account for DP-SGD",
)
_ANOTHER = CheckFinding(
    "whiteness",
    "noise of the strategy {name}",
    "It fits the noise of {name}, with {ratio:.3g} times the stated deviation of raw noise.",
    "state the strategy that the noise has",
)
_UNKNOWN = CheckFinding(
    "whiteness",
    "noise of another strategy",
    "After undoing the strategy, noise of different steps is still correlated (p {p_value:.2g}).",
    "compare the coefficients: is S meant or its inverse, and does training start with an empty state?",
)
_WRONG_SIZE = CheckFinding(
    "size",
    "raw noise of {ratio:.4g} times the stated deviation",
    "Undoing the strategy leaves noise of {ratio:.4g} sigma C eta / B. {why}",
    "state the deviation that the noise has, for S with the columns that it has",
)


class _Whitened(NamedTuple):
    """Noise after undoing a strategy.

    Attributes:
      ratio: its standard deviation.
      p_value: that of the correlations of different steps.
      correlations: (T, T) the correlations of two steps, 0 on the diagonal.
    """

    ratio: float
    p_value: float
    correlations: Array


def check_noise(
    draw: Callable[[], ArrayLike] | ArrayLike,
    strategy: str | ArrayLike,
    *,
    noise_multiplier: float,
    clipping_norm: float = 1.0,
    learning_rate: float = 1.0,
    batch_size: float = 1.0,
) -> CheckReport:
    """Checks whether the noise of T steps is that of a matrix mechanism's strategy.

    Args:
      draw: the noise of T steps in d parameters, (T, d), or a function that returns it. Take steps on an
        empty batch, or subtract the steps of the same batches without noise. 1,000 parameters of 100 steps
        show most bugs.
      strategy: "independent", "lambda:0.9", "sqrt", "bsr:16" or "bisr:16", a file, or the coefficients (n,)
        or matrix (T, T) of S (`audit.MatrixMechanism`).
      noise_multiplier: sigma, the deviation of the raw noise over C, for S as it is.
      clipping_norm, learning_rate, batch_size: C, eta and B; the noise of a step is eta / B times that on the
        sum of gradients.

    Returns:
      The report: the size and the whiteness of the noise, and the bugs by name.

    Raises:
      InputError: `draw` fails or gives no finite matrix, or a number is out of range.

    >>> import numpy as np
    >>> raw = np.random.default_rng(0).normal(size=(50, 1000))
    >>> audit.check_noise(raw, "independent", noise_multiplier=1.0).passed
    True
    >>> audit.check_noise(raw, "lambda:0.9", noise_multiplier=1.0).verdict
    'FAILED: independent noise, not that of the strategy'
    """
    stated = {
        "noise_multiplier": noise_multiplier,
        "clipping_norm": clipping_norm,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
    }
    for name, value in stated.items():
        stated[name] = number(name, value, float)
        require(0 < stated[name] < np.inf, f"`{name}` must be above 0, got {value:g}")
    noise = _read_noise(draw)
    chosen = find_strategy(strategy, len(noise))
    unit = stated["noise_multiplier"] * stated["clipping_norm"] * stated["learning_rate"]
    report = _judge(chosen, noise * stated["batch_size"] / unit)
    return report.add_provenance(draw if callable(draw) else None, stated)


def _read_noise(draw: Any) -> Array:
    """Returns the noise (T, d); raises InputError unless it is a finite matrix of at least two steps."""
    if callable(draw):
        draw = call_user(draw)
    noise = arrays.floats("the noise", draw)
    fits = noise.ndim == 2 and len(noise) > 1 and noise.shape[1] > 1
    require(fits, f"`draw` gave shape {noise.shape}: give the noise of T steps, (T, d)")
    require(bool(np.all(np.isfinite(noise))), "`draw` gave noise that is not finite")
    return noise


def _whiten(strategy: Strategy, noise: Array) -> _Whitened:
    """Returns S N with its deviation and the test of its correlations.

    Two statistics are combined (Bonferroni): the largest correlation of two steps, of T (T - 1) / 2, against
    a normal law; and the sums of the products of steps at each distance, which show small correlations.
    """
    values = strategy.multiply(noise)
    steps, size = values.shape
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    directions = values / np.maximum(lengths, 1e-300)
    correlations = directions @ directions.T
    np.fill_diagonal(correlations, 0)
    sums = []
    for distance in range(1, steps):
        sums.append(np.trace(correlations, distance) / math.sqrt(steps - distance))
    largest = np.array([np.max(np.abs(correlations)), np.max(np.abs(sums))])
    counts = np.array([math.comb(steps, 2), steps - 1])
    p_value = 2 * np.min(counts * 2 * stats.norm.sf(largest * math.sqrt(size)))
    ratio = np.sqrt(np.mean(values**2))
    return _Whitened(float(ratio), min(1.0, float(p_value)), correlations)


def _judge(strategy: Strategy, noise: Array) -> CheckReport:
    """Returns the report on noise, in units of its stated deviation."""
    whitened = _whiten(strategy, noise)
    ratio = whitened.ratio
    steps, size = noise.shape
    p_size = compute_two_sided_p_value(stats.chi2(noise.size), ratio**2 * noise.size)
    outcomes = {
        "size": CheckOutcome(
            f"raw noise of {ratio:.4g} times the stated deviation ({steps} steps, {size:,} parameters)",
            p_values={"chi-square": float(p_size)},
            figures={"ratio": ratio},
        ),
        "whiteness": CheckOutcome(
            f"no evidence that steps are correlated (p {whitened.p_value:.2g})",
            p_values={"correlations": whitened.p_value},
        ),
    }

    def explain(rejected: dict[str, list[str]]) -> list[CheckFinding]:
        """Returns the bug that explains the rejected tests."""
        if rejected["whiteness"]:
            return [_explain_correlations(strategy, noise, whitened)]
        if not rejected["size"]:
            return []
        why = ""
        norm = float(np.linalg.norm(strategy.multiply(np.eye(steps, 1))))
        fits = np.abs(ratio / np.array([norm, 1 / norm]) - 1) < _FIT
        if np.any(fits) and abs(norm - 1) > _FIT:
            why = f"The first column of S has norm {norm:.4g}: was S scaled to norm 1?"
        return [_WRONG_SIZE.fill(ratio=ratio, why=why)]

    return make_report("noise", outcomes, explain)


def _explain_correlations(strategy: Strategy, noise: Array, whitened: _Whitened) -> CheckFinding:
    """Returns the cause of correlated steps: a repeated draw, a lost state, or another strategy."""
    independent = _whiten(Toeplitz(), noise)
    if independent.p_value > LEVEL:
        return _INDEPENDENT.fill(ratio=independent.ratio)
    restart = _find_restart(strategy, noise, whitened)
    if restart is not None:
        return restart

    # Of several strategies with S[t, t] = 1, the right one leaves the smallest noise (maximum likelihood).
    strategies = {name: read_strategy(name, len(noise)) for name in _OTHERS}
    likeliest = min(_OTHERS, key=lambda name: np.linalg.norm(strategies[name].multiply(noise)))
    other = _whiten(strategies[likeliest], noise)
    if other.p_value > LEVEL:
        return _ANOTHER.fill(name=likeliest, ratio=other.ratio)
    return _UNKNOWN.fill(p_value=whitened.p_value)


def _find_restart(strategy: Strategy, noise: Array, whitened: _Whitened) -> CheckFinding | None:
    """Returns the finding of noise that restarts at a step; None if it does not.

    After a restart, undoing the strategy leaves a part of the earlier noise in later steps: the first step
    that is correlated with an earlier one is the restart. Undone by themselves, the parts are white, or share
    draws.
    """
    steps, size = noise.shape
    least = stats.norm.isf(LEVEL / steps**2) / np.sqrt(size)
    is_correlated = np.any(np.triu(np.abs(whitened.correlations)) > least, axis=0)
    restart = int(np.argmax(is_correlated))  # 0 if no step is correlated
    if restart == 0:
        return None
    parts = [strategy.multiply(noise[:restart]), strategy.multiply(noise[restart:])]
    joined = _whiten(Toeplitz(), np.concatenate(parts))
    across = np.abs(joined.correlations[:restart, restart:])
    first, second = np.unravel_index(np.argmax(across), across.shape)
    correlation = across[first, second]
    if correlation > _REPEATED:
        return _REPEATS.fill(first=first + 1, second=second + restart + 1, correlation=correlation)
    return _LOST.fill(step=restart + 1) if joined.p_value > LEVEL else None
