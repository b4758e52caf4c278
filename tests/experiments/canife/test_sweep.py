"""The paper's ablations: what is trained, averages over seeds, tables, figures."""

import numpy as np
import pandas as pd
import pytest

from audit.report import style
from audit.settings import make
from audit.written import Level
from experiments.canife import curves, figures, sweep
from experiments.canife import measured as stored_rounds
from experiments.cells.cell import DataSets
from experiments.cells.work import Workplace, do_all
from experiments.sweeps.points import Evidence
from tests.cases import mostly_slow

SMOKE = sweep.sweeps("smoke")
POOLS = SMOKE["canife_figure_5a"]
COHORTS = SMOKE["canife_figure_8c"]


@pytest.fixture(scope="module")
def trained(image_file, tmp_path_factory):
    """Returns the evidence of a sweep over pools and of one over rounds."""
    folder = tmp_path_factory.mktemp("ablations")
    data = DataSets({"fashion_mnist": str(image_file)})
    for ablation in (POOLS, COHORTS):
        outcome = do_all(list(ablation.cells), Workplace(folder, data))
        assert len(outcome.here) == len(ablation.cells)
    return Evidence(make.holdings(folder), {}, Level())


@pytest.mark.slow
def test_what_is_stored_is_not_trained_again_and_all_of_it_is_drawn(trained):
    for ablation in (POOLS, COHORTS):
        outcome = do_all(list(ablation.cells), Workplace(trained.held.root, DataSets({})))
        assert not outcome.here + outcome.failed
        drawn = figures.draw(ablation, trained)
        assert drawn.figure and not drawn.missing
    nothing = Evidence(make.holdings(trained.held.root / "none"), {}, Level())
    assert figures.draw(POOLS, nothing).missing == len(POOLS.cells)
    frames = []
    for cell in COHORTS.cells:
        found = stored_rounds.read(trained.held, cell.request, cell.request.measured())
        frames.append((cell.request, curves.summarize(cell.request, found)))
    points = curves.average_over_seeds(COHORTS, frames)
    places = [(cohort, number) for cohort in (4, 8) for number in (1, 2, 3)]
    assert list(zip(points["curve"], points["x"], strict=True)) == places
    assert np.isfinite(points["training"]).all() and (points["training"] > 0).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "ablation, places", mostly_slow([(POOLS, [512, 64, 128]), (COHORTS, [1, 41])])
)
def test_tables_fit_and_figures_are_drawn(ablation, places):
    curve = ["as_printed"] * len(places) + ["of_the_mean"] * len(places)
    averages = pd.DataFrame({"curve": curve, "x": 2 * places, "round": 2 * places, "trainings": 3})
    for name in (*figures._PANELS, "clients", "law_then", "accountant"):
        averages = averages.assign(**{name: 8.24, f"{name}_deviation": 0.012})
    averages = averages.assign(published=np.inf, published_deviation=np.nan)
    table = curves.show_curves(ablation, averages)
    assert max(map(len, table.splitlines())) <= 80
    figure = figures.ablation_figure(ablation, averages)
    [line, *_] = figure.axes[0].lines
    assert np.all(np.diff(line.get_xdata()) > 0)
    assert style.png(figure).startswith(b"\x89PNG")
