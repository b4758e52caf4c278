"""Tests grids of audits from Python, and custom adversaries on the repository's models."""

import jax.numpy as jnp
import numpy as np
import pytest

import audit
from audit.adversaries.base import Adversary
from audit.api import _audit_each

FEATURES = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
traced = []


def loss(params, labelled):
    return jnp.square(params @ labelled[0] - labelled[1])


def first_coordinate():
    """Returns an adversary that records each time it is traced."""

    def init(key, theta_0, clipping_norm):
        return clipping_norm * jnp.zeros_like(theta_0).at[0].set(1)

    def craft(state, step, theta):
        traced.append(1)
        return state[None]

    def score(state, seen, theta_t, theta_0):
        return (theta_0 - theta_t)[:1]

    return Adversary(init, craft, score)


def audit_small(out, **given):
    choices = {"steps": 4, "batch_size": 8, "runs": 40, "adversary": first_coordinate()}
    choices |= {"noise_multiplier": 0.5, "out": out, **given}
    return audit.audit_loss(loss, jnp.zeros(6), FEATURES, FEATURES.sum(1), **choices)


@pytest.mark.slow
def test_a_grid_has_a_table_and_a_figure_in_a_papers_size(plain, tmp_path):
    vary = {"k": [1, 2], "clipping_norm": [1.0, 2.0]}
    grid = audit_small(tmp_path, vary=vary)
    table = grid.table()
    assert len(table) == len(grid.results) == 4
    assert list(table.columns[:2]) == list(vary)
    assert (table["periodicity"] == table["k"]).all()
    assert grid.results[-1].epsilon == table["epsilon"].iloc[-1]
    figure = grid.figure(tmp_path / "grid.pdf", width=6.75)
    assert figure.get_size_inches()[0] == 6.75
    assert (tmp_path / "grid.pdf").read_bytes().startswith(b"%PDF")
    (axis,) = figure.axes
    assert axis.get_xlabel() == "k" and "epsilon" in axis.get_ylabel() + "epsilon"
    _, labels = axis.get_legend_handles_labels()
    assert any("clipping_norm = 2" in label for label in labels)
    assert str(grid).splitlines()[0].split()[:2] == list(vary)


def test_audits_that_differ_in_traced_settings_share_their_program(plain, tmp_path):
    audit_small(tmp_path / "one")
    once = len(traced)
    audit_small(tmp_path / "two", vary={"seed": [1], "noise_multiplier": [0.7]})
    # Each audit traces the adversary's fingerprint; only the first one traces the program.
    assert len(traced) - once < once


def test_a_custom_adversary_audits_a_model_of_the_repository(tmp_path, housing_file):
    given = {"data": housing_file, "runs": 40, "insertions": 2, "batch_size": 8}
    result = audit.audit("fcnn", adversary=first_coordinate(), out=tmp_path, **given)
    assert result.conclusion.runs == 40 and (result.folder / "report.html").exists()
    with pytest.raises(audit.InputError, match="adversary"):
        audit.audit("fcnn", adversary=3, out=tmp_path, **given)


@pytest.mark.parametrize(
    ("vary", "says"),
    [
        ({}, "`vary` is empty"),
        ({"model": ["fcnn", "convnet"]}, "audit each model separately"),
        ({"k": 3}, "give a list of values"),
        ({"k": "12"}, "give a list of values"),
        ({"k": range(100), "seed": range(100)}, "give at most 1,000"),
        ([1], "vary"),
    ],
)
def test_what_is_not_a_grid_is_refused(vary, says):
    with pytest.raises(audit.InputError, match=says):
        _audit_each(lambda **settings: None, {"vary": vary})
