"""Checks user-supplied cosines of fresh directions.

`exact_null` assumes directions that are uniform in R^d and new in every run. We reject

- a spread above 1/sqrt(d), which means that d counts parameters that are not trained (`_require_spread`);
- columns with different means, as when the directions of all runs are drawn with the same seed;
- a run whose squared cosines sum to more than uniform directions allow (`require_possible`).

The first two checks each reject valid cosines with probability at most about LEVEL, as simulations confirm
for spreads with K/d up to 1.

If all canaries are inserted, the checks cannot detect nonuniform directions (such as coordinates), directions
known during training, signs or runs selected by score, or a dimension that is slightly too large. They may
also miss a seed that all runs share.

The cosines of a failed run are NaN, which we replace with -1. Without the canary, failure does not depend on
the direction, so the known probability of a cosine above t remains an upper bound.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit.errors import InputError, require, require_type, whole_number
from audit.evidence import arrays
from audit.evidence.arrays import Array, Bits, require_few_failed
from audit.evidence.canaries import FAILED, Fresh
from audit.evidence.decimals import require_decimals
from audit.evidence.repeats import check_with_or_without_copies
from audit.laws import cosine_law

LEVEL = 1e-6  # each test's probability of rejecting valid cosines
MIN_COSINES = 10  # tests need at least this many cosines, or canaries per run
MAX_DIMENSION = 10**13


def given(
    cosines: ArrayLike,
    dimension: Any,
    leave_one_out: bool = False,
    presence: ArrayLike | None = None,
    in_order: bool = False,
) -> Fresh:
    """Checks a user's cosines with fresh directions and returns them as evidence (see `given.cosines`).

    Raises InputError for invalid values, and for cosines that are too coarsely rounded or very unlikely for
    fresh uniform directions in `dimension` dimensions.
    """
    require_type("in_order", in_order, bool)
    d = require_dimension(dimension)
    values = _check_cosines(cosines)
    present = check_bits(presence, values.shape)
    # This check comes first, since the others would mistake rounding for a wrong dimension.
    require_decimals(values, d)
    design = Fresh(
        values, present, d, separate=not leave_one_out, from_user=True, in_order=in_order
    )
    # Both tests assume independent rows, so if one fails, we repeat it without copied rows.
    check_with_or_without_copies(_require_fresh, design)
    check_with_or_without_copies(_require_spread, design)
    require_possible(values, d, leave_one_out)
    return design


def _require_fresh(design: Fresh) -> None:
    """Raises InputError if each canary appears to have the same direction in every run.

    Some canaries then have larger cosines than others in all runs. With fresh directions, all canaries have
    the same mean.
    """
    require(
        columns_p_value(design.cosines, _find_inserted(design)) >= LEVEL,
        "directions look the same in every run: draw them afresh, or shuffle each run's cosines if they are "
        "sorted or some canaries are used more than others",
    )


def _find_inserted(design: Fresh) -> Bits:
    """Returns a mask (R, K) of the inserted canaries in runs that did not fail."""
    return design.presence & (design.cosines != FAILED)


def require_possible(cosines: Array, dimension: int, leave_one_out: bool) -> None:
    """Raises InputError if a run's squared cosines sum to more than uniform directions allow.

    Valid cosines are rejected with probability at most 1e-9.

    Args:
      cosines: (R, K), the cosines of all canaries, in and out; FAILED for a failed run.
      dimension: d, the dimension of the directions.
      leave_one_out: True if the other canaries' directions were projected out of the model update.
    """
    runs, canaries = cosines.shape
    error = 1e-9 / runs  # Bonferroni
    if not leave_one_out:
        limit = cosine_law.limit_squares(canaries, dimension, error)
    elif 2 <= canaries <= dimension:
        limit = cosine_law.limit_left_out_squares(canaries, dimension, error)
    else:  # the sum has no useful limit
        return
    without_failed = np.where(cosines == FAILED, 0.0, cosines)
    sums = np.square(without_failed).sum(axis=1)
    largest = int(np.argmax(sums))
    if sums[largest] <= limit * (1 + 1e-6):  # float32 has relative errors of about 1e-7
        return
    advice = "give each direction's inner product with one vector, divided by both lengths"
    if not leave_one_out:
        advice += ", and `leave_one_out=True` if the other directions were projected out"
    raise InputError(
        f"the squared cosines of run {largest + 1:,} sum to {sums[largest]:.3g}; K = {canaries:,} directions "
        f"in dimension {dimension:,} allow at most {limit:.3g}: {advice}"
    )


def require_dimension(dimension: Any) -> int:
    """Returns a user's dimension as an int; raises InputError if its type or value is invalid."""
    return whole_number("dimension", dimension, least=2, most=MAX_DIMENSION)


