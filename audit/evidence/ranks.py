"""Ranks of canaries among fresh draws. The rank of a left-out canary has a known distribution.

A run's K canaries are drawn independently from a generator. After training, M fresh examples are drawn from
the same generator, and the same function scores all of them. If canary k was left out, it is exchangeable
with the M fresh draws, given the model. So if ties are broken at random, its rank among all M + 1 satisfies

    P_out(rank <= r) = r / (M + 1)    exactly,

for any scores, even if the canaries in a run depend on each other.

All ranks of a run use the same fresh draws, so they are not independent. Hence we must not use one canary's
rank to choose the threshold for another (`Fresh.separate` is False). Our tests cannot detect canaries that
were selected after the draw, or fresh draws that were also inserted.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit.errors import require, require_type
from audit.evidence import arrays
from audit.evidence.arrays import Array, Bits, Integers, require_few_failed
from audit.evidence.canaries import FAILED, RANK_DIMENSION, Fresh
from audit.evidence.given_directions import LEVEL, check_bits
from audit.laws import cosine_law, gaussians


def ranks(
    scores: ArrayLike,
    fresh: ArrayLike,
    presence: ArrayLike | None = None,
    initial: tuple[ArrayLike, ArrayLike] | None = None,
    in_order: bool = False,
) -> Fresh:
    """Returns the evidence from canaries of any kind, ranked among fresh draws from the same generator.

    Every run draws its own K independent canaries and inserts them. After training, draw M fresh examples.
    Score canaries and fresh examples with the same function on the released model, regardless of which were
    inserted, and keep all scores.

    Args:
      scores: (R, K) scores of K canaries in R runs; higher means in. NaN for a failed run, here and in
        `fresh`.
      fresh: (R, M) scores of the fresh draws.
      presence: the fair coin flips, in the shape of `scores`: 1 if the canary was inserted, else 0. None if
        all were inserted.
      initial: (scores, fresh) on the initial model, to test that both come from the same generator.
      in_order: True if rows are sorted by the start times of their runs. The bound is then valid whenever you
        stop.

    Raises:
      InputError: for invalid shapes or values.

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
    canary_scores, fresh_scores = _check_pair(scores, fresh)
    if initial is not None:
        _require_one_law(initial)
    canaries = canary_scores.shape[1]
    draws = fresh_scores.shape[1]
    ranked = np.concatenate([canary_scores, fresh_scores], axis=1)
    has_failed = np.isnan(ranked).all(axis=1, keepdims=True)  # (R, 1)
    require_few_failed("rows of scores", has_failed)
    present = check_bits(presence, canary_scores.shape)
    # Ranks need numbers, so failed runs get zeros here and FAILED below.
    ranked = np.where(has_failed, 0.0, ranked)
    ranks_of_runs = rank_among(ranked[:, :canaries], ranked[:, canaries:])
    # Methods need cosines, so we convert ranks.
    return Fresh(
        cosines=np.where(has_failed, FAILED, convert_to_cosines(ranks_of_runs, draws)),
        presence=present,
        dimension=RANK_DIMENSION,
        from_user=True,  # so methods report their assumptions
        in_order=in_order,
        draws=draws,
        ranked=ranked,  # to find copies
    )


def make_from_counts(below: Array, presence: Bits, draws: int) -> Fresh:
    """Returns unchecked evidence from ranks in the library's own runs, stored as cosines.

    Methods accept only cosines. Each rank becomes the cosine with the same tail probability.

    Args:
      below: (R, K), how many fresh draws score below each canary, with ties broken.
      presence: (R, K), True if the canary was in.
      draws: M, the number of fresh draws in each run.
    """
    counts = np.rint(below).astype(np.int64)  # stored as floats
    ranks = draws + 1 - counts  # 1 is the highest score, M + 1 the lowest
    return Fresh(convert_to_cosines(ranks, draws), presence, RANK_DIMENSION, draws=draws)


def _require_one_law(initial: Any) -> None:
    """Raises InputError if canaries and fresh draws differ in distribution on the initial model.

    `initial` is the pair (scores (R, K), fresh scores (R, M)).
    """
    is_pair = isinstance(initial, tuple | list) and len(initial) == 2
    require(is_pair, "`initial`: give (scores, fresh) on the initial model")
    scores, fresh = initial
    ranks = rank_among(scores, fresh)
    is_out = np.ones(ranks.shape, bool)  # no canary is in before training
    p_value = measure_law(ranks, is_out, np.shape(fresh)[1])
    require(
        p_value >= LEVEL,
        "on the initial model canaries and fresh draws have different score distributions "
        f"(p = {p_value:.1g}): draw both with the same generator, and score them with the same function",
    )


