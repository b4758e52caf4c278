"""What a caller's cosines of fresh directions must be, as far as the cosines alone show it.

`exact_null` assumes directions that are uniform in R^d and drawn afresh for every run. Refused are:

- a spread beyond 1/sqrt(d), as where d counts parameters that are not trained: of canaries that are in, about
  their run's mean (of one canary a run, about the mean of all), since a canary shifts its cosine and does not
  widen it, if all take part alike. Where LEAST of them are out, `exact_null.law_test` looks at those instead;
- columns whose means differ (analysis of variance over at least 3 runs of LEAST canaries), as where one seed
  drew the directions of all runs: whatever training moves alike in every run, the other canaries among it,
  lies along some of them more than along others.

Each refuses cosines that are what they should be with a probability of about LEVEL at most. Leave-one-out
cosines of one run depend on each other: each of them divides by the length of what is left of the movement
off the other K - 1 directions, in d - K + 1 dimensions, and the inverse Gram matrix ties the numerators.
Their squares then spread as if 1 - K/d of them were independent, over a denominator of d - K degrees of
freedom a run, so that the spread is held against Fisher's F with these degrees of freedom rather than against
chi-squared (measured: it refuses at most as often as it says, for K/d up to 1). No cosine says whether
leave-one-out was used, so that all are tested so; where K is small beside d it is the same test.

Nothing here sees coordinates, or another law's directions, passed off as uniform while all canaries are in;
the same seed for all runs where leave-one-out took the other canaries away and a rehearsal the drift, or
where canaries are few for the dimension (K mu^2 / d of a percent); directions that training knew; a sign or a
run that was chosen by its score; a dimension that is too large by less than `describe_dimension` says.

A run that failed gives NaN for its cosines. In the world without the canary a run fails, or not, without
knowing the direction, so that P(cosine > t) is at most a(t) whatever fixed value a failure gets: here
-1, below all others. The tests above leave failures out, which only decides what is refused.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import InputError, require
from audit.evidence.arrays import floats, require_few_failed
from audit.evidence.canaries import FAILED, Fresh
from audit.evidence.repeats import require_no_copies
from audit.values import number, require_type

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]
LEVEL = 1e-6
LEAST = 10  # canaries or cosines
MOST_DIMENSION = 10**13
_SLACK = 1e-6  # of cosines in float32
_ALIKE = 1e-12  # cosines of a run that differ by less are equal
_POWER = 0.9  # at which the least detectable dimension is stated
_FIX = "count trained parameters alone, or leave out some canaries by coins if they take part unequally"
_SHUFFLE = "shuffle each run's cosines if they are sorted, or canaries take part unequally"
_SAME = f"directions look the same in every run: draw them afresh, or {_SHUFFLE}"


class CosineSpread(NamedTuple):
    """The spread of cosines of canaries that are in.

    Attributes:
      squares: the sum of squared deviations from means, which is freedom / d on average.
      freedom: how many independent deviations there are.
      numerator, denominator: degrees of freedom of the F law that squares d / freedom is held against.
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
    """Returns a caller's cosines of fresh directions, checked.

    Args:
      cosines: (runs, canaries), or (runs,) of a single canary a run; NaN for a run that failed.
      dimension: d, the number of trained parameters.
      leave_one_out: whether a cosine used the other canaries' directions.
      presence: of the cosines' shape, 1 where the canary was in; by default all were.
      in_order: whether rows stand in the order in which runs were begun.

    Raises:
      InputError: for what fits no audit.
    """
    require_type("leave_one_out", leave_one_out, bool)
    require_type("in_order", in_order, bool)
    size = require_dimension(dimension)
    values = _check_cosines(cosines)
    present = np.ones(values.shape, bool)
    if presence is not None:
        present = check_bits(presence, values.shape)
    failed = values == FAILED
    design = Fresh(values, present, size, plain=not leave_one_out, given=True, in_order=in_order)
    require(columns_p_value(values, present & ~failed) >= LEVEL, _SAME)
    _require_spread(design)
    require_no_copies(design)
    return design


def require_dimension(dimension: Any) -> int:
    """Returns a caller's dimension as Python's int; raises InputError for another type, or out of range."""
    size = number("dimension", dimension, int)
    fits = 2 <= size <= MOST_DIMENSION
    require(
        fits, f"`dimension={size}`: give 2 to {MOST_DIMENSION:,}, the number of trained parameters"
    )
    return size


def columns_p_value(cosines: Array, presence: Bits) -> float:
    """Returns the p-value of the F-test that all canaries have the same mean over runs.

    Small where canary k of every run had one direction. Each run's own mean is subtracted first. 1 where
    runs are fewer than 3, or canaries than 10.

    Args:
      cosines: (R, K).
      presence: (R, K), which cosines count.
    """
    if len(cosines) < 3 or cosines.shape[1] < LEAST:
        return 1.0
    deviations = _about_means(cosines, presence)
    counts = presence.sum(0)
    groups = np.count_nonzero(counts)  # canaries that are in, in any run
    total = float(np.square(deviations).sum())
    freedom = presence.sum() - np.count_nonzero(presence.any(1)) - (groups - 1)
    between = float((deviations.sum(0) ** 2 / np.maximum(counts, 1)).sum())
    if groups < 2 or freedom < 1 or total <= _ALIKE**2 * presence.sum():
        return 1.0
    within = max(total - between, 1e-12 * total) / freedom
    return float(special.fdtrc(groups - 1, freedom, between / (groups - 1) / within))


