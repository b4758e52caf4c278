"""A small measured training run on made-up images: what it stores, resuming, its tables."""

import dataclasses

import numpy as np
import pytest

from audit.errors import InputError
from audit.laws import conversions, densities
from audit.report import style
from experiments.canife import attacked, cohort_law, curves, figures, populations, training
from experiments.canife.attacked import Attacked
from models.data.images import FASHION_MNIST_MEAN, FASHION_MNIST_STD, ImageDataset

COUNTS = {
    "pool": 24,
    "population": 40,
    "scores": 40,
    "mock_rounds": 2000,
    "design_steps": 60,
}
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


def measure_only_round(setting, images, folder):
    """Measures a setting of a single measured round."""
    store = store_in(folder, setting)
    (measured,) = training.measure_missing(setting, population_of(setting, images), store)
    return measured


@pytest.fixture(scope="module")
def population(images):
    return population_of(SMALL, images)


@pytest.fixture(scope="module")
def whole(population, tmp_path_factory):
    """Returns a store and its measured rounds."""
    store = store_in(tmp_path_factory.mktemp("whole"))
    return store, list(training.measure_missing(SMALL, population, store))


@pytest.mark.slow
def test_a_training_measures_its_rounds(whole):
    _, rounds = whole
    assert [measured.number for measured in rounds] == [1, 3, 5]
    for measured in rounds:
        assert measured.health > 0.9
        assert measured.norm > 1
        assert measured.own == pytest.approx(1, abs=1e-5)
        assert len(measured.descent) == 61
        assert measured.descent[-1] < measured.descent[0]
        assert len(measured.scores_in) == len(measured.scores_out) == 20
        assert len(measured.known) == 40
        pair = cohort_law.added(measured.known, cohort_law.Cohort(8), 0.5, measured.own)
        assert measured.exact == pytest.approx(densities.epsilon_at(pair, 1e-5))
        assert measured.proven < measured.exact < conversions.epsilon_from_mu(2.0, 1e-5)


@pytest.mark.slow
def test_a_killed_training_goes_on_with_the_same_bits(whole, population, tmp_path):
    store, _ = whole
    again = store_in(tmp_path)
    rounds = training.measure_missing(SMALL, population, again)
    next(rounds)
    rounds.close()  # after one round
    list(training.measure_missing(SMALL, population, again))
    for name in (
        "round_0000001.npz",
        "round_0000003.npz",
        "round_0000005.npz",
        "state.npz",
        "setting.json",
    ):
        assert (again.path / name).read_bytes() == (store.path / name).read_bytes(), name
    assert not list(training.measure_missing(SMALL, population, again))


@pytest.mark.slow
def test_a_damaged_round_is_measured_again_with_the_same_bits(whole, population, tmp_path, capsys):
    store, rounds = whole
    again = store_in(tmp_path)
    name = "round_0000003.npz"
    for measured in rounds:
        again.write_arrays(f"round_{measured.number:07d}.npz", measured._asdict())
    again.write_bytes(name, b"nothing")
    assert len(training.kept(SMALL, again)) == 2
    assert "counts as missing" in capsys.readouterr().err
    with again.claim():
        missing = list(training.measure_missing(SMALL, population, again))
    assert [measured.number for measured in missing] == [3]
    assert "set aside, measured again" in capsys.readouterr().err
    assert (again.path / name).read_bytes() == (store.path / name).read_bytes()


@pytest.mark.slow
def test_a_round_and_a_state_of_another_setting_are_made_again(whole, population, tmp_path, capsys):
    store, _ = whole
    again = store_in(tmp_path)
    other = store_in(tmp_path / "other", dataclasses.replace(SMALL, noise_multiplier=9.0))
    for name in ("round_0000001.npz", "state.npz"):
        with np.load(store.path / name) as archive:
            other.write_arrays(
                name, {key: archive[key] for key in archive.files if key != "setting"}
            )
        again.write_bytes(name, (other.path / name).read_bytes())
    with again.claim():
        assert len(list(training.measure_missing(SMALL, population, again))) == 3
    assert capsys.readouterr().err.count("is of another setting: set aside, ") == 2
    for name in ("round_0000001.npz", "state.npz"):
        assert (again.path / name).read_bytes() == (store.path / name).read_bytes()


@pytest.mark.slow
def test_a_round_that_does_not_say_its_setting_is_read(whole, tmp_path):
    store, _ = whole
    again = store_in(tmp_path)
    with np.load(store.path / "round_0000001.npz") as archive:
        arrays = {name: archive[name] for name in archive.files if name != "setting"}
    np.savez(again.path / "round_0000001.npz", **arrays)
    assert [*training.kept(SMALL, again)] == [1]


@pytest.mark.slow
def test_what_is_read_is_what_was_stored(whole):
    store, rounds = whole
    again = training.kept(SMALL, store)
    for measured in rounds:
        np.testing.assert_equal(again[measured.number]._asdict(), measured._asdict())
        assert isinstance(again[measured.number].health, float)


