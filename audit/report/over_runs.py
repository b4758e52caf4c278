"""One-shot canaries of one or several runs: each run's conclusion, and a table of all in 80 columns."""

import numpy as np

from audit.statistics import one_run_conclusion, one_shot
from audit.statistics.one_run_conclusion import OneRunConclusion
from audit.storage.scores import Scores


def conclusions(
    scores: Scores, dimension: int, known_null: bool, delta: float, confidence: float
) -> list[OneRunConclusion]:
    """Each run's conclusion from cosines in R^dimension. known_null: whether a cosine's law is known where
    the canary is out, as it is of final models; else it is fitted to the canaries that are out."""
    found = []
    for values, bits in zip(scores.scores, scores.presence, strict=True):
        design = one_run_conclusion.of_one_run(values, bits)
        by_coins = one_run_conclusion.of_coins(design, dimension, delta, confidence)
        if known_null:
            observed = one_shot.cosines(values[bits], None, dimension)
            alone = one_run_conclusion.of_cosines(observed, delta, confidence)
            by_coins = alone._replace(coins=True, bounds=[*by_coins.bounds, *alone.bounds])
        found.append(by_coins)
    return found


def over_runs(runs: list[OneRunConclusion]) -> str:
    """The mean and deviation over runs of each estimate and bound."""
    head = f"{len(runs):,} runs: epsilon at delta {runs[0].delta:g}, confidence {runs[0].confidence:g} a run"
    lines = [head, f"{'estimate or bound':<24} {'mean':>9} {'deviation':>9}   floor", "-" * 80]
    for rows in zip(*(run.estimates for run in runs), strict=True):
        floor = rows[0].noise_floor
        shown = f"{floor.mean:.3f} ({floor.quantile_95:.3f})"
        lines.append(f"{rows[0].method:<24} {_spread([row.epsilon for row in rows])}   {shown}")
    for bounds in zip(*(run.bounds for run in runs), strict=True):
        lines.append(f"{bounds[0].method:<24} {_spread([row.epsilon for row in bounds])}   a bound a run")
    return "\n".join(
        [*lines, "", "estimates are no bounds; floor: mean (95% quantile) where nothing leaks, of run 0"]
    )


def _spread(values: list[float]) -> str:
    """Mean and deviation in columns."""
    return f"{np.mean(values):>9.3f} {np.std(values):>9.3f}"
