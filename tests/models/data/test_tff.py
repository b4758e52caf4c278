"""TensorFlow Federated's files, made up: their form, EMNIST and Stack Overflow in them."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from tensorflow_datasets.proto.tf_example_generated_pb2 import Example

from audit.errors import InputError
from models.data import tff
from tests.models.data.made_up import refusal


def _serialise(**features):
    example = Example()
    kinds = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
    for name, values in features.items():
        kind = kinds[type(values[0])]
        getattr(example.features.feature[name], kind).value.extend(values)
    return example.SerializeToString()


def _database(path, examples):
    with closing(sqlite3.connect(path)) as database, database:
        columns = "examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
        database.execute(f"CREATE TABLE {columns}")
        columns = "client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)"
        database.execute(f"CREATE TABLE {columns}")
        for (split, client), rows in examples.items():
            database.execute(
                "INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, len(rows))
            )
            rows = [(split, client, row) for row in rows]
            database.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    return str(path)


def _image(seed, label):
    pixels = np.random.default_rng(seed).random(784, np.float32)
    return pixels.reshape(28, 28), _serialise(pixels=pixels.tolist(), label=[label])


def test_lists_of_every_kind_are_read_by_name():
    floats = [1.5, -0.25, 1e-30]
    integers = [0, 5, -1, 2**40, -(2**63)]
    parsed = tff.parse_example(_serialise(f=floats, i=integers, b=[b"", b"a b"]))
    assert list(parsed["i"]) == integers
    assert list(parsed["b"]) == [b"", b"a b"]
    np.testing.assert_array_equal(np.float32(parsed["f"]), np.float32(floats))
    assert tff.UNKNOWN == tff.VOCABULARY - 1 == 10_003


@pytest.mark.parametrize("end", range(1, 40, 3))
def test_a_torn_example_is_an_error(end):
    whole = _serialise(label=[3], pixels=[0.5] * 3)
    with pytest.raises(ValueError):
        tff.parse_example(whole[: len(whole) - end][:-1] + b"\x80")


def test_emnist_is_read_by_writer(tmp_path):
    images = {
        ("all_train", "b"): [(1, 0), (2, 61)],
        ("all_train", "a"): [(3, 7)],
        ("all_test", "a"): [(4, 8)],
    }
    pixels = {}
    rows = {}
    for key, values in images.items():
        pairs = [_image(*value) for value in values]
        pixels[key] = [image for image, _ in pairs]
        rows[key] = [row for _, row in pairs]
    path = _database(tmp_path / "e.sqlite", rows)

    loaded = tff.load_emnist(file=path)
    assert loaded.labels.tolist() == [7, 0, 61]
    assert loaded.counts.tolist() == [1, 2]
    expected = [*pixels["all_train", "a"], *pixels["all_train", "b"]]
    np.testing.assert_array_equal(loaded.features, expected)
    assert loaded.features.dtype == np.float32
    assert loaded.source == f"file {path}, all_train"
    test = tff.load_emnist(file=path, test=True)
    assert test.labels.tolist() == [8]
    assert test.checksum != loaded.checksum
    assert tff.load_emnist(file=path, clients=1).labels.tolist() == [7]


def _sentences(tmp_path):
    (tmp_path / "stackoverflow.word_count").write_text("the 90\na 80\ncode 7\n")
    rows = [b"the code", b"a b " * 15, b""]
    serialised = [_serialise(tokens=[row], title=[b"x"], score=[-3]) for row in rows]
    return _database(
        tmp_path / "s.sqlite", {("train", "7"): serialised, ("train", "12"): serialised[:1]}
    )


def test_stack_overflow_predicts_the_next_word(tmp_path):
    path = _sentences(tmp_path)
    loaded = tff.load_stackoverflow(file=path)
    begin = tff.BEGIN
    end = tff.END
    other = tff.UNKNOWN
    assert loaded.counts.tolist() == [1, 3]  # "12" is before "7"
    assert loaded.features[0].tolist() == [begin, 1, 3] + 17 * [0] == loaded.features[1].tolist()
    assert loaded.labels[0].tolist() == [1, 3, end] + 17 * [0]
    assert loaded.features[2].tolist() == [begin, *(9 * [2, other]), 2]
    assert loaded.labels[2].tolist() == 10 * [2, other]
    assert loaded.labels[3].tolist() == [end] + 19 * [0]
    assert loaded.features.dtype == np.uint16
    assert loaded.labels.dtype == np.int32
    assert tff.load_stackoverflow(file=path, clients=2, sentences=2).counts.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (tff.load_emnist, ("emnist_all.sqlite", "tff.simulation.datasets.emnist.load_data")),
        (tff.load_stackoverflow, ("stackoverflow.sqlite", "stackoverflow.word_count")),
    ],
)
def test_without_a_file_it_says_which_and_where_from(load, words, tmp_path):
    refusal(load, *words, "`data_file`", file=None)
    refusal(load, *words, file=str(tmp_path / "none.sqlite"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({("all_test", "a"): [_image(1, 2)[1]]}, "holds no split all_train, only ['all_test']"),
        ({("all_train", "a"): [_serialise(label=[3])]}, "pixels"),
        ({("all_train", "a"): [_serialise(label=[3], pixels=[0.5] * 783)]}, "783"),
        (
            {("all_train", "a"): [_serialise(label=[3], pixels=[1.5] * 784)]},
            "a pixel is not on [0, 1]",
        ),
        ({("all_train", "a"): [_image(1, 62)[1]]}, "holds label [62], not only 0 to 61"),
        ({("all_train", "a"): [_image(1, 2)[1][:-2]]}, "torn"),
        ({("all_train", "a"): []}, "no clients"),
        ({}, "holds no split all_train, only []"),
    ],
)
def test_another_form_is_one_line(tmp_path, rows, message):
    refusal(tff.load_emnist, message, file=_database(tmp_path / "e.sqlite", rows))


def test_files_that_are_no_database_are_one_line(tmp_path):
    (tmp_path / "e.sqlite").write_bytes(b"no database" * 100)
    (tmp_path / "e.sqlite.lzma").write_bytes(b"packed")
    for name, message in (
        ("e.sqlite", "not a database"),
        ("e.sqlite.lzma", "is packed: unpack it with xz"),
    ):
        refusal(tff.load_emnist, message, file=str(tmp_path / name))


def test_stack_overflow_needs_its_words(tmp_path):
    path = _sentences(tmp_path)
    (tmp_path / "stackoverflow.word_count").unlink()
    with pytest.raises(InputError, match="stackoverflow.word_count"):
        tff.load_stackoverflow(file=path)
    for changes in ({"clients": 0}, {"sentences": 0}):
        with pytest.raises(InputError, match="give at least 1"):
            tff.load_stackoverflow(file=path, **changes)
