"""One-shot canaries of one or several runs: each run's conclusion, and a table of all in 80 columns."""

import numpy as np

from audit.report.one_run_table import floor_words
from audit.report.table import Column, Table, number
from audit.statistics import one_run_conclusion, one_shot
from audit.statistics.one_run_conclusion import OneRunConclusion
from audit.storage.store import Scores


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
    estimates = list(zip(*(run.estimates for run in runs), strict=True))
    bounds = list(zip(*(run.bounds for run in runs), strict=True))
    floors = [floor_words(row[0].noise_floor) for row in estimates] + ["a bound a run"] * len(bounds)
    rows = [
        (row[0].method, [one.epsilon for one in row], floor)
        for row, floor in zip([*estimates, *bounds], floors, strict=True)
    ]
    columns = (
        Column(None, lambda row: row[0], "estimate or bound", width=24, left=True),
        Column(None, lambda row: np.mean(row[1]), "mean", number(".3f"), 9),
        Column(None, lambda row: np.std(row[1]), "deviation", number(".3f"), 9),
        Column(None, lambda row: row[2], "  floor", "  {}".format, left=True),
    )
    head = f"{len(runs):,} runs: epsilon at delta {runs[0].delta:g}, confidence {runs[0].confidence:g} a run"
    note = "\nestimates are no bounds; floor: mean (95% quantile) where nothing leaks, of run 0"
    return Table(columns, rows, before=(head,), after=(note,), gap=" ", rule=80).text()
