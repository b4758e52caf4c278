"""What a caller's cosines of fresh directions must be, as far as the cosines alone show it.

`exact_null` stands on directions that are uniform in R^d and drawn afresh for every run. Refused are, each
with a probability of about LEVEL at most where cosines are what they should be:

- a spread beyond 1/sqrt(d), as where d counts parameters that are not trained: of canaries that are in, about
  their run's mean (of one canary a run, about the mean of all), since a canary shifts its cosine and does not
  widen it, if all take part alike. Where LEAST of them are out, `exact_null.law_test` looks at those instead;
- columns whose means differ (analysis of variance over at least 3 runs of LEAST canaries), as where one seed
  drew the directions of all runs: whatever training moves alike in every run, the other canaries among it,
  lies along some of them more than along others.

Nothing here sees coordinates, or another law's directions, passed off as uniform ones while all canaries are
in; one seed for all runs where leave-one-out took the other canaries away and a rehearsal the drift, or where
canaries are few for the dimension (K mu^2 / d of a percent); directions that training knew; a sign or a run
that was chosen by its score.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.statistics.arrays import floats
from audit.statistics.canaries import Fresh
from audit.statistics.one_shot import require_spread
from audit.values import number, require_type

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]
LEVEL, LEAST, MOST_DIMENSION = 1e-6, 10, 10**13
_SLACK = 1e-6  # of cosines in float32
_ALIKE = 1e-12  # cosines of a run that differ by less are equal
_MEND = "count trained parameters alone, or leave out some canaries by coins if they take part unequally"
_SHUFFLE = "shuffle each run's cosines if they are sorted, or canaries take part unequally"
_SAME = f"directions look the same in every run: draw them afresh, or {_SHUFFLE}"


def given(
    cosines: ArrayLike,
    dimension: Any,
    leave_one_out: bool = False,
    presence: ArrayLike | None = None,
) -> Fresh:
    """The checked design of a caller's cosines (runs, canaries), or (runs,) of one canary a run.

    leave_one_out: whether a cosine used the other canaries' directions. presence: of the cosines' shape, 1
    where the canary was in; by default all were. Raises InputError, in one line, for what fits no audit.
    """
    require_type("leave_one_out", leave_one_out, bool)
    size = require_dimension(dimension)
    found = _matrix(cosines)
    present = np.ones(found.shape, bool) if presence is None else _bits(presence, found.shape)
    design = Fresh(found, present, size, plain=not leave_one_out, given=True)
    require(columns_p_value(found, present) >= LEVEL, _SAME)
    _require_law(design)
    return design


def require_dimension(dimension: Any) -> int:
    """A caller's dimension as Python's int; raises InputError for another type, or out of range."""
    size = number("dimension", dimension, int)
    fits = 2 <= size <= MOST_DIMENSION
    require(fits, f"`dimension={size}`: give 2 to {MOST_DIMENSION:,}, the number of trained parameters")
    return size


def columns_p_value(cosines: Array, presence: Bits) -> float:
    """The p-value of the F-test that no canary's mean (over runs, less each run's) differs from another's; 1
    where runs or canaries are too few."""
    if len(cosines) < 3 or cosines.shape[1] < LEAST:
        return 1.0
    left, counts = _about_means(cosines, presence), presence.sum(0)
    groups, total = np.count_nonzero(counts), float(np.square(left).sum())
    freedom = presence.sum() - np.count_nonzero(presence.any(1)) - (groups - 1)
    between = float((left.sum(0) ** 2 / np.maximum(counts, 1)).sum())
    if groups < 2 or freedom < 1 or total <= _ALIKE**2 * presence.sum():
        return 1.0
    within = max(total - between, 1e-12 * total) / freedom
    return float(special.fdtrc(groups - 1, freedom, between / (groups - 1) / within))


def _matrix(cosines: ArrayLike) -> Array:
    require(not hasattr(cosines, "columns"), "`dimension` goes with an array of cosines: give no table")
    found = floats("the cosines", cosines)
    fits = found.ndim in (1, 2) and found.size > 0
    require(fits, f"the cosines have shape {found.shape}: give (runs,) or (runs, canaries)")
    found = found if found.ndim == 2 else found[:, None]
    lost = int(np.count_nonzero(~np.isfinite(found)))
    mend = "a model diverged, put 0 for all cosines of its run"
    require(not lost, f"{lost} of {found.size} cosines are not finite: {mend}")
    largest = float(np.abs(found).max())
    require(largest <= 1 + _SLACK, f"{largest:g} is no cosine: divide by both lengths")
    return np.clip(found, -1.0, 1.0)


def _bits(presence: ArrayLike, shape: tuple[int, ...]) -> Bits:
    bits = floats("the bits of presence", presence)
    bits = bits[:, None] if bits.ndim == 1 else bits
    require(bits.shape == shape, f"presence has shape {bits.shape}, cosines {shape}: give one bit each")
    require(np.isin(bits, (0, 1)).all(), "presence must be 1 (in) or 0 (out) everywhere")
    require(bits.any(), "presence puts all canaries out: those that are in are needed")
    return bits.astype(bool)


def _about_means(cosines: Array, presence: Bits) -> Array:
    """Cosines of canaries that are in, less the mean of their run's; 0 elsewhere."""
    means = (cosines * presence).sum(1, keepdims=True) / np.maximum(presence.sum(1, keepdims=True), 1)
    return np.where(presence, cosines - means, 0.0)


def _require_law(design: Fresh) -> None:
    cosines, presence, dimension, *_ = design
    if len(design.out()) >= LEAST:
        return
    if cosines.shape[1] == 1:
        found = cosines[presence]
        left, freedom = found - found.mean(), len(found) - 1
    else:
        left = _about_means(cosines, presence)
        freedom = int(presence.sum() - np.count_nonzero(presence.any(1)))
    if freedom >= LEAST - 1:
        require_spread(float(np.square(left).sum()), freedom, dimension, _MEND)
