"""Limits as people read them, what follows from one declaration of a field, and how little `--help` loads."""

import dataclasses
from typing import ClassVar

import pytest

from audit.adversaries.base import AdversaryFields
from audit.errors import InputError
from audit.settings import make
from audit.settings.adversaries import ADVERSARIES
from audit.settings.fields import ADVERSARY, MAX_SEED, FieldLimits, described
from audit.settings.make import fields, from_identity, setting_of
from audit.settings.setting import flat, identity
from tests.cases import mostly_slow
from tests.forks import python

SAID = {
    FieldLimits(1, 10**7): "give 1 to 10,000,000",
    FieldLimits(0): "give at least 0",
    FieldLimits(1e-6, 1e9, zero_too=True): "give 0, or 1e-6 to 1e9",
    FieldLimits(above=0): "give a finite number above 0",
    FieldLimits(above=0, most=1): "give a number above 0, at most 1",
    FieldLimits(above=0, below=1): "give a number above 0, below 1",
    FieldLimits(0, below=1): "give 0 to below 1",
    FieldLimits(0, MAX_SEED): "give 0 to 2^32 - 1",
    FieldLimits(choices=("a", "b")): "choose one of a, b",
}


@pytest.mark.parametrize("limits", SAID)
def test_limits_are_said_as_people_write_them(limits):
    assert str(limits) == SAID[limits]


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
    assert fields()["twist"][:6] == ("twist", "twist", float, 0.5, "twist: how far.", ADVERSARY)
    setting = setting_of("fcnn", adversary="twist", twist=0.25)
    assert setting.adversary == Twist(0.25) == setting_of("fcnn", adversary=Twist(0.25)).adversary
    assert identity(setting)["adversary"] == {"name": "twist", "twist": 0.25}
    assert flat(setting)["twist"] == 0.25 and from_identity(identity(setting)) == setting
    assert identity(setting_of("fcnn", adversary="twist"))["adversary"] == {"name": "twist"}
    messages = {1.5: "`twist=1.5`: give a number above 0, below 1", "far": "`twist='far'` is no fl"}
    for bad, message in messages.items():
        with pytest.raises(InputError, match="^" + message):
            setting_of("fcnn", adversary="twist", twist=bad)


def test_a_keyword_is_a_field_or_its_flag():
    assert setting_of("fcnn", k=5) == setting_of("fcnn", periodicity=5)
    assert setting_of("fcnn", insertions=9, k=5).schedule.steps == 45
    with pytest.raises(
        InputError, match="^magic is not a field of a setting: choose from adversary, afresh"
    ):
        setting_of("fcnn", magic=1)
    assert set(make.fields()) >= {"model", "adversary", "insertions"}


HELP = """
import contextlib, io, runpy, sys
sys.argv = ["command", "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    runpy.run_module({!r}, run_name="__main__", alter_sys=True)
print(*sorted({{"scipy", "jax", "matplotlib", "dp_accounting"}} & set(sys.modules)))
"""


@pytest.mark.parametrize("command", mostly_slow(["audit", "federated", "canife", "compare"]))
def test_help_loads_no_statistics(command):
    done = python("-c", HELP.format(f"experiments.commands.{command}"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
