"""Tests that all reports of an audit show the same conclusion."""

import numpy as np
import pytest

from audit.claims.accounting import Composition
from audit.claims.linear_losses import expected_epsilon
from audit.conclusions import concluded
from audit.conclusions.concluded import conclude, conclude_setting
from audit.errors import InputError
from audit.settings.make import setting_of
from audit.storage.store import Scores

RUNS = np.arange(2000)[:, None] % 2 == 1


def scores(draw):
    return Scores(0, draw(size=(2000, 1)) + 2.0 * RUNS, RUNS)


NORMAL = scores(np.random.default_rng(0).normal)


def test_a_setting_brings_its_mechanism_and_its_reason():
    crafted, plain = setting_of("convnet", adversary="gc_r"), setting_of("fcnn", adversary="loss")
    with_reason, without = (conclude_setting(NORMAL, one) for one in (crafted, plain))
    assert with_reason.why_gaussian and not without.why_gaussian
    assert with_reason.composition == Composition(*crafted.composition)
    assert with_reason.bounds == without.bounds == conclude(concluded.read_coins(NORMAL)).bounds


@pytest.mark.parametrize(
    ("canaries", "n_in", "law_holds", "is_enough"),
    [
        (39, 20, True, False),
        (40, 31, False, False),
        (40, 31, True, True),
    ],
)
def test_each_run_is_concluded_alone_if_it_has_enough_canaries(
    canaries, n_in, law_holds, is_enough
):
    presence = np.arange(canaries)[None] < np.array([[20], [n_in]])
    cosines = np.random.default_rng(0).normal(size=(2, canaries)) / 100
    cosine_scores = Scores(0, cosines, presence)
    if is_enough:
        assert len(concluded.conclude_each_run(cosine_scores, 10_000, law_holds)) == 2
    else:
        with pytest.raises(InputError):
            concluded.conclude_each_run(cosine_scores, 10_000, law_holds)


@pytest.mark.slow
def test_linear_losses_count_the_noise_of_a_last_period_that_is_cut_short():
    setting = setting_of(
        "fcnn", steps=6, k=5, insert="first", sampler="poisson:0.5", noise_multiplier=1.0
    )
    conclusion = conclude_setting(NORMAL, setting)
    assert setting.insertions == 2
    # The noise of all 6 steps, and not that of 2 whole periods.
    expected = expected_epsilon(Composition(1.0, 2, 0.5), 6, conclusion.delta)
    assert conclusion.epsilon_if_linear == pytest.approx(expected)
    assert conclusion.epsilon_if_linear == pytest.approx(2.228, abs=1e-3)
