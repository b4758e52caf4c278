"""A small measured training on made-up images: what it keeps, resuming with the same bits, its tables."""

import dataclasses

import numpy as np
import pytest

from audit.errors import InputError
from audit.report import style
from audit.statistics import cohort_law, conversions, densities
from experiments.canife import attacked, curves, figures, populations, training
from experiments.canife.attacked import Attacked
from models.data.images import FASHION_MNIST_MEAN, FASHION_MNIST_STD, ImageDataset

COUNTS = {"pool": 24, "population": 40, "scores": 40, "mock_rounds": 2000, "design_steps": 60}
SMALL = Attacked("linear", rounds=5, every=2, cohort=8, noise_multiplier=0.5, **COUNTS)


def store_in(folder, setting=SMALL):
    return training.open_store(setting, "none", folder)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    labels = rng.integers(10, size=(2, 60)).astype(np.int32)
    pixels = rng.integers(256, size=(2, 60, 28, 28)).astype(np.uint8)
    return ImageDataset(pixels[0], labels[0], pixels[1], labels[1], "made up", "none")


def population_of(setting, images):
    return populations.make_population(setting, populations.deal_images(setting, images))


@pytest.fixture(scope="module")
def known(images):
    return population_of(SMALL, images)


@pytest.fixture(scope="module")
def whole(known, tmp_path_factory):
    store = store_in(tmp_path_factory.mktemp("whole"))
    return store, list(training.measure_missing(SMALL, known, store))


@pytest.mark.slow
def test_a_training_measures_its_rounds(whole):
    _, found = whole
    assert [one.number for one in found] == [1, 3, 5]
    for one in found:
        assert one.health > 0.9 and one.norm > 1 and one.own == pytest.approx(1, abs=1e-5)
        assert len(one.descent) == 61 and one.descent[-1] < one.descent[0]
        assert len(one.scores_in) == len(one.scores_out) == 20 and len(one.known) == 40
        pair = cohort_law.added(one.known, cohort_law.Cohort(8), 0.5, one.own)
        assert one.exact == pytest.approx(densities.epsilon_at(pair, 1e-5))
        assert one.proven < one.exact < conversions.epsilon_from_mu(2.0, 1e-5)


@pytest.mark.slow
def test_a_killed_training_goes_on_with_the_same_bits(whole, known, tmp_path):
    store, again = whole[0], store_in(tmp_path)
    going = training.measure_missing(SMALL, known, again)
    next(going)
    going.close()  # after one round
    list(training.measure_missing(SMALL, known, again))
    for name in ("round_0000001.npz", "round_0000003.npz", "round_0000005.npz", "state.npz", "setting.json"):
        assert (again.path / name).read_bytes() == (store.path / name).read_bytes(), name
    assert not list(training.measure_missing(SMALL, known, again))


@pytest.mark.slow
def test_a_damaged_round_is_measured_again_with_the_same_bits(whole, known, tmp_path, capsys):
    (store, rounds), again, name = whole, store_in(tmp_path), "round_0000003.npz"
    for one in rounds:
        again.write_arrays(f"round_{one.number:07d}.npz", one._asdict())
    again.write_bytes(name, b"nothing")
    assert len(training.kept(SMALL, again)) == 2 and "counts as missing" in capsys.readouterr().err
    with again.claim():
        assert [one.number for one in training.measure_missing(SMALL, known, again)] == [3]
    assert "set aside, measured again" in capsys.readouterr().err
    assert (again.path / name).read_bytes() == (store.path / name).read_bytes()


@pytest.mark.slow
def test_a_round_and_a_state_of_another_setting_are_made_again(whole, known, tmp_path, capsys):
    (store, _), again = whole, store_in(tmp_path)
    other = store_in(tmp_path / "other", dataclasses.replace(SMALL, noise_multiplier=9.0))
    for name in ("round_0000001.npz", "state.npz"):
        with np.load(store.path / name) as archive:
            other.write_arrays(name, {key: archive[key] for key in archive.files if key != "setting"})
        again.write_bytes(name, (other.path / name).read_bytes())
    with again.claim():
        assert len(list(training.measure_missing(SMALL, known, again))) == 3
    assert capsys.readouterr().err.count("is of another setting: set aside, ") == 2
    for name in ("round_0000001.npz", "state.npz"):
        assert (again.path / name).read_bytes() == (store.path / name).read_bytes()


@pytest.mark.slow
def test_a_round_that_does_not_say_its_setting_is_read(whole, tmp_path):
    (store, _), again = whole, store_in(tmp_path)
    with np.load(store.path / "round_0000001.npz") as archive:
        np.savez(again.path / "round_0000001.npz", **{k: archive[k] for k in archive.files if k != "setting"})
    assert [*training.kept(SMALL, again)] == [1]


@pytest.mark.slow
def test_what_is_read_is_what_was_kept(whole):
    store, rounds = whole
    again = training.kept(SMALL, store)
    for one in rounds:
        np.testing.assert_equal(again[one.number]._asdict(), one._asdict())
        assert isinstance(again[one.number].health, float)


