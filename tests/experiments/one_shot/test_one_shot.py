"""The one-shot paper's Table 1, its analytical columns and its slips, computed."""

import numpy as np
import pytest
from scipy import signal, stats

from audit.errors import InputError
from audit.statistics import conversions, intervals, normality, one_shot, rounds
from audit.statistics.names import ONE_SHOT_EQUAL_VARIANCE, ONE_SHOT_FITTED, ONE_SHOT_THRESHOLD
from experiments.one_shot import claims, figures, simulation, table

SIGMAS = (0.541, 1.54, 4.22)


@pytest.fixture(scope="module")
def small():
    """Table 1's cells at d = 10^4 and 10^5."""
    return [cell for d in (10**4, 10**5) for cell in simulation.cells(SIGMAS, d, 50, 1e-6, 0)]


def test_equal_variance_is_the_papers_table(small):
    for cell in small:
        assert table.agrees(cell, table.printed(cell, 1e-6), 50)


def test_algorithm_1_as_printed_is_not(small):
    """Errata O1."""
    for cell in small:
        paper = table.printed(cell, 1e-6)
        fitted = cell.epsilons[ONE_SHOT_FITTED]
        assert fitted.mean() > paper.mean + 6 * paper.deviation / np.sqrt(50)
        assert cell.epsilons[ONE_SHOT_THRESHOLD] == pytest.approx(fitted, abs=0.35)
        wrong = cell._replace(epsilons={ONE_SHOT_EQUAL_VARIANCE: fitted})
        assert not table.agrees(wrong, paper, 50)


@pytest.mark.slow
def test_equal_variance_is_the_papers_table_at_large_dimensions():
    for d in (10**6, 10**7):
        for cell in simulation.cells(SIGMAS, d, 50, 1e-6, 0):
            assert table.agrees(cell, table.printed(cell, 1e-6), 50)


def test_the_table_fits_and_marks_what_does_not_agree(small):
    text = table.cells_table(small, 1e-6, 50)
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[3].split()[:4] == ["0.541", "1e+04", "100", "10.002"]
    assert "*" not in "".join(text.splitlines()[:9])
    wrong = [
        cell._replace(epsilons=dict.fromkeys(cell.epsilons, cell.epsilons[ONE_SHOT_FITTED])) for cell in small
    ]
    assert "".join(table.cells_table(wrong, 1e-6, 50).splitlines()[:9]).count("*") == 6
    assert "9.89" not in table.cells_table(small, 1e-5, 50)
    assert len(table.as_csv(small).splitlines()) == 1 + 3 * 6


def test_simulations_depend_on_seed_and_number_alone():
    few, more = (simulation.cells([1.0], 100, n, 1e-5, 3)[0].epsilons for n in (3, 5))
    other = simulation.cells([1.0], 100, 3, 1e-5, 4)[0].epsilons
    for name in few:
        assert np.array_equal(few[name], more[name][:3]) and not np.array_equal(few[name], other[name])
    with pytest.raises(InputError):
        simulation.cells([1.0], 100, 1, 1e-5, 3)


def test_floors_fit():
    text = table.floors_table(simulation.floors([100, 1000], 1e-6), 1e-6)
    assert max(map(len, text.splitlines())) <= 80 and "1,000" in text


def test_the_figure_shows_the_null_where_nothing_leaks():
    drawn = np.random.default_rng(0).normal(0, 0.01, 500)
    figure = figures.densities(
        [figures.Panel("none", drawn, 10_000), figures.Panel("some", drawn + 0.02, 10_000)]
    )
    for axis, apart in zip(figure.axes, (False, True), strict=True):
        null, fit = (line.get_ydata() for line in axis.lines)
        assert (np.abs(null - fit).max() > 0.2) == apart


def analytical(sigma, delta):
    """epsilon of one release."""
    return conversions.epsilon_from_mu(1 / sigma, delta)


def test_stackoverflows_analytical_column():
    for sigma, epsilon in claims.STACKOVERFLOW + claims.STACKOVERFLOW_FIRST:
        assert analytical(sigma, claims.STACKOVERFLOW_DELTA) == pytest.approx(epsilon, rel=0.03)


def test_emnists_analytical_column_has_another_delta():
    """Errata O4."""
    for sigma, epsilon in claims.EMNIST:
        assert round(analytical(sigma, claims.EMNIST_DELTA_USED), 1) == epsilon
        assert analytical(sigma, claims.EMNIST_DELTA) > 1.2 * epsilon
    first = analytical(claims.EMNIST[0][0], claims.EMNIST_DELTA)
    assert first == pytest.approx(41.56, abs=0.01)


def test_the_chance_of_three_rejections():
    """Errata O5."""
    values = np.ravel(claims.ANDERSON_DARLING)
    assert (values > normality.critical_values(1000)[0]).sum() == 3
    level = claims.ANDERSON_DARLING_LEVEL
    assert stats.binom.sf(1, 15, level) == pytest.approx(claims.ANDERSON_DARLING_CHANCE, abs=0.005)
    assert stats.binom.sf(2, 15, level) == pytest.approx(0.396, abs=5e-4)


def test_the_cap():
    """Errata O6."""
    limit = float(intervals.jeffreys(0, 1000, 0.9).upper)
    assert limit == pytest.approx(0.00191841, abs=1e-8)
    cap = float(np.log((1 - claims.STACKOVERFLOW_DELTA - limit) / limit))
    assert cap == pytest.approx(6.254, abs=5e-4) and all(abs(cap - said) < 0.02 for said in claims.CAPS)


def test_the_analytical_value_of_table_6_is_renyi_dps():
    delta, sigma = claims.TABLE_6_DELTA, claims.TABLE_6_NOISE
    assert round(rounds.renyi_epsilon(sigma, delta), 1) == claims.TABLE_6_ANALYTICAL
    assert analytical(sigma, delta) == pytest.approx(32.522, abs=0.001)
    usual = 60_000**-1.1
    assert analytical(sigma, usual) == pytest.approx(33.758, abs=0.001)
    assert rounds.renyi_epsilon(sigma, usual) == pytest.approx(35.716, abs=0.001)


def test_momentum_alone_takes_the_estimate_down_to_that_of_table_6():
    """Errata O14: canaries 5 deviations away in one of 468 rounds, seen in moves with momentum."""
    rng, runs, steps, count = np.random.default_rng(0), 5, 468, 1000
    found = []
    for _ in range(runs):
        noise = rng.standard_normal((2, count, steps))
        rows, at = np.arange(count), rng.integers(0, steps, count)
        noise[1, rows, at] += 1 / claims.TABLE_6_NOISE
        moves = signal.lfilter([1.0], [1.0, -0.9], noise, axis=-1) * np.sqrt(1 - 0.81)
        out, seen = moves.max(axis=-1) / np.sqrt(1e5)
        kept = one_shot.cosines(seen, out, 100_000)
        null, fit = one_shot.fit(out, 100_000), one_shot.fit(seen, 100_000)
        lower = one_shot.in_sample(kept, claims.TABLE_6_DELTA, 0.05, 0.5)
        found.append((float(one_shot.fitted(null, fit, claims.TABLE_6_DELTA)), lower))
    for (mean, deviation), values in zip(claims.TABLE_6, np.transpose(found), strict=True):
        assert abs(np.mean(values) - mean) < 2.5 * deviation
