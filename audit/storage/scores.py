"""The scores of runs: what the game gives, the store keeps and the statistics bound."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.statistics.canaries import Coins, coins


class Scores(NamedTuple):
    """Scores of the runs first, first + 1, ... with K canaries each: scores (n, K) float64, presence (n, K)
    bool."""

    first: int
    scores: NDArray[np.float64]
    presence: NDArray[np.bool_]

    def of_first(self, runs: int) -> "Scores":
        """The scores of the first so many runs."""
        return Scores(self.first, self.scores[:runs], self.presence[:runs])

    def design(self) -> Coins:
        """The scores as statistics take them, however many canaries a run has."""
        return coins(self.scores, self.presence)

    def worlds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(scores in, scores out), flat, of one canary a run.

        Raises InputError for several canaries a run: their scores share a model and are not independent.
        """
        require(
            self.scores.size == len(self.scores),
            "scores of several canaries a run are not independent: give one a run, or use a method for "
            "many canaries",
        )
        return self.scores[self.presence], self.scores[~self.presence]
