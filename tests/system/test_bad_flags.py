"""Bad command lines. Each is one line that names the flag and exit status 2, and nothing else happens."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audit.commands import dispatch
from audit.settings.federated import FederatedSetting
from audit.settings.make import fields
from experiments import __main__ as main
from experiments.canife.attacked import Attacked
from experiments.compare.compared import Compared
from tests.forks import python
from tests.system.bad import HUGE, Bad, assert_refused, images, two_worlds

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
    "int": ("", "1.5", "many", "1_000", "\N{ARABIC-INDIC DIGIT TWO}", HUGE, -HUGE),
    "float": ("", "many", "nan", "1_0.5", "\N{ARABIC-INDIC DIGIT TWO}", "-1e300"),
    "bool": ("maybe", "", "2"),
}
# What a command needs to look at the flag. A range is checked before data, which are not there, are read.
BESIDE = {
    "audit": ("--data_file=nowhere.csv", "--adversary=sphere"),
    "bound": ("--scores=scores.npz", "--noise_multiplier=1", "--insertions=10", "--lipschitz=1"),
    "canife": ("--data_file=nowhere.npz",),
    "check": ("--example=numpy",),
    "claim": ("--sampler=shuffled", "--batches=4", "--epochs=2", "--noise_multiplier=1"),
    "compare": ("--data_file=nowhere.npz",),
    "federated": ("--data_file=nowhere.npz",),
    "list": ("--report=page.html",),
}
OF_SETTINGS = {field.flag for field in fields().values()}  # test_bad_fields.py has these
for _kind in (FederatedSetting, Attacked, Compared):
    OF_SETTINGS |= {field.flag for field in fields(_kind).values()}
# Flags that a command reads only with others.
NEEDS = {
    ("bound", "dimension"): ("--scores=scores.npz",),
    ("bound", "claim"): ("--scores=scores.npz",),
    ("check", "sampling_rate"): ("--batches=mine.py:loader", "--examples=4"),
    ("check", "examples"): ("--batches=mine.py:loader", "--sampling_rate=0.1"),
    ("check", "epochs"): (
        *("--batches=mine.py:loader", "--sampling_rate=0.5", "--assumed=shuffled"),
        *("--noise_multiplier=1", "--examples=4"),
    ),
    ("claim", "examples"): (
        "--sampler=truncated_poisson",
        "--largest_batch=5",
        "--batches=4",
        "--epochs=2",
        "--noise_multiplier=1",
    ),
    ("claim", "largest_batch"): (
        "--sampler=truncated_poisson",
        "--examples=50",
        "--batches=4",
        "--epochs=2",
        "--noise_multiplier=1",
    ),
}


def lay_files(folder):
    two_worlds(folder)
    images(folder)
    (folder / "fails.py").write_text("1 / 0\n")
    (folder / "mine.py").write_text("def loader(seed):\n    return [[0, 1], [2, 3]]\n")


@pytest.mark.parametrize("command", MODULES)
def test_a_value_of_another_type_or_out_of_every_range_is_named(
    command, forked, homes, tmp_path_factory
):
    script = tmp_path_factory.mktemp("script") / "read.py"
    script.write_text(READ_FLAGS)
    read = forked("python", str(script), MODULES[command], folder=script.parent)
    of_type = {name: kind for name, kind in json.loads(read.stdout).items() if kind in WRONG}
    own = sorted(set(of_type) - OF_SETTINGS - {"upper_bound", "directions"})  # named in other words

    @settings(
        max_examples=20,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def is_refused(data):
        name = data.draw(st.sampled_from(own))
        value = data.draw(st.sampled_from(WRONG[of_type[name]]))
        beside = NEEDS.get((command, name), BESIDE.get(command, ()))
        argv = (command, *beside, f"--{name}={value}")
        assert_refused(
            Bad(argv, f"{name}", lay_files), forked, homes, tmp_path_factory.mktemp("case")
        )

    if own:
        is_refused()


TOGETHER = """
audit --data_file=a.csv --tfds_dir=b | are both set; name one
audit --data_file=no.csv --steps=20 --k=21 | --k=21 inserts nothing in 20 steps
audit --data_file=no.csv --steps=20 --insertions=3 | --steps=20 and --insertions=3 say the same: drop one
audit --data_file=no.csv --k=5 --insertions=9000000 | --insertions=9000000 times --k=5: give at most
audit --data_file=no.csv --sampler=poisson:2 | --sampler=poisson:2: give every, poisson:RATE
audit --data_file=no.csv --sampler=poisson:0.5 --delta=1e-13 | --delta=1e-13: with --sampling_rate
audit --data_file=no.csv --until=refuted | --until goes with --adversary=sphere
audit --data_file=no.csv --adversary=sphere --until=0,9x | --until=0,9x: give an epsilon above 0
audit --confidence=95 | confidence is 95.0: it must lie strictly between 0 and 1; did you
audit stray | argument 'stray' is no flag
audit --runs | Missing value for flag
audit --nothing=1 | Unknown command line flag 'nothing'
audit --data_file=missing.csv | missing.csv
audit --data_file=scores.npz | scores.npz cannot be used
audit --model=linear --data_file=/dev/zero | it is no file
audit --model=fcnn --tfds_dir=missing | it holds no prepared california_housing
audit --out= | --out=: name a folder
audit --out=-x | --out=-x: name a folder that begins with no dash
--model=nobody | --model=nobody is unknown
nosuch | no command 'nosuch'
../audit | no command '../audit'
bound | --scores is missing: name a .npz
bound --scores=missing.csv | missing.csv: No such file
bound --scores=scores.npz --noise_multiplier=1 | goes with --insertions: give both or none
bound --scores=scores.npz --sampling_rate=0.1 --claim=3 | --sampling_rate does not go with --claim
bound --scores=scores.npz --k=2 | --k goes with --lipschitz
bound --scores=scores.npz --leave_one_out | --leave_one_out goes with --dimension
bound --scores=scores.npz --dimension=9 --one_run | --one_run does not go with --dimension
bound --scores=scores.npz --fail_if_violated | --fail_if_violated goes with a claim
bound --scores=scores.npz --figure=f.jpg | --figure=f.jpg: end it in .png, .pdf, .svg
bound --scores=scores.npz --report=scores.npz/p.html | name another file with --report
check | give one of --example=NAME, --step=mine.py:step, --batches=mine.py:loader
check --example=nobody | --example=nobody: give jax_privacy, lora
check --step=mine.py | --step=mine.py: name a file and what to take from it, mine.py:step
check --step=nowhere.py:step | there is no file nowhere.py
check --step=fails.py:step | fails.py fails with ZeroDivisionError: division by zero
check --step=mine.py:step --assumed=fixed | --assumed=fixed is for --batches=
check --batches=mine.py:loader | give --sampling_rate=
check --batches=mine.py:loader --sampling_rate=0.1 --assumed=cyclic | give poisson, fixed, shuffled
claim --batches=4 --epochs=2 --noise_multiplier=1 | --sampler is missing: give poisson
claim --sampler=shuffled --batches=1 --epochs=2 --noise_multiplier=1 | --batches=1: give 2 to 1,000,000
claim --batches=mine.py:loader --epochs=2 --noise_multiplier=1 --examples=5 | does not go with a loader
list --setting=1f | --setting=1f goes with --report: give both
list --report=p.html --out=missing | --out=missing holds no audits
list --report=- | name an HTML file that begins with no dash
figures --out=missing --scale=smoke | missing holds no finished cell of all at scale smoke
figures --scale=huge | --scale=huge is unknown: choose one of smoke
figures --name=nobody | --name=nobody is unknown
plan --epsilon=0 | epsilon is 0: give --epsilon
plan --tightness=1 | --tightness=1.0: give more than 0
landscape --sigmas=0 | --sigmas: 0: give 1e-06
landscape --batch_sizes=1.5 | give whole numbers
federated --model=fcnn --data_file=housing.csv | --model=fcnn cannot be trained so: only the images
federated --model=linear --data_file=images.npz --clients=41 | --clients=41: give 1 to 40
compare --data_file=no.npz --measured_rounds=251 | --measured_rounds=251: give 1 to 250, the steps
canife --data_file=nowhere.npz | nowhere.npz
"""


@pytest.mark.parametrize("case", TOGETHER.strip().splitlines())
def test_what_does_not_go_together_is_one_line(case, forked, homes, tmp_path):
    line, says = case.split(" | ")
    assert_refused(Bad(tuple(line.split()), says, lay_files), forked, homes, tmp_path)


SCRIPT = """
import audit

def ask():
    return audit.audit("mlp", adversary="gcr", runs=4)

ask()
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SCRIPT, "error: mine.py line 5: `adversary=gcr` is unknown"),
        ("import torch_of_no_kind", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_mistake_in_a_script_is_one_line_and_a_bug_its_traceback(text, says, tmp_path):
    (tmp_path / "mine.py").write_text(text)
    ended = python("-P", "-m", "experiments", "python", "mine.py", cwd=tmp_path)
    assert says in ended.stderr and ("Traceback" in ended.stderr) == (ended.returncode == 1)
