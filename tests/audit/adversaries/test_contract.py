"""One contract for every adversary."""

import dataclasses
import functools
import itertools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.adversaries import biased, directions, examples
from audit.adversaries.base import Adversary, AdversaryFields, Observer, shapes
from audit.errors import InputError
from audit.mechanism import base, dpsgd, ensemble
from audit.mechanism.clipping.base import clip, per_example
from audit.settings import make, stored
from audit.settings.adversaries import ADVERSARIES
from audit.settings.fields import described
from audit.settings.make import setting_of
from audit.tasks.task import Dataset
from audit.training import build, game
from tests import programs
from tests.cases import mostly_slow

NORM = 2.0
HYPER = base.Hyperparameters(0.3, NORM, 1.5)
GC_S = {
    f"gc_s {'noisy' if noisy else 'noiseless'} {'per step' if per_step else 'final model'}": (
        noisy,
        per_step,
    )
    for noisy, per_step in itertools.product((True, False), repeat=2)
}
CRAFTERS = ("gc_r", "cots", "cots of weights", *GC_S)
DRAWN = (
    "gc_r",
    "cots",
    "cots of weights",
    "loss",
    *(name for name, (noisy, _) in GC_S.items() if noisy),
)


def _gc_s(mechanism, data, noisy, per_step):
    batches = base.fixed_shuffle(jax.random.key(3), len(data[1]), 50, 6)
    hyper = HYPER if noisy else dpsgd.without_privacy(HYPER)

    @jax.jit
    def simulate(key, theta_0):
        return base.simulate(mechanism, hyper, theta_0, data, batches, key)

    return biased.simulated_biased_dimension(simulate, 2 if noisy else 1, per_step)


@pytest.fixture(scope="module")
def theta(model):
    return model.init(jax.random.key(0))


@pytest.fixture(scope="module", params=[*CRAFTERS, "loss"])
def named(request, model, mechanism, data):
    make = {
        "gc_r": biased.random_biased_dimension,
        "cots": directions.random_direction,
        "cots of weights": lambda: directions.random_direction(directions.zero_model),
        "loss": lambda: examples.flipped_label(model.loss, *data, classes=2),
    }
    for name, variant in GC_S.items():
        make[name] = functools.partial(_gc_s, mechanism, data, *variant)
    return request.param, make[request.param]()


@pytest.fixture(scope="module")
def adversary(named):
    return named[1]


@pytest.fixture(scope="module")
def state(adversary, theta):
    return adversary.init(jax.random.key(1), theta, jnp.float32(NORM))


def _same(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in leaves)


@pytest.mark.slow
def test_what_is_inserted_has_norm_at_most_c_and_reads_the_model_only_if_said(named, state, theta):
    name, adversary = named
    crafted = adversary.craft(state, 0, theta)
    assert crafted.shape == (adversary.canaries, theta.size) and crafted.dtype == theta.dtype
    if name in CRAFTERS:
        np.testing.assert_allclose(np.linalg.norm(crafted), NORM, rtol=1e-6)
    for norm in (NORM, 0.1):
        assert np.linalg.norm(clip(crafted[0], norm)) <= norm * (1 + 1e-6)
    assert np.any(crafted)
    here, there = (adversary.craft(state, 0, t) for t in (theta, theta + 1.0))
    assert (
        adversary.reads_theta == (name == "loss")
        and np.array_equal(here, there) != adversary.reads_theta
    )


