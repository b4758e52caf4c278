"""Bad arguments of every public function: each is one line that names it, before anything is trained."""

import functools
import warnings
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import audit
from audit import directions, one_run
from audit.adversaries.base import Adversary
from audit.errors import InputError
from audit.mechanism import ensemble
from audit.mechanism.base import Coordinates, Directions
from tests.system.bad import HUGE

RNG = np.random.default_rng(0)
IN, OUT, MANY = RNG.normal(1, 1, 60), RNG.normal(0, 1, 60), RNG.normal(size=(20, 4))
X, Y = RNG.normal(size=(40, 5)).astype(np.float32), np.arange(40) % 3
ONE_INFINITE = np.where(np.arange(200).reshape(40, 5) == 17, np.inf, X)
MASKED = np.ma.masked_array(IN, IN < 0)  # some are
TEXTS, KINDS = ("", "x", "0.5"), ([1], {}, (), True, b"1", 1j, np.ones(2))
LONG = 10**5000
CROSS_ENTROPY = optax.softmax_cross_entropy_with_integer_labels


def bounds(scores_in=IN, scores_out=OUT, **given):
    return audit.bounds(scores_in, scores_out, **given)


def fresh(scores_in=MANY / 10, dimension=200, **given):
    return audit.cosines(scores_in, dimension, **given)


def dp_sgd(**given):
    return audit.DpSgd(**given)


def given_coins(scores=MANY, presence=None):
    return audit.coins(
        scores, np.arange(MANY.size).reshape(MANY.shape) % 2 if presence is None else presence
    )


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


class Empty(nn.Module):
    def __call__(self, x):
        return x


def of_module(module=Net(), criterion=CROSS_ENTROPY, features=X, labels=Y, **given):  # noqa: B008
    return audit.audit_model(module, criterion, features, labels, **{"runs": 4, **given})


def of_zoo(**given):
    return audit.audit(**{"data_file": "nowhere.csv", **given})


@functools.cache
def made():
    """Returns a result, whose methods are called."""
    return bounds()


def of_result(name, value, says):
    """The case of a result's method, by its name, with a value."""
    return f"{name} {value!r}", lambda: getattr(made(), name)(value), says


def each(call, name, says, *values):
    """A case a value of a keyword; `says` is what the line has to hold."""
    return [
        (f"{name}={type(value).__name__}", lambda v=value: call(**{name: v}), says)
        for value in values
    ]


def typed(call, name, *more, optional=False, texts=TEXTS, **given):
    """The cases of a number that has another type, beside further values of its own."""
    values = (*texts, *KINDS, LONG, -LONG, *more, *(() if optional else (None,)))
    return each(lambda **named: call(**given, **named), name, name.split("_")[0], *values)


