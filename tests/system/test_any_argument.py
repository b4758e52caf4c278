"""Whatever is given for any argument of a public function, it works or is one line, never another error."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import audit
from audit import errors
from audit.errors import InputError

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(8, 5))


def step(params, batch, seed):
    noise = np.random.default_rng(seed).normal(size=5)
    return {"w": params["w"] - 0.1 * (batch[0].sum(0) + noise) / 8}


def draw(seed):
    rng = np.random.default_rng(seed)
    return [np.flatnonzero(rng.random(50) < 0.2) for _ in range(10)]


def loss(params, example):
    return (params * example[0]).sum()


MECHANISM = {"noise_multiplier": 1.0, "insertions": 4, "k": 2}
STATED = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "learning_rate": 0.1, "batch_size": 8}
ACCOUNTING = {"epsilon": 1.0, "delta": 1e-5, "noise_multiplier": 1.0, "steps": 10}
SAMPLER = {"sampler": "shuffled", "noise_multiplier": 1.0, "batches": 8, "epochs": 1, "tail": 0}
SCORES = {"scores_in": RNG.normal(1, 1, 60), "scores_out": RNG.normal(0, 1, 60)}
DOORS = {  # a function, the arguments that it gets, and those among them, or besides, that are tried
    "bounds": (audit.bounds, SCORES, ("claim", "delta", "confidence")),
    "cosines": (
        audit.cosines,
        {"values": RNG.normal(size=(20, 4)) / 20, "dimension": 200},
        ("dimension", "leave_one_out"),
    ),
    "ranks": (
        audit.ranks,
        {"scores": np.eye(3), "fresh": RNG.normal(size=(3, 9))},
        ("seed", "in_order"),
    ),
    "table": (audit.table, {}, ("results",)),
    "DpSgd": (audit.DpSgd, MECHANISM, (*MECHANISM, "sampling_rate", "insert")),
    "EpsilonDelta": (audit.EpsilonDelta, {"epsilon": 1.0, "delta": 1e-5}, ("epsilon", "delta")),
    "Gdp": (audit.Gdp, {}, ("mu",)),
    "hidden_state_epsilon": (
        audit.hidden_state_epsilon,
        {**MECHANISM, "lipschitz": 1.0},
        (*MECHANISM, "insert", "delta"),
    ),
    "check_step": (
        audit.check_step,
        {"step": step, "params": {"w": np.zeros(5)}, "batch": (FEATURES, np.zeros(8)), **STATED},
        ("step", "params", "batch", *STATED),
    ),
    "check_batches": (
        audit.check_batches,
        {"draw": draw, "examples": 50, "sampling_rate": 0.2},
        ("draw", "examples", "sampling_rate", "assumed"),
    ),
    "check_accounting": (
        audit.check_accounting,
        ACCOUNTING,
        (*ACCOUNTING, "sampling_rate", "batches", "examples"),
    ),
    "sampler_claims": (audit.sampler_claims, SAMPLER, (*SAMPLER, "delta")),
    "TruncatedPoisson": (
        audit.TruncatedPoisson,
        {"examples": 50, "largest_batch": 20},
        ("examples", "largest_batch"),
    ),
    "Indices": (audit.Indices, {}, ("number_of_examples",)),
    "audit_loss": (
        audit.audit_loss,
        {"loss": loss, "features": FEATURES, "labels": np.zeros(8), "runs": 4},
        ("params",),
    ),
}
ODD = st.sampled_from(
    [None, True, False, np.True_, "x", "1_000", b"1", math.nan, math.inf, object()]
)
TREES = st.recursive(
    ODD, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=1), part)
)


def nested(depth):
    tree = []
    for _ in range(depth):
        tree = [tree]
    return tree


EXTREMES = {  # by their names, since hypothesis shows what it draws
    "a number of 5,000 digits": lambda: 10**5000,
    "a negative one": lambda: -(10**5000),
    "lists 100,000 deep": lambda: nested(10**5),
    "a generator": lambda: (x for x in (1, 2)),
}


@st.composite
def cycles(draw):
    """A list or a dict that contains itself, below as many others as are drawn."""
    around = draw(st.sampled_from([[], {}]))
    inner = draw(st.sampled_from([[], {}]))
    for place, part in ((inner, around), (around, inner)):
        if isinstance(place, list):
            place.extend([draw(ODD), part])
        else:
            place["a"] = part
    return around


@pytest.mark.parametrize("door", DOORS)
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_any_argument_works_or_is_one_line(door, data):
    function, arguments, tried = DOORS[door]
    name = data.draw(st.sampled_from(tried))
    extreme = data.draw(st.sampled_from([*EXTREMES, "", "", ""]))
    value = EXTREMES[extreme]() if extreme else data.draw(TREES | cycles())
    try:
        function(**{**arguments, name: value})
    except InputError as error:
        assert "\n" not in str(error) and len(str(error)) < 600


@pytest.mark.parametrize("name", ["params", "batch"])
@settings(deadline=None, max_examples=30)
@given(tree=cycles() | st.just(nested(150)))
def test_a_tree_that_contains_itself_is_refused_by_name(name, tree):
    with pytest.raises(InputError, match=f"`{name}` contains itself, or is nested more than 100"):
        errors.require_no_cycle(name, tree)


@given(tree=TREES)
def test_any_other_tree_is_none_of_these(tree):
    errors.require_no_cycle("params", tree)


@given(number=st.integers() | st.floats(allow_nan=False), place=st.data())
def test_digits_are_plain(number, place):
    text = str(number)
    assert type(number)(errors.plain_digits(text)) == number
    at = place.draw(st.integers(0, len(text)))
    odd = place.draw(st.sampled_from("_٣३５−"))
    with pytest.raises(ValueError, match="digits 0 to 9"):
        errors.plain_digits(text[:at] + odd + text[at:])
