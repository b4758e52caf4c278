"""Checks a matrix mechanism's noise over many steps: undoes the strategy, and tests for white noise.

With the strategy matrix S (T, T) and the noise N (T, d) of T steps, the entries of S N / (eta sigma C / B)
are independent standard normal numbers. A single step cannot reveal a lost state or a different strategy.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from audit.check.loaders import call_user
from audit.check.noise import compute_two_sided_p_value
from audit.check.probe import StepSettings
from audit.check.report import LEVEL, CheckFinding, CheckOutcome, CheckReport, make_report
from audit.check.trees import Mask
from audit.claims.strategies import Strategy, find_strategy
from audit.errors import require
from audit.evidence import arrays
from audit.evidence.arrays import Array


def check_noise(
    draw: Callable[[], ArrayLike] | ArrayLike,
    strategy: str | ArrayLike,
    *,
    noise_multiplier: float,
    clipping_norm: float = 1.0,
    learning_rate: float = 1.0,
    batch_size: float = 1.0,
) -> CheckReport:
    """Checks whether the noise of T steps matches a matrix mechanism in size and correlations.

    Args:
      draw: (T, d) the noise of T steps in d parameters, or a function that returns it. To measure noise, take
        steps on empty batches, or subtract noiseless steps on the same batches. Most bugs show up in 100
        steps with 1,000 parameters.
      strategy: "independent", "lambda:0.9", "sqrt", "bsr:16" or "bisr:16", a file, or the coefficients (n,)
        or matrix (T, T) of the strategy S (see `audit.MatrixMechanism`).
      noise_multiplier: sigma, the standard deviation of the raw noise divided by C. The columns of S are used
        as given, not scaled to norm 1.
      clipping_norm, learning_rate, batch_size: C, eta and B; a step multiplies the noise on the sum of
        gradients by eta / B.

    Raises:
      InputError: `draw` fails or does not return a finite matrix, or a number is out of range.

    >>> import numpy as np
    >>> raw = np.random.default_rng(0).normal(size=(50, 1000))
    >>> audit.check_noise(raw, "independent", noise_multiplier=1.0).passed
    True
    >>> audit.check_noise(raw, "lambda:0.9", noise_multiplier=1.0).verdict
    "FAILED: independent noise, not the strategy's"
    """
    stated = StepSettings(clipping_norm, noise_multiplier, learning_rate, batch_size).read()
    require(stated.noise_multiplier, "`noise_multiplier=0`: give a number above 0")
    noise = arrays.floats("the noise", call_user(draw) if callable(draw) else draw)
    require(
        noise.ndim == 2 and min(noise.shape) > 1,
        f"`draw` gave shape {noise.shape}: give the noise of T steps, (T, d)",
    )
    require(np.isfinite(noise).all(), "the noise from `draw` is not finite")
    report = _report(find_strategy(strategy, len(noise)), noise / stated.deviation)
    return report.add_provenance(draw, stated._asdict())


def _test_steps(noise: Array) -> tuple[float, Array]:
    """Tests whether the steps (rows) of `noise` (T, d) are independent.

    Combines two statistics with a Bonferroni correction: the largest of the T (T - 1) / 2 pairwise
    correlations, and the largest sum of correlations at one lag, which detects small correlations. Returns
    the p-value and the correlations (T, T) between steps, with a zero diagonal.
    """
    steps, size = noise.shape
    lengths = np.linalg.norm(noise, axis=1, keepdims=True)
    directions = noise / np.maximum(lengths, 1e-300)  # avoids 0 / 0
    correlations = directions @ directions.T
    np.fill_diagonal(correlations, 0)
    # Each sum is scaled to the variance of a single correlation, 1 / d.
    sums = [np.trace(correlations, lag) / math.sqrt(steps - lag) for lag in range(1, steps)]
    largest = np.array([abs(correlations).max(), np.max(np.abs(sums))])
    counts = np.array([math.comb(steps, 2), steps - 1])
    two_sided = 2 * stats.norm.sf(largest * math.sqrt(size))
    p_value = 2 * np.min(counts * two_sided)
    return min(1.0, p_value), correlations


def _report(strategy: Strategy, noise: Array) -> CheckReport:
    """Returns the report on `noise` (T, d), in units of the stated deviation, for the strategy S."""
    raw = strategy.multiply(noise)  # undoes the strategy
    steps, size = noise.shape
    # S may give each step a different amount of noise.
    expected = np.linalg.norm(strategy.solve(np.eye(steps)), axis=1)
    is_silent = _is_almost_none(np.linalg.norm(noise, axis=1) / expected)
    is_missing, is_copy = _find_flawed_parameters(raw)
    certain = _report_missing(is_silent, "steps") + _report_missing(is_missing, "parameters")
    if is_copy.any():
        certain.append(
            CheckFinding(
                "whiteness",
                "the same noise in several parameters",
                f"{is_copy.sum()} parameters copy another's noise, so their difference reveals gradients.",
                "draw a number for every parameter, with a different key for every layer",
            )
        )
    # The tests use the other parameters.
    is_used = ~(is_missing | is_copy)
    if is_used.sum() < 2 or is_silent.any():
        untried = CheckOutcome(
            "the tests need noise in every step, and in at least two parameters", tried=False
        )
        return make_report("noise", {"size": untried, "whiteness": untried}, certain)
    raw = raw[:, is_used]
    noise = noise[:, is_used]
    p_independent, correlations = _test_steps(raw)
    p_size, overall, strongest = _test_sizes(raw)
    wrong_size = CheckFinding(
        "size",
        strongest,
        "The size is measured after undoing the strategy.",
        "compare eta, sigma, C and B with the code; S is used as given, without scaling its columns to "
        "norm 1",
    )
    outcomes = {
        "size": CheckOutcome(
            f"{overall} ({steps} steps, {size:,} parameters)",
            # Undoing the wrong strategy also changes the size.
            findings=[wrong_size] if p_independent > LEVEL else [],
            p_values={"chi-square": p_size},
        ),
        "whiteness": CheckOutcome(
            f"test of correlated steps: p {p_independent:.2g}",
            findings=[_explain_correlations(strategy, noise, correlations)],
            p_values={"correlations": p_independent},
        ),
    }
    return make_report("noise", outcomes, certain)


def _test_sizes(raw: Array) -> tuple[float, str, str]:
    """Tests whether the deviation of raw noise (T, d) is 1, in units of the stated deviation.

    Tests the noise as a whole, by step and by parameter, with a Bonferroni correction. Returns the p-value,
    and descriptions of the total size and of the size with the smallest p-value.
    """
    tests = []
    for axis, place in ((None, ""), (1, " in step {}"), (0, " in a parameter")):
        squares = np.atleast_1d(np.sum(raw**2, axis=axis))
        freedom = raw.size // len(squares)
        p_values = compute_two_sided_p_value(stats.chi2(freedom), squares)
        index = p_values.argmin()
        ratio = math.sqrt(squares[index] / freedom)
        name = f"raw noise of {ratio:.4g} times the stated deviation" + place.format(index + 1)
        tests.append((3 * len(squares) * p_values[index], name))
    p_value, strongest = min(tests, key=lambda test: test[0])
    return min(1.0, p_value), tests[0][1], strongest


def _is_almost_none(sizes: Array) -> Mask:
    """Returns a mask of sizes that are far below their median."""
    return sizes <= 1e-4 * np.median(sizes)


def _find_flawed_parameters(raw: Array) -> tuple[Mask, Mask]:
    """Returns masks (d,) of parameters with almost no raw noise (T, d), and of copies of others."""
    steps, size = raw.shape
    is_copy = np.zeros(size, bool)
    if steps < 5:  # chance may explain small or parallel columns
        return is_copy, is_copy
    lengths = np.linalg.norm(raw, axis=0)
    # Copies, perhaps with the opposite sign, are neighbours if sorted by the first step.
    order = np.argsort(abs(raw[0]))
    directions = raw[:, order] / np.maximum(lengths[order], 1e-300)  # avoids 0 / 0
    cosines = np.sum(directions[:, 1:] * directions[:, :-1], axis=0)
    is_copy[order[1:]] = abs(cosines) > 1 - 1e-6
    return _is_almost_none(lengths), is_copy


def _report_missing(is_missing: Mask, kind: str) -> list[CheckFinding]:
    """Returns a bug if any steps or parameters, named by `kind`, have almost no noise."""
    finding = CheckFinding(
        "size",
        f"no noise in {is_missing.sum()} of {len(is_missing)} {kind}",
        f"These {kind} reveal sums of gradients.",
        "add noise to every parameter in every step, also for empty batches",
    )
    return [finding] if is_missing.any() else []


def _explain_correlations(strategy: Strategy, noise: Array, correlations: Array) -> CheckFinding:
    """Explains why steps of `noise` (T, d) are correlated after undoing the strategy.

    `correlations` (T, T) are the remaining correlations, with a zero diagonal.
    """
    p_unchanged, _ = _test_steps(noise)
    if p_unchanged > LEVEL:
        return CheckFinding(
            "whiteness",
            "independent noise, not the strategy's",
            "Different steps have independent noise.",
            "add the strategy's noise, or account for DP-SGD",
        )
    steps, size = noise.shape
    # The smallest significant correlation in a two-sided test of T (T - 1) / 2 pairs of steps.
    threshold = stats.norm.isf(LEVEL / steps**2) / np.sqrt(size)
    is_correlated = np.any(np.triu(abs(correlations)) > threshold, axis=0)
    restart = max(int(is_correlated.argmax()), 1)  # at least one step precedes the restart
    # The mechanism may restart at the first step that is correlated with an earlier step. Undoing the
    # strategy separately before and after the restart then removes all correlations.
    parts = [strategy.multiply(noise[:restart]), strategy.multiply(noise[restart:])]
    p_joined, joined = _test_steps(np.concatenate(parts))
    # If the generator also restarts, a step before the restart and one after it have correlation 1.
    if np.max(abs(joined[:restart, restart:])) > 0.9:
        return CheckFinding(
            "whiteness",
            f"noise of earlier steps is reused from step {restart + 1}",
            "The difference between two steps with the same noise reveals gradients.",
            "create the generator once, and restore both its state and the step when training resumes",
        )
    if p_joined > LEVEL:
        return CheckFinding(
            "whiteness",
            f"the noise's state is lost at step {restart + 1}",
            "The noise is as stated before this step, and again from this step on, but the two parts are "
            "not correlated as the strategy requires: the accountant's sensitivity does not apply.",
            "store the state of the noise in checkpoints, and restore it when training resumes",
        )
    return CheckFinding(
        "whiteness",
        "noise of a different strategy",
        "After undoing the strategy, different steps are still correlated.",
        "compare the coefficients: are they those of S, or of its inverse? Does the state start empty, "
        "and is it kept throughout training?",
    )
