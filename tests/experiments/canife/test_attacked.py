"""What a measured training is named by, and what it refuses."""

import dataclasses

import pytest

from audit.errors import InputError
from experiments.canife import attacked
from experiments.canife.attacked import Attacked


def test_the_store_is_named_by_what_differs_from_the_defaults_and_by_the_data():
    named = {"experiment": "canife", "model": "two_layer", "seed": 3, "data": "abc"}
    assert attacked.identity(Attacked(seed=3), "abc") == named
    names = {attacked.folder_name(one, data) for one in (Attacked(), Attacked(seed=1)) for data in "ab"}
    assert len(names) == 4 and all(name.startswith("two_layer-") for name in names)


def test_what_nobody_said_is_the_models_own():
    given = dataclasses.asdict(Attacked(model="character_lstm", cohort=128, rounds=3))
    found = attacked.asked(given, ["model", "cohort", "rounds"])
    assert (found.cohort, found.rounds, found.design_rate, found.clients) == (128, 3, 0.1, 60)
    assert attacked.asked(dataclasses.asdict(Attacked()), []) == Attacked()
    for model in attacked.OWN:
        attacked.asked({**given, "model": model}, [])
    paper = attacked.asked({**given, "model": "sent140_lstm"}, [])
    assert len(paper.measured()) == 89 and paper.cohort == 100


def test_rounds_are_measured_from_the_first():
    assert Attacked(rounds=2550, every=40).measured()[:2] == [1, 41]
    assert len(Attacked(rounds=2550, every=40).measured()) == 64
    assert len(Attacked(rounds=8895, every=100).measured()) == 89


@pytest.mark.parametrize(  # limits are held in tests/system/test_bad_fields.py
    "field, value", [("pool", 99), ("population", 1001), ("design_batch", 100), ("scores", 3), ("delta", 0.0)]
)
def test_fields_out_of_range_are_named(field, value):
    fitting = Attacked(population=1000, pool=50)
    attacked.fitted(fitting, 1000, 90)
    with pytest.raises(InputError, match=field):
        attacked.fitted(dataclasses.replace(fitting, **{field: value}), 1000, 90)


def test_numbers_of_clients_that_are_left_open_are_what_there_is():
    found = attacked.fitted(Attacked(), 600, 100)
    assert (found.pool, found.population) == (100, 600)
    found = attacked.fitted(Attacked(pool=7), 10**5, 10**4)
    assert (found.pool, found.population) == (7, 2048)
