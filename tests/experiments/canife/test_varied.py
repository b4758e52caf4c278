"""Several settings at once: the grid, what is trained, averages over seeds, tables, figures."""

import dataclasses

import numpy as np
import pytest

from audit.errors import InputError
from audit.report import style
from experiments.canife import (
    populations,
    training,
    varied,
    varied_figures,
    varied_points,
    varied_table,
    varied_training,
)
from experiments.canife.attacked import Attacked
from experiments.canife.varied_points import Average, Averaged, Averages, Curves

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


def planned_of(text, setting, out, image_file):
    """(layout, settings, how clients are had) of a grid on made-up images."""
    grid = varied.grid(text)
    points = varied.points(grid, dataclasses.asdict(setting), [])
    drawn = varied.layout(grid, points)
    split = varied_training.splits(populations.Named(data_file=str(image_file)))
    return drawn, varied_training.planned(points, drawn.over_rounds, out, split), split


def found_of(planned, split):
    return [varied_training.found(one, split, lambda number: None) for one in planned]


@pytest.fixture(scope="module")
def trained(image_file, tmp_path_factory):
    """(folder, layout, settings, rounds) of two seeds."""
    folder = tmp_path_factory.mktemp("grid")
    drawn, planned, split = planned_of("start=random;pool=8;seed=0,1", SMALL, folder, image_file)
    return folder, drawn, planned, found_of(planned, split)


def test_every_combination_is_a_setting_and_seeds_follow_each_other():
    grid = varied.grid(" start=random,sample; seed=3,4 ;clamp=true,false")
    assert [field.name for field in grid.fields] == ["start", "clamp"] and grid.seeds == (3, 4)
    found = varied.points(grid, dataclasses.asdict(Attacked(pool=7)), ["pool"])
    assert [point.values for point in found[:4]] == [("random", True)] * 2 + [("random", False)] * 2
    assert len(found) == 8 and len({point.attacked for point in found}) == 8
    last = found[-1].attacked
    assert (last.start, last.clamp, last.seed, last.pool) == ("sample", False, 4, 7)


def test_a_varied_model_brings_its_own_values_along():
    found = varied.points(varied.grid("model=linear,character_lstm"), dataclasses.asdict(Attacked()), [])
    assert [point.attacked.cohort for point in found] == [128, 10]


@pytest.mark.parametrize("text", ["", "x=1", "pool=", "pool=1.5", "pool=1;pool=2", "a=1;b=2", "clamp=1"])
def test_what_is_no_grid_is_refused(text):
    with pytest.raises(InputError, match="`vary"):
        varied.grid(text)


def test_values_out_of_range_are_named_by_their_field_before_anything_is_trained(tmp_path, image_file):
    with pytest.raises(InputError, match="`cohort=1`"):
        planned_of("cohort=4,1;pool=8", SMALL, tmp_path, image_file)
    assert not list(tmp_path.iterdir())


def test_of_two_fields_the_last_measured_round_is_drawn_averaged_over_seeds(trained):
    folder, drawn, planned, found = trained
    curves = varied_points.averaged(drawn, found, backward=False)
    assert (curves.curve, curves.x) == ("start", "pool")
    shown = [(one.curve, one.x, one.round, one.trainings) for one in curves.points]
    assert shown == [("random", 8, 3, 2)]
    assert len(list(folder.glob("canife/*/round_*.npz"))) == 2
    kept = [training.kept(one.attacked, one.folder)[3] for one in planned]
    healths = [one.health for one in kept]
    averages = curves.points[0].averages
    assert averages.health == pytest.approx((np.mean(healths), np.std(healths, ddof=1)))
    deviations = [(one.scores_in.std() + one.scores_out.std()) / 2 for one in kept]
    assert averages.deviation.mean == pytest.approx(np.mean(deviations))
    clients = [np.sqrt(4 * np.var(one.known, ddof=1) * (1 - 4 / 20)) for one in kept]
    assert averages.clients.mean == pytest.approx(np.mean(clients)) and np.isnan(averages.training.mean)


