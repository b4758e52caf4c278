"""Scores that stand in a file twice: rows pasted again, or runs that share a seed.

Bounds take runs for independent trainings. A run that is counted twice is not, and a bound that counts it so
exceeds the truth more often than it says: 8% for pairs, 28% for fives. Scores of full precision never repeat
by chance but for few in float32, so that repeated ones are seen, and each is counted once. Rounded scores,
and scores of few values, repeat by nature and stay as they are.
"""

import numpy as np
from numpy.typing import NDArray

from audit.statistics.canaries import Coins, Design, Sets

Array = NDArray[np.float64]
_DIGITS = 6  # of rounded scores, at most
_LEAST, _SHARE = 10, 0.05  # of different repeated scores, and of all scores
_FLOAT32 = 2.0**-23  # share of pairs of scores that are equal by chance, at most


def once(design: Design) -> tuple[Design, int]:
    """The design with each repeated run once, and how many were left out; as it is where none repeats."""
    single = design.canaries == (1, 1)
    if isinstance(design, Coins):
        kept = _kept(np.concatenate([design.scores, design.presence], axis=1), single)
        if kept.all():
            return design, 0
        return design._replace(scores=design.scores[kept], presence=design.presence[kept]), int((~kept).sum())
    if not isinstance(design, Sets):
        return design, 0
    worlds = [_kept(world, single) for world in (design.inserted, design.fresh)]
    out = sum(int((~kept).sum()) for kept in worlds)
    return (Sets(design.inserted[worlds[0]], design.fresh[worlds[1]]) if out else design), out


def _kept(rows: Array, single: bool) -> NDArray[np.bool_]:
    """Which runs (n, ..) are counted: of those that are equal in all scores of full precision, the first. Few
    of a single canary are equal by chance."""
    keys = rows[:, 0] if rows.shape[1] == 1 else rows
    _, first, places, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True, axis=0
    )
    repeated = np.flatnonzero(counts > 1)
    full = repeated[[any(map(_is_full, row)) for row in rows[first[repeated]]]] if repeated.size else repeated
    more, runs = int((counts[full] - 1).sum()), len(rows)
    kept = np.ones(runs, bool)
    by_chance = len(full) < _LEAST or more < max(_SHARE, 2 * runs * _FLOAT32) * runs
    if more and not (single and by_chance):
        kept[np.isin(places.ravel(), full)] = False
        kept[first[full]] = True
    return kept


def _is_full(value: float) -> bool:
    return bool(np.isfinite(value)) and float(f"{value:.{_DIGITS}g}") != value