def test_functions_map_compile_and_score_what_did_not_move(adversary, state, theta):
    thetas = theta + jnp.linspace(0, 1, 3)[:, None] * jnp.cos(jnp.arange(theta.size))
    crafted = jax.jit(jax.vmap(adversary.craft, (None, None, 0)))(state, jnp.int32(4), thetas)
    scores = jax.jit(jax.vmap(adversary.score, (None, None, 0, None)))(state, (), thetas, theta)
    assert scores.shape == (3, adversary.canaries)
    for i in range(3):
        alone = adversary.craft(state, 4, thetas[i]), adversary.score(state, (), thetas[i], theta)
        for one, other in zip((crafted[i], scores[i]), alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert np.isfinite(adversary.score(state, (), theta, theta)).all()


def test_the_update_subtracts_what_is_inserted_and_the_score_rises(adversary, state, theta):
    """A shift of theta along minus the crafted gradient, on top of what training does otherwise."""
    otherwise = 0.02 * jax.random.normal(jax.random.key(9), theta.shape)
    crafted = clip(adversary.craft(state, 0, theta + otherwise)[0], NORM)
    shifts = (-0.05, 0, 0.05, 0.1, 0.2)
    scores = [
        adversary.score(state, (), theta + otherwise - t * crafted, theta).item() for t in shifts
    ]
    assert np.isfinite(scores).all() and (np.diff(scores) > 1e-4).all()


def test_what_is_decided_depends_on_the_key_alone(named, state, theta):
    name, adversary = named
    assert _same(adversary.init(jax.random.key(1), theta, jnp.float32(NORM)), state)
    others = [
        adversary.init(jax.random.key(seed), theta, jnp.float32(NORM)) for seed in range(2, 10)
    ]
    assert any(not _same(other, state) for other in others) == (name in DRAWN)


@pytest.mark.slow
def test_the_loss_canary_is_an_example_with_a_wrong_label(model, data, theta):
    for classes in (2, 5):
        labels = jnp.arange(200) % classes
        adversary = examples.flipped_label(model.loss, data[0], labels, classes)
        init = jax.jit(jax.vmap(adversary.init, (0, None, None)))
        features, wrong = init(jax.random.split(jax.random.key(0), 300), theta, NORM)
        rows = np.array(
            [np.flatnonzero((data[0] == x).all(axis=1)).item() for x in np.asarray(features)]
        )
        assert len(np.unique(rows)) > 100
        assert set((np.asarray(wrong) - np.asarray(labels)[rows]) % classes) == set(
            range(1, classes)
        )
        assert set(np.asarray(wrong)) <= set(range(classes))


def test_cosines_are_1_along_the_canary_and_those_of_weights_know_no_beginning(theta):
    adversary = directions.random_direction()
    state = adversary.init(jax.random.key(1), theta, jnp.float32(NORM))
    for t, cosine in ((1e-2, 1), (10.0, 1), (-3.0, -1)):
        found = adversary.score(state, (), theta - t * state.gradient[0], theta)
        np.testing.assert_allclose(found, cosine, rtol=1e-5)
    adversary = directions.random_direction(directions.zero_model)
    state = adversary.init(jax.random.key(1), theta, jnp.float32(NORM))
    unit, end = np.asarray(state.gradient[0]) / NORM, theta + 0.3
    expected = -unit @ end / np.linalg.norm(end)
    np.testing.assert_allclose(adversary.score(state, (), end, theta), expected, rtol=1e-5)
    np.testing.assert_allclose(adversary.score(state, (), end, theta - 1), expected, rtol=1e-5)


def test_directions_are_uniform_on_the_sphere(theta):
    init = jax.jit(jax.vmap(directions.random_direction().init, (0, None, None)))
    drawn = (
        np.asarray(init(jax.random.split(jax.random.key(0), 4000), theta, NORM).gradient)[:, 0]
        / NORM
    )
    covariance = drawn.T @ drawn / 4000 * theta.size
    np.testing.assert_allclose(covariance, np.eye(theta.size), atol=6 / np.sqrt(4000) * 1.5)
    assert np.abs(drawn.mean(axis=0)).max() < 6 / np.sqrt(4000 * theta.size)


FIT = {"poisoned": {"first_direction": 4, "end_direction": 8}}  # to small data


def built(name, canaries):
    """The game of an adversary of the registry on 40 examples; None where it takes no such number."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 8)).astype(np.float32)
    dataset = Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0")
    fields = {"batch_size": 10, "steps": 3, **FIT.get(name, {})}
    setting = setting_of("fcnn", adversary=name, canaries=canaries, clipping_norm=NORM, **fields)
    try:
        return build.build(setting, dataset)
    except InputError as error:
        assert "canaries" in str(error)
        return None


@pytest.mark.parametrize("name", mostly_slow(ADVERSARIES, quick=5))
def test_every_adversary_of_the_registry_inserts_at_most_c_and_scores_each_canary(name, model):
    games = [played for canaries in (1, 4) if (played := built(name, canaries))]
    assert games
    for played in games:
        adversary = played.adversary
        theta = played.init(jax.random.key(0))
        state = adversary.init(jax.random.key(1), theta, jnp.float32(NORM))
        shapes(adversary, state, theta.size)
        run = adversary.draw_for_run(state, jax.random.key(2))
        seen = () if adversary.observer is None else adversary.observer.begin(run, theta)
        craft = functools.partial(adversary.craft, run)
        for presence in np.eye(adversary.canaries, dtype=np.float32):
            canaries = base.Canaries(craft, jnp.asarray(presence))
            norms = jnp.float32(NORM), jnp.float32(1)
            clipped = per_example(model.loss)
            inserted = base.sum_canaries(canaries, jnp.int32(0), theta, *norms, clipped)
            assert 0 < np.linalg.norm(inserted) <= NORM * (1 + 1e-5)
        scores = adversary.score(run, seen, theta + 0.1, theta)
        assert scores.shape == (adversary.canaries,) and np.isfinite(scores).all()


# The functions of an adversary that may read its field.
READERS = ("score", "craft", "draw", "init", "observe")


@dataclasses.dataclass(frozen=True)
class Stranger(AdversaryFields):
    """The fields of an adversary that a stranger adds: a factor, and the function that reads it."""

    name: ClassVar[str] = "stranger"
    made_by = staticmethod(lambda fields, knowledge: None)
    factor: float = described("stranger: the factor.", default=1.0)
    reader: str = described("stranger: what reads it.", default="score", choices=READERS)

    def factor_of(self, function):
        return self.factor if self.reader == function else 1.0

    def make(self, knowledge):
        return self.made_by(self, knowledge)


def _make_closures(fields, knowledge):
    """The stranger's adversary by functions within a function."""

    def init(key, theta_0, clipping_norm):
        return jnp.full_like(theta_0, fields.factor_of("init"))

    def draw(state, key):
        return fields.factor_of("draw") * state

    def craft(state, step, theta):
        return fields.factor_of("craft") * state[None] / 100

    def observe(state, seen, step, released):
        return fields.factor_of("observe") * (step + 1.0)

    def score(state, seen, theta_t, theta_0):
        return fields.factor_of("score") * (seen + jnp.vdot(state, theta_0 - theta_t))[None]

    observer = Observer(lambda state, theta_0: 0.0, observe)
    return Adversary(init, craft, score, observer=observer, draw=draw)


@dataclasses.dataclass(frozen=True)
class _Function:
    """A function of the stranger's adversary: equal to another if its fields and its name are."""

    fields: Stranger
    name: str

    def __call__(self, *arguments):
        adversary = _make_closures(self.fields, None)
        functions = {**adversary._asdict(), **adversary.observer._asdict()}
        return functions[self.name](*arguments)


def _make_values(fields, knowledge):
    """The same adversary by functions that are equal if the fields are."""
    names = ("init", "craft", "score", "draw", "begin", "observe")
    init, craft, score, draw, *observer = (_Function(fields, name) for name in names)
    return Adversary(init, craft, score, observer=Observer(*observer), draw=draw)


@pytest.fixture
def audited(data, tmp_path):
    """audited(**fields) -> the setting and its scores, of a small audit in one store."""
    dataset = Dataset(*(np.asarray(part) for part in data), "made up", "0")

    def audit(name="audited", **changes):
        chosen = {"batch_size": 10, "steps": 3, "clipping_norm": NORM, **changes}
        setting = setting_of("fcnn", **chosen)
        store = stored.open_store(tmp_path / name, setting, dataset)
        return game.train(build.build(setting, dataset), store, runs=4).scores.scores

    return audit


@pytest.fixture(params=[_make_closures, _make_values])
def stranger(request, monkeypatch):
    monkeypatch.setattr(Stranger, "made_by", staticmethod(request.param))
    monkeypatch.setitem(ADVERSARIES, "stranger", Stranger)
    make.fields.cache_clear()
    yield
    make.fields.cache_clear()


@pytest.mark.parametrize("reader", mostly_slow(READERS))
def test_two_values_of_a_field_never_share_scores(stranger, audited, reader):
    one, two = (audited(adversary="stranger", reader=reader, factor=f) for f in (1.0, 0.5))
    assert np.abs(one - two).max() > 1e-3
    programs.forget()
    alone = audited("alone", adversary="stranger", reader=reader, factor=0.5)
    np.testing.assert_array_equal(two, alone)


@pytest.mark.slow
def test_functions_that_are_equal_by_value_are_compiled_once(audited, monkeypatch):
    """And what differs from one cell to the next is an argument."""
    monkeypatch.setattr(Stranger, "made_by", staticmethod(_make_values))
    monkeypatch.setitem(ADVERSARIES, "stranger", Stranger)
    make.fields.cache_clear()
    programs.forget()
    for change in ({}, {"seed": 1}, {"periodicity": 3}, {"noise_multiplier": 2.0}):
        audited(adversary="stranger", **change)
    assert ensemble._compile.cache_info().currsize == 1
    audited(adversary="stranger", factor=0.5)
    assert ensemble._compile.cache_info().currsize == 2
    make.fields.cache_clear()


@pytest.mark.slow
def test_two_optimizers_of_one_name_never_share_scores(audited, monkeypatch):
    """What is compiled in decides, not its name."""
    chosen = {"adversary": "gc_r", "optimizer": "momentum"}
    usual = audited("usual", **chosen)
    optimizer = functools.partial(optax.sgd, momentum=0.5)
    monkeypatch.setitem(build.OPTIMIZERS, "momentum", optimizer)
    other = audited("other", **chosen)
    assert np.abs(usual - other).max() > 1e-4
    programs.forget()
    np.testing.assert_array_equal(audited("alone", **chosen), other)
