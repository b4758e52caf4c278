"""The bracket of networks: rows show stored audits between stored bounds."""

import numpy as np
import pytest

from audit.conclusions import lipschitz
from audit.conclusions.lipschitz import Steps
from audit.settings import make
from audit.storage import index
from audit.storage.store import Scores
from audit.tasks.task import Dataset
from audit.written import Level
from experiments.hidden_state import bracket, measured
from experiments.hidden_state.sweep import FRESH, sweeps
from experiments.sweeps import points
from models.catalogue import task

LEVELS = Level()
DATA = Dataset(np.zeros((4, 8), np.float32), np.zeros(4, np.int32), "made up", "0" * 64)


def keep_scores(out, audited):
    """Stores random scores for all runs of an audit."""
    setting = audited.setting
    store = make.open_store(out, setting, DATA)
    rng = np.random.default_rng(0)
    dimension = 68 if audited.series == FRESH.label else 0
    presence = np.arange(audited.runs)[:, None] % 2 == 1
    presence = np.broadcast_to(presence, (audited.runs, setting.canaries))
    scores = rng.normal(3.0 * presence, 1.0)
    if dimension:
        presence = np.ones((audited.runs, setting.canaries), bool)
        scores = np.tanh(rng.normal(1, 1, presence.shape) / 68**0.5)
    store.save(Scores(0, scores, presence, dimension))


@pytest.mark.slow
def test_rows_show_audits_between_bounds_and_say_what_these_are(tmp_path):
    sweep = sweeps("smoke")["bracket"]
    for audited in sweep.audits():
        keep_scores(tmp_path, audited)
    for cell in sweep.cells:
        if cell.audited is None:
            store = make.open_store(tmp_path, cell.request, DATA, measured.EXPANSION)
            kink = "steps have kinks" if task(cell.request.model).label == "FCNN" else ""
            lipschitz.keep(store, Steps(1.02, "measured", 4, kink, lipschitz.MEASUREMENT))

    held = index.holdings(tmp_path)
    evidence = points.evidence(held, sweep.audits(), LEVELS)
    every = points.points(sweep.audits(), evidence.audits)
    rows = bracket.make_rows(every, sweep, evidence)
    figure, own_table = bracket.draw_bracket(sweep, every, evidence)
    assert len([axis for axis in figure.axes if axis.get_title()]) == 2
    assert max(map(len, own_table.text.splitlines())) <= 105
    for model, word in {"FCNN": "estimate", "tanh FCNN": "measured"}.items():
        (at_1,) = [row for row in rows if (row["panel"], row["x"]) == (model, 1)]
        (at_5,) = [row for row in rows if (row["panel"], row["x"]) == (model, 5)]
        assert at_1["word"] == bracket.COMPOSITION
        assert at_1["at_most"] == at_1["composition"] == at_5["composition"]
        assert at_5["word"] == word and word in own_table.text
        assert at_5["expansion"] == pytest.approx(1.02)
        assert at_5["at_most"] < at_5["margin"] < at_5["composition"]
        assert at_5["proven"] > 0 and at_5["interval_low"] < at_5["interval_high"]