def columns_p_value(cosines: Array, presence: Bits) -> float:
    """Tests whether all canaries have the same mean; returns the p-value of an F-test (analysis of variance).

    The test subtracts each run's mean first. The p-value is 1 if there is too little data, or if cosines do
    not vary within any run.

    Args:
      cosines: (R, K), the cosines of K canaries in each of R runs.
      presence: (R, K), True for the cosines to use.
    """
    if len(cosines) < 3 or cosines.shape[1] < MIN_COSINES:
        return 1.0
    deviations = _about_means(cosines, presence)
    runs_of_canary = presence.sum(0)
    total = np.square(deviations).sum()  # the sum of squares within and between canaries
    # A canary without cosines adds 0 / 1.
    between = (deviations.sum(0) ** 2 / np.maximum(runs_of_canary, 1)).sum()
    num_cosines = presence.sum()
    # Each run's mean uses up a degree of freedom, as does every canary's mean but one.
    freedom_between = np.count_nonzero(runs_of_canary) - 1
    freedom_within = num_cosines - np.count_nonzero(presence.any(1)) - freedom_between
    # Cosines of a run that differ by 1e-12 or less count as equal.
    if freedom_between < 1 or freedom_within < 1 or total <= 1e-12**2 * num_cosines:
        return 1.0
    within = max(total - between, 1e-12 * total)  # above 0 despite rounding
    ratio = between / freedom_between / (within / freedom_within)
    return float(special.fdtrc(freedom_between, freedom_within, ratio))


def describe_dimension(design: Fresh) -> str:
    """Returns a note on how a user's dimension was tested: by left-out cosines, by spread, or not at all.

    Cosines of uniform directions have variance 1 / d, so a larger spread means that d is too large.
    """
    number_out = len(design.out())
    _, freedom = measure_spread(design)  # inserted cosines minus estimated means
    cosines = ""
    if number_out >= MIN_COSINES:
        cosines = f"{number_out:,} cosines of canaries that were not inserted"
    elif freedom >= MIN_COSINES - 1:  # one mean
        cosines = f"the spread of {_find_inserted(design).sum():,} cosines"
    tested = "not tested: there are too few cosines"
    if cosines:
        tested = f"tested with {cosines}, which would reveal only a large excess"
    return (
        f"dimension {design.dimension:,} was {tested}; "
        "a dimension that is too large makes bounds wrong"
    )


def measure_spread(design: Fresh) -> tuple[float, int]:
    """Measures the spread of inserted canaries' cosines about their run's mean, to test a user's dimension d.

    A uniform direction's cosine has variance 1 / d. Insertion shifts cosines without widening their spread.
    With one canary per run, we measure the spread about the mean of all runs.

    Returns:
      squares: the sum of the squared deviations, which is freedom / d on average.
      freedom: the number of independent deviations, which each mean reduces by one.
    """
    cosines = design.cosines
    presence = _find_inserted(design)
    if cosines.shape[1] == 1:  # transpose to get a single mean
        cosines = cosines.T
        presence = presence.T
    deviations = _about_means(cosines, presence)
    freedom = int(presence.sum() - presence.any(1).sum())
    return float(np.square(deviations).sum()), freedom


