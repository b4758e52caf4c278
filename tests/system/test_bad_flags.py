"""Tests that bad command lines and values give an error of one line with the flag or the field."""

import json
import math
import random

import jax.numpy as jnp
import numpy as np
import pytest

import audit
from audit.commands import dispatch
from audit.errors import InputError
from audit.settings.adversaries import ADVERSARIES
from audit.settings.federated import FederatedSetting
from audit.settings.fields import FieldLimits, declared, require_fields
from audit.settings.make import fields
from audit.settings.setting import Setting
from experiments import __main__ as main
from experiments.canife.attacked import Attacked
from experiments.compare.compared import Compared
from tests.cases import firsts_of_each_kind, mostly_slow
from tests.forks import python
from tests.system.bad import HUGE, Bad, assert_refused, lay_files

MODULES = dispatch.find_commands(main.PACKAGES)
READ_FLAGS = """
import importlib, json, sys
from absl import flags

importlib.import_module(sys.argv[1])
found = {}
for module, defined in flags.FLAGS.flags_by_module_dict().items():
    if module.startswith(("audit.", "experiments.")):
        found.update({flag.name: flag.flag_type() for flag in defined})
print(json.dumps(found))
"""
WRONG = {  # values that are none of a flag's type, or out of every range
    "int": ("", "1.5", "many", HUGE, -HUGE),
    "float": ("", "many", "nan", "-1e300"),
    "bool": ("maybe", "", "2"),
}
WRONG_TEXTS = {int: ("", "1.5", "many"), float: ("", "many"), bool: ("maybe", ""), str: ()}
WRONG_VALUES = {
    int: ("4", 1.5, True, [4]),
    float: ("fast", True, []),
    bool: ("no", 1),
    str: (3, ["a"]),
}
SETTINGS = {  # by command
    "audit": Setting,
    "plan": Setting,
    "federated": FederatedSetting,
    "canife": Attacked,
    "compare": Compared,
}
USUAL = ("audit", "bound", "check", "claim")
EPOCHS = ("--batches=4", "--epochs=2", "--noise_multiplier=1")
# What a command needs to look at a flag. A range is checked before data, which are not there, are read.
BESIDE = {
    "audit": ("--data=nowhere.csv",),
    "bound": ("--scores=scores.npz", "--noise_multiplier=1", "--insertions=10", "--lipschitz=1"),
    "canife": ("--data=nowhere.npz",),
    "check": ("--example=numpy",),
    "claim": ("--sampler=shuffled", *EPOCHS),
    "compare": ("--data=nowhere.npz",),
    "federated": ("--data=nowhere.npz",),
    "list": ("--report=page.html",),
}
# Flags that a command reads only with others.
NEEDS = {
    ("bound", "dimension"): ("--scores=scores.npz",),
    ("bound", "claim"): ("--scores=scores.npz",),
    ("check", "sampling_rate"): ("--batches=mine.py:loader", "--examples=4"),
    ("check", "examples"): ("--batches=mine.py:loader", "--sampling_rate=0.1"),
    ("check", "epochs"): (
        *("--batches=mine.py:loader", "--sampling_rate=0.5"),
        *("--noise_multiplier=1", "--examples=4"),
    ),
    ("claim", "claim"): ("--sampler=shuffled", "--batches=4", "--epochs=2"),
    ("claim", "noise"): ("--steps=4", "--noise_multiplier=1"),
    ("claim", "steps"): ("--noise=sqrt", "--noise_multiplier=1"),
    ("claim", "k"): ("--noise=sqrt", "--steps=4", "--noise_multiplier=1"),
    ("claim", "examples"): ("--sampler=truncated_poisson", "--largest_batch=5", *EPOCHS),
    ("claim", "largest_batch"): ("--sampler=truncated_poisson", "--examples=50", *EPOCHS),
}
OTHER_WORDS = {"upper_bound", "directions"}  # flags that messages name in other words


def list_beyond(kind, limits):
    """Returns values just beyond each limit, and far beyond it; of a text those that are no choice."""
    found = []
    if limits.choices:
        found = [
            "",
            "nobody",
            limits.choices[0].title(),
            ",".join(limits.choices),
            "../x",
            "\x1b[2J",
        ]
    elif kind is int:
        found = [-HUGE, HUGE]
        found += [limits.least - 1] * (limits.least > -math.inf)
        found += [limits.most + 1] * (limits.most < math.inf)
    elif kind is float:
        near = [np.nextafter(limits.least, -np.inf), np.nextafter(limits.most, np.inf)]
        far = [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-300, 5e-324, 1e300]
        found = [*map(float, (*near, limits.above, limits.below)), *far]
    return list({repr(value): value for value in found if not limits.allow(value)}.values())


