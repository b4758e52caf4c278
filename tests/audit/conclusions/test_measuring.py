"""Tests that measured constants give a bound with an assumption, and that kinks do not."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import audit
from audit.conclusions import lipschitz
from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import Conclusion
from audit.conclusions.lipschitz import Steps
from audit.conclusions.results import result_json
from audit.errors import InputError
from audit.report.bounds_table import bounds_table
from audit.settings.make import setting_of
from audit.storage.store import Store
from models import catalogue
from models.dense import softmax_head
from tests.cases import NO_LEAK


def concluded(kink="", least=1.0) -> Conclusion:
    setting = setting_of("tanh_fcnn", k=5, insertions=250)
    constants = np.linspace(1.01, least, setting.schedule.steps)
    steps = Steps(constants, "measured at 250 of 1,250 steps", 4, kink)
    return conclude_setting(NO_LEAK, setting, steps=steps)


def test_measured_constants_have_margins_and_a_word():
    conclusion = concluded()
    state = conclusion.hidden_state
    twice, ten_times = state.margins[2], state.margins[10]
    assert 8.68 < state.bound.epsilon < twice.epsilon < ten_times.epsilon < 23
    table = bounds_table(conclusion)
    row = next(
        line for line in table.splitlines() if line.startswith("measured hidden-state bound ")
    )
    assert row.endswith(" measured") and len(row) <= 80
    assert "if steps expand ten times as much" in " ".join(table.split())
    last_model = json.loads(result_json(conclusion))["last_model"]
    assert last_model["assumes"] == "measured"
    assert last_model["margins"]["10"] == pytest.approx(ten_times.epsilon)


def test_the_margins_of_contracting_steps_are_in_words():
    table = " ".join(bounds_table(concluded(least=0.98)).split())
    assert "if each c is 9 |c - 1| larger" in table


def test_kinks_leave_an_estimate_and_no_bound():
    conclusion = concluded("steps have kinks")
    assert conclusion.hidden_state is None
    assert conclusion.tightest.epsilon == conclusion.upper_bound
    assert "an estimate" in json.loads(result_json(conclusion))["last_model"]["why_not"]


def test_what_is_measured_of_uncovered_steps_is_refused():
    with pytest.raises(InputError, match="depends on more than the last model"):
        lipschitz.count_rehearsals(setting_of("tanh_fcnn", optimizer="adam"), "measured")
    with pytest.raises(InputError, match="must be measured or none"):
        audit.audit("tanh_fcnn", runs=4, lipschitz="guessed")
    setting = setting_of("tanh_fcnn", k=5, insertions=4)
    with pytest.raises(InputError, match="give at least 2"):
        lipschitz.count_rehearsals(setting, "measured", 1)
    with pytest.raises(InputError, match="requires `lipschitz=measured`"):
        lipschitz.count_rehearsals(setting, None, 4)


@pytest.mark.parametrize(
    ("model", "fields", "constant"),
    [
        ("mobilenet_softmax_head", {}, 1.0),
        ("mobilenet_softmax_head", {"clipping_norm": 0.5}, 1 + 0.01 * 0.25),
        ("mobilenet_softmax_head", {"weight_decay": 0.2}, 1 - 0.01 * 0.2),
        ("mobilenet_softmax_head", {"learning_rate": 12.0}, 2.0),
    ],
)
def test_proven_constants_are_those_of_the_curvature(model, fields, constant):
    found = lipschitz.hidden_state(setting_of(model, k=5, insertions=250, **fields), 1e-5)
    assert found.range == pytest.approx((constant, constant))
    assert found.assumes.word == "Lipschitz"


def extremes_of(model):
    """Returns (theta, example) -> minus the Hessian's least eigenvalue, its largest, the gradient's norm."""

    def extremes(theta, example):
        values = jnp.linalg.eigvalsh(jax.hessian(model.loss)(theta, example))
        norm = jnp.linalg.norm(jax.grad(model.loss)(theta, example))
        return jnp.stack([-values[0], values[-1], norm])

    return extremes


@pytest.mark.slow
def test_no_hessian_is_beyond_the_proven_curvature():
    curvature = catalogue.TASKS["mobilenet_softmax_head"].curvature
    model = softmax_head(3)
    extremes = jax.jit(jax.vmap(extremes_of(model)))

    largest = np.zeros(3)
    rng = np.random.default_rng(0)
    for _block in range(20):
        theta = jnp.asarray(
            rng.choice([0.1, 1, 10], (500, 1)) * rng.normal(size=(500, model.n_parameters)),
            jnp.float32,
        )
        x = jnp.asarray(rng.choice([0.3, 3, 30], (500, 1)) * rng.normal(size=(500, 3)), jnp.float32)
        labels = jnp.asarray(rng.integers(0, 10, 500), jnp.int32)
        largest = np.maximum(largest, np.max(extremes(theta, (x, labels)), axis=0))
    limits = np.array([0, curvature.largest_eigenvalue, curvature.largest_gradient])
    assert (largest <= limits + 1e-5).all()
    assert (
        largest[1] > 0.5 * curvature.largest_eigenvalue
        and largest[2] > 0.6 * curvature.largest_gradient
    )


@pytest.mark.parametrize(
    ("kept", "requested", "is_measured_again"),
    [
        (Steps(1.01, "", 4, version=lipschitz.MEASUREMENT), 0, False),
        (Steps(1.01, "", 4, version=lipschitz.MEASUREMENT), 4, False),
        (Steps(1.01, "", 4, version=lipschitz.MEASUREMENT), 6, True),
        (Steps(1.01, "", 4, version="0.0.1"), 0, True),
        (Steps(1.01, "as its author vouches"), 0, True),
    ],
)
def test_steps_are_measured_again_along_more_runs_or_by_another_version(
    kept, requested, is_measured_again, tmp_path
):
    store = Store(tmp_path, {"a": 1})
    assert lipschitz.find_measured(store, requested) is None
    lipschitz.keep(store, kept)
    assert (lipschitz.find_measured(store, requested) is None) == is_measured_again
    is_of_another_version = kept.runs > 0 and kept.version != lipschitz.MEASUREMENT
    assert lipschitz.find_current(store) == (None if is_of_another_version else kept)


@pytest.mark.parametrize(
    ("model", "fields", "request_", "runs"),
    [
        ("tanh_fcnn", {"k": 5}, {}, lipschitz.USUAL),
        ("tanh_fcnn", {"k": 1}, {}, None),
        ("tanh_fcnn", {"k": 1}, {"requested": "measured", "rehearsals": 6}, 6),
        ("fcnn", {"k": 5}, {}, None),
        ("mobilenet_softmax_head", {"k": 5}, {"requested": "measured"}, None),
    ],
)
def test_smooth_models_of_which_nothing_is_proven_are_measured_by_default(
    model, fields, request_, runs
):
    setting = setting_of(model, insertions=4, **fields)
    assert lipschitz.count_rehearsals(setting, **request_) == runs


FEATURES = np.random.default_rng(2).normal(size=(64, 3)).astype(np.float32)
OWN = {"runs": 8, "insertions": 6, "k": 5, "batch_size": 8, "learning_rate": 1.0}


def smooth_loss(params, labelled):
    return jnp.tanh(params @ labelled[0] - labelled[1])


@pytest.mark.slow
def test_what_was_measured_of_an_own_model_stays_for_later_audits(tmp_path):
    def audited(**more):
        labels = np.zeros(64)
        begin = jnp.zeros(3)
        return audit.audit_loss(smooth_loss, begin, FEATURES, labels, out=tmp_path, **OWN, **more)

    assert audited().conclusion.hidden_state is None
    measured = audited(lipschitz="measured").conclusion.hidden_state
    assert measured.assumes.word == "measured" and measured.runs == 4
    later = audited().conclusion.hidden_state
    assert later.bound.mu == measured.bound.mu
    assert later.runs == 4
    more = audited(lipschitz="measured", rehearsals=6).conclusion.hidden_state
    assert more.runs == 6
    page = (audited().folder / "report.html").read_text()
    assert "measured in 6 rehearsals" in page


def landscape_loss(params, labelled):
    """The crafted landscape: its gradient pushes away from a threshold, with norm C on either side."""
    return -jnp.abs(params[0] - 0.5)


@pytest.mark.slow
def test_the_crafted_landscape_gets_no_measured_bound(tmp_path):
    """A derivative of 1 almost everywhere, and a jump of 2 C at a threshold near which models pass."""
    for seed in range(20):
        result = audit.audit_loss(
            landscape_loss,
            jnp.zeros(1),
            np.zeros((1, 1), np.float32),
            np.zeros(1),
            runs=8,
            out=tmp_path,
            steps=25,
            k=25,
            insert="first",
            batch_size=1,
            learning_rate=1.0,
            noise_multiplier=4.0,
            lipschitz="measured",
            seed=seed,
        )
        assert result.conclusion.hidden_state is None
        assert "steps have kinks" in result.conclusion.uncovered
