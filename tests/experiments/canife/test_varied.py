"""Several settings at once: the grid, what is trained, averages over seeds, tables, figures."""

import dataclasses
import threading
import time

import numpy as np
import pytest

from audit.errors import InputError
from audit.report import style
from experiments.canife import attacked as settings
from experiments.canife import curves, figures, populations, training
from experiments.canife.attacked import Attacked
from experiments.canife.curves import QUANTITIES, TOTALS, Average, AveragedPoint, Curves
from experiments.cells import work
from experiments.cells.cell import DataSets
from experiments.cells.work import Workplace

SMALL = Attacked(
    model="linear",
    rounds=3,
    every=2,
    cohort=4,
    noise_multiplier=0.5,
    pool=8,
    population=20,
    scores=20,
    mock_rounds=200,
    design_steps=4,
)


def grid_of(text, setting):
    return settings.parse_grid(text, dataclasses.asdict(setting), [])


def requests_of(grid, image_file):
    """Returns a grid's requests and the loader of their clients, on made-up images."""
    load_split = training.make_split_loader(None, str(image_file), None)
    only_last = not grid.over_rounds
    return training.make_requests(grid.combinations, load_split, only_last), load_split


def do_requests(requests, load_split, folder):
    """Does the requests' cells; returns how they ended, and the measured settings."""
    cells = [training.training_cell(request, load_split) for request in requests]
    outcome = work.do_all(cells, Workplace(folder, DataSets({})))
    return outcome, [(request, curves.read_rounds(request, folder)) for request in requests]


@pytest.fixture(scope="module")
def trained(image_file, tmp_path_factory):
    """Returns the folder, the grid, the requests and the measured settings of two seeds."""
    folder = tmp_path_factory.mktemp("grid")
    grid = grid_of("start=random;pool=8;seed=0,1", SMALL)
    requests, load_split = requests_of(grid, image_file)
    _, measured = do_requests(requests, load_split, folder)
    return folder, grid, requests, measured


def test_every_combination_is_a_setting_and_seeds_follow_each_other():
    given = dataclasses.asdict(Attacked(pool=7))
    grid = settings.parse_grid(" start=random,sample; seed=3,4 ;clamp=true,false", given, ["pool"])
    assert (grid.fields, grid.curve, grid.x) == (("start", "clamp"), "start", "clamp")
    values = [point.values for point in grid.combinations]
    assert values[:4] == [("random", True)] * 2 + [("random", False)] * 2
    assert len({point.setting for point in grid.combinations}) == len(values) == 8
    last = grid.combinations[-1].setting
    assert (last.start, last.clamp, last.seed, last.pool) == ("sample", False, 4, 7)
    with pytest.raises(InputError, match="`pool=7` is also in `vary`"):
        settings.parse_grid("pool=1", given, ["pool"])


def test_a_varied_model_brings_its_own_values_along():
    grid = grid_of("model=linear,character_lstm", Attacked())
    assert [point.setting.cohort for point in grid.combinations] == [128, 10]


@pytest.mark.parametrize(
    "text", ["", "x=1", "pool=", "pool=1.5", "pool=1;pool=2", "a=1;b=2", "clamp=1"]
)
def test_what_is_no_grid_is_refused(text):
    with pytest.raises(InputError, match="`vary"):
        grid_of(text, Attacked())


def test_values_out_of_range_are_named_by_their_field_before_anything_is_trained(
    image_file,
):
    with pytest.raises(InputError, match="`cohort=1`"):
        requests_of(grid_of("cohort=4,1;pool=8", SMALL), image_file)


@pytest.mark.slow
def test_of_two_fields_the_last_measured_round_is_drawn_averaged_over_seeds(trained):
    folder, grid, _, measured = trained
    drawn = curves.average_over_seeds(grid, measured, backward=False)
    assert (drawn.curve, drawn.x) == ("start", "pool")
    (point,) = drawn.points
    assert (point.curve, point.x, point.round, point.trainings) == ("random", 8, 3, 2)
    assert len(list(folder.glob("canife/*/round_*.npz"))) == 2
    rounds = [rows[0].measured for _, rows in measured]
    healths = [measured_round.health for measured_round in rounds]
    assert point.averages["health"] == pytest.approx((np.mean(healths), np.std(healths, ddof=1)))
    deviations = []
    clients = []
    for measured_round in rounds:
        deviation_in = measured_round.scores_in.std()
        deviation_out = measured_round.scores_out.std()
        deviations.append((deviation_in + deviation_out) / 2)
        variance = 4 * np.var(measured_round.known, ddof=1) * (1 - 4 / 20)
        clients.append(np.sqrt(variance))
    assert point.averages["deviation"].mean == pytest.approx(np.mean(deviations))
    assert point.averages["clients"].mean == pytest.approx(np.mean(clients))
    assert np.isnan(point.averages["training"].mean)


@pytest.mark.slow
def test_what_is_stored_is_not_trained_again(trained, image_file):
    folder, grid, requests, measured = trained
    assert requests_of(grid, image_file)[0] == requests

    def load_split(setting):
        raise AssertionError("trains")

    outcome, again = do_requests(requests, load_split, folder)
    assert not outcome.here
    assert len(outcome.elsewhere) == 2
    healths_again = [rows[0].measured.health for _, rows in again]
    assert healths_again == [rows[0].measured.health for _, rows in measured]