LEVEL = (0, 1, -1, 2, np.nan, np.inf, 95)
# fmt: off
ARRAYS = {  # (scores, what is said of them)
    "masked": (MASKED, "masked entries"), "a list of masked": ([MASKED, MASKED], "masked entries"),
    "a masked constant": ([1.0, np.ma.masked], "masked entries"), "complex": (IN + 1j, "complex"),
    "records": (np.zeros(9, "f8,i4"), "records"), "a void": (np.zeros(9, "V8"), "records"),
    "dates": (np.arange(9).astype("M8[s]"), "dates"),
    "durations": (np.arange(9).astype("m8[s]"), "durations"),
    "words": (["a", "b"], "words"), "numbers as words": (["1", "2"], "words"),
    "bytes": ([b"1", b"2"], "bytes"),
    "None within": ([1, None], "objects"), "too large": ([10**400, 1], "objects"), "None": (None, "objects"),
    "a dict": ({1: 2}, "objects"), "a set": ({1, 2}, "objects"), "a text": ("abc", "words"),
    "a generator": ((x for x in (1, 2)), "objects"), "an object": (object(), "objects"),
    "rows": ([[1], [2, 3]], "rows of one length"), "a key": (jax.random.key(0), "rows of one length"),
    "a number": (1.0, "shape ()"), "a cube": (np.zeros((2, 2, 2)), "shape (2, 2, 2)"), "none": ([], "no "),
    "NaN": (np.full(999, np.nan), "are NaN, of runs that failed, more than 50%"),
    "near the end": (IN * 1e307, "divide all by one number"), "many": (MANY, "shape"),
}
# fmt: on
SCORES = [
    (f"{name}: {note}", lambda n=name, v=value: bounds(**{n: v}), says)
    for note, (value, says) in ARRAYS.items()
    for name in ("scores_in", "scores_out")
    if note != "many" and (name, note) != ("scores_out", "None")
]
NOISY = {"noise_multiplier": 1.0, "insertions": 4}
BOUNDS = [
    *SCORES,
    ("equal", lambda: bounds(np.ones(9), np.ones(9)), "equal 1"),
    *(
        (f"alone {note}", lambda alone=alone: audit.bounds(alone), "`scores_out` is missing: give it")
        for note, alone in {"array": IN, "list": [1.0], "none": None, "word": "scores.csv"}.items()
    ),
    ("no table", lambda: audit.bounds(SimpleNamespace(columns=["a"])), "`scores_out` is missing"),
    ("other columns", lambda: audit.bounds(type("Frame", (dict,), {"columns": ["a"]})()), "has columns a"),
    *typed(bounds, "delta", *LEVEL), *typed(bounds, "confidence", *LEVEL),
    *typed(dp_sgd, "noise_multiplier", -1, np.nan, 1e-9, 1e13, insertions=4),
    *typed(dp_sgd, "insertions", -1, 1.5, np.nan, 10**13, noise_multiplier=1.0),
    *typed(dp_sgd, "sampling_rate", 0, 1.5, -1, np.nan, **NOISY),
    *typed(audit.Gdp, "mu", -1, np.nan, np.inf),
    *each(audit.Gdp, "mu", "give a number from 0 to 1e+12", 1.1e12, 1e17, 10**200),
    *typed(audit.EpsilonDelta, "epsilon", -1, np.nan, delta=1e-5),
    *typed(audit.EpsilonDelta, "delta", -1, 1, np.nan, epsilon=1.0),
    *each(bounds, "claim", "`claim=", 3.0, "x", (4.0, 250), [], True),
    *each(bounds, "looks", "looks", [3, 2], (1,), (7, 900)),
    *each(lambda **two: audit.bounds(audit.cosines(MANY / 10, 200), **two), "scores_out", "drop it", OUT),
    *each(lambda **two: given_coins(**two), "scores", "scores", MANY[0], "x", MANY[:3], MANY[None]),
    *each(lambda **two: given_coins(**two), "presence", "presence", MANY, np.ones(MANY.shape), "x", MANY[:3]),
    *each(bounds, "name", "`name=", None, 3, b"x", [], True),
    *each(bounds, "confidence", "did you mean 0.95?", 95, 95.0, np.float32(95)),
]  # fmt: skip
COSINES = [
    *(
        (f"cosines: {note}", lambda v=value: fresh(v), says)
        for note, (value, says) in ARRAYS.items()
        if note not in ("None", "many", "none", "NaN", "near the end")
    ),
    *typed(fresh, "dimension", 0, 1, -5, 1.5, 10**14, HUGE),
    *each(fresh, "leave_one_out", "`leave_one_out=", None, 1, "x", np.ones(2)),
    *each(
        fresh,
        "presence",
        "presence",
        np.ones(3),
        np.zeros(MANY.shape),
        2 * np.ones(MANY.shape),
        "x",
    ),
    *each(fresh, "in_order", "`in_order=", None, 1, "x", np.ones(2)),
    (
        "a table",
        lambda: fresh(SimpleNamespace(columns=["score", "in"])),
        "as an array: give no table",
    ),
    ("none", lambda: fresh([]), "the cosines have shape (0,)"),
    ("NaN", lambda: fresh([np.nan, np.inf, 0.1]), "2 of 3 cosines are NaN, of runs that failed"),
    ("beyond 1", lambda: fresh(MANY), "is no cosine: divide by both lengths"),
    ("too many dimensions", lambda: fresh(dimension=2000), "as these would in about"),
    (
        "one seed",
        lambda: fresh(np.arange(60) / 600 + MANY[:, :1] / 90),
        "directions look the same in every",
    ),
]
CONTRACTING = {**NOISY, "lipschitz": 1.0}


def hidden(**given):
    return audit.hidden_state_epsilon(**{**CONTRACTING, **given})


