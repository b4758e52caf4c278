"""The paper's ablations are trained once and drawn from the store."""

import io

import numpy as np
import pandas as pd
import pytest

from audit.storage import index
from audit.written import Level
from experiments.canife import figures, sweep
from experiments.cells.cell import DataSets
from experiments.cells.work import Workplace, do_all, find_missing
from experiments.sweeps.points import Evidence

SMOKE = sweep.sweeps("smoke")
POOLS = SMOKE["canife_figure_5a"]
COHORTS = SMOKE["canife_figure_8c"]


@pytest.fixture(scope="module")
def trained(image_file, tmp_path_factory):
    """Trains a sweep over pools and one over rounds, and returns their evidence."""
    folder = tmp_path_factory.mktemp("ablations")
    data = DataSets({"fashion_mnist": str(image_file)})
    for ablation in (POOLS, COHORTS):
        outcome = do_all(list(ablation.cells), Workplace(folder, data))
        assert len(outcome.completed) == len(ablation.cells)
    return Evidence(index.holdings(folder), {}, Level())


@pytest.mark.slow
def test_stored_cells_are_not_trained_again_and_all_are_drawn(trained):
    for ablation in (POOLS, COHORTS):
        assert not find_missing(ablation.cells, Workplace(trained.held.root, DataSets({})))
        drawn = figures.draw(ablation, trained)
        assert drawn.figure and not drawn.missing
    nothing = Evidence(index.holdings(trained.held.root / "none"), {}, Level())
    assert figures.draw(POOLS, nothing).missing == len(POOLS.cells)
    rows = pd.read_csv(io.BytesIO(drawn.table.csv))
    places = [(cohort, number) for cohort in (4, 8) for number in (1, 2, 3)]
    assert list(zip(rows["curve"], rows["x"], strict=True)) == places
    assert np.isfinite(rows["training"]).all() and (rows["training"] > 0).all()
