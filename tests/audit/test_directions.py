"""Fresh directions in NumPy: their distribution, blocks and leave-one-out, and an audit with them."""

import numpy as np
import pytest
from scipy import stats

import audit
from audit import directions
from audit.errors import InputError
from audit.laws import cosine_law

FIRST = [0.7536167638505714, -0.6444814682027231, -0.12924941155244865]


def drawn(*numbers):
    return np.stack(list(directions.canaries(*numbers)))


def test_directions_are_uniform_and_new_for_every_run_canary_and_seed():
    many = np.concatenate([drawn(0, run, 100, 6) for run in range(20)])
    assert np.linalg.norm(many, axis=1) == pytest.approx(np.ones(2000))
    for column in many.T:
        assert stats.kstest(column, lambda t: -np.expm1(cosine_law.log_sf(t, 6))).pvalue > 1e-4
    assert np.abs(many.T @ many / 2000 - np.eye(6) / 6).max() < 0.02
    pairs = many @ many.T - np.eye(2000)
    assert np.abs(pairs).max() < 0.9999  # none is drawn twice
    assert np.abs(drawn(1, 0, 9, 6) - drawn(0, 1, 9, 6)).min() > 1e-6
    assert np.array_equal(drawn(3, 2, 5, 6), drawn(3, 2, 9, 6)[:5])


def test_what_is_drawn_stays_what_it_is(monkeypatch):
    assert drawn(5, 2, 2, 3)[1] == pytest.approx(np.array(FIRST), abs=1e-12)
    monkeypatch.setattr(directions, "_BLOCK", 7)
    again = drawn(5, 2, 2, 20)
    assert np.unique(again[:, :6]).size == np.unique(again[:, [0, 1, 2, 7, 8, 14]]).size == 12


@pytest.mark.parametrize("block, dtype", [(7, np.float64), (1000, np.float32)])
def test_cosines_are_those_of_what_was_inserted_block_by_block(monkeypatch, block, dtype):
    monkeypatch.setattr(directions, "_BLOCK", block)
    units = drawn(1, 3, 5, 25)
    assert directions.inserted(1, 3, 5, 25, 0.5) == pytest.approx(0.5 * units.sum(0))
    moved = np.random.default_rng(0).standard_normal(25).astype(dtype)
    expected = units @ moved / np.linalg.norm(moved)
    assert directions.cosines(moved, 1, 3, 5) == pytest.approx(expected, abs=1e-7)
    for index, unit in enumerate(units):
        others = np.delete(units, index, 0)
        left = moved - others.T @ np.linalg.lstsq(others.T, moved, rcond=None)[0]
        expected[index] = unit @ left / np.linalg.norm(left)
    apart = directions.cosines(moved, 1, 3, 5, leave_one_out=True)
    assert apart == pytest.approx(expected, abs=1e-6)
    assert directions.cosines(1e100 * np.float64(moved), 1, 3, 5, True) == pytest.approx(
        apart, abs=1e-9
    )


def regression(rng, inserted, sigma, features, labels, steps=40):
    """Returns the movement of a linear model with many parameters by DP-SGD with clipping norm 1."""
    weights = np.zeros(features.shape[1])
    for rows in np.array_split(np.arange(len(labels)), steps):
        gradients = (features[rows] @ weights - labels[rows])[:, None] * features[rows]
        clipped = gradients / np.maximum(1, np.linalg.norm(gradients, axis=1, keepdims=True))
        noise = sigma * rng.standard_normal(len(weights))
        weights = weights - 0.01 * (clipped.sum(0) + inserted + noise)
    return weights


@pytest.mark.parametrize("apart", [False, True])
def test_a_training_of_ones_own_is_audited_by_fresh_directions(apart):
    """Audits 40 steps with sigma 2, for which accounting gives epsilon 17.7."""
    rng, dimension, canaries = np.random.default_rng(0), 3000, 100
    features, labels = rng.standard_normal((400, dimension)) / 50, rng.standard_normal(400)
    drift, rows = regression(rng, 0.0, 0.0, features, labels), []
    for run in range(10):
        inserted = directions.inserted(2024, run, canaries, dimension, 1.0)
        moved = regression(rng, inserted, 2.0, features, labels)
        rows.append(directions.cosines(drift - moved, 2024, run, canaries, apart))
    result = audit.bounds(
        audit.cosines(rows, dimension, leave_one_out=apart), claim=audit.DpSgd(2, 40)
    )
    assert (10 if apart else 7) < result.epsilon < result.upper_bound < 18
    assert result.epsilon == result.bounds["exact_null"].epsilon and result.verdict == "leaks"
    assert (
        result.bounds["exact_null"].assumes.text == "uniform directions, drawn afresh for every run"
    )
    assert np.mean(rows) * dimension**0.5 == pytest.approx(40**0.5 / 2, rel=0.05 if apart else 0.25)


@pytest.mark.parametrize(
    ("count", "moved", "says"),
    [
        (9, np.ones(9), "fewer canaries than the 9"),
        (3, np.zeros(9), "displacement is 0"),
        (3, np.full(9, np.nan), "not finite"),
        (3, np.ones(1), "`dimension=1`: give 2 to"),
    ],
)
def test_bad_displacements_are_refused(count, moved, says):
    with pytest.raises(InputError, match=says):
        directions.cosines(moved, 0, 0, count, leave_one_out=True)
