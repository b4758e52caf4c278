"""The exact law of the crafted landscape: finer grids, the closed form, Example 1."""

import numpy as np
import pytest

from audit.errors import InputError
from audit.landscape import law
from audit.landscape.process import Process, constant
from audit.statistics import conversions, densities

DELTA = 1e-5
CELLS = [(float(sigma), size) for sigma in range(1, 9) for size in (1, 2, 4, 8, 16)]


@pytest.mark.parametrize(("sigma", "size"), CELLS)
def test_a_grid_twice_as_fine_moves_epsilon_by_less_than_a_thousandth(sigma, size):
    process = Process(sigma, size, 25)
    thresholds = constant(process, 0.5)
    pairs = [law.last_law(process, thresholds, per_deviation) for per_deviation in (8, 16)]
    assert len(pairs[1].points) > 1.9 * len(pairs[0].points)
    coarse, fine = (densities.epsilon_at(pair, DELTA) for pair in pairs)
    assert coarse == pytest.approx(fine, rel=1e-3)
    assert all(pair.error < 1e-13 for pair in pairs)


@pytest.mark.parametrize("steps", [1, 2, 10, 100])
@pytest.mark.parametrize(("sigma", "size"), [(1.0, 1), (4.0, 2), (0.5, 2)])
def test_a_constant_gradient_decays_as_example_1_says(sigma, size, steps):
    process = Process(sigma, size, steps)
    pair = law.last_law(process, np.full(steps - 1, -np.inf))
    mu = 1 / np.sqrt(sigma**2 * (1 + (steps - 1) / size**2))  # O(1 / sqrt(T))
    expected = conversions.epsilon_from_mu(mu, DELTA)
    assert densities.epsilon_at(pair, DELTA) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("sigma", "size"), [(1.0, 9), (0.5, 5), (2.0, 20)])
@pytest.mark.parametrize("threshold", [0.5, 2.0])
def test_the_closed_form_agrees_with_the_quadrature(sigma, size, threshold):
    process = Process(sigma, size, 6)
    thresholds, stepper = constant(process, threshold), law.stepper(process, 8)
    closed = law.last_law(process, thresholds)
    *_, last = law.evolve(stepper, thresholds)
    stepped = law.density_pair(stepper.points, last)
    assert law.is_separated(process) and len(closed.points) != len(stepped.points)
    for delta in (1e-2, 1e-5, 1e-9):
        expected = densities.epsilon_at(stepped, delta)
        assert densities.epsilon_at(closed, delta) == pytest.approx(expected, rel=1e-3)


def test_the_last_law_is_the_last_of_all_and_a_grid_can_be_too_large():
    for process in (Process(2.0, 1, 4), Process(1.0, 16, 4)):  # by quadrature, and in closed form
        thresholds = constant(process, 1.0)
        every, last = law.laws(process, thresholds), law.last_law(process, thresholds)
        assert len(every) == 4
        for one, other in zip(every[-1], last, strict=True):
            np.testing.assert_array_equal(one, other)
    process = Process(4.0, 1, 25)
    pair = law.last_law(process, constant(process, 0.5))
    claimed = conversions.epsilon_from_mu(float(densities.mu_at(pair, 0.5)), DELTA)
    assert claimed > 1.9 * densities.epsilon_at(pair, DELTA)
    process = Process(0.3, 2, 10**7)
    with pytest.raises(InputError, match=r"`steps=10000000`: .* use fewer steps"):
        law.last_law(process, np.zeros(1))