@pytest.mark.slow
def test_the_tables_fit_and_the_figure_is_drawn(whole):
    _, found = whole
    rows = [curves.row(SMALL, one) for one in found]
    for backward, last in ((False, 5), (True, 5)):
        together = curves.compose(SMALL, rows, 60, backward)
        assert together.rounds[-1] == last and together.canaries[-1] < together.accountant[-1]
        assert together.lower[-1] <= together.published[-1] <= together.upper[-1]
        rounds = curves.make_rounds_table(SMALL, rows, together)
        texts = rounds.text(), curves.format_totals(SMALL, together, 5.0, 9.0, backward)
        assert max(map(len, "\n".join(texts).splitlines())) <= 80
        lines = rounds.csv().decode().splitlines()
        assert len(lines) == 4 and len({line.count(",") for line in lines}) == 1
    assert style.png(figures.training_figure(SMALL, rows, together)).startswith(b"\x89PNG")
    assert 0 < curves.compose_perfect_canary(SMALL, 5, 60) < together.accountant[-1]
    sizes, deviations, accuracies = curves.predict_other_cohorts(SMALL, found[0])
    assert sizes[0] == 2 and sizes[-1] == 20 and min(deviations) >= 0.5
    assert min(accuracies) > 0.5 and max(accuracies) <= 0.842
    assert curves.compose_with_mock_rounds(SMALL, rows, 60) > together.accountant[-1]


@pytest.mark.slow
def test_the_published_worlds_replace_a_client(images, tmp_path):
    published = {"as_published": True, "soft_label": True, "clamp": True, "start": "sample"}
    setting = dataclasses.replace(SMALL, rounds=1, **published)
    (one,) = training.measure_missing(setting, population_of(setting, images), store_in(tmp_path, setting))
    pair = cohort_law.replacing(one.known, cohort_law.Cohort(8), 0.5, one.own)
    assert one.exact == pytest.approx(densities.epsilon_at(pair, 1e-5))
    pixels = one.canary * FASHION_MNIST_STD + FASHION_MNIST_MEAN
    assert pixels.min() > -1e-6 and pixels.max() < 1 + 1e-6
    assert one.label.sum() == pytest.approx(1, abs=1e-5) and 0.01 < one.label.max() < 1


@pytest.mark.slow
def test_without_noise_all_is_infinite(images, tmp_path):
    setting = dataclasses.replace(SMALL, rounds=1, noise_multiplier=0.0)
    (one,) = training.measure_missing(setting, population_of(setting, images), store_in(tmp_path, setting))
    row = curves.row(setting, one)
    assert one.exact == row.perfect == np.inf
    assert curves.compose(setting, [row], 60, False).accountant == [np.inf]
    assert style.png(figures.training_figure(setting, [row], curves.compose(setting, [row], 60, False)))


@pytest.mark.slow
def test_dealt_clients_train_by_federated_averaging_and_the_canary_sends_what_they_would(images, tmp_path):
    twelve = {"clients": 12, "population": 12, "pool": 12}
    setting = dataclasses.replace(SMALL, alpha=10.0, cohort=4, rounds=3, client_learning_rate=0.001, **twelve)
    known = population_of(setting, images)
    assert known.train_clients == known.mock.number == 12
    first, last = training.measure_missing(setting, known, store_in(tmp_path, setting))
    assert first.number == 1 and last.number == 3 and np.abs(first.known).max() <= 1 + 1e-5
    assert first.own == pytest.approx(min(0.001 * first.norm, 1), rel=1e-4) and first.own < 0.9
    published = dataclasses.replace(setting, as_published=True, rounds=1)
    whole = population_of(published, images)
    (raw,) = training.measure_missing(published, whole, store_in(tmp_path, published))
    assert raw.own == pytest.approx(1, abs=1e-5)


def test_the_store_is_named_by_what_differs_from_the_defaults_and_by_the_data():
    named = {"experiment": "canife", "model": "two_layer", "seed": 3, "data": "abc"}
    assert attacked.identity(Attacked(seed=3), "abc") == named
    names = {attacked.folder_name(one, data) for one in (Attacked(), Attacked(seed=1)) for data in "ab"}
    assert len(names) == 4 and all(name.startswith("two_layer-") for name in names)


def test_what_nobody_said_is_the_models_own():
    given = dataclasses.asdict(Attacked(model="character_lstm", cohort=128, rounds=3))
    found = attacked.resolve_setting(given, ["model", "cohort", "rounds"])
    assert (found.cohort, found.rounds, found.design_rate, found.clients) == (128, 3, 0.1, 60)
    assert attacked.resolve_setting(dataclasses.asdict(Attacked()), []) == Attacked()
    for model in attacked.MODEL_DEFAULTS:
        attacked.resolve_setting({**given, "model": model}, [])
    paper = attacked.resolve_setting({**given, "model": "sent140_lstm"}, [])
    assert len(paper.measured()) == 89 and paper.cohort == 100


def test_rounds_are_measured_from_the_first():
    assert Attacked(rounds=2550, every=40).measured()[:2] == [1, 41]
    assert len(Attacked(rounds=2550, every=40).measured()) == 64
    assert len(Attacked(rounds=8895, every=100).measured()) == 89


@pytest.mark.parametrize(  # limits are held in tests/system/test_bad_fields.py
    "field, value", [("pool", 99), ("population", 1001), ("design_batch", 100), ("scores", 3), ("delta", 0.0)]
)
def test_fields_out_of_range_are_named(field, value):
    fitting = Attacked(population=1000, pool=50)
    attacked.fit_to_clients(fitting, 1000, 90)
    with pytest.raises(InputError, match=field):
        attacked.fit_to_clients(dataclasses.replace(fitting, **{field: value}), 1000, 90)


def test_numbers_of_clients_that_are_left_open_are_what_there_is():
    found = attacked.fit_to_clients(Attacked(), 600, 100)
    assert (found.pool, found.population) == (100, 600)
    found = attacked.fit_to_clients(Attacked(pool=7), 10**5, 10**4)
    assert (found.pool, found.population) == (7, 2048)
