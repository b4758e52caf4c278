"""Tests the Lipschitz constants of steps, and the reasons if there is no bound."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import audit
from audit import own
from audit.adversaries.base import Adversary
from audit.conclusions import lipschitz
from audit.conclusions.concluded import conclude_setting
from audit.errors import InputError
from audit.mechanism.base import Examples, no_canaries
from audit.settings.make import setting_of
from audit.storage.store import Store
from audit.tasks.task import Dataset
from audit.training import build
from tests.audit.test_own import SMALL
from tests.cases import NO_LEAK

ROWS = np.random.default_rng(0).normal(size=(60, 12)).astype(np.float32)
ROWS /= np.linalg.norm(ROWS, axis=1).max() * 1.0001
LABELS = (ROWS[:, 0] > 0).astype(np.int32)
DATA = Dataset(ROWS, LABELS, "made up", "0" * 64)
MOMENTUM = f"a step of momentum depends on more than the last model, and {lipschitz.MOMENTUM_LEAKS}"


def of(model="logistic", **more):
    length = {} if "steps" in more else {"insertions": 250}
    return setting_of(model, **{**length, "k": 5, **more})


def last(setting, **more):
    return lipschitz.hidden_state(setting, 1e-5, **more)


@pytest.mark.parametrize(
    ("fields", "mu", "epsilon"),
    [
        ({"k": 1}, 3.952847, 23.9954),
        ({}, 1.781853, 8.6792),
        ({"insert": "first"}, 1.767767, 8.5959),
        ({"weight_decay": 0.02}, 0.735049, 3.0756),
        pytest.param({"sampler": "poisson:0.5"}, 1.781853, 8.6792, marks=pytest.mark.slow),
        ({"unknown_initialisation": True, "canaries": 9}, 1.781853, 8.6792),
        ({"noise_multiplier": 0.0}, np.inf, np.inf),
    ],
)
def test_a_convex_models_bound_is_the_accountants(fields, mu, epsilon):
    found = last(of(**fields))
    assert found.bound.mu == pytest.approx(mu, abs=1e-6)
    assert found.bound.epsilon == pytest.approx(epsilon, abs=1e-4)
    concluded = conclude_setting(NO_LEAK, of(**fields))
    assert concluded.hidden_state.bound.mu == found.bound.mu and not concluded.uncovered
    assert "any data with |x| <= 1" in str(concluded.hidden_state.reason)


@pytest.mark.parametrize(
    ("fields", "reached", "attained"),
    [
        ({"insert": "first"}, 1.767767, True),
        ({"k": 1, "weight_decay": 0.02}, 3.2515, True),
        ({"weight_decay": 0.02}, 0.7196, False),
    ],
)
def test_a_constant_direction_attains_the_bound_or_falls_short(fields, reached, attained):
    setting = of(**fields)
    mu = lipschitz.compute_mu_along_one_direction(setting)
    assert mu == pytest.approx(reached, abs=1e-4)
    assert (mu == pytest.approx(last(setting).bound.mu, rel=1e-9)) == attained


def test_steps_that_are_no_whole_period_are_counted_as_they_are():
    whole, torn = (
        last(setting_of("logistic", k=5, insert="first", steps=steps)) for steps in (15, 11)
    )
    shifts = np.arange(11) % 5 == 0
    alone = lipschitz.hidden_state_bound(shifts, 1.0, 4.0, 1e-5)
    assert torn.bound.mu == pytest.approx(alone.mu) and torn.bound.mu > whole.bound.mu


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "fcnn"}, "a network with ReLU is not smooth"),
        (
            {"model": "linear"},
            "the clipped gradient of a multi-class softmax is not that of a convex loss",
        ),
        ({"optimizer": "momentum"}, MOMENTUM),
        ({"precision": "tf32"}, "matrix products are rounded to tf32"),
        (
            {"adversary": "one_shot", "canaries": 9, "observe": "all"},
            "this adversary sees every model",
        ),
        ({"k": 1, "canaries": 9, "sampler": "known:3"}, "each canary is inserted at random steps"),
        (
            {"adversary": "loss", "canaries": 9},
            "the gradients of the other canaries depend on the model",
        ),
    ],
)
def test_what_is_not_covered_says_why(fields, said):
    setting = of(**fields)
    assert last(setting) == said
    if setting.canaries == 1:
        concluded = conclude_setting(NO_LEAK, setting)
        assert concluded.hidden_state is None and concluded.uncovered == said
        assert concluded.tightest.epsilon == concluded.upper_bound


@pytest.mark.parametrize(
    ("model", "curvature", "rate", "decay"),
    [
        ("logistic", 0.25, 0.5, 0.2),
        ("logistic", 0.25, 240.0, 0.0),
        ("logistic", 0.25, 300.0, 0.004),
    ],
)
def test_a_step_is_as_lipschitz_as_its_batch_says(model, curvature, rate, decay):
    """Of the mechanism itself, clipping included; at large rates batches differ."""
    setting = of(model, k=1, steps=8, batch_size=5, learning_rate=rate, weight_decay=decay)
    setting = dataclasses.replace(
        setting,
        mechanism=dataclasses.replace(setting.mechanism, clipping_norm=0.4, noise_multiplier=0.0),
    )
    game = build.build(setting, DATA)
    batches = np.asarray(game.schedule.batches)
    row = lipschitz.task.task(model)
    moments = [ROWS[batch].astype(float).T @ ROWS[batch] / 5 for batch in batches]
    smoothness = curvature * np.array([np.linalg.eigvalsh(moment)[-1] for moment in moments])
    expected = np.maximum(abs(1 - rate * decay), np.abs(1 - rate * (decay + smoothness)))
    assert row.curvature.largest_eigenvalue == curvature
    largest = lipschitz._find_constant(setting, row.curvature)
    assert expected.max() <= largest * (1 + 1e-12)

    def after(theta, t):
        now = game.schedule._replace(batches=game.schedule.batches[t][None], mask=jnp.zeros(1))
        state, canaries = game.mechanism.start(theta), no_canaries()
        hyper = jax.tree.map(jnp.float32, game.hyper)
        return game.mechanism.segment(
            hyper, state, game.data, now, canaries, jax.random.key(0)
        ).theta

    run, keys = jax.jit(after), jax.random.split(jax.random.key(1), 24)
    for number, key in enumerate(keys):
        one, other = jax.random.normal(key, (2, 12)) * (0.3, 30.0)[number % 2]
        if number % 3 == 0:
            other = one + 1e-2 * moments[number % 8] @ np.asarray(
                other
            )  # along what the data vary in
        moved = np.linalg.norm(
            np.subtract(run(one, number % 8), run(other, number % 8), dtype=float)
        )
        assert (
            moved
            <= expected[number % 8] * np.linalg.norm(np.subtract(one, other, dtype=float)) * 1.0001
        )


def test_a_damaged_file_of_constants_is_one_line(tmp_path):
    store = Store(tmp_path, {"a": 1})
    assert lipschitz.find_current(store) is None
    (store.path / "lipschitz.json").write_text("{")
    with pytest.raises(InputError, match="lipschitz.json is damaged: move it away"):
        lipschitz.find_current(store)


def loss(params, labelled):
    return jnp.logaddexp(0, -(2 * labelled[1] - 1) * (params @ labelled[0]))


@pytest.mark.parametrize("constants", [[1.0, 1.0], "a word", -1.0, np.nan])
@pytest.mark.parametrize(
    "fields",
    [
        {"sampler": "poisson:0.5", "noise_multiplier": 1.0},
        {"sampler": "shuffled:2", "noise_multiplier": 1.0},
        {"noise_multiplier": 0.0},
    ],
)
def test_constants_out_of_range_are_refused_in_a_line_with_any_sampler(fields, constants):
    setting = setting_of("fcnn", steps=6, **fields)
    given = lipschitz.Steps(constants, "as given")
    with pytest.raises(InputError, match="`lipschitz`"):
        lipschitz.hidden_state(setting, 1e-5, given, own_model=True)


def _make_own_adversary(craft, **fields):
    def init(key, theta_0, clipping_norm):
        return theta_0

    def score(state, seen, theta_t, theta_0):
        return jnp.zeros(2)

    return Adversary(init, craft, score, canaries=2, **fields)


def _craft_gradients(state, step, theta):
    return jnp.stack([theta, -theta])


def _craft_directions(state, step, theta):
    return jnp.stack([state, -state])


def _craft_examples(state, step, theta):
    return Examples(jnp.zeros((2, *ROWS.shape[1:])), jnp.zeros(2, jnp.int32))


@pytest.mark.parametrize(
    ("craft", "reads_theta"), [(_craft_gradients, True), (_craft_examples, False)]
)
def test_an_author_cannot_vouch_where_other_canaries_depend_on_the_model(
    craft, reads_theta, tmp_path
):
    adversary = _make_own_adversary(craft, reads_theta=reads_theta)
    request = {**SMALL, "adversary": adversary, "out": tmp_path}
    with pytest.raises(InputError, match="the gradients of the other canaries depend on the model"):
        audit.audit_loss(loss, jnp.zeros(12), ROWS, LABELS, **request, lipschitz=1.0)
    assert not list(tmp_path.iterdir())  # nothing was trained


def test_an_author_may_vouch_beside_several_canaries_that_are_fixed():
    assert own._why_adversary_uncovered(_make_own_adversary(_craft_directions), 12) == ""


@pytest.mark.slow
def test_an_author_vouches_for_the_steps_of_a_model(tmp_path):
    request = {**SMALL, "out": tmp_path, "learning_rate": 0.5, "k": 2}

    def audited(**more):
        return audit.audit_loss(loss, jnp.zeros(12), ROWS, LABELS, **request, **more)

    first = audited(lipschitz=1.0)
    expected = lipschitz.hidden_state_bound([0, 1, 0, 1], 1.0, 1.0, 1e-5)
    assert first.conclusion.hidden_state.bound.epsilon == pytest.approx(expected.epsilon)
    assert "as its author vouches" in first.conclusion.hidden_state.reason
    assert (
        first.subject().conclusion.hidden_state.bound.mu == first.conclusion.hidden_state.bound.mu
    )
    each = audited(lipschitz=[1.0, 0.5, 0.5, 0.5])
    assert each.folder == first.folder
    assert each.conclusion.hidden_state.bound.mu < first.conclusion.hidden_state.bound.mu
    none = audited()
    assert none.conclusion.hidden_state is None and none.subject().conclusion.hidden_state is None
    assert none.conclusion.uncovered == "the Lipschitz constants of its steps are unknown"
    with pytest.raises(
        InputError, match="^`lipschitz` bounds the last model.s leakage, but a step of adam"
    ):
        audited(lipschitz=1.0, optimizer="adam")