def find_owner(name):
    """Returns the adversary that has a field of its own of that name, as keywords."""
    found = [kind.name for kind in ADVERSARIES.values() if name in declared(kind)]
    return {"adversary": found[0]} if found else {}


def list_bad_values(command, flags):
    """Returns the command lines with one bad value of each flag, and what they say, by the flag's name."""
    rng = random.Random(command)
    found = {}
    kind = SETTINGS.get(command)
    of_setting = {field.flag: field for field in fields(kind).values()} if kind else {}
    for name, flag_type in flags.items():
        field = of_setting.get(name)
        beside = NEEDS.get((command, name), BESIDE.get(command, ()))
        if field:
            values = [*list_beyond(field.kind, field.limits), *WRONG_TEXTS[field.kind]]
            if command == "audit":
                beside += tuple(f"--adversary={owner}" for owner in find_owner(field.name).values())
        else:
            values = WRONG.get(flag_type, ())
        if values and name not in OTHER_WORDS:
            value = rng.choice(values)
            found[name] = (command, *beside, f"--{name}={value}")
    return found


@pytest.mark.parametrize(
    "command",
    mostly_slow(sorted(MODULES, key=lambda command: command not in USUAL), quick=4),
)
def test_a_bad_value_of_any_flag_is_named(command, forked, homes, tmp_path_factory):
    script = tmp_path_factory.mktemp("script") / "read.py"
    script.write_text(READ_FLAGS)
    read = forked("python", str(script), MODULES[command], folder=script.parent)
    for name, argv in list_bad_values(command, json.loads(read.stdout)).items():
        folder = tmp_path_factory.mktemp("case")
        assert_refused(Bad(argv, name, lay_files), forked, homes, folder)


TOGETHER = """
audit --data=no.csv --steps=20 --k=21 | --k=21 exceeds the 20 training steps
audit --data=no.csv --steps=20 --insertions=3 | --steps=20 and --insertions=3 conflict: drop one
audit --data=no.csv --k=5 --insertions=9000000 | --insertions=9000000 times --k=5: give at most
audit --data=no.csv --sampler=poisson:2 | --sampler=poisson:2: give every, poisson:RATE
audit --data=no.csv --sampler=poisson:0.5 --delta=1e-13 | --delta=1e-13: with --sampling_rate
audit --data=no.csv --until=refuted | --until requires --adversary=sphere
audit --data=no.csv --adversary=sphere --until=0,9x | --until=0,9x: give an epsilon above 0
audit --confidence=95 | --confidence must be between 0 and 1, got 95.0; did you
audit stray | 'stray' is not a flag
audit --runs | Missing value for flag
audit --nothing=1 | Unknown command line flag 'nothing'
audit --data=missing.csv | missing.csv
audit --data=scores.npz | scores.npz cannot be used
audit --model=fcnn --data=. | it has no prepared california_housing
audit --out= | --out must be a path
--model=nobody | --model=nobody is not a model that trains on examples
nosuch | no command 'nosuch'
../audit | no command '../audit'
bound | --scores is missing: name a .npz
bound --scores=missing.csv | missing.csv: No such file
bound --scores=scores.npz --noise_multiplier=1 | requires --noise_multiplier and --insertions: give both
bound --scores=scores.npz --sampling_rate=0.1 --claim=3 | --sampling_rate conflicts with --claim
bound --scores=scores.npz --noise_multiplier=1 --insertions=2 --k=2 | --k and --insert require --lipschitz
bound --scores=scores.npz --leave_one_out | requires --dimension: give both
bound --scores=scores.npz --dimension=9 --one_run | --one_run conflicts with --dimension
bound --scores=scores.npz --fail_if_violated | --fail_if_violated requires a claim
bound --scores=scores.npz --report=scores.npz/p.html | name another file with --report
check | give one of --step=mine.py:step, --batches=mine.py:loader, --noise=mine.py:draw
check --example=nobody | --example=nobody: value should be one of <jax_privacy|lora
check --step=mine.py | --step=mine.py: give a file and a name in it, such as mine.py:step
check --step=nowhere.py:step | there is no file nowhere.py
check --step=fails.py:step | fails.py fails with ZeroDivisionError: division by zero
check --step=mine.py:step --examples=4 | --examples=4 does not apply to --step
check --batches=mine.py:loader | --sampling_rate is missing
claim --batches=4 --epochs=2 --noise_multiplier=1 | --sampler is missing: give poisson
claim --sampler=shuffled --batches=1 --epochs=2 --noise_multiplier=1 | --batches=1: give 2 to 1,000,000
claim --sampler=shuffled --batches=4 --epochs=2 | --noise_multiplier is missing: give sigma, or --claim=
claim --noise=bsr --noise_multiplier=1 --steps=4 | --noise=bsr is not a strategy
claim --noise=sqrt --noise_multiplier=1 --sampler=shuffled | --sampler=shuffled does not apply with
claim --batches=mine.py:loader --epochs=2 --noise_multiplier=1 --examples=5 | does not apply to a loader
list --setting=1f | --setting=1f requires --report: give both
list --report=p.html --out=missing | --out=missing has no audits
figures --out=missing --scale=smoke --name=figure_1c | finished cells for figure_1c at scale
figures --scale=huge | --scale=huge: value should be one of <smoke
figures --name=nobody | --name=nobody is unknown
plan --epsilon=0 | epsilon is 0: give --epsilon
plan --tightness=1 | --tightness=1.0: give a number between 0 and 1
landscape --sigmas=0 | --sigmas=0: give numbers from 1e-06 to 1e+09
landscape --batch_sizes=1.5 | give whole numbers
federated --model=fcnn --data=housing.csv | --model=fcnn is not a model that trains on clients: choose one of
federated --model=linear --data=images.npz --clients=41 | --clients must be between 1 and 40
canife --data=nowhere.npz | nowhere.npz
"""


