"""What is seen of a single run: its canaries' coins, their cosines, or both."""

from typing import NamedTuple

from audit.statistics.canaries import Coins
from audit.statistics.one_shot import Cosines


class OneRun(NamedTuple):
    """Scores of one run's canaries.

    Attributes:
      coins: scores (1, K) and presence (1, K) where each canary was in by a fair coin; else None.
      cosines: observed (K,) and unobserved (M,) cosines of uniform directions; None where scores are others,
        as losses.
    """

    coins: Coins | None
    cosines: Cosines | None