@pytest.mark.slow
def test_workers_share_a_grid_and_a_setting_that_fails_leaves_the_others(
    trained, tmp_path, image_file, capsys
):
    whole, grid, requests, _ = trained
    _, load_split = requests_of(grid, image_file)
    wrong = requests[0]._replace(
        setting=dataclasses.replace(requests[0].setting, learning_rate=np.inf)
    )
    cells = [training.training_cell(request, load_split) for request in (wrong, *requests)]
    place = Workplace(tmp_path, DataSets({}))
    outcomes = []
    with cells[1].open(*place).claim() as is_mine:  # another worker's, who does it meanwhile
        assert is_mine
        other = threading.Thread(target=lambda: outcomes.append(work.do_all(cells, place)))
        other.start()
        while not list(tmp_path.glob("canife/*/round_*.npz")):
            time.sleep(0.01)
        assert other.is_alive()
        cells[1].do(cells[1].open(*place), place.data, lambda runs: None)
    other.join()
    assert [len(names) for names in outcomes[0]] == [1, 1, 1]
    assert "the model diverged before round 3" in capsys.readouterr().err
    names = ["round_0000003.npz", "setting.json", "state.npz"]
    for request in requests:
        alone = training.get_store(request.setting, request.checksum, whole).path
        shared = training.get_store(request.setting, request.checksum, tmp_path).path
        assert sorted(path.name for path in alone.iterdir()) == names
        assert sorted(path.name for path in shared.iterdir()) == names
        for name in names:
            assert (alone / name).read_bytes() == (shared / name).read_bytes()


@pytest.mark.slow
def test_a_single_training_finds_a_grids_rounds_and_measures_the_others_with_the_same_bits(
    trained, tmp_path, image_file
):
    folder, _, requests, _ = trained
    request = requests[0]
    paths = populations.DataPaths(data_file=str(image_file))
    setting, population, alone = training.prepared(request.setting, tmp_path, paths)
    grids = training.get_store(request.setting, request.checksum, folder)
    assert grids.path.name == alone.path.name
    assert setting == request.setting
    list(training.measure_missing(setting, population, alone))

    def same(name):
        return (grids.path / name).read_bytes() == (alone.path / name).read_bytes()

    assert same("round_0000003.npz")
    (first,) = training.measure_missing(setting, population, grids)
    assert first.number == 1
    assert same("round_0000001.npz")


@pytest.mark.slow
def test_one_field_gives_curves_over_rounds(tmp_path, image_file):
    grid = grid_of("cohort=4", SMALL)
    requests, load_split = requests_of(grid, image_file)
    _, measured = do_requests(requests, load_split, tmp_path)
    drawn = curves.average_over_seeds(grid, measured, backward=False)
    assert (drawn.curve, drawn.x) == ("cohort", "round")
    assert [(point.curve, point.x) for point in drawn.points] == [(4, 1), (4, 3)]
    averages = drawn.points[1].averages
    assert 0 < averages["training"].mean < averages["accountant"].mean < np.inf


def test_one_field_is_the_axis_where_one_round_is_measured():
    single = dataclasses.replace(SMALL, rounds=1)
    grid = grid_of("cohort=4,8;seed=0,1", single)
    assert (grid.curve, grid.x) == ("", "cohort")
    grid = grid_of("seed=0,1", single)
    assert (grid.curve, grid.x) == ("", "round")
    assert [combination.values for combination in grid.combinations] == [(), ()]


@pytest.mark.slow
def test_a_mean_is_infinite_where_one_of_its_values_is(trained):
    _, grid, _, measured = trained
    request, (row,) = measured[0]
    estimate = dataclasses.replace(row.published.estimate, epsilon=np.inf)
    published = row.published._replace(estimate=estimate)
    separated = (request, [row._replace(published=published)])
    averages = (
        curves.average_over_seeds(grid, [separated, measured[1]], backward=False).points[0].averages
    )
    assert averages["published"].mean == np.inf
    assert np.isnan(averages["published"].deviation)
    assert np.isfinite(averages["health"]).all()


def made_up(curve, x, xs, infinite=False):
    """Makes up curves without a training run."""
    published = Average(np.inf if infinite else 3.62, np.nan)
    law = Average(np.inf if infinite else 8.24, np.nan)
    averages = dict.fromkeys((*QUANTITIES, *TOTALS), Average(0.167, 0.012))
    averages |= {"published": published, "law_then": law, "law": law}
    points = []
    for value in ("as_run", "of_the_mean"):
        for place in xs:
            points.append(AveragedPoint(value, place, 41, 3, averages))
    return Curves(curve, x, points)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "drawn",
    [
        made_up("penalty", "noise_multiplier", [0.25, 0.5]),
        made_up("penalty", "pool", [512, 64, 128], infinite=True),
        made_up("penalty", "start", ["random", "sample"]),
        made_up("penalty", "clamp", [True, False]),
        made_up("penalty", "round", [1, 41]),
        made_up("client_learning_rate", "model", ["celeba_resnet18"]),
    ],
)
def test_tables_fit_and_figures_are_drawn(drawn):
    rows = curves.make_curves_table(drawn)
    assert max(map(len, rows.text().splitlines())) <= 80
    lines = [line.split(",") for line in rows.csv().decode().splitlines()]
    assert len(lines) == len(drawn.points) + 1
    assert len({len(line) for line in lines}) == 1
    figure = figures.varied_figure(drawn)
    first = figure.axes[0]
    plotted = [line for line in first.lines if len(line.get_xdata()) == len(drawn.points) // 2]
    assert all(np.all(np.diff(line.get_xdata().astype(float)) > 0) for line in plotted)
    assert style.png(figure).startswith(b"\x89PNG")
