"""Tests the sizes of GPTs, and what the logits of a position depend on."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import audit
from audit.adversaries.subspace import choose_tensors
from audit.conclusions.lipschitz import hidden_state
from audit.settings.make import setting_of
from audit.tasks.task import find_task
from models.catalogue import task


def test_a_size_is_part_of_the_name():
    model = task("gpt:8x2").make((80,))
    width = 8
    block = 12 * width**2 + 13 * width
    assert model.n_parameters == 2 * block + (90 + 80 + 2 + 90) * width + 90
    assert task("gpt:8x2").make((80,)) is model  # compiled once
    assert task("gpt").make((80,)).n_parameters == 4_015_962
    assert setting_of("gpt:8x2").mechanism == setting_of("gpt").mechanism
    assert "smooth" in hidden_state(setting_of("gpt:8x2"), 1e-5)
    assert find_task("gpt:8x") is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gpt:6x2", "`model=gpt:6x2`: give gpt or gpt:WIDTHxBLOCKS with a width divisible by 4"),
        ("gpt:", "`model=gpt:`: give gpt or gpt:WIDTHxBLOCKS"),
        ("gpt:8x0", "`model=gpt:8x0`: give gpt or gpt:WIDTHxBLOCKS"),
        ("fcnn:8x2", "`model=fcnn:8x2`: fcnn comes in one size: give `model=fcnn`"),
        ("no:8x2", "`model=no` is not a model that trains on examples: choose one of"),
    ],
)
def test_other_names_are_refused(name, says):
    with pytest.raises(audit.InputError, match=says):
        setting_of(name)


def test_later_characters_do_not_change_the_logits_of_earlier_ones():
    model = task("gpt:8x2").make((80,))
    theta = model.init(jax.random.key(0))
    text = np.arange(1, 81, dtype=np.uint8)
    apply = jax.jit(lambda text: model.module.apply({"params": model.unravel(theta)}, text))
    logits = apply(text)
    other = apply(np.concatenate([text[:40], np.full(40, 3, np.uint8)]))
    np.testing.assert_allclose(other[:40], logits[:40], atol=1e-6)
    assert not np.allclose(other[40:], logits[40:])


@pytest.mark.slow
def test_the_manuals_costs_follow_from_shapes():
    manual = Path(__file__).parents[2].joinpath("docs/large_models.md").read_text()
    rows = re.findall(r"^\| `(gpt:.*)` \|(.*)\|$", manual, re.MULTILINE)
    assert len(rows) == 3
    canaries, tokens = 1000, 50 * 16 * 80
    for name, row in rows:
        model = task(name).make((80,))
        d, m = model.n_parameters, choose_tensors(model.tensors(), canaries).dimension
        numbers = f"{2 * canaries * m:.1e} | {6 * d * tokens:.1e} | {2 * canaries**2 * m:.1e}"
        shown = f" {d:,} | {m:,} | {numbers} | "
        assert row.startswith(shown)
