"""Purchase-100 from a made-up file in the published form."""

import numpy as np
import pytest

from audit.errors import InputError
from audit.tasks.task import Sources
from models.catalogue import task
from models.data import tables
from tests.models.data.made_up import refusal, tarred


def _rows(count=12, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(1, 101, count), rng.integers(0, 2, (count, 600))


def _text(labels, bits):
    lines = []
    for label, row in zip(labels, bits, strict=True):
        lines.append(f"{label},{','.join(map(str, row))}\n")
    return "".join(lines)


@pytest.fixture
def published(tmp_path):
    path = tmp_path / "dataset_purchase"
    path.write_text(_text(*_rows()))
    return path


def _archive(path, member="dataset_purchase"):
    path.with_suffix(".tgz").write_bytes(tarred({member: path.read_bytes()}, "w:gz"))
    return path.with_suffix(".tgz")


def test_a_file_is_read_in_every_form_and_the_model_takes_it(published):
    labels, bits = _rows()
    dataset = tables.load_purchase(file=str(published))
    np.testing.assert_array_equal(dataset.labels, labels - 1)
    np.testing.assert_array_equal(dataset.features, bits)
    assert dataset.features.dtype == np.float32 and dataset.labels.dtype == np.int32
    assert dataset.source == f"file {published}"
    model = task("purchase_mlp").make(dataset.features.shape[1:])
    assert f"{model.n_parameters:,}" in task("purchase_mlp").description
    csv = published.with_suffix(".csv")
    csv.write_bytes(published.read_bytes())
    for path in (_archive(published), csv):
        again = tables.load_purchase(file=str(path))
        assert again.checksum == dataset.checksum
        assert np.array_equal(again.features, dataset.features)
    zipped = published.with_suffix(".zip")
    zipped.write_bytes(b"")
    refusal(tables.load_purchase, "ends in .zip, not .tgz", file=str(zipped))
    refusal(tables.load_purchase, "dataset_purchase", file=str(_archive(published, "other")))


def test_of_more_rows_the_paper_s_number_is_drawn(published, monkeypatch):
    monkeypatch.setattr(tables, "PURCHASE_ROWS", 5)
    labels, bits = _rows()
    dataset = tables.load_purchase(file=str(published))
    drawn = np.random.RandomState(0).choice(12, 5, replace=False)
    np.testing.assert_array_equal(dataset.features, bits[drawn])
    np.testing.assert_array_equal(dataset.labels, labels[drawn] - 1)


def test_without_a_file_it_says_what_and_where_from():
    for sources in (Sources(), Sources(tfds_dir="somewhere")):
        with pytest.raises(InputError) as error:
            task("purchase_mlp").data.load(sources)
        message = str(error.value)
        for word in ("`data_file`", "dataset_purchase", "privacytrustlab/datasets"):
            assert word in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_text(*_rows())[:-5], "it is no table of a label and 600 bits"),
        ("", "cannot be used"),
        (_text([0], np.zeros((1, 600), int)), "a label is [0], not 1 to 100"),
        (_text([101], np.zeros((1, 600), int)), "a label is [101], not 1 to 100"),
        (_text([1], np.full((1, 600), 2)), "a feature is neither 0 nor 1"),
        (_text([1], np.full((1, 600), 0.5)), "it is no table"),
        (_text(["label"], np.zeros((1, 600), int)), "it is no table"),
        (_text([1, 2], np.zeros((2, 599), int)), "it is no table"),
    ],
)
def test_another_form_is_one_line(tmp_path, content, message):
    path = tmp_path / "dataset_purchase"
    path.write_text(content)
    refusal(tables.load_purchase, message, file=str(path))
