"""Games share compiled programs where their functions are the same, and only there."""

import numpy as np
import pytest

from audit.settings.make import setting_of
from audit.tasks.task import Dataset

RNG = np.random.default_rng(0)
HOUSES = Dataset(
    RNG.normal(size=(40, 8)).astype(np.float32), np.arange(40, dtype=np.int32) % 2, "made up", "0"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"adversary": "one_shot", "observe": "all"},
        {"adversary": "examples", "fresh": 50},
        {"adversary": "sphere"},
    ],
    ids=lambda fields: fields["adversary"],
)
def test_numbers_of_canaries_may_differ_in_one_process(fields):
    from audit.training import build, game

    for canaries in (8, 3, 5):
        setting = setting_of("fcnn", canaries=canaries, steps=2, batch_size=10, **fields)
        played = build.build(setting, HOUSES)
        (scores,) = game.play(played, [(0, 2)], 2)
        assert scores.scores.shape == (2, canaries)
