"""Numbers that must not change: the scores of six settings, and the table of the default audit.

scores.json names the version of JAX and the processor with which they were recorded. There, they must be
bit-identical. Elsewhere, they must agree to 1e-5.
"""

import csv
import functools
import hashlib
import json
import math
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from experiments.hidden_state import landscape
from experiments.hidden_state.landscape import ADVERSARIES, Process
from tests.cases import mostly_slow
from tests.forks import python

GOLDEN = Path(__file__).parent / "golden"
SCORES = json.loads((GOLDEN / "scores.json").read_text())
TOLERANCE = 1e-5


PROGRAM = """
import json, sys
from tests.system.test_golden import scored_again
from audit.runtime.machine import prepare_jax
prepare_jax()
settings = json.load(open(sys.argv[1]))["settings"]
found = {}
for name in sys.argv[2:]:
    found[name] = scored_again(settings[name]["fields"], len(settings[name]["scores"]))
print(json.dumps({name: [float(score).hex() for score in scores] for name, scores in found.items()}))
"""


def scored_again(fields, runs):
    """Computes the scores (runs,) of a recorded setting's fields, on the data of the recording."""
    from audit.adversaries import biased
    from audit.settings.make import make_setting
    from audit.training import build, game

    biased._NUM_NOISY_SIMULATIONS = 3  # as many as the recording had

    given = dict(fields)
    model = given.pop("model")
    usual = {"learning_rate": 0.1, "batch_size": 1}  # which the fields replace
    played = build.build(make_setting(model, usual, given), make_up_recorded(model))
    (chunk,) = game.Player(played, runs).play_all([(0, runs)])
    return chunk.scores[:, 0]


def make_up_recorded(model):
    """Makes the random data of the recording; any change here needs other recorded scores."""
    from audit.tasks.task import Dataset

    if model == "convnet":
        rng = np.random.default_rng(1)
        images = rng.integers(0, 256, (64, 32, 32, 3)).astype(np.uint8)
        classes = rng.integers(0, 10, 64).astype(np.int32)
        return Dataset(images, classes, "made up", "1" * 64)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 8)).astype(np.float32)
    weights = rng.normal(size=8)
    labels = features @ weights + rng.normal(size=200) > 0
    return Dataset(features, labels.astype(np.int32), "made up", "0" * 64)


@functools.cache
def compute_scores(*names):
    done = python("-c", PROGRAM, GOLDEN / "scores.json", *names, XLA_FLAGS="")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _processor():
    """Its name, family, model, stepping and a hash of its features: virtual machines share one name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return None
    facts = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    features = hashlib.sha256(facts.get("flags", "").encode()).hexdigest()[:8]
    named = [facts.get(name, "") for name in ("model name", "cpu family", "model", "stepping")]
    return " ".join([*named, features])


def _is_where_they_were_recorded():
    """Whether JAX's version and the processor are those that scores.json names."""
    return SCORES["jax"] == metadata.version("jax") and SCORES["cpu"] == _processor()


EXACT = ("gc_s", "gc_r")  # other scores depend on the number of threads
SLOW = tuple(name for name in SCORES["settings"] if name != "gc_s")


@pytest.mark.parametrize("name", mostly_slow(["gc_s", *SLOW]))
def test_scores(name):
    scores = compute_scores(*(SLOW if name in SLOW else [name]))
    golden = SCORES["settings"][name]["scores"]
    found, expected = (
        [float.fromhex(score) for score in values] for values in (scores[name], golden)
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    if name in EXACT and _is_where_they_were_recorded():
        assert found == expected


@pytest.mark.slow
def test_the_table_of_the_default_audit(tmp_path):
    """On another processor a score may fall on the other side of its threshold, so that counts differ."""
    done = python("-m", "experiments.commands.audit", f"--out={tmp_path}")
    if "could not be loaded" in done.stderr:
        pytest.skip("California Housing can't be fetched here")
    assert done.returncode == 0, done.stderr
    expected = (GOLDEN / "audit.txt").read_text().rstrip()
    if _is_where_they_were_recorded():
        assert done.stdout.startswith(expected)
    assert done.stdout.splitlines()[:2] == expected.splitlines()[:2]
    epsilons = {
        words[0]: words[1] for words in map(str.split, done.stdout.splitlines()) if len(words) > 2
    }
    assert "upper bound      23.99" in done.stdout or "upper bound      24.0" in done.stdout
    assert (
        21.5 <= float(epsilons["in_sample"]) <= 24.6
        and 21.5 <= float(epsilons["if_gaussian"]) <= 24
    )


LANDSCAPE = Path(__file__).resolve().parent / "golden" / "landscape.csv"
COLUMNS = ("epsilon_gaussian", "epsilon_exact", "epsilon_upper")


def golden():
    """(sigma, B, steps, adversary) -> its row, of the table's lines below its comment."""
    with open(LANDSCAPE, newline="") as file:
        assert next(file) == "# delta=1e-05 clipping_norm=1\n"
        rows = list(csv.DictReader(file))
    keys = [
        (float(x["sigma"]), int(x["batch_size"]), int(x["steps"]), x["adversary"]) for x in rows
    ]
    return dict(zip(keys, rows, strict=True))


def is_near(value, text):
    """Whether a number is the table's to 1e-6 of itself, beside the table's rounding to six digits."""
    kept = float(text)
    rounding = 0.5 * 10.0 ** (math.floor(math.log10(kept)) - 5)
    return abs(value - kept) <= 1e-6 * kept + rounding


def differences(keys):
    rows = golden()
    for key in keys:
        process = Process(*key[:3])
        thresholds = ADVERSARIES[key[3]](process, 1e-5)
        found = landscape.solve(process, thresholds, 1e-5)
        values = (found["claimed"][-1], found["epsilon"][-1], found["epsilon"][0])
        yield from (
            (key, n, v)
            for n, v in zip(COLUMNS, values, strict=True)
            if not is_near(v, rows[key][n])
        )


def test_a_cell_is_the_tables():
    assert not list(differences((4.0, 2, 25, name) for name in ADVERSARIES))


@pytest.mark.slow
def test_every_number_is_the_tables():
    assert not list(differences(golden()))
