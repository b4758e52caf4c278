"""Bad arguments of public functions: each is one line that names it, before anything is trained."""

import functools
import warnings
from types import SimpleNamespace

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import audit
from audit import directions, one_run
from audit.adversaries.base import Adversary
from audit.errors import InputError
from audit.mechanism import ensemble
from audit.mechanism.base import Coordinates
from tests.system.bad import HUGE

RNG = np.random.default_rng(0)
IN = RNG.normal(1, 1, 60)
OUT = RNG.normal(0, 1, 60)
MANY = RNG.normal(size=(20, 4))
X = RNG.normal(size=(40, 5)).astype(np.float32)
Y = np.arange(40) % 3
NOISY = {"noise_multiplier": 1.0, "insertions": 4}
STATED = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "learning_rate": 1.0, "batch_size": 4}


def loss(params, example):
    return jnp.sum(params * example[0])


def of_loss(loss=loss, params=None, features=X, labels=Y, **given):
    params = jnp.ones(5) if params is None else params
    return audit.audit_loss(loss, params, features, labels, **{"runs": 4, **given})


class Net(nn.Module):
    then: object = None

    @nn.compact
    def __call__(self, x):
        return self.then()(nn.Dense(3)(x)) if self.then else nn.Dense(3)(x)


CROSS_ENTROPY = optax.softmax_cross_entropy_with_integer_labels


def of_module(module=Net(), criterion=CROSS_ENTROPY, features=X, labels=Y, **given):  # noqa: B008
    return audit.audit_model(module, criterion, features, labels, **{"runs": 4, **given})


def refused(call):
    """The line that refuses a call; nothing is compiled, and nothing warns."""
    with warnings.catch_warnings(), pytest.raises(InputError) as raised:
        warnings.simplefilter("error")
        call()
    line = str(raised.value)
    assert "\n" not in line and len(line) < 1500
    return line


# Functions with the numbers that they take, each with values of its type that are out of range.
LEVELS = {"delta": (0, 1, -1), "confidence": (0, 1, 95)}
SEEDS = {"seed": (-1, HUGE), "count": (0, 10**12)}
NUMBERS = {
    "bounds": (functools.partial(audit.bounds, IN, OUT), LEVELS),
    "cosines": (functools.partial(audit.cosines, MANY / 10), {"dimension": (0, 1, HUGE)}),
    "DpSgd": (
        lambda **given: audit.DpSgd(**{**NOISY, **given}),
        {
            "noise_multiplier": (-1, 1e-9, 1e13),
            "insertions": (-1, 1.5, 10**13),
            "sampling_rate": (0, 1.5),
        },
    ),
    "Gdp": (audit.Gdp, {"mu": (-1, 1.1e12)}),
    "EpsilonDelta": (
        lambda **given: audit.EpsilonDelta(**{"epsilon": 1.0, "delta": 1e-5, **given}),
        {"epsilon": (-1,), "delta": (-1, 1)},
    ),
    "hidden_state_epsilon": (
        lambda **given: audit.hidden_state_epsilon(**{**NOISY, "lipschitz": 1.0, **given}),
        {"noise_multiplier": (-1, 1e-9), "insertions": (-1, 1.5, 10**9), "delta": (0, 1)},
    ),
    "audit": (
        functools.partial(audit.audit, data_file="nowhere.csv"),
        {"runs": (0, 1, 1.5, HUGE), "delta": (0, 1), "confidence": (0, 95)},
    ),
    "audit_loss": (of_loss, {"runs": (0, 1, 1.5, HUGE), "delta": (0, 1), "confidence": (0, 95)}),
    "check_step": (
        lambda **given: audit.check_step(loss, np.ones(3), (X, Y), **{**STATED, **given}),
        {name: (-1,) for name in STATED},
    ),
    "check_batches": (
        lambda **given: audit.check_batches(
            **{"draw": lambda seed: [[0, 1], [2]], "examples": 9, "sampling_rate": 0.5, **given}
        ),
        {"examples": (1, 1.5, 10**12), "sampling_rate": (0, 1)},
    ),
    "check_accounting": (
        lambda **given: audit.check_accounting(
            **{"epsilon": 1.0, "delta": 1e-5, "noise_multiplier": 1.0, "steps": 10, **given}
        ),
        {"epsilon": (-1,), "delta": (0, 1), "noise_multiplier": (0,), "steps": (0, 1.5)},
    ),
    "one_run.canary": (
        lambda **given: one_run.canary(**{"seed": 0, "index": 0, "dimension": 9, **given}),
        {"seed": (-1, HUGE), "index": (-1, 1.5), "dimension": (1, 10**14)},
    ),
    "one_run.coins": (lambda **given: one_run.coins(**{"seed": 0, "count": 3, **given}), SEEDS),
    "one_run.cosines": (
        lambda **given: one_run.cosines(IN, **{"seed": 0, "count": 3, **given}),
        SEEDS,
    ),
    "directions.inserted": (
        lambda **given: directions.inserted(
            **{"seed": 0, "run": 0, "count": 3, "dimension": 9, "norm": 1.0, **given}
        ),
        {**SEEDS, "run": (-1,), "norm": (0, -1)},
    ),
    "directions.cosines": (
        lambda **given: directions.cosines(IN, **{"seed": 0, "run": 0, "count": 3, **given}),
        SEEDS,
    ),
}
NO_NUMBERS = ("", "x", "0.5", [1], {}, (), True, b"1", 1j, np.ones(2), np.nan, 10**5000)