def convert_to_cosines(ranks: ArrayLike, draws: int) -> Array:
    """Converts each rank to a cosine in RANK_DIMENSION dimensions, for methods that need cosines.

    A left-out canary has a rank of at most r with probability r / (M + 1). Rank r becomes the cosine that a
    uniform direction exceeds with this probability. In RANK_DIMENSION dimensions, cosines are practically
    normal. We lower them by 1e-9 times their magnitude, so rounding cannot lift them above a threshold.

    Args:
      ranks: any shape, from 1 for the highest score to M + 1.
      draws: M, the number of fresh draws.
    """
    tails = np.asarray(ranks, np.float64) / (draws + 1)
    # A tail of 1, for the lowest rank, would give -1, the cosine of a failed run.
    tails = np.minimum(tails, 1 - 1e-12)
    # By symmetry about 0, cosines exceed the negated quantile with probability `tails`.
    cosines = -cosine_law.quantile(tails, RANK_DIMENSION)
    return cosines - 1e-9 * np.abs(cosines)


def measure_law(ranks: Integers, is_out: Bits, draws: int) -> float:
    """Tests whether left-out canaries and fresh draws have the same distribution, and returns the p-value.

    We convert rank r to a normal deviate. Its tail probability is drawn uniformly between (r - 1) / (M + 1)
    and r / (M + 1), with a fixed seed. We test whether deviates are normal. All ranks of a run use the same M
    fresh draws, so their correlation is about 1 / M, and the sum of k deviates has variance k + k^2 / M.

    Args:
      ranks: (R, K), from 1 to M + 1.
      is_out: (R, K), True for the ranks of left-out canaries, which are tested; at least one.
      draws: M, the number of fresh draws in each run.
    """
    canaries_out = is_out.sum(1)  # in each run
    total_out = int(canaries_out.sum())
    # Summed over runs, k + k^2 / M is total_out + squares / M, or total_out * (1 + shared).
    squares = float(canaries_out @ canaries_out)
    shared = squares / (total_out * draws)
    # The mean of this many independent deviates would have the same variance.
    effective_size = total_out / (1 + shared)
    place_in_rank = np.random.default_rng(0).random(total_out)  # from 0 to 1, within each rank
    tails = (ranks[is_out] - place_in_rank) / (draws + 1)
    deviates = -special.ndtri(tails)
    return gaussians.measure_normality(deviates, effective_size)


def describe_draws(design: Fresh) -> str:
    """Returns a note on a user's fresh draws: the highest rank's probability, and how they were tested."""
    number_out = len(design.out())
    tested = "not compared to fresh draws, since all were inserted"
    if number_out:
        tested = (
            f"compared to fresh draws using {number_out:,} ranks of canaries that were not inserted"
        )
    return f"the highest rank has a probability of 1 / {design.draws + 1:,}; canaries were {tested}"


def _check_pair(scores: ArrayLike, fresh: ArrayLike) -> tuple[Array, Array]:
    """Returns the scores of canaries (R, K), and of fresh draws (R, M), as float64.

    Raises InputError for other shapes.
    """
    canary_scores = arrays.scores("the canaries' scores", scores)
    fresh_scores = arrays.scores("the fresh scores", fresh)
    shapes = f"scores {canary_scores.shape} and fresh scores {fresh_scores.shape}"
    are_matrices = canary_scores.ndim == fresh_scores.ndim == 2
    fits = are_matrices and len(canary_scores) == len(fresh_scores)
    require(fits, f"{shapes}: give (runs, canaries) and (runs, fresh draws)")
    require(canary_scores.size and fresh_scores.size, f"{shapes}: give at least one of each")
    return canary_scores, fresh_scores


def rank_among(scores: ArrayLike, fresh: ArrayLike) -> Integers:
    """Returns each canary's rank (R, K) among its run's fresh draws, from 1 (the highest score) to M + 1.

    Ties are broken at random, with the run's index as the seed.

    Args:
      scores: (R, K) scores of canaries; higher means in.
      fresh: (R, M) scores of fresh draws on the same models.

    Raises:
      InputError: if the shapes do not match, or a value is NaN.
    """
    canary_scores, fresh_scores = _check_pair(scores, fresh)
    missing = np.isnan(canary_scores).sum() + np.isnan(fresh_scores).sum()
    require(
        not missing,
        f"{missing} scores are NaN: score canaries and fresh draws with the same function",
    )
    rows = []
    for run, (own, drawn) in enumerate(zip(canary_scores, fresh_scores, strict=True)):
        ordered = np.sort(drawn)
        # How many fresh draws score below each canary, and how many score at or below it.
        below = np.searchsorted(ordered, own, side="left")
        not_above = np.searchsorted(ordered, own, side="right")
        # A random number of the tied fresh draws rank above the canary.
        rng = np.random.default_rng([0, run])
        tied_above = rng.integers(0, not_above - below, endpoint=True)
        rows.append(1 + len(ordered) - not_above + tied_above)
    return np.array(rows)
