"""The landscape's process: what is refused, and what the first step bounds."""

import numpy as np
import pytest

from audit.errors import InputError
from audit.landscape.process import Process, constant, upper_bound, validate
from audit.statistics import accounting


@pytest.mark.parametrize(
    ("process", "field"),
    [
        *((Process(0.0, 1, 2), "`noise_multiplier=0`"), (Process(np.nan, 1, 2), "`noise_multiplier=nan`")),
        *((Process(np.inf, 1, 2), "`noise_multiplier=inf`"), (Process(1.0, 0, 2), "`batch_size=0`")),
        (Process(1.0, 1, 0), "`steps=0`"),
    ],
)
def test_out_of_range_is_refused_by_the_field(process, field):
    for call in (validate, lambda process: constant(process, 0.5)):
        with pytest.raises(InputError, match=field):
            call(process)


def test_a_threshold_and_a_deviation_a_step():
    validate(Process(1e-3, 1, 1))
    assert constant(Process(1.0, 1, 1), 0.5).shape == (0,)
    assert constant(Process(1.0, 1, 4), 2).tolist() == [2.0, 2.0, 2.0]
    assert Process(4.0, 16, 25).step_deviation == 0.25


@pytest.mark.parametrize("sigma", [0.5, 4.0, 8.0])
def test_the_upper_bound_is_the_first_steps_whatever_follows(sigma):
    bounds = {upper_bound(Process(sigma, size, steps), 1e-5) for size in (1, 16) for steps in (1, 25)}
    (bound,) = bounds
    assert bound == pytest.approx(accounting.epsilon_upper_bound(sigma, 1, 1e-5), rel=1e-4)