def test_what_is_kept_is_not_trained_again(trained, image_file):
    folder, _, planned, found = trained
    _, again, _ = planned_of("start=random;pool=8;seed=0,1", SMALL, folder, image_file)
    assert again == planned and not any(map(varied_training.missing, again))

    def split(attacked):
        raise AssertionError("trains")

    assert [one.rows[0].measured.health for one in found_of(again, split)] == [
        one.rows[0].measured.health for one in found
    ]


def test_a_single_training_finds_a_grids_rounds_and_measures_the_others_with_the_same_bits(
    trained, tmp_path, image_file
):
    one = trained[2][0]
    named = populations.Named(data_file=str(image_file))
    setting, known, alone = training.prepared(one.attacked, tmp_path, named)
    assert one.folder.name == alone.name and setting == one.attacked
    list(training.measure_missing(setting, known, alone))
    assert (one.folder / "round_0000003.npz").read_bytes() == (alone / "round_0000003.npz").read_bytes()
    (first,) = training.measure_missing(setting, known, one.folder)
    assert first.number == 1
    assert (one.folder / "round_0000001.npz").read_bytes() == (alone / "round_0000001.npz").read_bytes()


def test_one_field_gives_curves_over_rounds(tmp_path, image_file):
    drawn, planned, split = planned_of("cohort=4", SMALL, tmp_path, image_file)
    curves = varied_points.averaged(drawn, found_of(planned, split), backward=False)
    assert (curves.curve, curves.x) == ("cohort", "round")
    assert [(one.curve, one.x) for one in curves.points] == [(4, 1), (4, 3)]
    averages = curves.points[1].averages
    assert 0 < averages.training.mean < averages.accountant.mean < np.inf


def test_one_field_is_the_axis_where_one_round_is_measured(tmp_path, image_file):
    single = dataclasses.replace(SMALL, rounds=1)
    drawn, _, _ = planned_of("cohort=4,8;seed=0,1", single, tmp_path, image_file)
    assert drawn == ("", "cohort")
    drawn, planned, _ = planned_of("seed=0,1", single, tmp_path, image_file)
    assert drawn == ("", "round") and [one.values for one in planned] == [(), ()]


def test_a_mean_is_infinite_where_one_of_its_values_is(trained):
    _, drawn, _, found = trained
    row = found[0].rows[0]
    infinite = row.published._replace(estimate=dataclasses.replace(row.published.estimate, epsilon=np.inf))
    separated = found[0]._replace(rows=[row._replace(published=infinite)])
    curves = varied_points.averaged(drawn, [separated, found[1]], backward=False)
    averages = curves.points[0].averages
    assert averages.published.mean == np.inf and np.isnan(averages.published.deviation)
    assert np.isfinite(averages.health).all()


def made_up(curve, x, xs, infinite=False):
    """Curves without a training."""
    published = Average(np.inf if infinite else 3.62, np.nan)
    law = Average(np.inf if infinite else 8.24, np.nan)
    several = Average(0.167, 0.012)
    one = Averages(*[several] * 4, published, law, law, *[several] * 3)
    return Curves(
        curve, x, [Averaged(value, at, 41, 3, one) for value in ("as_run", "of_the_mean") for at in xs]
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "curves",
    [
        made_up("penalty", "noise_multiplier", [0.25, 0.5]),
        made_up("penalty", "pool", [512, 64, 128], infinite=True),
        made_up("penalty", "start", ["random", "sample"]),
        made_up("penalty", "clamp", [True, False]),
        made_up("penalty", "round", [1, 41]),
        made_up("client_learning_rate", "model", ["celeba_resnet18"]),
    ],
)
def test_tables_fit_and_figures_are_drawn(curves):
    lines = varied_table.varied_table(curves).splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split(",") for line in varied_table.as_csv(curves).splitlines()]
    assert len(rows) == len(curves.points) + 1 and len({len(row) for row in rows}) == 1
    figure = varied_figures.varied_figure(curves)
    first = figure.axes[0]
    drawn = [line for line in first.lines if len(line.get_xdata()) == len(curves.points) // 2]
    assert all(np.all(np.diff(line.get_xdata().astype(float)) > 0) for line in drawn)
    assert style.png(figure).startswith(b"\x89PNG")