HIDDEN = [
    *typed(hidden, "noise_multiplier", -1, np.nan, 1e-9), *typed(hidden, "insertions", -1, 1.5, 10**9),
    *typed(hidden, "delta", *LEVEL), *typed(hidden, "k", 0, -1, 1.5, 10**9, optional=True),
    *each(hidden, "insert", "`insert=", "second", "", 0, 3, -1, 1.5, [1], {}, True, LONG, np.ones(2)),
    *each(hidden, "lipschitz", "lipschitz", None, -1, np.nan, np.inf, "x", {}, np.ones(3), 1j),
    *each(hidden, "step_sizes", "step_sizes", None, -1, np.nan, "x", [], np.ones(3)),
    *each(lambda **two: dp_sgd(**NOISY, **two), "k", "go with `lipschitz`", 5),
    *each(lambda **two: dp_sgd(**NOISY, **two), "insert", "insert", "second", 0, 3, 1.5, [1]),
    *each(lambda **two: dp_sgd(**NOISY, **two), "lipschitz", "lipschitz", "x", {}, 1j),
]  # fmt: skip
RESULTS = [
    *(of_result("report", value, "`path=") for value in (5, None, [], "", "a\0b")),
    *(
        of_result("true_positive_rate", value, "`false_positive_rate=")
        for value in ("x", None, [], True, -0.1, 1, np.nan, 1j)
    ),
]
REQUEST = {
    "runs": ("x", None, 1.5, True, [4], 0, 1, -1, 10**18, HUGE, LONG, np.ones(2)),
    "delta": ("x", None, [], True, 0, 1, np.nan, LONG, 1j),
    "confidence": ("x", None, [], True, 0, 1, 95, np.nan, LONG),
    "out": (None, 5, [], "", "a\0b", b"x"),
}
SETTING = {  # what test_bad_fields.py does not generate from the limits
    "seed": (LONG,), "k": (np.array([1, 2]),), "noise_multiplier": (LONG,), "nothing": (1,), "model": (3,)
}  # fmt: skip
BOTH = {"steps": 5, "insertions": 2}


def requests(call):
    for name, values in {**REQUEST, **SETTING}.items():
        yield from each(call, name, {"k": "periodicity"}.get(name, name), *values)
    yield (
        "steps and insertions",
        lambda: call(**BOTH),
        "`steps=5` and `insertions=2` say the same: drop one",
    )


AUDIT = [
    *requests(of_zoo),
    *each(of_zoo, "model", "`model=", None, ["fcnn"], 3, "", "nobody", b"fcnn"),
    *each(of_zoo, "data_file", "`data_file=", 5, [], "", "a\0b", True),
    *each(of_zoo, "tfds_dir", "`tfds_dir=", 5, [], "", "a\0b", b"x"),
]
OWN = [
    *requests(of_loss),
    *each(of_loss, "loss", "fails on one example", None, 3, "loss"),
    *each(of_loss, "params", "float arrays", {}, "w", np.arange(3), [None, "x"]),
    *each(
        of_loss,
        "features",
        "features",
        None,
        "x",
        [[1], [2, 3]],
        np.ma.masked_array(X, X < 0),
        X + 1j,
    ),
    *each(of_loss, "features", "features", X.astype(str), np.array([{}] * 40), X[:30], X[:0], 3.0),
    *each(
        of_loss,
        "features",
        "features hold 200 values that are not finite",
        X * np.nan,
        X * np.float64(1e300),
    ),
    *each(of_loss, "features", "features hold 1 values that are not finite", ONE_INFINITE),
    *each(
        of_loss,
        "labels",
        "labels",
        None,
        "x",
        MASKED,
        Y[:9],
        ["a"] * 40,
        Y.astype("M8[s]"),
        Y + 10**12,
    ),
    *each(of_loss, "labels", "there are 40 features and 30 labels", Y[:30]),
    *(
        (
            f"flipped {name}",
            lambda y=labels: of_module(labels=y, adversary="loss", batch_size=10),
            "are no classes",
        )
        for name, labels in (("labels of one class", Y * 0), ("labels below 0", Y - 1))
    ),
    *each(of_module, "module", "takes a Flax Linen module", None, 3, "net", loss, dict),
    *each(
        of_module,
        "module",
        "not one of type Linear: give any other model as loss(params, (feature, label)) to audit_loss",
        nnx.Linear(5, 3, rngs=nnx.Rngs(0)),
    ),
    *each(of_module, "batch_size", "40 examples", 41),
    *each(of_module, "module", "not the class Net: give an instance, Net()", Net),
    *each(
        of_module,
        "module",
        "draws randomness: switch dropout off",
        Net(lambda: nn.Dropout(0.5, deterministic=False)),
    ),
    *each(of_module, "module", "the module keeps batch_stats", Net(lambda: nn.BatchNorm(False))),
    *each(of_module, "module", "the module keeps nothing to train", Empty()),
    *each(
        of_module,
        "criterion",
        "the module or criterion fails on one example",
        None,
        lambda logits: 0.0,
    ),
    *each(
        of_module,
        "criterion",
        "the loss of one example has shape (3,), not ()",
        lambda logits, label: logits,
    ),
    *each(
        of_module,
        "features",
        "the module or criterion fails on one example of shape (1, 5)",
        X[:, None],
    ),
]


