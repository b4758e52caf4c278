"""Ranks of canaries among fresh draws, whose law is known exactly where a canary is out.

K canaries are drawn independently from a generator and inserted. M fresh examples are drawn afterwards from
the same generator, and all are scored on the released model by the same function. Without canary k, it and
the M fresh draws are exchangeable given the model, so that with ties broken at random

    P_out(rank of canary k among itself and the fresh draws <= r) = r / (M + 1)    exactly,

whatever the scores are and however a run's canaries depend on each other. `place` puts a rank on the scale
of the cosines of fresh directions, so that what holds of these holds of ranks: at every threshold, a rank
that is placed above it is no more likely where the canary is out than a cosine above it.

The ranks of a run share its fresh draws, and are not independent. So no canary's rank may choose the
threshold of another (`Fresh.plain` is false), and where canaries are out, K of them tell no more of the law
than K M / (K + M) independent canaries (`measure_law`).

Nothing here sees canaries that were selected after they were drawn, or fresh draws that are canaries too.
Fresh draws from another generator show where canaries are out, or on the initial model (`ranks`).
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import number, require, require_type
from audit.evidence import arrays
from audit.evidence.arrays import require_few_failed
from audit.evidence.canaries import FAILED, RANK_DIMENSION, Fresh

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]
LEVEL = 1e-6  # below it two laws differ
MOST_DRAWS = 10**9
# Share of itself by which a rank's cosine is lowered: rounding must not lift it above a threshold.
_BELOW = 1e-9
# In place of the tail probability 1 of the last rank M + 1: its cosine would be -1, as of a failed run.
_MOST_TAIL = 1 - 1e-12
_FIX = "draw both by one generator, and score them by one function"


def ranks(
    scores: ArrayLike,
    fresh: ArrayLike | int,
    presence: ArrayLike | None = None,
    initial: tuple[ArrayLike, ArrayLike] | None = None,
    seed: int = 0,
    in_order: bool = False,
) -> Fresh:
    """Returns the evidence of canaries of any kind, ranked among fresh draws from the same generator.

    Every run draws its K canaries anew, independently of each other, and inserts them. Afterwards M fresh
    examples are drawn. One function scores all of them on the released model; it may not know which are in.
    Nothing may be selected after it was drawn.

    Args:
      scores: (R, K) scores of the canaries of R runs, of any kind; higher means in. Or the ranks of each
        canary among itself and the fresh draws, from 1, the highest score, to M + 1, with ties broken at
        random. NaN for a run that failed, in `fresh` too.
      fresh: (R, M) scores of the fresh draws; the number M if `scores` are ranks.
      presence: 1 where a fair coin put the canary in, else 0, in the shape of `scores`; None where all were
        in. Canaries that were out serve to check the law of ranks.
      initial: (scores, fresh) on the initial model, to check that both come from one generator: a difference
        of the two laws is refused.
      seed: seed of the random order of ties, to be drawn once, before the scores are seen.
      in_order: whether rows are in the order in which runs were begun. The bound is then the largest that was
        reached after any number of runs, and holds wherever they stop.

    Raises:
      InputError: for shapes or values that fit no audit.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> losses_of_canaries = rng.normal(1, 1, (20, 64))
    >>> losses_of_fresh = rng.normal(4, 1, (20, 10_000))
    >>> evidence = audit.ranks(-losses_of_canaries, -losses_of_fresh)
    >>> str(evidence)
    '20 runs x 64 canaries, ranked among 10,000 fresh draws, all inserted'
    >>> audit.bounds(evidence).epsilon > 5
    True
    """
    require_type("in_order", in_order, bool)
    seed = number("seed", seed, int)
    require(seed >= 0, f"`seed={seed}`: give a whole number from 0 on")
    ranked = None
    if isinstance(fresh, int | np.integer) and not isinstance(fresh, bool):
        require(initial is None, "`initial` goes with scores: give (scores, fresh), or drop it")
        draws = number("fresh", fresh, int)
        require(1 <= draws <= MOST_DRAWS, f"`fresh={draws}`: give 1 to {MOST_DRAWS:,} fresh draws")
        own_ranks: NDArray[Any] = _check_ranks(scores, draws)
        failed = np.isnan(own_ranks)
    else:
        ranked = np.concatenate(_check_pair(scores, fresh), axis=1)
        draws = np.shape(fresh)[1]
        # A failed run is one whose scores are all NaN, those of fresh draws too. They all become 0 then, and
        # say nothing.
        has_failed = np.isnan(ranked).all(axis=1, keepdims=True)
        ranked = np.where(has_failed, 0.0, ranked)
        own_ranks = rank_among(ranked[:, :-draws], ranked[:, -draws:], seed)
        failed = np.broadcast_to(has_failed, own_ranks.shape)
        if initial is not None:
            _require_one_law(initial, seed)
    require_few_failed("ranks", int(failed.sum()), failed.size)

    present = np.ones(own_ranks.shape, bool)
    if presence is not None:
        from audit.evidence.given_directions import check_bits  # loads SciPy

        present = check_bits(presence, own_ranks.shape)
    # Any rank will do for a failed run, since its cosines are replaced.
    placed = place(np.where(failed, 1, own_ranks), draws)
    cosines = np.where(failed, FAILED, placed)
    return Fresh(cosines, present, RANK_DIMENSION, False, True, in_order, draws, ranked)


def make_from_counts(below: Array, presence: Bits, draws: int) -> Fresh:
    """Returns the evidence of the library's own runs, which needs no checks: ranks among fresh draws.

    Args:
      below: (R, K), how many fresh draws score below each canary, with ties broken already; whole numbers.
      presence: (R, K), whether the canary was in.
      draws: M, the number of fresh draws in each run.
    """
    counts = np.rint(below).astype(np.int64)  # stored as floats
    ranks = draws + 1 - counts  # 1 is the highest score, M + 1 the lowest
    return Fresh(place(ranks, draws), presence, RANK_DIMENSION, draws=draws)


def _check_ranks(values: ArrayLike, draws: int) -> Array:
    """Returns a caller's ranks (R, K), NaN for a failed run.

    Raises InputError for another shape, and for values that are not whole numbers from 1 to draws + 1.
    """
    ranks = arrays.matrix("the ranks", values)
    is_rank = (ranks >= 1) & (ranks <= draws + 1) & (ranks == np.floor(ranks))
    bad = int(np.count_nonzero(~is_rank & ~np.isnan(ranks)))
    range_of_ranks = f"whole numbers from 1, the highest score, to {draws + 1:,}"
    require(not bad, f"{bad} of {ranks.size} values are no ranks: give {range_of_ranks}")
    return ranks


def _require_one_law(initial: Any, seed: int) -> None:
    """Raises InputError if canaries and fresh draws score differently on the initial model.

    That model knows neither, so that a difference shows that they do not come from one generator.

    Args:
      initial: the pair (scores (R, K), fresh scores (R, M)) on the initial model.
      seed: seed of the random order of ties.
    """
    is_pair = isinstance(initial, tuple | list) and len(initial) == 2
    require(is_pair, "`initial`: give (scores, fresh) on the initial model")
    scores, fresh = initial
    ranks = rank_among(scores, fresh, seed)
    is_out = np.ones(ranks.shape, bool)  # no canary is in before training
    p_value = measure_law(ranks, is_out, np.shape(fresh)[1])
    differs = f"on the initial model canaries score otherwise than fresh draws (p = {p_value:.1g})"
    require(p_value >= LEVEL, f"{differs}: {_FIX}")


def place(ranks: ArrayLike, draws: int) -> Array:
    """Returns the cosine in RANK_DIMENSION dimensions that stands for each rank, in the shape of `ranks`.

    It is the cosine that a random direction exceeds with probability rank / (M + 1), where M = draws. A
    canary that is out has this rank, or a better rank, with the same probability.

    Each cosine is then lowered by a billionth, so that rounding lifts no rank above a threshold. So a canary
    that is out is placed above a threshold with at most the probability of a random direction's cosine there.
    """
    from audit.laws import cosine_law  # loads SciPy

    # The last rank, M + 1, would have the tail 1 and the cosine -1, which stands for a failed run.
    tails = np.minimum(np.asarray(ranks, np.float64) / (draws + 1), _MOST_TAIL)
    # The law is symmetric: minus the quantile at a level is exceeded with a probability of this level.
    cosines = -cosine_law.quantile(tails, RANK_DIMENSION)
    return np.asarray(cosines - _BELOW * np.abs(cosines))


def measure_law(ranks: NDArray[np.int64], is_out: Bits, draws: int) -> float:
    """Tests whether canaries that were out and fresh draws have the same law, and returns the p-value.

    Rank r becomes a normal deviate with a tail probability drawn uniformly from (r - 1) / (M + 1) to
    r / (M + 1), by a fixed seed. The deviates are tested for the normal law by the Kolmogorov-Smirnov test,
    and by the sum of their squares.

    Ranks of a run share its fresh draws, so that they tell less than as many independent ranks. With k
    canaries out in each run, the variance of a mean is about 1 + k / M times that of independent ranks. So
    both tests take the number of ranks to be smaller by this factor.

    Args:
      ranks: (R, K), from 1 to M + 1.
      is_out: (R, K), whether a rank counts.
      draws: M, the number of fresh draws in each run.

    Returns:
      Twice the smaller of both tests' p-values, at most 1; 1 where no canary was out.
    """
    from scipy import special  # slow to load

    from audit.laws import gaussians

    canaries_out = is_out.sum(1)  # of each run
    total_out = int(canaries_out.sum())
    if not total_out:
        return 1.0
    # The variance of a mean over all ranks, of values with variance 1, has two parts: from the
    # canaries' own scores, and from the fresh draws that the canaries of a run share.
    own_variance = 1 / total_out
    shared_variance = float(canaries_out @ canaries_out) / total_out**2 / draws
    independent = 1 / (own_variance + shared_variance)  # effective number of independent ranks
    place_in_rank = np.random.default_rng(0).random(total_out)  # from 0 to 1, within each rank
    deviates = -special.ndtri((ranks[is_out] - place_in_rank) / (draws + 1))
    return gaussians.measure_normality(deviates, independent)


def describe_draws(design: Fresh) -> str:
    """Returns the line below a table on a caller's fresh draws: their number, and what was tested."""
    number_out = int(design.is_out().sum())
    tested = "not tested for the law of fresh draws, since all were inserted"
    if number_out:
        tested = (
            f"tested for the law of fresh draws by {number_out:,} ranks of canaries that were not inserted"
        )
    return f"the highest rank has a probability of 1 / {design.draws + 1:,}; canaries were {tested}"