@pytest.mark.parametrize(
    "case",
    firsts_of_each_kind(
        [pytest.param(line, id=line) for line in TOGETHER.strip().splitlines()],
        lambda line: {line.split()[0]},
    ),
)
def test_what_does_not_go_together_is_one_line(case, forked, homes, tmp_path):
    line, says = case.split(" | ")
    assert_refused(Bad(tuple(line.split()), says, lay_files), forked, homes, tmp_path)


def audit_built_in(**given):
    audit.audit(**{"data": "nowhere.csv", **given})


def audit_own_loss(**given):
    features = np.ones((40, 5))
    loss = lambda params, example: jnp.sum(params * example[0])  # noqa: E731
    audit.audit_loss(loss, jnp.ones(5), features, np.arange(40) % 3, **{"runs": 4, **given})


@pytest.mark.parametrize("call", mostly_slow([audit_built_in, audit_own_loss]))
@pytest.mark.parametrize("name", fields())
def test_a_bad_keyword_is_one_line(tmp_path, monkeypatch, call, name):
    monkeypatch.chdir(tmp_path)
    field = fields()[name]
    bad = [(value, f"`{name}={value}`") for value in list_beyond(field.kind, field.limits)]
    for value in WRONG_VALUES[field.kind]:
        if not (name == "insert" and isinstance(value, int)):
            bad.append((value, f"`{name}` must be of type {field.kind.__name__}, got {value!r}"))
    if name == "model" and call is audit_own_loss:  # a model of the caller's has any name
        bad = [(value, message) for value, message in bad if not isinstance(value, str)]
    for keyword in {name, field.flag}:
        for value, message in bad:
            with pytest.raises(InputError) as refused:
                call(**{**find_owner(name), keyword: value})
            assert str(refused.value).startswith(message) and "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [FederatedSetting, Attacked, Compared])
def test_every_field_of_a_setting_is_held_to_its_limits(kind):
    require_fields(kind())
    for name, field in declared(kind).items():
        has_limits = field.limits != FieldLimits() or field.kind is bool
        assert has_limits or name in ("model", "noise"), name
        for value in list_beyond(field.kind, field.limits):
            with pytest.raises(InputError, match=f"^`{name}="):
                require_fields(kind(**{name: value}))


SCRIPT = """
import audit

audit.bounds([1.0, 2.0])
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SCRIPT, "error: mine.py line 4: `scores_out` is missing"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_mistake_in_a_script_is_one_line_and_a_bug_its_traceback(text, says, tmp_path):
    (tmp_path / "mine.py").write_text(text)
    ended = python("-P", "-m", "experiments", "python", "mine.py", cwd=tmp_path)
    assert says in ended.stderr and ("Traceback" in ended.stderr) == (ended.returncode == 1)
