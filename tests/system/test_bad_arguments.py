"""Tests that public functions reject bad arguments in one line, before they train or write."""

import functools
import math
import warnings

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import audit
from audit import directions
from audit.adversaries.base import Adversary
from audit.errors import InputError
from audit.training import game
from tests.system.bad import HUGE

RNG = np.random.default_rng(0)
IN = RNG.normal(1, 1, 60)
OUT = RNG.normal(0, 1, 60)
MATRIX = RNG.normal(size=(20, 4))
FEATURES = RNG.normal(size=(40, 5)).astype(np.float32)
LABELS = np.arange(40) % 3
CROSS_ENTROPY = optax.softmax_cross_entropy_with_integer_labels


class Net(nn.Module):
    then: object = None

    @nn.compact
    def __call__(self, x):
        logits = nn.Dense(3)(x)
        return self.then()(logits) if self.then else logits


def loss(params, example):
    return jnp.sum(params * example[0])


def step(params, batch, seed):
    noise = np.random.default_rng(seed).normal(size=5)
    return {"w": params["w"] - 0.1 * (batch[0].sum(0) + noise) / 8}


def draw_batches(seed):
    rng = np.random.default_rng(seed)
    return [np.flatnonzero(rng.random(50) < 0.2) for _ in range(10)]