@pytest.mark.parametrize("name", NUMBERS)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_no_number_or_out_of_range_is_named(name, data, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ensemble, "compiled_for", lambda *_, **__: pytest.fail("compiled"))
    function, ranges = NUMBERS[name]
    argument = data.draw(st.sampled_from(sorted(ranges)))
    value = data.draw(st.sampled_from((*NO_NUMBERS, *ranges[argument])))
    assert argument.split("_")[0] in refused(lambda: function(**{argument: value}))
    assert not list(tmp_path.iterdir())


ARRAYS = {
    "masked": (np.ma.masked_array(IN, IN < 0), "masked entries"),
    "complex": (IN + 1j, "complex"),
    "records": (np.zeros(9, "f8,i4"), "[('f0'"),
    "dates": (np.arange(9).astype("M8[s]"), "datetime64"),
    "words": (["a", "b"], "<U1"),
    "None within": ([1, None], "object"),
    "too large": ([10**400, 1], "object"),
    "a dict": ({1: 2}, "object"),
    "ragged": ([[1], [2, 3]], "rows of one length"),
    "a number": (1.0, "shape ()"),
    "a cube": (np.zeros((2, 2, 2)), "shape (2, 2, 2)"),
}
TABLE = SimpleNamespace(columns=["a"])


def inserting(**changes):
    """A call with a custom adversary, whose functions fit but for the changes."""
    fits = {
        "init": lambda key, theta, norm: (),
        "craft": lambda state, step, theta: jnp.ones((1, theta.size)),
        "score": lambda state, seen, theta_t, theta_0: theta_t[:1],
    }
    return lambda: of_loss(adversary=Adversary(**{**fits, **changes}))


