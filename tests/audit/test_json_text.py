"""JSON text must be valid for any reader, with null for infinity and NaN."""

import json

import numpy as np
import pytest

from audit.written import write_json


def read_strictly(text):
    """Returns the content of JSON text; fails on NaN and Infinity, which Python's reader accepts."""
    return json.loads(text, parse_constant=pytest.fail)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, np.float32(np.inf)])
def test_null_stands_for_numbers_that_are_not_finite(value):
    assert read_strictly(write_json({"a": [value, (1, value)], "b": {"c": value}})) == {
        "a": [None, [1, None]],
        "b": {"c": None},
    }


def test_all_else_is_as_it_was():
    content = {"a": [1, 2.5, True, None, "text", 10**400], "b": np.float32(0.5), "c": np.int64(3)}
    assert read_strictly(write_json(content)) == {**content, "b": 0.5, "c": 3}
