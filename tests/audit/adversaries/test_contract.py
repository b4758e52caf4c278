"""Tests that every adversary meets the contract."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.adversaries import biased, directions
from audit.adversaries.base import Adversary, AdversaryFields, Observer, check_shapes
from audit.mechanism import base
from audit.mechanism.clipping.base import per_example
from audit.settings import make
from audit.settings.adversaries import ADVERSARIES
from audit.settings.fields import described
from audit.settings.make import setting_of
from audit.training import build, game
from tests import programs
from tests.cases import mostly_slow

NORM = 2.0
FIT = {"poisoned": {"first_direction": 4, "end_direction": 8}}  # to small data
CASES = [(name, 1) for name in ADVERSARIES if name != "one_shot"]
CASES += [(name, 4) for name in ADVERSARIES if name != "clip_bkd"]
CASES += [(f"gc_s {variant}", 1) for variant in biased.GC_S_VARIANTS if variant.startswith("noisy")]
QUICK = [*CASES[:3], *[(name, 4) for name in ("gc_r", "sphere", "examples", "loss")]]
CASES = [*QUICK, *[case for case in CASES if case not in QUICK]]
EXAMPLES = [name for name in ADVERSARIES if ADVERSARIES[name].reads_theta]
DRAWN = {name for name in ADVERSARIES if name != "clip_bkd"} - {"gc_s"}


@pytest.fixture(scope="module")
def theta(model):
    return model.init(jax.random.key(0))


@pytest.fixture(scope="module", params=mostly_slow([(case,) for case in CASES], quick=len(QUICK)))
def played(request, small_dataset):
    """(the adversary's name, its game on 40 examples)."""
    name, canaries = request.param
    adversary, *variant = name.split()
    fields = {"batch_size": 10, "steps": 3, "clipping_norm": NORM, **FIT.get(adversary, {})}
    fields |= {"gc_s": variant[0]} if variant else {}
    setting = setting_of("fcnn", adversary=adversary, canaries=canaries, **fields)
    return name, build.build(setting, small_dataset)


@pytest.fixture(scope="module")
def adversary(played):
    return played[1].adversary


@pytest.fixture(scope="module")
def state(adversary, theta):
    """The adversary's state in a run."""
    common = adversary.init(jax.random.key(1), theta, jnp.float32(NORM))
    check_shapes(adversary, common, theta.size)
    return adversary.draw_for_run(common, jax.random.key(2))


def _values(tree):
    """The arrays of a tree; of keys their data."""
    for leaf in jax.tree.leaves(tree):
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        yield jax.random.key_data(leaf) if is_key else leaf


def _same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(_values(a), _values(b), strict=True))


def _inserted(model, adversary, state, theta, presence, norm=NORM, mask=1.0):
    craft = functools.partial(adversary.craft, state)
    canaries = base.Canaries(craft, jnp.asarray(presence, jnp.float32))
    norms, clipped = (jnp.float32(norm), jnp.float32(mask)), per_example(model.loss)
    return np.asarray(base.sum_canaries(canaries, jnp.int32(0), theta, *norms, clipped))


def test_each_canary_is_clipped_by_itself_and_neighbours_differ_by_one(
    played, model, adversary, state, theta
):
    count, name = adversary.canaries, played[0]
    insert = functools.partial(_inserted, model, adversary, state)
    alone = np.array([insert(theta, row) for row in np.eye(count)])
    lengths = np.linalg.norm(alone, axis=1)
    assert (lengths > 0).all() and (lengths <= NORM * (1 + 1e-5)).all()
    assert name in EXAMPLES or np.allclose(lengths, NORM, rtol=1e-5)
    for presence in (np.ones(count), np.arange(count) % 2, np.zeros(count)):
        np.testing.assert_allclose(insert(theta, presence), presence @ alone, atol=1e-5)
    assert not insert(theta, np.ones(count), mask=0.0).any()
    assert np.linalg.norm(insert(theta, np.eye(count)[0], norm=0.1)) <= 0.1 * (1 + 1e-5)
    moved = np.array([insert(theta + 1.0, row) for row in np.eye(count)])
    assert adversary.reads_theta == (name in EXAMPLES)
    assert adversary.reads_theta or np.allclose(moved, alone, atol=1e-6)