@pytest.mark.slow
def test_the_tables_fit_and_the_figure_is_drawn(whole):
    _, rounds = whole
    rows = [curves.row(SMALL, measured) for measured in rounds]
    for backward, last in ((False, 5), (True, 5)):
        composed = curves.compose(SMALL, rows, 60, backward)
        assert composed.rounds[-1] == last
        assert composed.canaries[-1] < composed.accountant[-1]
        assert composed.lower[-1] <= composed.published[-1] <= composed.upper[-1]
        table = curves.make_rounds_table(SMALL, rows, composed)
        totals = curves.format_totals(SMALL, composed, 5.0, 9.0, backward)
        assert max(len(line) for line in f"{table.text()}\n{totals}".splitlines()) <= 80
        lines = table.csv().decode().splitlines()
        assert len(lines) == 4
        assert len({line.count(",") for line in lines}) == 1
    assert style.png(figures.training_figure(SMALL, rows, composed)).startswith(b"\x89PNG")
    assert 0 < curves.compose_perfect_canary(SMALL, 5, 60) < composed.accountant[-1]
    sizes, deviations, accuracies = curves.predict_other_cohorts(SMALL, rounds[0])
    assert sizes[0] == 2
    assert sizes[-1] == 20
    assert min(deviations) >= 0.5
    assert min(accuracies) > 0.5
    assert max(accuracies) <= 0.842
    assert curves.compose_with_mock_rounds(SMALL, rows, 60) > composed.accountant[-1]


@pytest.mark.slow
def test_the_published_worlds_replace_a_client(images, tmp_path):
    published = {
        "as_published": True,
        "soft_label": True,
        "clamp": True,
        "start": "sample",
    }
    setting = dataclasses.replace(SMALL, rounds=1, **published)
    measured = measure_only_round(setting, images, tmp_path)
    pair = cohort_law.replacing(measured.known, cohort_law.Cohort(8), 0.5, measured.own)
    assert measured.exact == pytest.approx(densities.epsilon_at(pair, 1e-5))
    pixels = measured.canary * FASHION_MNIST_STD + FASHION_MNIST_MEAN
    assert pixels.min() > -1e-6
    assert pixels.max() < 1 + 1e-6
    assert measured.label.sum() == pytest.approx(1, abs=1e-5)
    assert 0.01 < measured.label.max() < 1


@pytest.mark.slow
def test_without_noise_all_is_infinite(images, tmp_path):
    setting = dataclasses.replace(SMALL, rounds=1, noise_multiplier=0.0)
    measured = measure_only_round(setting, images, tmp_path)
    row = curves.row(setting, measured)
    assert measured.exact == row.perfect == np.inf
    composed = curves.compose(setting, [row], 60, False)
    assert composed.accountant == [np.inf]
    assert style.png(figures.training_figure(setting, [row], composed))


@pytest.mark.slow
def test_dealt_clients_train_by_federated_averaging_and_the_canary_sends_what_they_would(
    images, tmp_path
):
    twelve = {"clients": 12, "population": 12, "pool": 12}
    setting = dataclasses.replace(
        SMALL, alpha=10.0, cohort=4, rounds=3, client_learning_rate=0.001, **twelve
    )
    population = population_of(setting, images)
    assert population.train_clients == population.mock.number == 12
    first, last = training.measure_missing(setting, population, store_in(tmp_path, setting))
    assert first.number == 1
    assert last.number == 3
    assert np.abs(first.known).max() <= 1 + 1e-5
    assert first.own == pytest.approx(min(0.001 * first.norm, 1), rel=1e-4)
    assert first.own < 0.9
    published = dataclasses.replace(setting, as_published=True, rounds=1)
    assert measure_only_round(published, images, tmp_path).own == pytest.approx(1, abs=1e-5)


def test_the_store_is_named_by_what_differs_from_the_defaults_and_by_the_data():
    identity = {"experiment": "canife", "model": "two_layer", "seed": 3, "data": "abc"}
    assert attacked.identity(Attacked(seed=3), "abc") == identity
    names = set()
    for setting in (Attacked(), Attacked(seed=1)):
        for checksum in ("a", "b"):
            names.add(attacked.folder_name(setting, checksum))
    assert len(names) == 4
    assert all(name.startswith("two_layer-") for name in names)


def test_fields_that_are_not_given_are_the_models_own():
    given = dataclasses.asdict(Attacked(model="character_lstm", cohort=128, rounds=3))
    setting = attacked.resolve_setting(given, ["model", "cohort", "rounds"])
    assert setting.cohort == 128
    assert setting.rounds == 3
    assert setting.design_rate == 0.1
    assert setting.clients == 60
    assert attacked.resolve_setting(dataclasses.asdict(Attacked()), []) == Attacked()
    for model in attacked.MODEL_DEFAULTS:
        attacked.resolve_setting({**given, "model": model}, [])
    paper = attacked.resolve_setting({**given, "model": "sent140_lstm"}, [])
    assert len(paper.measured()) == 89
    assert paper.cohort == 100


def test_rounds_are_measured_from_the_first():
    assert Attacked(rounds=2550, every=40).measured()[:2] == [1, 41]
    assert len(Attacked(rounds=2550, every=40).measured()) == 64
    assert len(Attacked(rounds=8895, every=100).measured()) == 89


@pytest.mark.parametrize(  # limits are held in tests/system/test_bad_fields.py
    "field, value",
    [
        ("pool", 99),
        ("population", 1001),
        ("design_batch", 100),
        ("scores", 3),
        ("delta", 0.0),
    ],
)
def test_fields_out_of_range_are_named(field, value):
    fitting = Attacked(population=1000, pool=50)
    attacked.fit_to_clients(fitting, 1000, 90)
    with pytest.raises(InputError, match=field):
        attacked.fit_to_clients(dataclasses.replace(fitting, **{field: value}), 1000, 90)


def test_numbers_of_clients_that_are_left_open_are_what_there_is():
    setting = attacked.fit_to_clients(Attacked(), 600, 100)
    assert (setting.pool, setting.population) == (100, 600)
    setting = attacked.fit_to_clients(Attacked(pool=7), 10**5, 10**4)
    assert (setting.pool, setting.population) == (7, 2048)
