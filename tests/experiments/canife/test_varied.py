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
    """(what a grid wants, how clients are had) on made-up images."""
    split = training.make_split_loader(None, str(image_file), None)
    return training.make_requests(grid.combinations, split, only_last=not grid.over_rounds), split


def done(requests, split, folder):
    """(how the cells ended, the measured settings)."""
    every = [training.training_cell(one, split) for one in requests]
    outcome = work.do_all(every, Workplace(folder, DataSets({})))
    return outcome, [(one, curves.read_rounds(one, folder)) for one in requests]


@pytest.fixture(scope="module")
def trained(image_file, tmp_path_factory):
    """(folder, grid, requests, measured settings) of two seeds."""
    folder, grid = tmp_path_factory.mktemp("grid"), grid_of("start=random;pool=8;seed=0,1", SMALL)
    requests, split = requests_of(grid, image_file)
    return folder, grid, requests, done(requests, split, folder)[1]


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


@pytest.mark.parametrize("text", ["", "x=1", "pool=", "pool=1.5", "pool=1;pool=2", "a=1;b=2", "clamp=1"])
def test_what_is_no_grid_is_refused(text):
    with pytest.raises(InputError, match="`vary"):
        grid_of(text, Attacked())


def test_values_out_of_range_are_named_by_their_field_before_anything_is_trained(image_file):
    with pytest.raises(InputError, match="`cohort=1`"):
        requests_of(grid_of("cohort=4,1;pool=8", SMALL), image_file)


@pytest.mark.slow
def test_of_two_fields_the_last_measured_round_is_drawn_averaged_over_seeds(trained):
    folder, grid, _, measured = trained
    drawn = curves.average_over_seeds(grid, measured, backward=False)
    assert (drawn.curve, drawn.x) == ("start", "pool")
    assert [(one.curve, one.x, one.round, one.trainings) for one in drawn.points] == [("random", 8, 3, 2)]
    assert len(list(folder.glob("canife/*/round_*.npz"))) == 2
    kept = [rows[0].measured for _, rows in measured]
    healths = [one.health for one in kept]
    averages = drawn.points[0].averages
    assert averages["health"] == pytest.approx((np.mean(healths), np.std(healths, ddof=1)))
    deviations = [(one.scores_in.std() + one.scores_out.std()) / 2 for one in kept]
    assert averages["deviation"].mean == pytest.approx(np.mean(deviations))
    clients = [np.sqrt(4 * np.var(one.known, ddof=1) * (1 - 4 / 20)) for one in kept]
    assert averages["clients"].mean == pytest.approx(np.mean(clients)) and np.isnan(averages["training"].mean)


@pytest.mark.slow
def test_what_is_kept_is_not_trained_again(trained, image_file):
    folder, grid, requests, measured = trained
    assert requests_of(grid, image_file)[0] == requests

    def split(setting):
        raise AssertionError("trains")

    outcome, again = done(requests, split, folder)
    assert not outcome.here and len(outcome.elsewhere) == 2
    healths = [[rows[0].measured.health for _, rows in some] for some in (again, measured)]
    assert healths[0] == healths[1]


