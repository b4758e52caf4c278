"""The paper's ablations: what is trained, averages over seeds, tables, figures."""

import dataclasses

import numpy as np
import pytest

from audit.methods.level import Level
from audit.report import style
from audit.settings import stored
from experiments.canife import curves, figures, sweep
from experiments.canife import measured as stored_rounds
from experiments.canife.attacked import fit_to_clients
from experiments.canife.curves import QUANTITIES, TOTALS, Average, AveragedPoint, Curves
from experiments.cells.cell import DataSets
from experiments.cells.work import Workplace, do_all
from experiments.sweeps.points import Evidence
from tests.cases import mostly_slow

SMOKE = sweep.sweeps("smoke")
POOLS = SMOKE["canife_figure_5a"]
COHORTS = SMOKE["canife_figure_8c"]


@pytest.mark.parametrize("scale", sweep.SIZES)
def test_settings_have_their_numbers_of_clients_and_differ_in_what_is_varied(scale):
    """A setting that left a number of clients open would go by another name in the store."""
    for ablation in sweep.sweeps(scale).values():
        settings = [cell.request for cell in ablation.cells]
        assert len(set(settings)) == len(settings)
        varied = {ablation.curve, ablation.x, "seed"} - {sweep.ROUND}
        same = {name: getattr(settings[0], name) for name in varied}
        assert len({dataclasses.replace(setting, **same) for setting in settings}) == 1
        for setting in settings:
            assert fit_to_clients(setting, 60_000, 10_000) == setting


@pytest.fixture(scope="module")
def trained(image_file, tmp_path_factory):
    """Returns the evidence of a sweep over pools and of one over rounds."""
    folder = tmp_path_factory.mktemp("ablations")
    data = DataSets({"fashion_mnist": str(image_file)})
    for ablation in (POOLS, COHORTS):
        outcome = do_all(list(ablation.cells), Workplace(folder, data))
        assert len(outcome.here) == len(ablation.cells)
    return Evidence(stored.holdings(folder), {}, Level())


@pytest.mark.slow
def test_what_is_stored_is_not_trained_again_and_all_of_it_is_drawn(trained):
    for ablation in (POOLS, COHORTS):
        outcome = do_all(list(ablation.cells), Workplace(trained.held.root, DataSets({})))
        assert not outcome.here + outcome.failed
        drawn = figures.draw(ablation, trained)
        ((name, figure),) = drawn.figures
        assert (name, drawn.missing) == (ablation.name, 0)
        assert style.png(figure).startswith(b"\x89PNG")
    nothing = Evidence(stored.holdings(trained.held.root / "none"), {}, Level())
    assert figures.draw(POOLS, nothing).missing == len(POOLS.cells)


def read_rows(trained, ablation):
    rows = []
    for cell in ablation.cells:
        numbers = cell.request.measured()[-cell.runs :]
        measured = stored_rounds.read(trained.held, cell.request, numbers)
        rows.append((cell.request, [curves.summarize_round(cell.request, one) for one in measured]))
    return rows


@pytest.mark.slow
def test_the_last_measured_round_is_averaged_over_seeds(trained):
    (setting, (row,)), (_, (other,)), *_ = read_rows(trained, POOLS)
    twice = [(setting, [row]), (setting, [other])]
    (point,) = curves.average_over_seeds("start", "pool", twice).points
    assert (point.curve, point.x, point.round, point.trainings) == ("random", 8, 3, 2)
    rounds = [row.measured, other.measured]
    healths = [measured.health for measured in rounds]
    assert point.averages["health"] == pytest.approx((np.mean(healths), np.std(healths, ddof=1)))
    deviations = [(one.scores_in.std() + one.scores_out.std()) / 2 for one in rounds]
    clients = [np.sqrt(4 * np.var(one.known, ddof=1) * (1 - 4 / 20)) for one in rounds]
    assert point.averages["deviation"].mean == pytest.approx(np.mean(deviations))
    assert point.averages["clients"].mean == pytest.approx(np.mean(clients))
    assert np.isnan(point.averages["training"].mean)
    estimate = dataclasses.replace(row.published.estimate, epsilon=np.inf)
    separated = row._replace(published=row.published._replace(estimate=estimate))
    infinite = [(setting, [separated]), (setting, [other])]
    averages = curves.average_over_seeds("start", "pool", infinite).points[0].averages
    assert averages["published"].mean == np.inf
    assert np.isnan(averages["published"].deviation)
    assert np.isfinite(averages["health"]).all()


@pytest.mark.slow
def test_over_rounds_the_training_is_composed(trained):
    drawn = curves.average_over_seeds("cohort", "round", read_rows(trained, COHORTS))
    assert [(point.curve, point.x) for point in drawn.points] == [
        (cohort, number) for cohort in (4, 8) for number in (1, 2, 3)
    ]
    for point in drawn.points:
        assert 0 < point.averages["training"].mean < np.inf
        assert 0 < point.averages["accountant"].mean < np.inf


def make_up(curve, x, places, infinite=False):
    """Makes up curves without a training run."""
    published = Average(np.inf if infinite else 3.62, np.nan)
    law = Average(np.inf if infinite else 8.24, np.nan)
    averages = dict.fromkeys((*QUANTITIES, *TOTALS), Average(0.167, 0.012))
    averages |= {"published": published, "law_then": law, "law": law}
    points = []
    for value in ("as_printed", "of_the_mean"):
        for place in places:
            points.append(AveragedPoint(value, place, 41, 3, averages))
    return Curves(curve, x, points)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "drawn",
    mostly_slow(
        [
            (make_up("penalty", "pool", [512, 64, 128], infinite=True),),
            (make_up("penalty", "design_steps", [10, 1000]),),
            (make_up("penalty", "round", [1, 41]),),
        ]
    ),
)
def test_tables_fit_and_figures_are_drawn(drawn):
    table = curves.make_curves_table("canife_figure_8a: Two losses of the design", drawn)
    assert max(map(len, table.text().splitlines())) <= 80
    lines = [line.split(",") for line in table.csv().decode().splitlines()]
    assert len(lines) == len(drawn.points) + 1
    assert len({len(line) for line in lines}) == 1
    figure = figures.ablation_figure(drawn)
    plotted = [
        line for line in figure.axes[0].lines if len(line.get_xdata()) == len(drawn.points) // 2
    ]
    assert plotted
    assert all(np.all(np.diff(line.get_xdata()) > 0) for line in plotted)
    assert style.png(figure).startswith(b"\x89PNG")
