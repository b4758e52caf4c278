"""Tests the text of limits, what a declared field determines, and that `--help` loads little."""

import dataclasses
from typing import ClassVar

import pytest

from audit.adversaries.base import AdversaryFields
from audit.errors import InputError
from audit.settings.adversaries import ADVERSARIES
from audit.settings.fields import FieldLimits, described
from audit.settings.make import fields, from_identity, setting_of
from audit.settings.setting import flat, identity


def test_limits_hold_their_ends_and_no_nan():
    assert all(FieldLimits(0, 1).allow(value) for value in (0, 1, 0.5))
    assert not any(FieldLimits(0, 1).allow(value) for value in (-1, 2, float("nan")))
    assert not any(FieldLimits(above=0, below=1).allow(value) for value in (0, 1, float("inf")))
    assert FieldLimits(1, zero_too=True).allow(0) and not FieldLimits(1).allow(0)
    assert not FieldLimits().allow(float("inf"))
    assert FieldLimits().allow("any") and not FieldLimits(choices=("a",)).allow(["a"])


@dataclasses.dataclass(frozen=True)
class Twist(AdversaryFields):
    """The fields of an adversary that a stranger adds."""

    name: ClassVar[str] = "twist"
    twist: float = described("twist: how far.", default=0.5, above=0, below=1)


@pytest.fixture
def twisted(monkeypatch):
    monkeypatch.setitem(ADVERSARIES, "twist", Twist)
    fields.cache_clear()
    yield
    fields.cache_clear()


def test_all_that_is_known_of_an_adversarys_field_follows_from_its_row(twisted):
    assert fields()["twist"][:5] == ("twist", "twist", float, 0.5, "twist: how far.")
    setting = setting_of("fcnn", adversary="twist", twist=0.25)
    assert setting.adversary == Twist(0.25) == setting_of("fcnn", adversary=Twist(0.25)).adversary
    assert identity(setting)["adversary"] == {"name": "twist", "twist": 0.25}
    assert flat(setting)["twist"] == 0.25 and from_identity(identity(setting)) == setting
    assert identity(setting_of("fcnn", adversary="twist"))["adversary"] == {"name": "twist"}
    messages = {
        1.5: "`twist=1.5`: give a number above 0, below 1",
        "far": "`twist` must be of type fl",
    }
    for bad, message in messages.items():
        with pytest.raises(InputError, match="^" + message):
            setting_of("fcnn", adversary="twist", twist=bad)


def test_a_keyword_is_a_field_or_its_flag():
    assert setting_of("fcnn", k=5) == setting_of("fcnn", periodicity=5)
    assert setting_of("fcnn", insertions=9, k=5).schedule.steps == 45