def craft(state, step, theta):
    return jnp.ones((1, theta.size))


def own(**changes):
    """A call with an adversary of one's own, whose functions fit but for the changes."""
    fits = {
        "init": lambda key, theta, norm: (),
        "craft": craft,
        "score": lambda state, seen, theta_t, theta_0: theta_t[:1],
    }
    return lambda: of_loss(adversary=Adversary(**{**fits, **changes}))


def several(state, step, theta):
    return jnp.ones((4, theta.size))


TWO, KEYS = (
    Coordinates(jnp.arange(2), jnp.ones(2)),
    Directions(jax.random.split(jax.random.key(0), 2), 1.0),
)
ADVERSARIES = [
    ("ignores canaries", own(canaries=4), "craft gives shape (1, 5): give an array (canaries, parameters)"),
    ("more canaries than said", own(craft=several), "craft gives shape (4, 5)"),
    ("a flat craft", own(craft=lambda s, i, t: t), "craft gives shape (5,)"),
    ("craft of None", own(craft=lambda s, i, t: None), "craft gives shape NoneType"),
    ("craft of a list", own(craft=lambda s, i, t: [t]), "craft gives shape list"),
    ("craft that fails", own(craft=lambda s, i, t: t @ jnp.ones(9)), "fails on a model of 5 parameters"),
    ("a score of no axis", own(score=lambda s, seen, t, t0: t[0]), "score gives shape ()"),
    ("a score a parameter", own(score=lambda s, seen, t, t0: t), "score gives shape (5,)"),
    ("a score a canary and more", own(score=lambda s, seen, t, t0: t[:1, None]), "score gives shape (1, 1)"),
    ("a score of None", own(score=lambda s, seen, t, t0: None), "score gives shape NoneType"),
    ("a score that fails", own(score=lambda s, seen: 0), "fails on a model"),
    ("few coordinates", own(canaries=3, craft=lambda *_: TWO), "Coordinates of 2 canaries: give 3, or an"),
    ("few keys", own(canaries=3, craft=lambda *_: KEYS), "Directions of 2 canaries: give 3, or an array"),
    *((f"canaries={k!r}", own(canaries=k), "`canaries=") for k in (1.5, "all", None, 0, -1, HUGE, True)),
]  # fmt: skip
COUNTS = ("x", 1.5, None, True, [1], -1, HUGE, LONG, np.nan, 1j, np.ones(2))


def canary(seed=0, index=0, dimension=9):
    return one_run.canary(seed, index, dimension)


def cosines(displacement=IN, seed=0, count=3, first=0):
    return one_run.cosines(displacement, seed, count, first)


def coins(seed=0, count=3):
    return one_run.coins(seed, count)


ONE_RUN = [
    *(each(canary, name, f"`{name}=", *COUNTS) for name in ("seed", "index", "dimension")),
    *(each(cosines, name, f"`{name}=", *COUNTS) for name in ("seed", "count", "first")),
    *(each(coins, name, f"`{name}=", *COUNTS) for name in ("seed", "count")),
    each(canary, "dimension", "give 2 to 10,000,000,000", 0, 1, 10**14),
    each(cosines, "count", "give 1 to 5,000,000", 0, 10**12),
    [
        (f"displacement: {note}", lambda v=value: cosines(displacement=v), "displacement")
        for note, (value, _) in ARRAYS.items()
    ],
]


def inserted(seed=0, run=0, count=3, dimension=9, norm=1.0):
    return directions.inserted(seed, run, count, dimension, norm)


def turned(displacement=IN, seed=0, run=0, count=3, leave_one_out=False):
    return directions.cosines(displacement, seed, run, count, leave_one_out)


DIRECTIONS = [
    *(each(inserted, name, f"`{name}=", *COUNTS) for name in ("seed", "run", "count", "dimension")),
    *(each(turned, name, f"`{name}=", *COUNTS) for name in ("seed", "run", "count")),
    each(inserted, "norm", "`norm=", "x", None, True, 0, -1, np.nan, np.inf, 1j),
    each(inserted, "count", "give 1 to 20,000", 0, 10**6),
    each(turned, "leave_one_out", "`leave_one_out=", None, 1, "x"),
    [
        (
            "many",
            lambda: turned(count=60, leave_one_out=True),
            "fewer canaries than the 60 coordinates",
        )
    ],
    [
        (f"displacement: {note}", lambda v=value: turned(displacement=v), "displacement")
        for note, (value, _) in ARRAYS.items()
    ],
]
STATED = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "learning_rate": 1.0, "batch_size": 4}


