"""Bad values of every field of every setting, generated from the limits that it declares: by every command
that has its flag, and by every Python function that takes it as a keyword."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import audit
from audit.errors import InputError
from audit.settings.adversaries import ADVERSARIES
from audit.settings.federated import FederatedSetting
from audit.settings.fields import FieldLimits, declared, require_fields
from audit.settings.make import fields
from audit.settings.setting import Setting
from experiments.canife.attacked import Attacked
from experiments.commands import plan
from experiments.compare.compared import Compared
from tests.cases import mostly_slow
from tests.system.bad import HUGE, Bad, assert_refused, firsts_of_a_kind, named

WRONG_TEXTS = {int: ("", "1.5", "many"), float: ("", "many"), bool: ("maybe", ""), str: ()}
WRONG_VALUES = {
    int: ("4", 1.5, True, [4]),
    float: ("fast", True, []),
    bool: ("no", 1),
    str: (3, ["a"]),
}
COMMANDS = (  # a command line that refuses before it looks for data, whose fields, and which of them
    (("audit", "--data_file=nowhere.csv"), Setting, None),
    (("plan",), Setting, plan.FIELDS),
    (("federated",), FederatedSetting, None),
    (("canife", "--data_file=nowhere.npz"), Attacked, None),
    (("compare", "--data_file=nowhere.npz"), Compared, None),
)


def beyond(kind, limits):
    """Values just beyond each limit, and far beyond it; of a text those that are no choice."""
    if limits.choices:
        found = [
            "",
            "nobody",
            limits.choices[0].title(),
            ",".join(limits.choices),
            "../x",
            "\x1b[2J",
            "é",
        ]
    elif kind is int:
        ends = [limits.least - 1] * (limits.least > -math.inf) + [limits.most + 1] * (
            limits.most < math.inf
        )
        found = [*ends, -HUGE, HUGE]
    elif kind is float:
        near = [np.nextafter(limits.least, -np.inf), np.nextafter(limits.most, np.inf)]
        far = [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-300, 5e-324, 1e300]
        found = [*map(float, (*near, limits.above, limits.below)), *far]
    else:
        found = []
    return list({repr(value): value for value in found if not limits.hold(value)}.values())


def owner(name):
    """The adversary that has a field of its own of that name, or none."""
    found = [kind.name for kind in ADVERSARIES.values() if name in declared(kind)]
    return f"--adversary={found[0]}" if found else None


def says(field, value):
    shown = str(value).replace("\x1b", r"\x1b")
    unknown = " is unknown" if field.limits.choices else ""
    return f"--{field.flag}={shown}{unknown}: {field.limits}"


def on_command_lines():
    """All bad values of the audit's flags; of another command's, the first and the last."""
    for argv, kind, names in COMMANDS:
        for name, field in fields(kind).items():
            if not field.has_flag or (names is not None and name not in names):
                continue
            line = (
                (*argv, *filter(None, [owner(name)]))
                if kind is Setting and argv[0] == "audit"
                else argv
            )
            values, texts = beyond(field.kind, field.limits), WRONG_TEXTS[field.kind]
            if argv[0] != "audit":
                values, texts = values[:: max(1, len(values) - 1)], texts[-1:]
            for value in values:
                yield named(Bad((*line, f"--{field.flag}={value}"), says(field, value)))
            for text in texts:
                yield named(Bad((*line, f"--{field.flag}={text}"), f"--{field.flag}={text}: give "))


CORPUS = list(on_command_lines())


@pytest.mark.parametrize("case", firsts_of_a_kind(CORPUS))
def test_a_bad_value_of_a_flag_is_one_line_and_nothing_else_happens(forked, homes, tmp_path, case):
    assert_refused(case, forked, homes, tmp_path)


def test_the_corpus_is_large():
    assert len(CORPUS) >= 300 and len({one.id for one in CORPUS}) == len(CORPUS)


def built_in(**given):
    audit.audit(**{"data_file": "nowhere.csv", **given})


def own(**given):
    x, labels = np.ones((40, 5)), np.arange(40) % 3
    audit.audit_loss(
        lambda p, one: jnp.sum(p * one[0]), jnp.ones(5), x, labels, **{"runs": 4, **given}
    )


@pytest.mark.parametrize("entry", mostly_slow([built_in, own]))
@pytest.mark.parametrize("name", fields())
def test_a_bad_keyword_is_one_line(tmp_path, monkeypatch, entry, name):
    monkeypatch.chdir(tmp_path)
    field, adversary = fields()[name], owner(name)
    chosen = {"adversary": adversary.partition("=")[2]} if adversary else {}
    bad = [(value, f"`{name}={value}`") for value in beyond(field.kind, field.limits)]
    wrong = [
        one
        for one in WRONG_VALUES[field.kind]
        if not (field.limits.numbers_too and isinstance(one, int))
    ]
    bad += [(value, f"`{name}={value!r}` is no {field.kind.__name__}") for value in wrong]
    if name == "model":  # of one's own a model has any name
        bad = [one for one in bad if entry is built_in or not isinstance(one[0], str)]
    for keyword in {name, field.flag}:
        for value, message in bad:
            with pytest.raises(InputError) as refused:
                entry(**{**chosen, keyword: value})
            assert str(refused.value).startswith(message) and "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [FederatedSetting, Attacked, Compared])
def test_every_field_of_a_setting_is_held_to_its_limits(kind):
    for name, field in declared(kind).items():
        assert field.limits != FieldLimits() or field.kind is bool or name == "model", name
        require_fields(kind())
        for value in beyond(field.kind, field.limits):
            with pytest.raises(InputError, match=f"^`{name}="):
                require_fields(kind(**{name: value}))