def test_each_score_rises_with_its_own_canary(played, model, adversary, state, theta):
    """A shift of theta along minus a canary moves that canary's score most."""
    if adversary.observer is not None:
        pytest.skip("its scores are of what it saw")
    otherwise = theta + 0.02 * jax.random.normal(jax.random.key(9), theta.shape)
    before = np.asarray(adversary.score(state, (), otherwise, theta))
    for row in np.eye(adversary.canaries):
        shift = 0.1 * _inserted(model, adversary, state, otherwise, row)
        gained = np.asarray(adversary.score(state, (), otherwise - shift, theta)) - before
        assert row @ gained > 0
        assert row @ gained >= gained.max() - 1e-6 or played[0] in EXAMPLES


def test_what_is_decided_depends_on_the_key_alone(played, adversary, theta):
    first, again, *others = (
        adversary.init(jax.random.key(seed), theta, jnp.float32(NORM)) for seed in (1, 1, 2, 3, 4)
    )
    assert _same(first, again)
    is_drawn = played[0] in DRAWN or "noisy" in played[0]
    assert any(not _same(other, first) for other in others) == is_drawn


def test_cosines_are_1_along_the_canary_and_those_of_weights_know_no_beginning(theta):
    adversary = directions.single_direction()
    state = adversary.init(jax.random.key(1), theta, jnp.float32(NORM))
    for t, cosine in ((1e-2, 1), (10.0, 1), (-3.0, -1)):
        found = adversary.score(state, (), theta - t * state.canaries[0], theta)
        np.testing.assert_allclose(found, cosine, rtol=1e-5)
    adversary = directions.single_direction(directions.zero_model)
    state = adversary.init(jax.random.key(1), theta, jnp.float32(NORM))
    unit, end = np.asarray(state.canaries[0]) / NORM, theta + 0.3
    expected = -unit @ end / np.linalg.norm(end)
    np.testing.assert_allclose(adversary.score(state, (), end, theta), expected, rtol=1e-5)
    np.testing.assert_allclose(adversary.score(state, (), end, theta - 1), expected, rtol=1e-5)


# The functions of an adversary that may read its field.
READERS = ("score", "craft", "draw", "init", "observe")


@dataclasses.dataclass(frozen=True)
class Stranger(AdversaryFields):
    """The fields of an adversary that a stranger adds: a factor, and the function that reads it."""

    name: ClassVar[str] = "stranger"
    factor: float = described("stranger: the factor.", default=1.0)
    reader: str = described("stranger: what reads it.", default="score", choices=READERS)

    def factor_of(self, function):
        return self.factor if self.reader == function else 1.0

    def make(self, knowledge):
        def init(key, theta_0, clipping_norm):
            return jnp.full_like(theta_0, self.factor_of("init"))

        def draw(state, key):
            return self.factor_of("draw") * state

        def craft(state, step, theta):
            return self.factor_of("craft") * state[None] / 100

        def observe(state, seen, step, released):
            return self.factor_of("observe") * (step + 1.0)

        def score(state, seen, theta_t, theta_0):
            return self.factor_of("score") * (seen + jnp.vdot(state, theta_0 - theta_t))[None]

        observer = Observer(lambda state, theta_0: 0.0, observe)
        return Adversary(init, craft, score, observer=observer, draw=draw)


@pytest.fixture
def audited(dataset, tmp_path):
    """audited(**fields) -> the setting and its scores, of a small audit in one store."""

    def audit(name="audited", **changes):
        chosen = {"batch_size": 10, "steps": 3, "clipping_norm": NORM, **changes}
        setting = setting_of("fcnn", **chosen)
        store = make.open_store(tmp_path / name, setting, dataset)
        return game.train(build.build(setting, dataset), store, runs=4).scores.scores

    return audit


@pytest.fixture
def stranger(monkeypatch):
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
