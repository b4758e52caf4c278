"""Several settings at once: the grid, what is trained, averages over seeds, tables, figures."""

import dataclasses

import numpy as np
import pytest

from audit.errors import InputError
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
from experiments.plots import style

SMALL = Attacked(
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
    """(grid's field names, whether over rounds, its settings, how clients are had), on made-up images."""
    grid = varied.grid(text)
    given = dataclasses.asdict(setting)
    names = [field.name for field in grid.fields]
    points = varied.points(grid, given, [name for name in given if name not in [*names, "seed"]])
    over_rounds = varied.over_rounds(grid, points)
    split = varied_training.splits(populations.Named(data_file=str(image_file)))
    return names, over_rounds, varied_training.planned(points, over_rounds, out, split), split


def curves_of(text, setting, out, image_file):
    names, over_rounds, planned, split = planned_of(text, setting, out, image_file)
    found = [varied_training.found(one, split, lambda number: None) for one in planned]
    return varied_points.averaged(names, over_rounds, found)


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


def test_two_fields_are_curves_over_an_axis_and_kept_settings_are_not_trained_again(tmp_path, image_file):
    text = "start=random,sample;pool=4,8;seed=0,1"
    found = curves_of(text, SMALL, tmp_path, image_file)
    assert (found.curve, found.x) == ("start", "pool")
    assert [(one.curve, one.x, one.round, one.trainings) for one in found.points] == [
        (start, pool, 3, 2) for start in ("random", "sample") for pool in (4, 8)
    ]
    assert len(list(tmp_path.glob("canife/*/round_0000003.npz"))) == 8
    assert not list(tmp_path.glob("canife/*/round_0000001.npz"))  # the last measured round alone is drawn
    _, _, planned, _ = planned_of(text, SMALL, tmp_path, image_file)
    assert not any(map(varied_training.missing, planned))
    assert curves_of(text, SMALL, tmp_path, image_file) == found

    kept = [training.kept(one.attacked, one.folder)[3] for one in planned[:2]]
    healths = [one.health for one in kept]
    assert found.points[0].averages.health == pytest.approx((np.mean(healths), np.std(healths, ddof=1)))
    deviations = [(one.scores_in.std() + one.scores_out.std()) / 2 for one in kept]
    assert found.points[0].averages.deviation.mean == pytest.approx(np.mean(deviations))


def test_a_single_training_finds_a_grids_rounds_and_measures_the_others_with_the_same_bits(
    tmp_path, image_file
):
    _, _, (one,), split = planned_of("pool=8;start=random", SMALL, tmp_path / "grid", image_file)
    varied_training.found(one, split, lambda number: None)
    named = populations.Named(data_file=str(image_file))
    setting, known, folder = training.prepared(one.attacked, tmp_path / "grid", named)
    assert folder == one.folder
    assert [measured.number for measured in training.measure_missing(setting, known, folder)] == [1]
    setting, known, alone = training.prepared(one.attacked, tmp_path / "alone", named)
    assert len(list(training.measure_missing(setting, known, alone))) == 2
    for name in ("round_0000001.npz", "round_0000003.npz"):
        assert (folder / name).read_bytes() == (alone / name).read_bytes()


def test_one_field_gives_curves_over_rounds_or_where_one_is_measured_an_axis(tmp_path, image_file):
    found = curves_of("cohort=4,8", SMALL, tmp_path, image_file)
    assert (found.curve, found.x) == ("cohort", "round")
    assert [(one.curve, one.x) for one in found.points] == [(4, 1), (4, 3), (8, 1), (8, 3)]
    single = dataclasses.replace(SMALL, rounds=1)
    found = curves_of("cohort=4,8", single, tmp_path, image_file)
    assert (found.curve, found.x) == ("", "cohort") and [one.x for one in found.points] == [4, 8]


def made_up(curve, x, xs, infinite=False):
    """Curves without a training."""
    published = Average(np.inf if infinite else 3.62, np.nan)
    law = Average(np.inf if infinite else 8.24, np.nan)
    one = Averages(*[Average(0.167, 0.012)] * 4, published, law, law, Average(0.7, 0.1))
    return Curves(
        curve, x, [Averaged(value, at, 41, 3, one) for value in ("as_run", "of_the_mean") for at in xs]
    )


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