def describe_dimension(design: Fresh) -> str:
    """Returns a sentence, for below a table, on how well cosines tested the dimension that a caller declared.

    It states the factor by which the dimension would have to be too large to be refused with probability 0.9.
    """
    declared = f"dimension {design.dimension:,}"
    untested = (
        f"{declared} was not tested, by so few cosines; one that is too large makes bounds wrong"
    )
    out = design.out()
    if len(out) >= LEAST:
        factor = _least_of_law_test(len(out))
        tested = f"{len(out):,} cosines of canaries that are out"
    else:
        spread = measure_spread(design)
        if spread.freedom < LEAST - 1:
            return untested
        limit = special.fdtri(spread.numerator, spread.denominator, 1 - LEVEL)
        factor = limit / special.fdtri(spread.numerator, spread.denominator, 1 - _POWER)
        tested = (
            f"the spread of {int((design.presence & (design.cosines != FAILED)).sum()):,} cosines"
        )
    if factor >= design.dimension / 2:
        return untested
    shown = f"{np.ceil(100 * factor) / 100:.3g}"
    return (
        f"{declared} was tested by {tested}: one {shown} times too large would have been refused with "
        f"probability {_POWER}, a smaller excess less surely, and it makes bounds wrong"
    )


def measure_spread(design: Fresh) -> CosineSpread:
    """Returns how much cosines of canaries that are in spread about their run's mean, failed runs left out.

    Of a single canary a run they spread about the mean of all runs. Leave-one-out cosines of a run depend on
    each other: their squares spread as if a share 1 - K/d of them were independent, over a denominator of
    d - K degrees of freedom a run, which the F law takes into account.
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
    independent = max(1 - canaries / design.dimension, 1 / design.dimension)
    numerator = max(freedom * independent, 1.0)
    denominator = float(max(runs * (design.dimension - canaries), 1))
    return CosineSpread(float(np.square(deviations).sum()), freedom, numerator, denominator)


def _least_of_law_test(cosines: int) -> float:
    """Returns the least factor of a too large dimension at which the test of the law refuses it surely.

    That is with probability _POWER (0.9), by the sum of the squared cosines alone, which is chi-squared.

    Args:
      cosines: how many cosines of canaries that are out are tested.
    """
    tail = LEVEL / 4  # of the test's error, 1e-6, on four tails: two statistics, two sides
    return float(special.chdtri(cosines, tail) / special.chdtri(cosines, _POWER))


def _check_cosines(cosines: ArrayLike) -> Array:
    """Returns a caller's cosines as (runs, canaries) in [-1, 1], with FAILED for those that are not finite.

    Raises InputError for tables, other shapes, values beyond 1, and where more than half failed.
    """
    require(
        not hasattr(cosines, "columns"), "`dimension` goes with an array of cosines: give no table"
    )
    values = floats("the cosines", cosines)
    fits = values.ndim in (1, 2) and values.size > 0
    require(fits, f"the cosines have shape {values.shape}: give (runs,) or (runs, canaries)")
    if values.ndim == 1:
        values = values[:, None]
    failed = ~np.isfinite(values)
    require_few_failed("cosines", int(failed.sum()), values.size)
    largest = float(np.abs(values[~failed]).max())
    require(largest <= 1 + _SLACK, f"{largest:g} is no cosine: divide by both lengths")
    return np.where(failed, FAILED, np.clip(values, -1.0, 1.0))


def check_bits(presence: ArrayLike, shape: tuple[int, ...]) -> Bits:
    """Returns a caller's presence as bool (runs, canaries).

    Args:
      presence: (runs, canaries), or (runs,) of a single canary a run, 1 where the canary was in.
      shape: that of the cosines.

    Raises:
      InputError: another shape, other values than 0 and 1, or no canary in.
    """
    bits = floats("the bits of presence", presence)
    bits = bits[:, None] if bits.ndim == 1 else bits
    require(
        bits.shape == shape, f"presence has shape {bits.shape}, cosines {shape}: give one bit each"
    )
    require(np.isin(bits, (0, 1)).all(), "presence must be 1 (in) or 0 (out) everywhere")
    require(bits.any(), "presence puts all canaries out: those that are in are needed")
    return bits.astype(bool)


def _about_means(cosines: Array, presence: Bits) -> Array:
    """Returns cosines (R, K) less the mean of those of their run that are in; 0 where presence is false."""
    means = (cosines * presence).sum(1, keepdims=True) / np.maximum(
        presence.sum(1, keepdims=True), 1
    )
    return np.where(presence, cosines - means, 0.0)


def _require_spread(design: Fresh) -> None:
    """Raises InputError where cosines of canaries that are in spread beyond the law's 1/sqrt(d).

    The test's error is LEVEL, 1e-6. It is left to the test of the law where 10 cosines or more are of
    canaries that are out. Less spread is no sign of a wrong dimension, as canaries may be tied, and a
    bound in too few dimensions holds.
    """
    if len(design.out()) >= LEAST:
        return
    spread = measure_spread(design)
    if spread.freedom < LEAST - 1:
        return
    ratio = spread.squares * design.dimension / spread.freedom
    if special.fdtrc(spread.numerator, spread.denominator, ratio) >= LEVEL:
        return
    suggested = max(round(spread.freedom / spread.squares), 1)
    raise InputError(
        f"`dimension={design.dimension}`: cosines spread by {np.sqrt(ratio):.3g} / sqrt(d), those of uniform "
        f"directions by 1, as these would in about {suggested:,} dimensions: {_FIX}"
    )
