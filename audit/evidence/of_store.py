"""Evidence from the scores of the library's own runs, which need no checks, as a store keeps them."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.evidence.canaries import Coins, Fresh, Sets, make_coins
from audit.evidence.one_run import OneRun, check_own_cosines
from audit.evidence.ranks import make_from_counts

Array = NDArray[np.float64]


class StoredScores(Protocol):
    """Scores and presence (runs, canaries), and the dimension or number of draws (`audit.storage.store`)."""

    @property
    def scores(self) -> Array: ...
    @property
    def presence(self) -> NDArray[np.bool_]: ...
    @property
    def dimension(self) -> int: ...
    @property
    def draws(self) -> int: ...


def worlds(stored: StoredScores) -> tuple[Array, Array]:
    """Returns (scores with the canary, scores without it), flat, of runs with a single canary each.

    Raises:
      InputError: a run has several canaries, whose scores share a model and are not independent.
    """
    dependent = "scores of several canaries a run are not independent"
    fix = "give one a run, or use a method for many canaries"
    require(stored.scores.size == len(stored.scores), f"{dependent}: {fix}")
    return stored.scores[stored.presence], stored.scores[~stored.presence]


def design(stored: StoredScores) -> Coins:
    """Returns evidence of canaries that were each in or out by a fair coin."""
    return make_coins(stored.scores, stored.presence)


def directions(stored: StoredScores) -> Fresh:
    """Returns evidence of canaries that every run drew afresh: ranks, or cosines with uniform directions."""
    if stored.draws:
        return make_from_counts(stored.scores, stored.presence, stored.draws)
    return Fresh(stored.scores, stored.presence, stored.dimension)


def evidence(stored: StoredScores) -> Sets | Coins | Fresh | OneRun:
    """Returns evidence of canaries that all runs share.

    For a single run with several canaries it is a `OneRun`: with coins unless all canaries are in, and with
    cosines if the scores are cosines (whose dimension is not 0). For other runs it is their design.

    Raises InputError for a single run with all canaries in whose scores are no cosines: no law says what
    they would be without the canaries.
    """
    runs, canaries = stored.scores.shape
    if runs > 1 or canaries == 1:
        return design(stored)
    # All canaries are in only if the setting asks for it (`all_in`): fair coins for the 40 canaries or more
    # that a single run must have practically never put all of them in.
    if stored.presence.all():
        return OneRun(None, check_own_cosines(stored.scores[0], None, stored.dimension))
    coins = design(stored)
    if not stored.dimension:
        return OneRun(coins, None)
    return OneRun(coins, check_own_cosines(*coins.pooled(), stored.dimension))
