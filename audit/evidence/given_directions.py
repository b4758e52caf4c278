"""What a caller's cosines of fresh directions must be, as far as the cosines alone show it.

`exact_null` assumes directions that are uniform in R^d and drawn afresh for every run. Refused are:

- a spread beyond 1/sqrt(d), as where d counts parameters that are not trained: of canaries that are in, about
  their run's mean (of one canary a run, about the mean of all), since a canary shifts its cosine and does not
  widen it, if all take part alike. Where LEAST of them are out, `exact_null.law_test` looks at those instead;
- columns whose means differ (analysis of variance over at least 3 runs of LEAST canaries), as where one seed
  drew the directions of all runs: whatever training moves alike in every run, the other canaries among it,
  lies along some of them more than along others;
- squares that sum to more within a run than any vector gives (`require_possible`).

Each but the last refuses cosines that are what they should be with a probability of about LEVEL at most.
Leave-one-out cosines of one run depend on each other: each of them divides by the length of what is left of
the movement off the other K - 1 directions, in d - K + 1 dimensions, and the inverse Gram matrix ties the
numerators. Their squares then spread as if 1 - K/d of them were independent, over a denominator of d - K
degrees of freedom a run, so that the spread is held against Fisher's F with these degrees of freedom rather
than against chi-squared (measured: it refuses at most as often as it says, for K/d up to 1). No cosine says
whether leave-one-out was used, so that all are tested so; where K is small beside d it is the same test.

Nothing here sees coordinates, or another law's directions, passed off as uniform while all canaries are in;
the same seed for all runs where leave-one-out took the other canaries away and a rehearsal the drift, or
where canaries are few for the dimension (K mu^2 / d of a percent); directions that training knew; a sign or a
run that was chosen by its score; a dimension that is slightly too large.

A run that failed gives NaN for its cosines. In the world without the canary a run fails, or not, without
knowing the direction, so that P(cosine > t) is at most a(t) whatever fixed value a failure gets: here
-1, below all others. The tests above leave failures out, which only decides what is refused.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import InputError, number, require, require_type
from audit.evidence import arrays
from audit.evidence.arrays import require_few_failed
from audit.evidence.canaries import FAILED, Fresh
from audit.evidence.decimals import require_decimals
from audit.evidence.repeats import check_either
from audit.laws import cosine_law

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]
LEVEL = 1e-6  # the error of each test
LEAST = 10  # canaries of a run, or cosines in all, with which a test is made
MOST_DIMENSION = 10**13
_IMPOSSIBLE = 1e-9  # the probability of refusing possible cosines for their sum of squares
_MANY = 1e12  # degrees of freedom with which F is chi-squared over its own
_SLACK = 1e-6  # by which a cosine in float32 may exceed 1, from rounding
_ALIKE = 1e-12  # cosines of a run that differ by less are equal
_FIX = "count trained parameters alone, or leave out some canaries by coins if they take part unequally"
_SHUFFLE = "shuffle each run's cosines if they are sorted, or canaries take part unequally"
_SAME = f"directions look the same in every run: draw them afresh, or {_SHUFFLE}"


class CosineSpread(NamedTuple):
    """The spread of the cosines of canaries that are in.

    Attributes:
      squares: sum of the cosines' squared deviations from means; freedom / d on average in d dimensions.
      freedom: number of independent deviations.
      numerator, denominator: degrees of freedom of the F law with which squares * d / freedom is compared.
    """

    squares: float
    freedom: int
    numerator: float
    denominator: float


def given(
    cosines: ArrayLike,
    dimension: Any,
    leave_one_out: bool = False,
    presence: ArrayLike | None = None,
    in_order: bool = False,
) -> Fresh:
    """Returns a caller's cosines with fresh directions as evidence, after all checks.

    Args:
      cosines: (runs, canaries), or (runs,) with a single canary a run; NaN for a run that failed.
      dimension: d, the number of trained parameters.
      leave_one_out: whether a cosine used the other canaries' directions.
      presence: 1 where the canary was in, else 0, in the cosines' shape; None where all were in.
      in_order: whether rows are in the order in which runs were begun.

    Raises:
      InputError: for values that fit no audit, and for cosines that are very unlikely if every run draws
        uniform directions in `dimension` dimensions afresh, or that were rounded too coarsely.
    """
    require_type("leave_one_out", leave_one_out, bool)
    require_type("in_order", in_order, bool)
    size = require_dimension(dimension)
    values = _check_cosines(cosines)
    present = np.ones(values.shape, bool)
    if presence is not None:
        present = check_bits(presence, values.shape)
    # It comes before the tests of the law, since rounding looks to them like a wrong dimension.
    require_decimals(values, size)
    design = Fresh(values, present, size, plain=not leave_one_out, given=True, in_order=in_order)
    check_either(_require_fresh, design)
    check_either(_require_spread, design)
    require_possible(values, size, leave_one_out)
    return design


def _require_fresh(design: Fresh) -> None:
    """Raises InputError if canary k had the same direction in every run: its means over runs differ then."""
    counts = design.presence & (design.cosines != FAILED)
    require(columns_p_value(design.cosines, counts) >= LEVEL, _SAME)


def require_possible(cosines: Array, dimension: int, leave_one_out: bool) -> None:
    """Raises InputError if a run's squared cosines sum to more than uniform directions allow, whatever moved.

    Possible cosines are refused with a probability of at most _IMPOSSIBLE.

    Args:
      cosines: (R, K), the cosines of all canaries, in and out; FAILED for a failed run.
      dimension: d, the dimension of the directions.
      leave_one_out: whether the other canaries' directions were projected out of each cosine's vector.
    """
    runs, canaries = cosines.shape
    error = _IMPOSSIBLE / runs
    if not leave_one_out:
        limit = cosine_law.limit_squares(canaries, dimension, error)
    elif 2 <= canaries <= dimension:
        limit = cosine_law.limit_left_out_squares(canaries, dimension, error)
    else:  # one direction has no others, and more than d leave nothing out
        return
    sums = np.square(np.where(cosines == FAILED, 0.0, cosines)).sum(axis=1)
    largest = int(np.argmax(sums))
    if sums[largest] <= limit * (1 + _SLACK):
        return
    advice = "give each direction's cosine with one vector, divided by both lengths"
    if not leave_one_out:
        advice += ", and `leave_one_out=True` if the other directions were projected out"
    raise InputError(
        f"the squared cosines of run {largest + 1:,} sum to {sums[largest]:.3g}; K = {canaries:,} directions "
        f"in dimension {dimension:,} allow at most {limit:.3g}: {advice}"
    )


def require_dimension(dimension: Any) -> int:
    """Returns a caller's dimension as an int; raises InputError for another type or a value out of range."""
    size = number("dimension", dimension, int)
    fits = 2 <= size <= MOST_DIMENSION
    require(
        fits, f"`dimension={size}`: give 2 to {MOST_DIMENSION:,}, the number of trained parameters"
    )
    return size


