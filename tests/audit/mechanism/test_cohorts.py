"""Who takes part in which round."""

import jax
import numpy as np
import pytest

from audit.errors import InputError
from audit.mechanism import cohorts

KEY = jax.random.key(3, impl="threefry2x32")


def _times(found, clients):
    return np.bincount(found[found >= 0], minlength=clients)


def test_shuffled_cohorts_take_everybody_equally_often():
    found = cohorts.shuffled(KEY, 12, 9, 4)
    assert found.shape == (9, 4) and (_times(found, 12) == 3).all()
    assert cohorts.most_rounds(found, 12) == 3
    assert sorted(found[:3].ravel()) == list(range(12)) != list(found[:3].ravel())
    for clients, rounds, cohort in ((7, 10, 5), (7, 3, 7), (5, 1, 1)):
        found = cohorts.shuffled(KEY, clients, rounds, cohort)
        assert all(len(set(members)) == cohort for members in found)
        assert _times(found, clients).max() == -(-rounds * cohort // clients)


def test_sampled_cohorts_are_coins():
    found = cohorts.sampled(KEY, 50, 400, 10)
    sizes = (found >= 0).sum(axis=1)
    assert abs(sizes.mean() - 10) < 5 * np.sqrt(8 / 400) and sizes.max() == found.shape[1]
    assert abs(sizes.var() - 8) < 2.5
    assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in found)


@pytest.mark.parametrize("repetitions", [1, 2, 3, 5, 10])
@pytest.mark.parametrize("canaries, rounds", [(7, 10), (40, 11), (3, 10), (100, 10)])
def test_each_canary_takes_part_so_often_in_different_rounds(canaries, rounds, repetitions):
    mask = cohorts.repeated(KEY, canaries, rounds, repetitions)
    assert set(np.unique(mask)) <= {0.0, 1.0}
    assert (mask.sum(axis=0) == repetitions).all()
    sizes, mean = mask.sum(axis=1), canaries * repetitions / rounds
    assert sizes.min() >= np.floor(mean) and sizes.max() <= np.ceil(mean)
    if rounds % repetitions == 0:
        parts = mask.reshape(repetitions, -1, canaries).sum(axis=1)
        assert (parts == 1).all()


def test_the_largest_clients_come_first():
    found = cohorts.by_size(np.array([[0, 1, 2], [2, -1, 0]], np.int32), np.array([5, 9, 7]))
    np.testing.assert_array_equal(found, [[1, 2, 0], [2, 0, -1]])


def test_what_no_population_has_is_refused():
    for call, says in (
        (lambda: cohorts.shuffled(KEY, 5, 2, 6), "`cohort=6` is more than the 5 clients"),
        (lambda: cohorts.sampled(KEY, 5, 2, 0), "`cohort=0`"),
        (lambda: cohorts.repeated(KEY, 5, 2, 3), "`repetitions=3`: give 1 to 2"),
        (lambda: cohorts.listed([np.array([0, 5])], 5), "round 1 names client"),
        (lambda: cohorts.listed([np.array([0]), np.array([1, 1])], 5), "round 2 names a client twice"),
    ):
        with pytest.raises(InputError, match=says):
            call()