of_loss = functools.partial(
    audit.audit_loss,
    loss=loss,
    params=jnp.ones(5),
    features=FEATURES,
    labels=LABELS,
    runs=4,
)
of_model = functools.partial(
    audit.audit_model,
    module=Net(),
    criterion=CROSS_ENTROPY,
    features=FEATURES,
    labels=LABELS,
    runs=4,
)
at = functools.partial  # a function with arguments that it takes
LEVELS = {"delta": (0, 1, -1), "confidence": (0, 1, 95)}
SEEDS = {"seed": (-1, HUGE), "count": (0, 10**12)}
RUNS = {"runs": (0, 1, 1.5, HUGE), **LEVELS}
STATED = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "learning_rate": 0.1, "batch_size": 8}
NOISY = {"noise_multiplier": 1.0, "insertions": 4}
LIMITED = {"noise_multiplier": (-1, 1e-9), "insertions": (-1, 1.5, 10**13)}
CHECKED = at(
    audit.check_step,
    step=step,
    params={"w": np.zeros(5)},
    batch=(FEATURES[:8], np.zeros(8)),
    **STATED,
)
ACCOUNTED = at(audit.check_accounting, epsilon=30.0, delta=1e-5, noise_multiplier=1.0, steps=10)
# A function with sound arguments, its numbers with values out of their ranges, and its other arguments.
DOORS = {
    "bounds": (at(audit.bounds, IN[:20], OUT[:20]), LEVELS, ("claim",)),
    "cosines": (
        at(audit.cosines, MATRIX / 20, dimension=200),
        {"dimension": (0, 1, HUGE)},
        ("leave_one_out",),
    ),
    "ranks": (at(audit.ranks, np.eye(3), RNG.normal(size=(3, 9))), {}, ("in_order",)),
    "table": (audit.table, {}, ("results",)),
    "DpSgd": (at(audit.DpSgd, **NOISY), {**LIMITED, "sampling_rate": (0, 1.5)}, ("k", "insert")),
    "Gdp": (audit.Gdp, {"mu": (-1, 1.1e12)}, ()),
    "EpsilonDelta": (
        at(audit.EpsilonDelta, epsilon=1.0, delta=1e-5),
        {"epsilon": (-1,), "delta": (-1, 1)},
        (),
    ),
    "hidden_state_epsilon": (
        at(audit.hidden_state_epsilon, **NOISY, lipschitz=1.0),
        {**LIMITED, "delta": (0, 1)},
        ("k", "insert"),
    ),
    "audit": (at(audit.audit, data="nowhere.csv"), RUNS, ()),
    "audit_loss": (of_loss, RUNS, ("params",)),
    "check_step": (CHECKED, {name: (-1,) for name in STATED}, ("step", "params", "batch")),
    "check_batches": (
        at(audit.check_batches, draw=draw_batches, examples=50, sampling_rate=0.2),
        {"examples": (1, 1.5, 10**12), "sampling_rate": (0, 1)},
        ("draw",),
    ),
    "check_accounting": (
        ACCOUNTED,
        {"epsilon": (-1,), "delta": (0, 1), "noise_multiplier": (0,), "steps": (0, 1.5)},
        ("sampling_rate", "examples"),
    ),
    "sampler_claims": (
        at(
            audit.sampler_claims,
            sampler="shuffled",
            noise_multiplier=1.0,
            batches=8,
            epochs=1,
            tail=0,
        ),
        {},
        ("sampler", "noise_multiplier", "batches", "epochs", "tail", "delta"),
    ),
    "TruncatedPoisson": (
        at(audit.TruncatedPoisson, examples=50, largest_batch=20),
        {},
        ("examples", "largest_batch"),
    ),
    "directions.inserted": (
        at(directions.inserted, seed=0, run=0, count=3, dimension=9, norm=1.0),
        {**SEEDS, "run": (-1,), "norm": (0, -1)},
        (),
    ),
    "directions.cosines": (at(directions.cosines, IN, seed=0, run=0, count=3), SEEDS, ()),
}
NO_NUMBERS = ("", "x", "0.5", [1], {}, (), True, b"1", 1j, np.ones(2), np.nan)
ODD = st.sampled_from(
    [None, True, False, np.True_, "x", "1_000", b"1", math.nan, math.inf, object()]
)
TREES = st.recursive(
    ODD, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=1), part)
)
generated = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """refused(call) -> the line that refuses a call, which compiles and writes nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(game, "_map_programs", lambda *_, **__: pytest.fail("compiled"))

    def call(function, **arguments):
        with warnings.catch_warnings(), pytest.raises(InputError) as raised:
            warnings.simplefilter("error")
            function(**arguments)
        line = str(raised.value)
        assert "\n" not in line and len(line) < 1500
        assert not list(tmp_path.iterdir())
        return line

    return call


@pytest.mark.parametrize("door", [door for door, (_, numbers, _) in DOORS.items() if numbers])
@generated
@given(data=st.data())
def test_what_is_no_number_or_out_of_range_is_named(door, data, refused):
    function, numbers, _ = DOORS[door]
    name = data.draw(st.sampled_from(sorted(numbers)))
    value = data.draw(st.sampled_from((*NO_NUMBERS, *numbers[name])))
    assert name.split("_")[0] in refused(function, **{name: value})


@pytest.mark.parametrize("door", [door for door, (*_, others) in DOORS.items() if others])
@generated
@given(data=st.data())
def test_any_argument_works_or_is_one_line(door, data):
    function, _, others = DOORS[door]
    name = data.draw(st.sampled_from(others))
    value = data.draw(TREES)
    try:
        function(**{name: value})
    except InputError as error:
        assert "\n" not in str(error) and len(str(error)) < 600


ARRAYS = (
    (np.ma.masked_array(IN, IN < 0), "masked entries"),
    (IN + 1j, "complex"),
    (np.zeros(9, "f8,i4"), "[('f0'"),
    (["a", "b"], "<U1"),
    ([10**400, None], "object"),
    ([[1], [2, 3]], "rows of equal length"),
    (np.zeros((2, 2, 2)), "shape (2, 2, 2)"),
)


@pytest.mark.parametrize(("array", "says"), ARRAYS, ids=[says for _, says in ARRAYS])
def test_an_array_of_no_scores_is_named(array, says, refused):
    for call in (
        at(audit.bounds, array, OUT),
        at(audit.bounds, IN, array),
        at(audit.cosines, array, 200),
    ):
        assert says in refused(call)


def inserting(**changes):
    """Returns a call with a custom adversary, whose functions fit except for the changes."""
    fits = {
        "init": lambda key, theta, norm: (),
        "craft": lambda state, step, theta: jnp.ones((1, theta.size)),
        "score": lambda state, seen, theta_t, theta_0: theta_t[:1],
    }
    return at(of_loss, adversary=Adversary(**{**fits, **changes}))


CASES = (  # (a call, part of the line that refuses it)
    (at(audit.bounds, IN), "`scores_out` is missing: give it"),
    (at(audit.bounds, np.ones(9), np.ones(9)), "equal 1"),
    (at(audit.bounds, IN, OUT, confidence=95), "did you mean 0.95?"),
    (at(audit.coins, MATRIX, MATRIX), "presence"),
    (at(audit.cosines, MATRIX, 200), "divide by both lengths"),
    (at(audit.cosines, MATRIX / 10, 2000), "this suggests that d is about"),
    (lambda: audit.bounds(IN, OUT).report(5), "`path` must be a path"),
    (at(of_loss, features=FEATURES * np.nan), "features have 200 values that are infinite"),
    (at(of_loss, labels=LABELS[:30]), "there are 40 features and 30 labels"),
    (at(of_model, module=loss), "takes a Flax Linen module"),
    (at(of_model, module=Net(lambda: nn.Dropout(0.5, deterministic=False))), "disable dropout"),
    (at(of_model, module=Net(lambda: nn.BatchNorm(False))), "the module has batch_stats"),
    (at(of_model, criterion=lambda logits, label: logits), "has shape (3,), not ()"),
    (inserting(canaries=4), "(canaries, parameters) = (4, 5), got shape (1, 5)"),
    (inserting(craft=lambda s, i, t: t @ jnp.ones(9)), "fails on a model of 5 parameters"),
    (
        inserting(score=lambda s, seen, t, t0: t[0]),
        "a score per canary, (canaries,) = (1,), got shape ()",
    ),
)


@pytest.mark.parametrize(("call", "says"), CASES, ids=[says for _, says in CASES])
def test_a_bad_argument_is_one_line(call, says, refused):
    assert says in refused(call)