def _check_pair(scores: ArrayLike, fresh: ArrayLike) -> tuple[Array, Array]:
    """Returns canaries' scores (R, K) and fresh draws' scores (R, M); raises InputError for other shapes."""
    pair = arrays.scores("the canaries' scores", scores), arrays.scores("the fresh scores", fresh)
    shapes = f"scores {pair[0].shape} and fresh scores {pair[1].shape}"
    fits = pair[0].ndim == pair[1].ndim == 2 and len(pair[0]) == len(pair[1])
    require(fits, f"{shapes}: give (runs, canaries) and (runs, fresh draws)")
    require(pair[0].size > 0 and pair[1].size > 0, f"{shapes}: give at least one of each")
    return pair


def rank_among(scores: ArrayLike, fresh: ArrayLike, seed: int = 0) -> NDArray[np.int64]:
    """Returns the rank (R, K) of each canary among itself and its run's fresh draws; 1 is the highest score.

    Args:
      scores: (R, K) scores of canaries; higher means in.
      fresh: (R, M) scores of fresh draws on the same models.
      seed: seed of the random order of ties. The order in a run depends only on the seed and the run's row.

    Raises:
      InputError: if the shapes do not fit, or a value is NaN.
    """
    canary_scores, fresh_scores = _check_pair(scores, fresh)
    missing = int(np.isnan(canary_scores).sum() + np.isnan(fresh_scores).sum())
    one_function = f"{missing} scores are NaN: score canaries and fresh draws by one function"
    require(not missing, one_function)
    rows = []
    for run, (own, drawn) in enumerate(zip(canary_scores, fresh_scores, strict=True)):
        ordered = np.sort(drawn)
        above = len(ordered) - np.searchsorted(ordered, own, side="right")
        tied = len(ordered) - above - np.searchsorted(ordered, own, side="left")
        # How many of the fresh draws with the same score count as higher: 0 to all, with equal probability.
        tied_above = np.random.default_rng([seed, run]).integers(0, tied, endpoint=True)
        rows.append(1 + above + tied_above)
    return np.array(rows)
