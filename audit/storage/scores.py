"""The scores of runs: what the game gives, the store keeps and the statistics bound."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Scores(NamedTuple):
    """Scores of the runs first, first + 1, ...: scores (n,) float64, presence (n,) bool."""

    first: int
    scores: NDArray[np.float64]
    presence: NDArray[np.bool_]

    def worlds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(scores in, scores out)."""
        return self.scores[self.presence], self.scores[~self.presence]
