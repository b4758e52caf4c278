"""Functions that check a user's scores and return them as evidence, one for each audit design."""

import hashlib
import json

import numpy as np
from numpy.typing import ArrayLike

from audit.errors import require, require_type
from audit.evidence import arrays, canaries, fair_coins, given_directions
from audit.evidence.canaries import Coins, Fresh
from audit.evidence.one_run import OneRun, make_cosines
from audit.evidence.ranks import ranks as ranks
from audit.evidence.repeats import Evidence as Evidence
from audit.evidence.repeats import check_with_or_without_copies

two_worlds = canaries.make_sets  # runs with the canaries, and other runs without them


def coins(scores: ArrayLike, presence: ArrayLike) -> Coins | OneRun:
    """Returns the evidence from canaries inserted or left out by independent fair coin flips.

    Args:
      scores: (R, K), scores of any kind for K canaries in each of R runs; higher means in, NaN for a failed
        run.
      presence: (R, K), 1 if the canary was in, else 0.

    Raises:
      InputError: for invalid shapes or values, and for bits that are very unlikely for fair coins.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> presence = rng.random((1, 1000)) < 0.5
    >>> losses = rng.normal(4.0 * presence, 1.0)
    >>> audit.bounds(audit.coins(losses, presence)).bounds["one_run_guesses"].epsilon > 2
    True
    """
    # A user's coins may be slightly unfair, so bounds estimate the probability of "in".
    drawn = canaries.make_coins(scores, presence)._replace(from_user=True)
    # Copied rows make coins look unfair, but bounds count each row only once.
    check_with_or_without_copies(lambda part: fair_coins.require_fair(part.presence), drawn)
    if len(drawn.scores) > 1:
        return drawn
    return OneRun(coins=drawn, cosines=None)


def cosines(
    values: ArrayLike,
    dimension: int,
    presence: ArrayLike | None = None,
    leave_one_out: bool = False,
    in_order: bool = False,
) -> Fresh | OneRun:
    """Returns the evidence from cosines with uniform directions, drawn afresh and inserted in every run.

    A single run (1, K) without `leave_one_out` becomes a `OneRun`, and anything else a `Fresh`. Bounds for a
    `OneRun` assume that a cosine does not depend on other canaries' directions.

    Args:
      values: (R, K), cosines of K canaries in each of R runs; (R,) for one canary per run; (1, K) for a
        single run. NaN for a failed run.
      dimension: d, the number of trained parameters.
      presence: the fair coin flips, in the shape of `values`: 1 if the canary was inserted, else 0. None if
        all were inserted.
      leave_one_out: True if cosines depend on the other canaries' directions (`audit.directions.cosines`).
      in_order: True if rows are sorted by the start times of their runs. The bound is then the largest of the
        bounds after each run, and is valid whenever you stop. Ignored for a `OneRun`.

    Raises:
      InputError: for invalid shapes or values.

    >>> import numpy as np
    >>> values = np.random.default_rng(0).normal(4, 1, (10, 256)) / 62_006**0.5
    >>> str(audit.cosines(values, dimension=62_006))
    '10 runs x 256 fresh directions, all inserted'
    """
    # The columns of a DataFrame would be mistaken for canaries.
    require(not hasattr(values, "columns"), "cosines must be an array, got a table")
    array = arrays.scores("the cosines", values)
    require_type("leave_one_out", leave_one_out, bool)
    if array.ndim == 2 and len(array) == 1 and not leave_one_out:
        return _cosines_of_one_run(array[0], dimension, presence)
    return given_directions.given(array, dimension, leave_one_out, presence, in_order)


def paired_cosines(observed: ArrayLike, unobserved: ArrayLike | None, dimension: int) -> OneRun:
    """Returns the evidence from a single run's cosines if its canaries were inserted without coin flips.

    Args:
      observed: (K,) cosines of inserted canaries.
      unobserved: (M,) cosines of left-out canaries with the same distribution, used to fit the null
        distribution; None for the exact distribution of a uniform direction's cosine.
      dimension: d, the number of trained parameters.
    """
    size = given_directions.require_dimension(dimension)
    run = make_cosines(observed, unobserved, size)
    # Without a fitted null, `given` checks cosines against uniform directions in this dimension. A fitted
    # null allows other distributions, such as that of the largest cosine over rounds.
    if not len(run.unobserved):
        given_directions.given(run.observed[None], size)
    return OneRun(coins=None, cosines=run)


def hash_evidence(evidence: Evidence) -> str:
    """Returns the hex SHA-256 of the evidence's arrays and numbers, ignoring its boolean fields."""
    parts = [part for part in evidence if not isinstance(part, bool)]  # the fields of a NamedTuple
    text = json.dumps(parts, default=np.ndarray.tolist)
    return hashlib.sha256(text.encode()).hexdigest()


def _cosines_of_one_run(values: arrays.Array, dimension: int, presence: ArrayLike | None) -> OneRun:
    """Returns the evidence from a single run's cosines (K,) and presence bits, (K,) or (1, K).

    If presence is None, all canaries are in, and cosines are checked against uniform directions
    (`paired_cosines`). Otherwise, the null distribution is fitted to left-out canaries, so we do not check
    the spread.
    """
    if presence is None:
        return paired_cosines(values, unobserved=None, dimension=dimension)
    size = given_directions.require_dimension(dimension)
    bits = np.atleast_2d(arrays.floats("the presence bits", presence))
    present = given_directions.check_bits(bits, (1, len(values)))
    fair_coins.require_fair(present)  # as single-run bounds assume
    drawn = Coins(values[None], present, from_user=True)
    cosines_in, cosines_out = drawn.pooled()
    return OneRun(coins=drawn, cosines=make_cosines(cosines_in, cosines_out, size))