def checked(step=lambda w, batch, seed: w, params=np.ones(3), batch=(X, Y), **given):  # noqa: B008
    return audit.check_step(step, params, batch, **{**STATED, **given})


def batches(draw=lambda seed: [[0, 1], [2]], examples=9, sampling_rate=0.5, **given):
    return audit.check_batches(draw, examples, sampling_rate, **given)


def claimed(epsilon=1.0, delta=1e-5, noise_multiplier=1.0, steps=10, **given):
    return audit.check_accounting(
        epsilon, delta, noise_multiplier=noise_multiplier, steps=steps, **given
    )


def fails(params, batch, seed):
    raise KeyError("mine")


CHECKS = [
    *(case for name in STATED for case in typed(checked, name, -1, np.nan, np.inf)),
    *each(checked, "batch_size", "`batch_size=0", 0),
    *typed(checked, "seeds", 3, 1.5, 10**9, optional=True),
    *each(checked, "step", "is no function", None, 1, "x"),
    *each(checked, "step", "returned nothing", lambda *_: None),
    *each(checked, "step", "returned no 'parameters'", lambda *_: {"w": np.ones(3)}),
    *each(checked, "step", "of other shapes", lambda *_: np.ones(2)),
    ("step raises", lambda: checked(fails), "failed on the batch as given: KeyError: 'mine'"),
    *each(checked, "params", "`params", None, "x", 1, {}, [], np.ones(3, int), np.array(np.nan), {"w": ""}),
    *each(checked, "batch", "`batch", None, "x", (), (X, Y[:3]), (X[:0],), (X, 1.0), (np.float64(1),)),
    *each(checked, "extreme_examples", "`extreme_examples", "x", (), (X[:, :2], Y), (X,)),
    *each(batches, "draw", "`draw", None, 1, lambda _: None, lambda _: [], lambda _: [["a"]], lambda _: [[9]],
          lambda _: [[-1]], lambda _: [[0.5]], lambda _: 3),
    *typed(batches, "examples", 1, 0, 1.5, 10**12), *typed(batches, "sampling_rate", 0, 1, -1, np.nan),
    *each(batches, "assumed", "`assumed=", None, 1, "round", [1]),
    *typed(batches, "noise_multiplier", 0, -1, np.nan, np.inf, optional=True),
    *typed(batches, "epochs", 0, -1, 10**6, 1.5, noise_multiplier=1.0),
    *typed(batches, "delta", 0, 2, -1, np.nan, noise_multiplier=1.0),
    *typed(claimed, "epsilon", -1, np.nan, np.inf), *typed(claimed, "delta", 0, 1, -1, np.nan),
    *typed(claimed, "noise_multiplier", 0, -1, np.nan, np.inf), *typed(claimed, "steps", 0, -1, 1.5, 10**12),
    *typed(claimed, "sampling_rate", 0, 2, -1, np.nan),
    *each(claimed, "batches", "`batches=", None, "cyclic", 1),
    *typed(claimed, "examples", optional=True),
]  # fmt: skip
CORPUS = {
    "checks": CHECKS,
    "bounds": BOUNDS,
    "cosines": COSINES,
    "hidden state": HIDDEN,
    "result": RESULTS,
    "audit": AUDIT,
    "own": OWN,
    "adversary": ADVERSARIES,
}
CORPUS["directions"] = [case for cases in DIRECTIONS for case in cases]
CORPUS["one_run"] = [case for cases in ONE_RUN for case in cases]
CASES = [
    pytest.param(call, says, id=f"{door} {number}: {name}")
    for door, cases in CORPUS.items()
    for number, (name, call, says) in enumerate(cases)
]


@pytest.mark.parametrize(("call", "says"), CASES)
def test_a_bad_argument_is_one_line_and_trains_nothing(tmp_path, monkeypatch, call, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        ensemble, "compiled_for", lambda *_, **__: pytest.fail("compiled")
    )  # all that trains
    with warnings.catch_warnings(), pytest.raises(InputError) as refused:
        warnings.simplefilter("error")
        call()
    said = str(refused.value)
    assert says in said and "\n" not in said and len(said) < 1500
    assert not list(tmp_path.iterdir())