def columns_p_value(cosines: Array, presence: Bits) -> float:
    """Returns the p-value of an F-test (analysis of variance) that all canaries have the same mean over runs.

    It is small if canary k had the same direction in every run, as with one seed for all runs. Each run's
    own mean is subtracted first. The p-value is 1 where nothing is tested: with fewer than 3 runs or 10
    canaries, which tell too little, with too few cosines that count, or where no run has cosines that differ.

    Args:
      cosines: (R, K), the cosines of K canaries in each of R runs.
      presence: (R, K), whether a cosine counts.
    """
    if len(cosines) < 3 or cosines.shape[1] < LEAST:
        return 1.0
    deviations = _about_means(cosines, presence)
    counts = presence.sum(0)  # of each canary, in how many runs it counts
    groups = np.count_nonzero(counts)
    # Sums of squares: in all, and between canaries' means. What is left is within canaries.
    total = float(np.square(deviations).sum())
    between = float((deviations.sum(0) ** 2 / np.maximum(counts, 1)).sum())
    # A degree of freedom goes to each run's mean, and one to each canary's mean but the last.
    freedom = presence.sum() - np.count_nonzero(presence.any(1)) - (groups - 1)
    # Nothing can be tested with too few canaries or cosines, or where cosines equal their run's mean, up to
    # rounding.
    if groups < 2 or freedom < 1 or total <= _ALIKE**2 * presence.sum():
        return 1.0
    variance_within = max(total - between, 1e-12 * total) / freedom  # above 0 despite rounding
    ratio = between / (groups - 1) / variance_within
    return float(special.fdtrc(groups - 1, freedom, ratio))


def describe_dimension(design: Fresh) -> str:
    """Returns a sentence, for the notes below a table, on what tested a caller's dimension.

    It is the test of the cosines' law if enough canaries were out, else that of the spread of the cosines of
    canaries that were in.
    """
    danger = "a dimension that is too large makes bounds wrong"
    tested = ""
    if len(design.out()) >= LEAST:
        tested = f"{len(design.out()):,} cosines of canaries that were not inserted"
    elif measure_spread(design).freedom >= LEAST - 1:
        count = int((design.presence & (design.cosines != FAILED)).sum())
        tested = f"the spread of {count:,} cosines"
    if not tested:
        return f"dimension {design.dimension:,} was not tested: there are too few cosines; {danger}"
    return f"dimension {design.dimension:,} was tested by {tested}, which shows only a large excess; {danger}"