def _check_cosines(cosines: ArrayLike) -> Array:
    """Returns a user's cosines in [-1, 1], (runs, canaries), with -1 (FAILED) for non-finite values.

    Raises InputError if the shape is wrong, a value is outside [-1, 1], or more than half the values are not
    finite.
    """
    values = arrays.cosines("the cosines", cosines)
    require(
        values.ndim in (1, 2) and values.size > 0,
        f"the cosines have shape {values.shape}: give (runs,) or (runs, canaries)",
    )
    failed = np.isnan(values)  # `arrays.cosines` also replaced infinities by NaN
    require_few_failed("cosines", failed)
    return np.where(failed, FAILED, values).reshape(len(values), -1)


def check_bits(presence: ArrayLike | None, shape: tuple[int, ...]) -> Bits:
    """Returns a user's presence bits (`arrays.bits`); None means that all canaries are in.

    Raises InputError if no canary is in.
    """
    if presence is None:
        return np.ones(shape, bool)
    bits = arrays.bits(presence, shape)
    require(bits.any(), "presence leaves out all canaries: at least one must be in")
    return bits


def _about_means(cosines: Array, presence: Bits) -> Array:
    """Returns the deviations of inserted canaries' cosines (R, K) from their run's mean; 0 for the others.

    Tests of the spread must ignore how much insertion shifts a run's cosines.
    """
    sums = (cosines * presence).sum(1, keepdims=True)
    counts = presence.sum(1, keepdims=True)
    means = sums / np.maximum(counts, 1)
    return np.where(presence, cosines - means, 0.0)


def _require_spread(design: Fresh) -> None:
    """Raises InputError if the spread of cosines significantly exceeds 1/sqrt(d): the user's d is too large.

    A d that is too small only weakens bounds. We skip the test if too few cosines are from inserted canaries,
    or if enough are from left-out canaries for a better test (`exact_null.law_test`).
    """
    squares, freedom = measure_spread(design)
    if len(design.out()) >= MIN_COSINES or freedom < MIN_COSINES - 1:
        return
    dimension = design.dimension
    ratio = squares * dimension / freedom  # the variance, in units of 1 / d
    if _spread_p_value(design, freedom, ratio) >= LEVEL:
        return
    suggested = max(round(freedom / squares), 1)
    # The spread also grows if training uses some canaries more often, since this increases their cosines.
    raise InputError(
        f"`dimension={dimension}`: cosines have a spread of {np.sqrt(ratio):.3g} / sqrt(d), not 1 / sqrt(d) "
        f"as for uniform directions; this suggests that d is about {suggested:,}: count only trained "
        "parameters, or use coins to leave out some canaries if they are used unequally"
    )


def _spread_p_value(design: Fresh, freedom: int, ratio: float) -> float:
    """Tests whether the variance of cosines exceeds 1 / d; returns the p-value of an F-test.

    `ratio` is their variance in units of 1 / d, with `freedom` degrees of freedom.
    """
    dimension = design.dimension
    canaries = design.cosines.shape[1]  # K
    runs = np.count_nonzero(_find_inserted(design).any(1))
    # Leave-one-out cosines of a run depend on each other. With several runs, we always allow for this. With a
    # single run, we rely on the user's `leave_one_out` (stored as `separate`), as bounds do.
    if runs == 1 and design.separate:
        # With so many denominator degrees of freedom, this is practically a chi-squared test.
        return special.fdtrc(freedom, 1e12, ratio)
    # These degrees of freedom fit our simulations of leave-one-out cosines. The lower limits keep them
    # positive if K >= d.
    independent_fraction = max(1 - canaries / dimension, 1 / dimension)
    numerator = max(freedom * independent_fraction, 1.0)
    denominator = max(runs * (dimension - canaries), 1)
    return special.fdtrc(numerator, denominator, ratio)