@pytest.mark.slow
def test_workers_share_a_grid_and_a_setting_that_fails_leaves_the_others(
    trained, tmp_path, image_file, capsys
):
    whole, _, requests, _ = trained
    split = requests_of(trained[1], image_file)[1]
    wrong = requests[0]._replace(setting=dataclasses.replace(requests[0].setting, learning_rate=np.inf))
    every = [training.training_cell(one, split) for one in (wrong, *requests)]
    place = Workplace(tmp_path, DataSets({}))
    with every[1].open(*place).claim() as mine:  # another worker's, who does it meanwhile
        assert mine
        other = threading.Thread(target=lambda: outcomes.append(work.do_all(every, place)))
        outcomes = []
        other.start()
        while not list(tmp_path.glob("canife/*/round_*.npz")):
            time.sleep(0.01)
        assert other.is_alive()
        every[1].do(every[1].open(*place), place.data, lambda runs: None)
    other.join()
    assert [len(names) for names in outcomes[0]] == [1, 1, 1]
    assert "the model diverged before round 3" in capsys.readouterr().err
    names = ["round_0000003.npz", "setting.json", "state.npz"]
    for one in requests:
        folders = [training.get_store(one.setting, one.checksum, out).path for out in (whole, tmp_path)]
        assert all(sorted(path.name for path in folder.iterdir()) == names for folder in folders)
        assert all((folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() for name in names)


@pytest.mark.slow
def test_a_single_training_finds_a_grids_rounds_and_measures_the_others_with_the_same_bits(
    trained, tmp_path, image_file
):
    one = trained[2][0]
    named = populations.DataPaths(data_file=str(image_file))
    setting, population, alone = training.prepared(one.setting, tmp_path, named)
    grids = training.get_store(one.setting, one.checksum, trained[0])
    assert grids.path.name == alone.path.name and setting == one.setting
    list(training.measure_missing(setting, population, alone))

    def same(name):
        return (grids.path / name).read_bytes() == (alone.path / name).read_bytes()

    assert same("round_0000003.npz")
    (first,) = training.measure_missing(setting, population, grids)
    assert first.number == 1 and same("round_0000001.npz")


@pytest.mark.slow
def test_one_field_gives_curves_over_rounds(tmp_path, image_file):
    grid = grid_of("cohort=4", SMALL)
    requests, split = requests_of(grid, image_file)
    drawn = curves.average_over_seeds(grid, done(requests, split, tmp_path)[1], backward=False)
    assert (drawn.curve, drawn.x) == ("cohort", "round")
    assert [(one.curve, one.x) for one in drawn.points] == [(4, 1), (4, 3)]
    averages = drawn.points[1].averages
    assert 0 < averages["training"].mean < averages["accountant"].mean < np.inf


def test_one_field_is_the_axis_where_one_round_is_measured():
    single = dataclasses.replace(SMALL, rounds=1)
    grid = grid_of("cohort=4,8;seed=0,1", single)
    assert (grid.curve, grid.x) == ("", "cohort")
    grid = grid_of("seed=0,1", single)
    assert (grid.curve, grid.x) == ("", "round") and [one.values for one in grid.combinations] == [(), ()]


@pytest.mark.slow
def test_a_mean_is_infinite_where_one_of_its_values_is(trained):
    _, grid, _, measured = trained
    request, (row,) = measured[0]
    infinite = row.published._replace(estimate=dataclasses.replace(row.published.estimate, epsilon=np.inf))
    separated = (request, [row._replace(published=infinite)])
    averages = curves.average_over_seeds(grid, [separated, measured[1]], backward=False).points[0].averages
    assert averages["published"].mean == np.inf and np.isnan(averages["published"].deviation)
    assert np.isfinite(averages["health"]).all()


def made_up(curve, x, xs, infinite=False):
    """Curves without a training."""
    published = Average(np.inf if infinite else 3.62, np.nan)
    law = Average(np.inf if infinite else 8.24, np.nan)
    one = dict.fromkeys((*QUANTITIES, *TOTALS), Average(0.167, 0.012))
    one |= {"published": published, "law_then": law, "law": law}
    return Curves(
        curve, x, [AveragedPoint(value, at, 41, 3, one) for value in ("as_run", "of_the_mean") for at in xs]
    )


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
    assert len(lines) == len(drawn.points) + 1 and len({len(line) for line in lines}) == 1
    figure = figures.varied_figure(drawn)
    first = figure.axes[0]
    plotted = [line for line in first.lines if len(line.get_xdata()) == len(drawn.points) // 2]
    assert all(np.all(np.diff(line.get_xdata().astype(float)) > 0) for line in plotted)
    assert style.png(figure).startswith(b"\x89PNG")