COORDINATES = Coordinates(jnp.arange(2), jnp.ones(2))
CASES = {
    **{
        f"scores_in: {note}": (lambda v=value: audit.bounds(v, OUT), says)
        for note, (value, says) in ARRAYS.items()
    },
    **{
        f"scores_out: {note}": (lambda v=value: audit.bounds(IN, v), says)
        for note, (value, says) in ARRAYS.items()
    },
    **{
        f"cosines: {note}": (lambda v=value: audit.cosines(v, 200), says)
        for note, (value, says) in ARRAYS.items()
    },
    "scores of one world": (lambda: audit.bounds(IN), "`scores_out` is missing: give it"),
    "a table of other columns": (lambda: audit.bounds(TABLE), "`scores_out` is missing"),
    "equal scores": (lambda: audit.bounds(np.ones(9), np.ones(9)), "equal 1"),
    "NaN": (
        lambda: audit.bounds(np.full(999, np.nan), OUT),
        "are NaN, of runs that failed, more than 50%",
    ),
    "a percentage": (lambda: audit.bounds(IN, OUT, confidence=95), "did you mean 0.95?"),
    "a claim": (lambda: audit.bounds(IN, OUT, claim=3.0), "`claim="),
    "presence of no bits": (lambda: audit.coins(MANY, MANY), "presence"),
    "cosines beyond 1": (lambda: audit.cosines(MANY, 200), "is no cosine: divide by both lengths"),
    "another dimension": (lambda: audit.cosines(MANY / 10, 2000), "as these would in about"),
    "a step in words": (
        lambda: audit.hidden_state_epsilon(**NOISY, lipschitz=1.0, insert="second"),
        "`insert=",
    ),
    "a path of no text": (lambda: audit.bounds(IN, OUT).report(5), "`path="),
    "a rate beyond 1": (
        lambda: audit.bounds(IN, OUT).true_positive_rate(1),
        "`false_positive_rate=",
    ),
    "a model of another name": (lambda: audit.audit("nobody"), "`model="),
    "a file of no name": (lambda: audit.audit(data_file=""), "`data_file="),
    "steps twice": (
        lambda: of_loss(steps=5, insertions=2),
        "`steps=5` and `insertions=2` say the same: drop one",
    ),
    "a loss that fails": (lambda: of_loss(loss=None), "fails on one example"),
    "parameters of words": (lambda: of_loss(params="w"), "float arrays"),
    "features of words": (lambda: of_loss(features=X.astype(str)), "features"),
    "features that are infinite": (
        lambda: of_loss(features=X * np.nan),
        "features hold 200 values that are not",
    ),
    "fewer labels": (lambda: of_loss(labels=Y[:30]), "there are 40 features and 30 labels"),
    "a large batch": (lambda: of_module(batch_size=41), "40 examples"),
    "no module": (lambda: of_module(module=loss), "takes a Flax Linen module"),
    "a class": (lambda: of_module(module=Net), "Flax Linen module, not Net: give an instance"),
    "dropout": (
        lambda: of_module(Net(lambda: nn.Dropout(0.5, deterministic=False))),
        "switch dropout off",
    ),
    "batch norm": (
        lambda: of_module(Net(lambda: nn.BatchNorm(False))),
        "the module keeps batch_stats",
    ),
    "a loss of three": (
        lambda: of_module(criterion=lambda logits, label: logits),
        "has shape (3,), not ()",
    ),
    "a flat craft": (inserting(craft=lambda s, i, t: t), "craft gives shape (5,)"),
    "few crafted": (
        inserting(canaries=4),
        "craft gives shape (1, 5): give an array (canaries, parameters)",
    ),
    "few coordinates": (
        inserting(canaries=3, craft=lambda *_: COORDINATES),
        "Coordinates of 2 canaries: give 3",
    ),
    "a craft that fails": (
        inserting(craft=lambda s, i, t: t @ jnp.ones(9)),
        "fails on a model of 5 parameters",
    ),
    "a score of no axis": (inserting(score=lambda s, seen, t, t0: t[0]), "score gives shape ()"),
    "a score that fails": (inserting(score=lambda s, seen: 0), "fails on a model"),
    "half a canary": (inserting(canaries=1.5), "`canaries="),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_argument_is_one_line(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ensemble, "compiled_for", lambda *_, **__: pytest.fail("compiled"))
    call, says = CASES[case]
    assert says in refused(call)
    assert not list(tmp_path.iterdir())
