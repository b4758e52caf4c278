"""Measured constants bound the last model by an assumption that is named, and kinks by nothing."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import audit
from audit.claims.accounting import Composition
from audit.claims.hidden_state import Periods, bound_periods
from audit.conclusions import lipschitz, rehearsals
from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import Conclusion
from audit.conclusions.lipschitz import Steps
from audit.conclusions.results import bounds_json
from audit.errors import InputError
from audit.report.bounds_table import bounds_table
from audit.settings.make import setting_of
from audit.storage.store import Scores
from models import catalogue
from models.dense import softmax_head, two_layer_tanh

SCORES = Scores(0, np.random.default_rng(1).normal(size=(40, 1)), np.arange(40)[:, None] % 2 == 1)


@pytest.mark.parametrize(
    ("constant", "at_5", "at_25"),
    [
        (1, 8.68, 3.52),
        (1.002, 8.72, 3.61),
        (1.005, 8.78, 3.74),
        (1.02, 9.09, 4.44),
        (1.05, 9.70, 5.86),
        (1.1, 10.7, 8.02),
        (1.2, 12.5, 11.2),
        (1.5, 16.5, 16.3),
        (2, 19.8, 19.8),
    ],
)
def test_steps_that_expand_lose_little_over_few_steps(constant, at_5, at_25):
    for k, epsilon in ((5, at_5), (25, at_25)):
        bound = bound_periods(Composition(4.0, 250), Periods(constant, k, k), 1e-5)
        assert bound.epsilon == pytest.approx(epsilon, abs=0.051 if epsilon >= 10 else 0.0051)


def concluded(kink="") -> Conclusion:
    setting = setting_of("tanh_fcnn", k=5, insertions=250)
    constants = np.linspace(1.01, 1.0, setting.schedule.steps)
    steps = Steps(constants, "measured at 250 of 1,250 steps", 4, kink)
    return conclude_setting(SCORES, setting, steps=steps)


def test_measured_constants_have_margins_and_a_word():
    conclusion = concluded()
    state = conclusion.hidden_state
    twice, ten_times = state.margins[2], state.margins[10]
    assert 8.68 < state.bound.epsilon < twice.epsilon < ten_times.epsilon < 23
    table = bounds_table(conclusion)
    (row,) = [line for line in table.splitlines() if line.startswith("hidden state, measured ")]
    assert row.endswith("if steps expand ten times as much)") and len(row) <= 80
    last_model = json.loads(bounds_json(conclusion))["last_model"]
    assert last_model["assumes"] == "measured"
    assert last_model["margins"]["10"] == pytest.approx(ten_times.epsilon)


def test_kinks_leave_an_estimate_and_no_bound():
    conclusion = concluded("steps have kinks")
    assert conclusion.hidden_state is None
    assert conclusion.tightest.epsilon == conclusion.upper_bound
    assert "an estimate" in json.loads(bounds_json(conclusion))["last_model"]["why_not"]


def test_what_is_measured_of_uncovered_steps_is_refused():
    with pytest.raises(InputError, match="depends on more than the last model"):
        rehearsals.require_measurable(setting_of("tanh_fcnn", optimizer="adam"))
    with pytest.raises(InputError, match="give measured"):
        audit.audit("tanh_fcnn", runs=4, lipschitz="guessed")


@pytest.mark.parametrize(
    ("model", "fields", "constant"),
    [
        ("two_layer_tanh", {}, 1 + 0.1 * 0.7699 / 8),
        ("two_layer_tanh", {"clipping_norm": 0.5}, 1 + 0.1 * (0.25 + 0.7699 / 8)),
        ("two_layer_tanh", {"weight_decay": 0.2}, 1 + 0.1 * (0.7699 / 8 - 0.2)),
        ("mobilenet_softmax_head", {}, 1.0),
        ("alexnet_softmax_head", {"learning_rate": 8.0}, 1.0),
        ("alexnet_softmax_head", {"learning_rate": 12.0}, 2.0),
    ],
)
def test_proven_constants_are_those_of_the_curvature(model, fields, constant):
    found = lipschitz.hidden_state(setting_of(model, k=5, insertions=250, **fields), 1e-5)
    assert found.range == pytest.approx((constant, constant))
    assert found.assumes.word == "Lipschitz"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "name", "classes"),
    [(two_layer_tanh, "two_layer_tanh", 2), (softmax_head, "mobilenet_softmax_head", 10)],
)
def test_no_hessian_is_beyond_the_proven_curvature(make, name, classes):
    curved = catalogue.TASKS[name].curved
    model = make(3)

    @jax.jit
    @jax.vmap
    def extremes(theta, example):
        values = jnp.linalg.eigvalsh(jax.hessian(model.loss)(theta, example))
        return values[0], values[-1], jnp.linalg.norm(jax.grad(model.loss)(theta, example))

    largest = np.zeros(3)
    rng = np.random.default_rng(0)
    for _block in range(20):
        theta = jnp.asarray(
            rng.choice([0.1, 1, 10], (500, 1)) * rng.normal(size=(500, model.n_parameters)),
            jnp.float32,
        )
        x = jnp.asarray(rng.choice([0.3, 3, 30], (500, 1)) * rng.normal(size=(500, 3)), jnp.float32)
        labels = jnp.asarray(rng.integers(0, classes, 500), jnp.int32)
        least, most, norm = extremes(theta, (x, labels))
        worst = [-np.min(least), np.max(most), np.max(norm)]
        largest = np.maximum(largest, worst)
    assert largest[0] <= curved.least + 1e-5
    assert largest[1] <= curved.most + 1e-5
    assert largest[2] <= curved.gradient + 1e-5
    assert largest[1] > 0.5 * curved.most and largest[2] > 0.6 * curved.gradient
