"""audit.json is read as it was written, and what nobody wrote is refused, whatever it is."""

import json
import math

import numpy as np
import pytest

from audit.concluded import conclude
from audit.statistics.accounting import Composition
from audit.statistics.canaries import single
from audit.storage import results
from audit.storage import store as stores
from audit.storage.store import Kept, Store

ROW = {"method": "if_gaussian", "epsilon": 2.5, "delta": 1e-6, "confidence": 0.9}
WHOLE = {"bounds": [ROW], "upper_bound": 3, "runs": 40, "provenance": {"jax": "0"}}


def parse(result):
    return stores._conclusion(json.dumps(result).encode())


@pytest.mark.parametrize("sigma", [4.0, 0.0])
def test_what_an_audit_writes_is_read(tmp_path, sigma):
    rng, store = np.random.default_rng(0), Store(tmp_path, {})
    found = conclude(single(rng.normal(size=60) + 3, rng.normal(size=60)), Composition(sigma, 250), 1e-6, 0.9)
    assert store.result() is None
    results.keep_result(store, found, runs=120, provenance={"device": "abacus"})
    epsilon = found.bound("if_gaussian").epsilon
    expected = Kept(120, 1e-6, 0.9, epsilon, found.upper_bound, {"device": "abacus"})
    assert store.result() == expected and math.isinf(expected.upper_bound) == (sigma == 0)


def test_what_is_not_said_is_none():
    assert parse({}) == Kept() == (None, None, None, None, None, {})
    assert parse(WHOLE) == Kept(40, 1e-6, 0.9, 2.5, 3.0, {"jax": "0"})
    assert parse(WHOLE | {"bounds": []}).delta is None
    assert parse(WHOLE | {"upper_bound": None}).upper_bound == math.inf
    assert parse({"bounds": [ROW | {"method": "held_out"}]}).if_gaussian is None


@pytest.mark.parametrize(
    "result",
    [
        *([], [WHOLE], 3, None, "x", True),
        *(WHOLE | {"bounds": bounds} for bounds in ([{}], [3], [[]], 3, None, {"0": ROW}, "if_gaussian")),
        *(WHOLE | {"bounds": [ROW | {"delta": delta}]} for delta in ("x", 0, 1, -1, math.nan, None, True)),
        *(WHOLE | {"bounds": [ROW | {"confidence": level}]} for level in ("x", 0, 1.0, math.nan, [0.9])),
        *(WHOLE | {"bounds": [ROW | {"epsilon": epsilon}]} for epsilon in ("x", None, math.nan, 10**400)),
        *(WHOLE | {"runs": runs} for runs in ("x", 3.5, -1, 0, 1, True, [], math.nan)),
        *(WHOLE | {"provenance": provenance} for provenance in (None, [], "x", {"jax": 3}, {"jax": None})),
        *(WHOLE | {"upper_bound": upper} for upper in ("x", [], math.nan, False)),
    ],
)
def test_what_no_audit_wrote_is_refused(result):
    with pytest.raises((ValueError, OverflowError)):
        parse(result)
