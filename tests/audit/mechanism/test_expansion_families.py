"""Tests how far measured constants are from the true ones, on spectra that are hard to measure.

Each family is a sequence of steps with a known Jacobian. Most steps act on other parameters than the step
before, so its most stretched direction does not help.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from audit.mechanism import expansion
from audit.mechanism.base import Hyperparameters
from tests.cases import mostly_slow

RATE = 0.5
SHARE = 0.99  # of steps that must be near enough
NEAR = 0.05  # of |c - 1|
ROUNDING = 2e-6  # of c in float32
EXAMPLES = 32
SIZES = (200, 600, 2000)
HYPER = Hyperparameters(RATE, 1.0, 1.0)


def _multiply_diagonal(theta, batch, norm):
    return batch[0][0] * theta


def _multiply_rows(theta, batch, norm):
    """H is the mean of s x x' over rows x with signs s."""
    rows, signs = batch
    return rows.T @ (signs * (rows @ theta))


def _multiply_matrix(theta, batch, norm):
    return len(batch[1]) * (batch[0] @ theta)


DIAGONAL, ROWS, MATRIX = (
    expansion.make_step_map(clipped_sum, HYPER)
    for clipped_sum in (_multiply_diagonal, _multiply_rows, _multiply_matrix)
)


def of_diagonal(values):
    """Returns (step map, batch, c) of a step with these eigenvalues of H."""
    values = np.float32(values)
    constant = np.abs(1 - RATE * np.float64(values)).max()
    return DIAGONAL, (jnp.asarray(values[None]), jnp.zeros(1)), constant


def of_rows(rows, signs):
    """Returns (step map, batch, c) of a step on rows, fewer than their columns: H also has eigenvalues 0."""
    rows = np.float32(rows)
    gram = np.float64(rows) @ np.float64(rows).T
    values = np.linalg.eigvals(signs[:, None] * gram / len(signs)).real
    constant = np.abs(1 - RATE * np.r_[values, 0.0]).max()
    return ROWS, (jnp.asarray(rows), jnp.asarray(signs, jnp.float32)), constant


def of_matrix(matrix):
    """Returns (step map, batch, c) of a step with this matrix as H."""
    matrix = np.float32(matrix)
    jacobian = np.eye(len(matrix)) - RATE * np.float64(matrix)
    constant = np.linalg.norm(jacobian, 2)
    return MATRIX, (jnp.asarray(matrix), jnp.zeros(1)), constant


def _draw_signs(rng):
    return rng.choice([-1.0, 1.0], EXAMPLES)


def sparse_of_both_signs(rng, p):
    values = np.zeros(p)
    values[rng.choice(p, 20, replace=False)] = 0.3 * rng.normal(size=20)
    return of_diagonal(values)


def one_number_a_step(rng, p):
    values = np.zeros(p)
    values[rng.integers(p)] = -0.3 * rng.random()
    return of_diagonal(values)


def permuted_log_spaced_contracting(rng, p):
    return of_diagonal(rng.permutation(np.geomspace(1e-3, 1, p)))


def rare_negative_curvature(rng, p):
    values = rng.uniform(0.1, 1, p)
    values[rng.integers(p)] = -0.02 * rng.random()
    return of_diagonal(values)


def rare_flat_direction(rng, p):
    values = rng.uniform(0.036, 1, p)
    values[rng.integers(p)] = 0.0008
    return of_diagonal(values)


def embeddings(rng, p):
    rows = np.zeros((EXAMPLES, p // 8, 8))
    rows[np.arange(EXAMPLES), rng.integers(0, p // 8, EXAMPLES)] = rng.normal(size=(EXAMPLES, 8))
    return of_rows(rows.reshape(EXAMPLES, -1), _draw_signs(rng))


def bag_of_words(rng, p):
    rates = np.minimum(1, 5 / np.arange(1, p + 1))
    rows = rng.poisson(rates, (EXAMPLES, p)).astype(float)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)
    return of_rows(rows, np.where(rng.random(EXAMPLES) < 0.8, 1.0, -1.0))


def relu_units_that_switch_off(rng, p):
    """The gradients of the units' weights: a unit that is off has none, and most are off at each step."""
    units = p // 10
    is_on = (rng.random(units) < 0.1) & (rng.random((EXAMPLES, units)) < 0.5)
    output = is_on * rng.normal(size=units)
    inputs = rng.normal(size=(EXAMPLES, 10))
    rows = (output[:, :, None] * inputs[:, None, :]).reshape(EXAMPLES, p) / 10
    return of_rows(rows, _draw_signs(rng))


def blocks_that_repeat(rng, p):
    block = 0.2 * rng.normal(size=(10, 10))
    order = rng.permutation(p)
    return of_matrix(np.kron(np.eye(p // 10), block)[order][:, order])


def nearly_defective(rng, p):
    """H is nilpotent and far from symmetric, with small entries."""
    return of_matrix(np.diag(0.01 * rng.random(p - 1), 1))


FAMILIES = [
    embeddings,
    sparse_of_both_signs,
    one_number_a_step,
    permuted_log_spaced_contracting,
    rare_negative_curvature,
    rare_flat_direction,
    bag_of_words,
    relu_units_that_switch_off,
]
MATRICES = [nearly_defective, blocks_that_repeat]


def measure(family, p, steps):
    """Returns the measured and the true constants of a sequence of steps, (steps, 2)."""
    rng = np.random.default_rng(p)
    direction = None
    constants = []
    for number in range(steps):
        step, batch, constant = family(rng, p)
        found = expansion.largest_expansion(step, jnp.zeros(p), batch, direction, number)
        direction = found.direction
        constants.append((found.constant, constant))
    return np.array(constants)


def share_of_near(measured, true):
    return np.mean(np.abs(measured - true) <= NEAR * np.abs(true - 1) + ROUNDING)


@pytest.mark.parametrize("family", mostly_slow(MATRICES) + mostly_slow(FAMILIES, quick=2))
def test_measured_constants_are_near_the_true_ones(family):
    measured, true = measure(family, 200, 20).T
    assert share_of_near(measured, true) >= SHARE


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_of_a_thousand_measured_constants_99_percent_are_near_the_true_ones(family):
    counts = zip(SIZES, (450, 450, 100), strict=True)
    constants = np.concatenate([measure(family, p, steps) for p, steps in counts])
    assert len(constants) == 1000
    assert share_of_near(*constants.T) >= SHARE


@pytest.mark.parametrize("family", [one_number_a_step, permuted_log_spaced_contracting])
def test_what_many_iterations_leave_open_is_an_upper_limit(family, monkeypatch):
    """As with more parameters than those of which the whole Jacobian is computed."""
    monkeypatch.setattr(expansion, "_MAX_WHOLE_AFTERWARDS", 0)
    monkeypatch.setattr(expansion, "_MAX_ITERATIONS", 30)
    measured, true = measure(family, 600, 20).T
    assert (measured >= true - ROUNDING).all()
    assert (measured <= true + 0.1).all()


def test_the_direction_of_the_last_step_hides_nothing():
    first = np.zeros(600)
    first[:20] = -0.3
    step, batch, _ = of_diagonal(first)
    found = expansion.largest_expansion(step, jnp.zeros(600), batch)
    step, batch, _ = of_diagonal(np.roll(first, 20))
    again = expansion.largest_expansion(step, jnp.zeros(600), batch, found.direction)
    assert found.constant == pytest.approx(1.15, abs=ROUNDING)
    assert again.constant == pytest.approx(1.15, abs=ROUNDING)