def measure_spread(design: Fresh) -> CosineSpread:
    """Returns how much the cosines of canaries that are in spread about their run's mean, and their F law.

    With one canary a run, they spread about the mean of all runs. Failed runs are left out.

    The F law is that of the mean squared deviation times d, for uniform directions in d dimensions. With K
    canaries a run, its numerator has a share 1 - K/d of the degrees of freedom of independent cosines. Its
    denominator has d - K degrees for each run. This law is an approximation for leave-one-out cosines, which
    depend on each other within a run: measured, its test refuses no more often than it says. It serves for
    all cosines, since they do not show whether they are leave-one-out. Where K is small beside d it is nearly
    a chi-squared law, as of independent cosines.
    """
    cosines = design.cosines
    presence = design.presence & (cosines != FAILED)
    runs = int(np.count_nonzero(presence.any(1)))
    canaries = cosines.shape[1]
    if canaries == 1:
        values = cosines[presence]
        deviations = values - values.mean() if len(values) else values
        freedom = len(values) - 1
    else:
        deviations = _about_means(cosines, presence)
        freedom = int(presence.sum()) - runs
    # A single run whose cosines use no other direction has independent deviations.
    numerator = float(max(freedom, 1))
    denominator = _MANY
    if runs != 1 or not design.plain:
        # The lower limits keep the law defined with as many canaries as dimensions, or without any run.
        independent_share = max(1 - canaries / design.dimension, 1 / design.dimension)
        numerator = max(freedom * independent_share, 1.0)
        denominator = float(max(runs * (design.dimension - canaries), 1))
    return CosineSpread(float(np.square(deviations).sum()), freedom, numerator, denominator)


def _check_cosines(cosines: ArrayLike) -> Array:
    """Returns a caller's cosines as (runs, canaries) in [-1, 1], with FAILED in place of those not finite.

    Raises InputError for tables, for other shapes, for values beyond 1, and if more than half are not finite.
    """
    require(
        not hasattr(cosines, "columns"), "`dimension` goes with an array of cosines: give no table"
    )
    values = arrays.cosines("the cosines", cosines)
    fits = values.ndim in (1, 2) and values.size > 0
    require(fits, f"the cosines have shape {values.shape}: give (runs,) or (runs, canaries)")
    failed = np.isnan(values)
    require_few_failed("cosines", int(failed.sum()), values.size)
    return np.where(failed, FAILED, values).reshape(len(values), -1)


def check_bits(presence: ArrayLike, shape: tuple[int, ...]) -> Bits:
    """Returns a caller's bits of presence (`arrays.bits`); raises InputError if no canary is in."""
    bits = arrays.bits(presence, shape)
    require(bits.any(), "presence puts all canaries out: those that are in are needed")
    return bits


def _about_means(cosines: Array, presence: Bits) -> Array:
    """Returns cosines (R, K) less their run's mean over canaries that are in; 0 where `presence` is false."""
    # In a run without canaries that are in, the sum is 0: it is divided by 1.
    means = (cosines * presence).sum(1, keepdims=True) / np.maximum(
        presence.sum(1, keepdims=True), 1
    )
    return np.where(presence, cosines - means, 0.0)


def _require_spread(design: Fresh) -> None:
    """Raises InputError if cosines of canaries that are in spread significantly more than 1/sqrt(d).

    That is the spread of uniform directions in d dimensions. The test's error is LEVEL, 1e-6. With 10 or more
    cosines of canaries that are out, nothing is tested here: the test of their law sees more. A smaller
    spread is not refused: canaries that depend on each other may cause it, and bounds hold with too small a
    dimension.
    """
    if len(design.out()) >= LEAST:
        return
    spread = measure_spread(design)
    if spread.freedom < LEAST - 1:  # fewer deviations than those of 10 cosines tell too little
        return
    # The squared spread, in units of 1/d.
    ratio = spread.squares * design.dimension / spread.freedom
    if special.fdtrc(spread.numerator, spread.denominator, ratio) >= LEVEL:
        return
    suggested = max(round(spread.freedom / spread.squares), 1)
    raise InputError(
        f"`dimension={design.dimension}`: cosines spread by {np.sqrt(ratio):.3g} / sqrt(d), those of uniform "
        f"directions by 1, as these would in about {suggested:,} dimensions: {_FIX}"
    )
