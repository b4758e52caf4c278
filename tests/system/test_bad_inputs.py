"""The corpus of bad inputs: each is one line that names it and exit status 2, and nothing else happens.

A case is a command line, what its line says, and what lies in the folder that it runs in. What is documented
to leave something out and go on (`list`, `report --setting=all`, `figures`) ends with status 0 and says what.
"""

import dataclasses
import functools
import io
import itertools
import json
import os
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import safetensors.numpy

from audit.settings.make import setting_of
from audit.settings.setting import identity
from audit.storage import score_files, store
from audit.storage.scores import Scores
from audit.storage.store import Store
from experiments.hidden_state import landscape as landscapes
from experiments.hidden_state import sweep as sweeps
from experiments.hidden_state.landscape import Exact, Search, Simulated
from models.data.housing import FEATURES, TARGET

Lay = Callable[[Path], object]  # lays something into a case's folder


def nothing(folder):
    """An empty folder."""


class Bad(NamedTuple):
    """A bad input: a command line, part of the line that it ends in, what lies in its folder before, and of
    the status 0 what stdout shows nonetheless."""

    argv: tuple[str, ...]
    says: str
    lay: Lay = nothing
    status: int = 2


def named(case, note=""):
    """A case as pytest's parameter, by its command line and a note."""
    text = " ".join(arg if len(arg) < 60 else f"{arg[:40]}..." for arg in case.argv) + note
    return pytest.param(case, id=text.encode("ascii", "backslashreplace").decode())


def rows(argv, flag, says, *values, lay=nothing):
    """A case a value of a flag; `says` is formatted with the value."""
    for value in values:
        yield named(Bad((*argv, f"--{flag}={value}"), says.format(value), lay))


def tree(folder):
    """What lies under a folder, by name, with all that a change would change."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        times = () if path == folder else (status.st_mtime_ns, status.st_ino)
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_size, *times)
    return found


COUNTED = " is damaged: it counts as missing"  # what readers say of a file before the line that matters


def shown(stderr):
    """The lines as a terminal shows them: what a progress bar wrote over is gone."""
    return [line.rpartition("\r")[2] for line in stderr.split("\n") if line.rpartition("\r")[2].strip()]


COMMANDS = (
    *(
        "audit",
        "bound",
        "calibrate",
        "canife",
        "compare",
        "compile",
        "federated",
        "figures",
        "landscape",
        "list",
        "norms",
        "one_shot",
    ),
    *("own_model", "plan", "precision", "report", "sweep", "throughput"),
)
HUGE, WORDS, WHOLE_WORDS = 10**30, ("many", ""), ("", "1.5")
FORTY = np.random.default_rng(0).normal(size=40)
COLUMNS = [*FEATURES, TARGET]


def two_worlds(folder):
    """scores.npz, in which nothing is wrong."""
    np.savez(folder / "scores.npz", **{"in": FORTY[:20] + 1, "out": FORTY[20:]})


def holding(content, name):
    """Lays a file of that content."""
    return lambda folder: (folder / name).write_bytes(content)


# ------------------------------------------------------------------------------------------ command lines

BOUND = ("bound", "--scores=scores.npz")
FLAGS = [
    *(named(Bad((command, "stray"), "argument 'stray' is no flag")) for command in COMMANDS),
    *(named(Bad((command, "--nothing=1"), "Unknown command line flag 'nothing'")) for command in COMMANDS),
    *(named(Bad((command, "--\udcff=1"), r"Unknown command line flag '\udcff'")) for command in COMMANDS),
    *(
        named(Bad((name,), f"no command {name!r}: ".rstrip(": ")))
        for name in ("nosuch", "AUDIT", "../audit", "__main__", "cli", "own", "", "audit.py", "\udcff")
    ),
    named(Bad(("-",), "argument '-' is no flag")),
    named(Bad(("--model=nobody",), "--model=nobody is unknown")),
    *(named(Bad((command, flag), "Missing value for flag")) for command, flag in (("audit", "--runs"),)),
    *(
        case
        for command in ("audit", "bound", "calibrate", "figures", "landscape", "plan", "report")
        for level in ("delta", "confidence")
        for argv, lay in [(BOUND, two_worlds) if command == "bound" else ((command,), nothing)]
        for case in (
            *rows(argv, level, f"{level} is {{}}", "nan", "-1.0", lay=lay),
            *rows(argv, level, f"{level} is {{}}.0: it must lie strictly between", "0", "1", lay=lay),
            *rows(argv, level, f"flag --{level}={{}}", *WORDS, lay=lay),
        )
    ),
    *(
        case
        for command, flag in (
            *itertools.product(["audit"], ["runs", "k", "insertions", "steps", "batch_size", "seed"]),
            *itertools.product(["audit"], ["simulations", "dimension", "chunk_size"]),
            *itertools.product(["plan"], ["runs", "audits", "insertions", "seed"]),
            *itertools.product(["calibrate"], ["canaries", "audits", "seed", "processes"]),
            *itertools.product(["landscape"], ["steps", "runs", "seed"]),
            *itertools.product(["norms"], ["runs", "steps", "seed"]),
            *itertools.product(["precision"], ["examples", "steps", "seed"]),
            *itertools.product(["throughput"], ["rounds"]),
            *itertools.product(["own_model"], ["runs"]),
            *itertools.product(["bound"], ["insertions", "dimension"]),
            *itertools.product(["calibrate"], ["one_run"]),
            *itertools.product(["one_shot"], ["simulations", "seed"]),
            *itertools.product(["canife"], ["rounds", "every", "cohort", "clients", "seed"]),
        )
        for case in rows([command], flag, f"flag --{flag}={{}}", *WHOLE_WORDS)
    ),
    *(
        named(Bad((command, f"--{flag}=maybe"), f"flag --{flag}=maybe"))
        for command, flag in (
            *(("audit", name) for name in ("json", "unknown_initialisation")),
            *((name, "json") for name in ("bound", "calibrate", "compile", "list", "plan", "precision")),
            ("throughput", "json"),
            ("sweep", "list"),
        )
    ),
]

# ------------------------------------------------------------------------------------------ ranges, choices

AUDIT = ("audit", "--data_file=nowhere.csv")  # what is out of range is said before the data are looked for
SIZES = [
    *rows(AUDIT, "runs", "--runs={}: give at least 2", 1, 0, -1),
    *rows(AUDIT, "runs", "--runs={}: give at most 100,000,000", 10**9, 10**18, HUGE),
    *rows(AUDIT, "k", "--k={}: give a periodicity of at least 1", 0, -1),
    *rows(AUDIT, "k", "give at most 10,000,000", 10**18, HUGE),
    *rows((*AUDIT, "--steps=20"), "k", "--k={} inserts nothing in 20 steps", 21, HUGE),
    *rows(AUDIT, "insertions", "--insertions={}: give at least 1", 0, -1),
    *rows(AUDIT, "insertions", "--steps={} (insertions times periodicity", 10**8, 10**18, HUGE),
    *rows(AUDIT, "steps", "--steps={}: give at least 1 step", 0, -1),
    *rows(AUDIT, "steps", "--steps={} (insertions", 10**8, 10**18, HUGE),
    *rows(AUDIT, "batch_size", "--batch_size={}: give at least 1", 0, -1),
    *rows(AUDIT, "batch_size", "--batch_size={}: their product is to be at most", 10**7, 10**18, HUGE),
    *rows(AUDIT, "seed", "--seed={}: give 0 to 2^32 - 1", -1, 2**32, 10**18, HUGE),
    *rows((*AUDIT, "--gc_s=noisy_per_step"), "simulations", "--simulations={}: give 1 to 10,000", 0, -1),
    *rows((*AUDIT, "--gc_s=noisy_per_step"), "simulations", "{}: give 1 to 10,000", 10**5, 10**18, HUGE),
    *rows(AUDIT, "chunk_size", "--chunk_size={}: give 1 to 100,000,000, or 0", -1, 10**9, 10**18, HUGE),
    *rows(AUDIT, "learning_rate", "--learning_rate={}: give 1e-37 to 1e38", "nan", "inf", "-1.0", "1e-300"),
    *rows(AUDIT, "learning_rate", "give 1e-37 to 1e38", "0", "1e39", "1e300"),
    *rows(AUDIT, "learning_rate", "flag --learning_rate={}", *WORDS),
    *rows(AUDIT, "clipping_norm", "--clipping_norm={}: give 1e-6 to 1e6", "nan", "inf", "-1.0", "1e-300"),
    *rows(AUDIT, "clipping_norm", "--clipping_norm=1e+300: give 1e-6 to 1e6", "1e300"),
    *rows(AUDIT, "clipping_norm", "flag --clipping_norm={}", *WORDS),
    *rows(AUDIT, "noise_multiplier", "--noise_multiplier={}: give 0, or 1e-06", "nan", "inf", "-1.0"),
    *rows(AUDIT, "noise_multiplier", "--noise_multiplier={}: give 0, or 1e-06", "1e-300", "5e-324"),
    *rows(AUDIT, "noise_multiplier", "flag --noise_multiplier={}", *WORDS),
    *rows(["plan"], "epsilon", "epsilon is {}: give --epsilon", "nan", "inf", "-1", "0", "501", "1e-300"),
    *rows(["plan"], "epsilon", "flag --epsilon={}", *WORDS),
    *rows(["plan"], "runs", "--runs={}: give 4 to 100,000,000", 3, 0, -1, 10**18, HUGE),
    *rows(["plan"], "audits", "--audits={}: give 2 to 10,000,000", 1, 0, 10**18, HUGE),
    *rows(["plan"], "tightness", "--tightness={}: give more than 0", "nan", "inf", "1.0", "0.0", "-1.0"),
    *rows(["plan"], "seed", "--seed={}: give 0 to 2^32 - 1", -1, 2**32, HUGE),
    *rows(["plan"], "noise_multiplier", "--noise_multiplier={}: give 0, or", "nan", "inf", "-1.0", "1e-300"),
    *rows(["plan"], "noise_multiplier", "give --epsilon, 1e-06 to 500", "0", "1e9", "1e-6"),
    *rows(["plan"], "insertions", "--insertions={}", 0, -1, 10**13, HUGE),
    *rows(["plan"], "k", "--k={}: give a periodicity", 0, -1),
    *rows(["plan"], "batch_size", "--batch_size={}: give at least 1", 0, -1),
    *rows(["calibrate"], "mu", "--mu={}: give 0 to 100", "nan", "inf", "-1", "100", "1e+300"),
    *rows(["calibrate"], "mu", "is no number: give numbers, comma-separated", "one", "1,,2", "1,", "\udcff"),
    *rows(["calibrate"], "mu", "--mu is empty: give numbers", ""),
    *rows(["calibrate"], "runs", "--runs={}: give at", 1, 0, -1, 10**18, HUGE),
    *rows(["calibrate"], "runs", "--runs={} is no whole number", "1.5", "nan"),
    *rows(["calibrate"], "runs", "--runs='{}' is no number", "many"),
    *rows(["calibrate"], "runs", "--runs is empty", ""),
    *rows(["calibrate"], "audits", "--audits={}: give 1 to 10,000,000", 0, -1, 10**18, HUGE),
    *rows(["calibrate"], "seed", "--seed={}: give 0 to 2^32 - 1", -1, 2**32, HUGE),
    *rows(["calibrate"], "processes", "--processes={}: give 1 to 1,024", 0, -1, 1025, 10**18, HUGE),
    *rows(["landscape"], "sigmas", "--sigmas: {} is no positive finite number", "0", "-1", "nan", "inf"),
    *rows(["landscape"], "sigmas", "--sigmas: {}: give 1e-06", "1e-300", "1e+300"),
    *rows(["landscape"], "sigmas", "is no number: give numbers", "x", "1,", "4;5", "\udcff"),
    *rows(["landscape"], "sigmas", "is empty: give numbers", ""),
    *rows(["canife"], "model", "--model={} is unknown", "", "lenet"),
    *rows(["canife"], "examples", "--examples={}: give 0, or a number above", -1),
    named(Bad(("canife", "--leaf=here"), "--leaf=here is for celeba_cnn")),
    named(Bad(("canife", "--data_file=nowhere.npz"), "nowhere.npz")),
    named(Bad(("canife", "--model=celeba_cnn"), "--leaf: name the folder data/celeba/data")),
    named(Bad(("canife", "--model=sent140_lstm", "--leaf=nowhere"), "--leaf=nowhere holds no train/*.json")),
    *rows(["compare"], "model", "--model={} is unknown: choose one of two_layer", "", "fcnn"),
    *rows(["compare"], "steps", "--steps={}: give a whole number from 2 to 100,000", 1, -1, HUGE),
    *rows(["compare"], "single_runs", "--single_runs={}: give a whole number from 80", 1, 0, HUGE),
    *rows(["compare"], "measured_rounds", "--measured_rounds={}: give a whole number from 1 to 250", 0, 251),
    *rows(["compare"], "noise_multiplier", "--noise_multiplier={}: give a number", "0", "nan", "inf"),
    *rows(["compare"], "delta", "delta is {}", "nan", "0.0", "1.0"),
    *rows(["canife"], "vary", "--vary=: name fields and values", "", " "),
    *rows(["canife"], "vary", "is no field: choose among model", "x=1", "pool=1;", "=1", "\udcff=1"),
    *rows(["canife"], "vary", "--vary: pool has no values", "pool", "pool=", "seed=1;pool"),
    *rows(["canife"], "vary", "give a whole number", "pool=a", "pool=1,", "pool=1.5", "seed=nan"),
    *rows(["canife"], "vary", "give a number", "delta=x", "alpha=1,,2"),
    *rows(["canife"], "vary", "clamp='yes': give true or false", "clamp=yes"),
    *rows(["canife"], "vary", "--vary: start has an empty value", "start=random,"),
    *rows(["canife"], "vary", "there twice", "pool=1;pool=2", "pool=1,1", "seed=1;seed=1"),
    *rows(["canife"], "vary", "vary one or two fields beside seed", "pool=1;cohort=2;rounds=3"),
    *rows(["canife"], "vary", "210 settings: give fewer", f"seed={','.join(map(str, range(210)))}"),
    *rows(["canife"], "vary", "--model=lenet is unknown", "model=two_layer,lenet"),
    *rows(["canife"], "vary", "--examples=-1: give 0", "examples=-1"),
    named(Bad(("canife", "--vary=pool=1", "--pool=3"), "--pool=3 is also in --vary: drop one")),
    named(Bad(("canife", "--vary=pool=1;cohort=2", "--charge=forward"), "--charge=forward is for curves")),
    *rows(["canife"], "charge", "--charge={}: choose one of forward, backward", "", "sideways"),
    *rows(["canife"], "out", "--out=: name a folder", ""),
    *rows(["one_shot"], "sigmas", "--sigmas: {}: give 0.001 to 1e+06", "0", "-1", "nan", "inf", "1e+300"),
    *rows(["one_shot"], "sigmas", "is no number: give numbers", "x", "1,"),
    *rows(["one_shot"], "sigmas", "is empty: give numbers", ""),
    *rows(["one_shot"], "dimensions", "--dimensions: {}: give 100 to 100,000,000", 99, -1, 10**9, HUGE),
    *rows(["one_shot"], "dimensions", "is no whole number", "1000.5", "nan", "inf"),
    *rows(["one_shot"], "dimensions", "is empty: give whole numbers", ""),
    *rows(["one_shot"], "canaries", "--canaries: {}: give 10 to 10,000,000", 9, 0, HUGE),
    *rows(["one_shot"], "simulations", "--simulations={}: give 2 to 1,000,000", 1, 0, -1, 10**7, HUGE),
    *rows(["one_shot"], "seed", "--seed={}: give 0 to 2^32 - 1", -1, 2**32, HUGE),
    *rows(["one_shot"], "delta", "delta is {}", "nan", "0.0", "1.0"),
    *rows(["one_shot"], "out", "--out=: name a folder", ""),
    *rows(["calibrate"], "one_run", "--one_run={}: give 40 to 20,000 canaries", 39, 0, -1, 10**6, HUGE),
    *(
        named(Bad(("calibrate", "--one_run=50", flag), "do not go together: drop one"))
        for flag in ("--canaries=2", "--mechanism=laplace", "--tie=equal", "--design=sets")
    ),
    *rows(["landscape"], "batch_sizes", "--batch_sizes: {}: give at least 1", "0", "-1"),
    *rows(["landscape"], "batch_sizes", "--batch_sizes={} is no whole number", "1.5", "nan", "inf"),
    *rows(["landscape"], "batch_sizes", "--batch_sizes: {}: give at most 1,000,000,000", "1e+18", "1e+300"),
    *rows(["landscape"], "batch_sizes", "is no number: give numbers", "x", "1,,2"),
    *rows(["landscape"], "steps", "--steps={}: give at", 0, -1, 10**6, 10**18, HUGE),
    *rows(["landscape"], "clipping_norm", "--clipping_norm={}: give 1e-6 to 1e6", "nan", "inf", "-1.0"),
    *rows(["landscape"], "clipping_norm", "--clipping_norm={}: give 1e-6 to 1e6", "0.0", "1e-320", "1e+300"),
    *rows(["landscape"], "threshold", "--threshold={}: give", "nan", "inf", "1e+300", "-1e+18"),
    *rows(["landscape"], "delta", "--delta={}: give at least 1e-100", "1e-300"),
    *rows(["landscape"], "runs", "--runs={}: give at", 3, 0, -1, 10**18, HUGE),
    *rows(["landscape"], "seed", "--seed={}: give 0 to 2^32 - 1", -1, 2**32, HUGE),
    *rows(["norms"], "runs", "--runs={}: give at", 1, 0, -1, 10**18, HUGE),
    *rows(["norms"], "steps", "--steps={}", 0, -1, 10**18, HUGE),
    *rows(["norms"], "clipping_norm", "--clipping_norm={}: give", "nan", "inf", "0.0", "-1.0", "1e+300"),
    *rows(["norms"], "noise_multiplier", "--noise_multiplier={}: give", "nan", "inf", "-1.0", "1e-300"),
    *rows(["norms"], "seed", "--seed={}: give 0 to 2^32 - 1", -1, 2**32, HUGE),
    *rows(["precision"], "clipping_norm", "--clipping_norm={}: give", "nan", "inf", "0.0", "-1.0"),
    *rows(["precision"], "noise_multiplier", "--noise_multiplier={}: give", "nan", "inf", "-1.0", "1e-300"),
    *rows(["precision"], "steps", "--steps={}", 0, -1, 10**18, HUGE),
    *rows(["precision"], "seed", "--seed={}: give 0 to 2^32 - 1", -1, 2**32, HUGE),
    *rows(["throughput"], "rounds", "--rounds={}: give 1 to 1,000", 0, -1, 10**18, HUGE),
    *rows(["throughput"], "seconds", "--seconds={}: give more than 0", "nan", "inf", "0.0", "-1.0", "3600.0"),
    *rows(["own_model"], "runs", "--runs={}: give at", 1, HUGE),
]
CHOICES = [
    *rows(["audit"], "model", "--model={} is unknown: choose one of fcnn", "", "FCNN", "fcnn,mlp", "../x"),
    *rows(["audit"], "model", r"--model=\x1b[2Jx is unknown", "\x1b[2Jx"),
    *rows(["audit"], "model", r"--model=\udcff is unknown", "\udcff"),
    *rows(["audit"], "adversary", "--adversary={} is unknown: choose one of gc_s", "", "nobody", "GC-S", "é"),
    *rows(["audit"], "gc_s", "--gc_s={} is unknown: choose one of noiseless_per_step", "", "noisy", "True"),
    *rows(["audit"], "optimizer", "--optimizer={} is none that fcnn can take", "", "rmsprop", "SGD"),
    *rows(["audit"], "clipping", "--clipping={} is none that fcnn can take", "", "ghost"),
    *rows(["audit", "--model=mlp"], "clipping", "--clipping={} is none that mlp can take", "book_keeping"),
    *rows(["audit"], "precision", "--precision={} is none that fcnn can take", "", "fp8", "float64"),
    *rows(["plan"], "model", "--model={} is unknown", "", "nobody"),
    *rows(["precision"], "model", "--model={} is unknown", "", "nobody"),
    *rows(["precision"], "clipping", "--clipping={} is none that fcnn can take", "", "ghost"),
    *rows(["norms"], "models", "--models: {!r} is unknown: choose of fcnn", "nobody"),
    *rows(["norms"], "models", "--models: '' is unknown", "fcnn,,", ","),
    *rows(["norms"], "models", "--models: 'nobody' is unknown", "fcnn,nobody"),
    *rows(["norms"], "models", "--models is empty: name models", ""),
    *rows(["calibrate"], "mechanism", "--mechanism='{}': give some of gaussian", "nobody", "Laplace"),
    *rows(["calibrate"], "mechanism", "--mechanism='': give some of", "laplace,,t3", ","),
    *rows(["calibrate"], "mechanism", "--mechanism is empty", ""),
    *rows(["throughput"], "models", "--models: '{}' is unknown: choose of", "nobody"),
    *rows(["throughput"], "models", "--models: '{}' can't be timed, its network has not", "mlp"),
    *rows(["throughput"], "models", "--models is empty", ""),
    *rows(["throughput"], "engines", "--engines: '{}' is unknown: choose of", "nobody", "OURS"),
    *rows(["throughput"], "engines", "--engines: '' is unknown", "ours,"),
    *rows(["throughput"], "engines", "--engines is empty", ""),
    *rows(["compile"], "device", "--device={} is unknown: choose of v5e:2x2", "nobody", "v4:2x2", "H200"),
    *rows(["compile"], "device", "--device={}: give v5e with a grid", "v5e", "v5e:", "v5e:3x5", "v5e:-1x2"),
    *rows(["compile"], "device", "--device={}: an H200 is compiled for alone", "h200:8"),
    *rows(["compile"], "device", "--device is empty", ""),
    *rows(["compile"], "device", "--device= is unknown", "h200,,"),
    *rows(["compile"], "models", "--models: '{}' is unknown: choose of fcnn", "nobody", "FCNN"),
    *rows(["compile"], "models", "--models is empty", ""),
    *rows(["compile"], "precision", "--precision={} is unknown: choose one of", "", "fp8"),
    *rows(
        ["sweep"], "name", "--name={} is unknown: give all, or some of figure_1a", "nobody", "figure", "../x"
    ),
    *rows(["sweep"], "name", "--name= is unknown: give all", "figure_4,,", ","),
    *rows(["sweep"], "name", "--name=all is unknown: give all", "all,figure_4"),
    *rows(["sweep"], "name", "--name is missing: give all", ""),
    *rows(
        ["sweep", "--name=all"], "scale", "--scale={} is unknown: choose one of smoke", "", "huge", "Paper"
    ),
    *rows(["sweep", "--list"], "scale", "--scale={} is unknown", "nobody"),
    *rows(
        ["sweep", "--name=figure_1c"], "engine", "--engine={} is unknown: choose one of local, ray", "", "Ray"
    ),
    *rows(AUDIT, "engine", "--engine={} is unknown: choose one of local, ray", "", "nobody"),
    *rows(
        ["sweep", "--name=all"], "worker", "--worker={}: give i/n", "0/3", "4/3", "3", "a/b", "1/0", "-1/3"
    ),
    *rows(["sweep", "--name=all"], "worker", "--worker={}: give i/n", "", "1/2/3", "٣/٤", f"1/{HUGE}"),
    *rows(["figures"], "name", "--name={} is unknown: give all", "nobody", "Figure_4"),
    *rows(["figures"], "name", "--name= is unknown", "figure_4,,"),
    *rows(["figures"], "name", "--name is missing", ""),
    *rows(["figures"], "scale", "--scale={} is unknown: choose one of smoke", "huge", "Paper", ""),
    *rows(["report", "--sweep=figure_4"], "scale", "--scale={}: choose one of smoke", "", "huge", "Paper"),
    *rows(["report"], "sweep", "--sweep={} is unknown: choose one of figure_1a", "", "nobody", "all", "../x"),
    *rows(["report"], "sweep", "--sweep={} holds no audits of trained models", "landscape", "figure_8"),
]
TOGETHER = [
    named(Bad(argv, says, lay))
    for argv, says, lay in (
        *(
            ((*command, "--ray_address=host:1"), "--ray_address=host:1 goes with --engine=ray", nothing)
            for command in (("audit",), ("sweep", "--name=figure_1c"))
        ),
        (("audit", "--data_file=a.csv", "--tfds_dir=b"), "are both set; name one", nothing),
        (("audit", "--weights=w.pth"), "drop them, or name a model with a head", nothing),
        (("audit", "--input_size=64"), "drop them, or name a model with a head", nothing),
        (("report", "--setting=all", "--sweep=figure_4"), "do not go together: drop one", nothing),
        (("throughput", "--data_file=x.csv"), "--data_file is one model's", nothing),
        ((*BOUND, "--noise_multiplier=1"), "go together: give both or none", two_worlds),
        ((*BOUND, "--insertions=1"), "go together: give both or none", two_worlds),
        ((*BOUND, "--sampling_rate=0.1"), "--sampling_rate goes with", two_worlds),
        ((*BOUND, "--sampling_rate=0.1", "--upper_bound=3"), "goes with none of", two_worlds),
        (
            (*BOUND, "--noise_multiplier=1", "--insertions=9", "--upper_bound=3"),
            "goes with none of",
            two_worlds,
        ),
        ((*BOUND, "--insertions=1", "--upper_bound=3"), "go together", two_worlds),
    )
]
STEPS = ("--noise_multiplier=1", "--insertions=10")
BOUNDS = [
    *rows((*BOUND, "--insertions=1"), "noise_multiplier", "--noise_multiplier={}: give 0, or", "nan", "inf"),
    *rows((*BOUND, "--insertions=1"), "noise_multiplier", "--noise_multiplier={}: give", "-1.0", "1e-300"),
    *rows((*BOUND, "--insertions=1"), "noise_multiplier", "--noise_multiplier={}: give", "5e-324", "1e+300"),
    *rows((*BOUND, "--insertions=1"), "noise_multiplier", "give 0, or 1e-06 to 1e+09", "1e12"),
    *rows((*BOUND, "--insertions=1"), "noise_multiplier", "flag --noise_multiplier={}", *WORDS),
    *rows((*BOUND, "--noise_multiplier=1"), "insertions", "--insertions={}: give", -1, 10**13, 2**70, HUGE),
    *rows((*BOUND, "--noise_multiplier=1"), "insertions", "--insertions", "9" * 5000),
    *rows((*BOUND, *STEPS), "sampling_rate", "--sampling_rate={}: give", "nan", "inf", "0.0", "1.5", "-1.0"),
    *rows((*BOUND, *STEPS, "--delta=1e-100"), "sampling_rate", "--delta=1e-100: with", "0.5"),
    *rows((*BOUND, *STEPS, "--noise_multiplier=1e-5"), "sampling_rate", "from 0.3", "0.5"),
    *rows((*BOUND, *STEPS, "--insertions=1000001"), "sampling_rate", "at most 1,000,000", "0.5"),
    *rows(BOUND, "upper_bound", "--upper_bound={}: give", "nan", "-1.0"),
    *rows(BOUND, "upper_bound", "flag --upper_bound={}", *WORDS),
    *rows(BOUND, "figure", "--figure={}: end it in .png, .pdf, .svg", "", "f", "f.jpg", ".png", "/dev/null"),
    *rows(BOUND, "figure", "name another file with --figure", "scores.npz/f.png"),
    *rows(BOUND, "report", "--report=: name an HTML file", ""),
    *rows(BOUND, "report", "name another file with --report", "/", "scores.npz/p.html"),
    *rows(BOUND, "report", "No space left on device): name another file with --report", "/dev/full"),
    *rows(BOUND, "report", "File name too long): name another file with --report", "n" * 300),
]
BOUNDS = [pytest.param(one.values[0]._replace(lay=two_worlds), id=one.id) for one in BOUNDS]


# ------------------------------------------------------------------------------------------ files of scores


def npz(**arrays):
    """The bytes of an .npz."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def npy(array):
    """The bytes of a .npy."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def claiming(shape, dtype="<f8", version=1):
    """A .npy whose header claims a shape, before 16 bytes of data."""
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode() + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + bytes(16)


def archive(content=None, name="in.npy", method=zipfile.ZIP_DEFLATED):
    """An .npz of a member in, whatever that holds, and a member out."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as members:
        members.writestr(name, npy(np.arange(50.0)) if content is None else content)
        members.writestr("out.npy", npy(np.arange(60.0)))
    return file.getvalue()


def patched(content, changes, mark=b"PK\x01\x02"):
    """An archive with bytes of its first local and first central header changed, by their local offsets."""
    whole = bytearray(content)
    central = whole.index(mark)
    for at, value in changes.items():
        whole[at] = value
        whole[central + at + 2] = value
    return bytes(whole)


def flipped(content, start, stop):
    """The content with every byte of a range changed."""
    changed = bytes(byte ^ 0x5A for byte in content[start:stop])
    return content[:start] + changed + content[stop:]


BAD_CSV = {
    "empty": (b"", "score,in"),
    "blank": (b"\n\n\n", "score,in"),
    "no header": (b"1.5,1\n0.5,0\n", "score,in"),
    "another header": (b"a,b\n1,2\n", "score,in"),
    "one column": (b"score\n1\n", "score,in"),
    "UTF-16": ("score,in\n1,1\n".encode("utf-16"), "UTF-8"),
    "UTF-16 without a mark": ("score,in\n1,1\n".encode("utf-16-le"), "score,in"),
    "Latin-1": ("score,in,who\n1,1,Zoë\n".encode("latin-1"), "UTF-8"),
    "binary": (bytes(range(256)) * 64, "UTF-8"),
    "zeros": (bytes(4096), "score,in"),
    "an npz": (archive(), "UTF-8"),
    "JSON": (b'{"in": [1], "out": [2]}', "score,in"),
    "HTML": (b"<!DOCTYPE html><p>score,in", "score,in"),
    "a large field": (b"score,in\n" + b"1" * 200_000 + b",1\n", "damaged"),
    "a large first line": (b"x" * 300_000 + b"\n1,1\n", "score,in"),
    "a quote that never ends": (b'score,in\n"1,1\n' + b"1,0\n" * 50_000, "damaged"),
    "a label of no world": (b"score,in\n1,maybe\n", "line 2: 'maybe'"),
    "a label of 2": (b"score,in\n1,1\n1,2\n", "line 3: '2'"),
    "no label": (b"score,in\n1\n", "line 2: ''"),
    "a label NaN": (b"score,in\n1,nan\n", "line 2: 'nan'"),
    "a score of words": (b"score,in\n1,0\nhigh,1\n", "line 3: score 'high'"),
    "no score": (b"score,in\n,1\n", "line 2: score ''"),
    "a decimal comma": (b"score;in\n0,5;1\n", "line 2: score '0,5'"),
    "a gap in a column": (b"in,out\n1,2\n,3\n4,5\n", "line 4"),
    "a gap in the other": (b"in,out\n1,\n2,3\n", "line 3"),
    "words in a column": (b"in,out\n1,x\n", "line 2: score 'x'"),
    "a long word": (b"score,in\n" + b"z" * 9999 + b",1\n", "..."),
}
BAD_NPZ = {
    "empty": (b"", "damaged"),
    "text": (b"not a zip", "damaged"),
    "an npy": (npy(np.arange(9.0)), "damaged"),
    "torn": (archive()[:300], "damaged"),
    "torn in its directory": (archive()[:-9], "damaged"),
    "damaged inside": (flipped(archive(), 40, 120), "damaged"),
    "encrypted": (patched(archive(), {6: 1}), "encrypted"),
    "an unknown method": (patched(archive(), {8: 77}), "damaged"),
    "bzip2 that is none": (patched(archive(), {8: 12}), "damaged"),
    "lzma that is none": (patched(archive(), {8: 14}), "damaged"),
    "no npy inside": (archive(b"text"), "damaged"),
    "an empty member": (archive(b""), "damaged"),
    "a header of no dict": (archive(b"\x93NUMPY\x01\x00\x05\x00((((("), "damaged"),
    "a header of code": (archive(claiming((3,), "<f8").replace(b"False", b"f(1) ")), "damaged"),
    "a header of 4 GB": (archive(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 200_000), "damaged"),
    "a version of its own": (archive(claiming((3,)).replace(b"NUMPY\x01", b"NUMPY\x09")), "damaged"),
    "400 GB claimed": (archive(claiming((50_000_000_000,))), "more than 5,000,000"),
    "more claimed than there is": (archive(claiming((3000,))), "damaged"),
    "a negative size": (archive(claiming((-3,))), "damaged"),
    "nothing times too much": (archive(claiming((0, 10**30))), "damaged"),
    "one array": (npz(**{"in": np.arange(9.0)}), "no array out"),
    "other arrays": (npz(a=np.arange(9.0)), "no array in, out"),
    "a member of another folder": (archive(name="../in.npy"), "no array in"),
    "structured": (npz(**{"in": np.zeros(9, "f8,i4"), "out": np.arange(9.0)}), "plain numbers"),
    "objects": (npz(**{"in": np.array([1.0, None]), "out": np.arange(9.0)}), "plain numbers"),
    "complex": (npz(**{"in": np.arange(9) * 1j, "out": np.arange(9.0)}), "plain numbers"),
    "dates": (npz(**{"in": np.arange(9).astype("M8[s]"), "out": np.arange(9.0)}), "plain numbers"),
    "durations": (npz(**{"in": np.arange(9.0), "out": np.arange(9).astype("m8[s]")}), "plain numbers"),
    "words": (npz(scores=np.array(["1", "2"]), presence=np.arange(2)), "plain numbers"),
    "raw bytes": (npz(**{"in": np.zeros(9, "V8"), "out": np.arange(9.0)}), "plain numbers"),
    "presence of 2": (npz(scores=np.arange(4.0), presence=np.arange(4)), "presence must be"),
    "presence of NaN": (npz(scores=np.arange(2.0), presence=[1, np.nan]), "presence must be"),
    "presence of another length": (npz(scores=np.arange(4.0), presence=[0, 1]), "must both be (runs,)"),
    "one world": (npz(scores=np.ones((4, 2)), presence=np.ones((4, 2))), "both are needed"),
    "few runs of canaries": (npz(scores=np.eye(4), presence=np.eye(4)), "give at least 8"),
    "a cube": (npz(scores=np.ones((4, 2, 2)), presence=np.ones((4, 2, 2))), "must both be (runs,)"),
}
BAD_PAIRS = {
    "one file": (["a.npy"], "two .npy files"),
    "three files": (["a.npy", "b.npy", "c.npy"], "two .npy files"),
    "two archives": (["a.npz", "b.npz"], "two .npy files"),
    "missing": (["missing.npy", "out.npy"], "missing.npy: No such file"),
    "the second missing": (["out.npy", "missing.npy"], "missing.npy: No such file"),
    "text": (["text.npy", "out.npy"], "text.npy: it is damaged"),
    "an archive": (["archive.npy", "out.npy"], "archive.npy: it is damaged"),
    "a table": (["table.npy", "out.npy"], "at least 8"),
    "objects": (["objects.npy", "out.npy"], "objects.npy: array objects holds no plain numbers"),
    "more than there is": (["claims.npy", "out.npy"], "claims.npy: it is damaged"),
    "terabytes": (["much.npy", "out.npy"], "more than 5,000,000"),
    "a large header in version 2": (["second.npy", "out.npy"], "second.npy: it is damaged"),
}
BAD_PLACES = {
    "": "--scores is missing: name a .npz",
    ".": "--scores=.: give a .npz",
    "s": "give a .npz or .csv",
    "s.txt": "give a .npz or .csv",
    "s.json": "give a .npz or .csv",
    "s.pt": "give a .npz or .csv",
    "missing.csv": "missing.csv: No such file",
    "missing.npz": "missing.npz: No such file",
    "folder.npz": "folder.npz: it is no file",
    "folder.csv": "folder.csv: it is no file",
    "pipe.csv": "pipe.csv: it is no file",
    "loop.npz": "loop.npz: Too many levels of symbolic links",
    "dangling.csv": "dangling.csv: No such file",
    "device.csv": "device.csv: it is no file",
    "large.npz": "larger than 1 GiB",
    "large.csv": "larger than 1 GiB",
    "file.txt/s.csv": "Not a directory",
    "n" * 300 + ".csv": "File name too long",
    "\udcff.csv": r"\udcff.csv: No such file",
    "a\nb.csv": "No such file",
    "\x1b[2J.csv": r"\x1b[2J.csv: No such file",
}
WORTHLESS = {
    "a NaN": ([1.0, np.nan], [0.0, 1.0], "not finite"),
    "an infinity": ([1.0, 2.0], [0.0, np.inf], "not finite"),
    "all equal": ([1.0, 1.0], [1.0, 1.0], "equal"),
    "none in": ([], [1.0, 2.0], "no in scores"),
    "none out": ([1.0, 2.0], [], "no out scores"),
    "a table": ([[1.0, 2.0]], [1.0, 2.0], "at least 8"),
    "a cube in": ([[[1.0]]], [1.0, 2.0], "shape"),
    "no axis": (1.0, [1.0, 2.0], "shape"),
}


def odd_places(folder):
    """What a path can lead to beside a file."""
    for name in ("folder.npz", "folder.csv"):
        (folder / name).mkdir()
    for name, target in (("loop.npz", "loop.npz"), ("dangling.csv", "nowhere"), ("device.csv", "/dev/zero")):
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe.csv")
    for name in ("s", "file.txt", "s.txt", "s.json", "s.pt"):
        (folder / name).write_text("1,1\n")
    for name in ("large.npz", "large.csv"):
        with open(folder / name, "wb") as file:
            file.truncate(score_files.MOST_BYTES + 1)


def pairs(folder):
    """Arrays, and what is none, as .npy files."""
    contents = {"out": npy(FORTY), "text": b"1 2 3", "archive": archive(), "table": npy(np.ones((4, 2)))}
    contents |= {"objects": npy(np.array([1, None])), "claims": claiming((3000,))}
    contents |= {"much": claiming((10**12,)), "second": claiming((3000,), version=2)}
    for name, content in contents.items():
        (folder / f"{name}.npy").write_bytes(content)


SCORES = [
    *(
        named(Bad(("bound", f"--scores=s.{ending}"), says, holding(content, f"s.{ending}")), f": {what}")
        for ending, bad in (("csv", BAD_CSV), ("npz", BAD_NPZ))
        for what, (content, says) in bad.items()
    ),
    *(
        named(Bad(("bound", "--scores=" + ",".join(names)), says, pairs), f": {what}")
        for what, (names, says) in BAD_PAIRS.items()
    ),
    *(named(Bad(("bound", f"--scores={place}"), says, odd_places)) for place, says in BAD_PLACES.items()),
    named(Bad(("bound",), "--scores is missing")),
    *(
        named(
            Bad(("bound", "--scores=s.npz"), says, holding(npz(**{"in": one, "out": two}), "s.npz")),
            f": {what}",
        )
        for what, (one, two, says) in WORTHLESS.items()
    ),
    named(
        Bad(
            ("bound", "--scores=s.npz"),
            "30,000,000 scores, more than 5,000,000",
            holding(archive(claiming((30_000_000,))[:-16] + bytes(1_000_000)), "s.npz"),
        ),
        ": a small file of many zeros",
    ),
]


# ------------------------------------------------------------------------------------------ one run

COSINES = np.linspace(-0.1, 0.2, 50)
BITS = np.arange(50) % 2
BAD_RUNS = {  # what scores.npz holds, and what is said of it
    "no cosines": ({"in": COSINES, "out": COSINES}, "has no array observed: save observed="),
    "few": ({"observed": COSINES[:9]}, "there are 9 observed cosines: give at least 10"),
    "none": ({"observed": COSINES[:0]}, "there are 0 observed cosines"),
    "few unobserved": ({"observed": COSINES, "unobserved": COSINES[:3]}, "there are 3 unobserved cosines"),
    "a matrix": ({"observed": COSINES.reshape(5, 10)}, "have shape (5, 10): give one of a canary"),
    "a number": ({"observed": np.float64(0.1)}, "have shape (): give one of a canary"),
    "beyond 1": ({"observed": COSINES + 1}, "is no cosine: divide by both lengths"),
    "unobserved beyond 1": ({"observed": COSINES, "unobserved": 9 * COSINES}, "unobserved: 1.8 is no cosine"),
    "NaN": ({"observed": np.where(COSINES > 0, np.nan, COSINES)}, "observed cosines are not finite"),
    "infinite": ({"observed": np.where(COSINES > 0, np.inf, COSINES)}, "observed cosines are not finite"),
    "equal": ({"observed": np.zeros(50)}, "all 50 observed cosines equal 0"),
    "words": ({"observed": np.array(["a"] * 50)}, "plain numbers"),
    "two runs": ({"scores": np.ones((2, 25)), "presence": np.ones((2, 25))}, "(canaries,) or (1, canaries)"),
    "other shapes": ({"scores": COSINES, "presence": BITS[:9]}, "(canaries,) or (1, canaries)"),
    "no bits": ({"scores": COSINES, "presence": BITS * 2}, "presence must be 1 (in) or 0 (out)"),
    "one world": ({"scores": COSINES, "presence": np.ones(50)}, "there are 0 unobserved cosines"),
    "few coins": ({"scores": COSINES[:39], "presence": BITS[:39]}, "there are 39 canaries with coins"),
    "coins beyond 1": ({"scores": 9 * COSINES, "presence": BITS}, "is no cosine"),
    "coins of NaN": ({"scores": np.nan * COSINES, "presence": BITS}, "not finite"),
}
ONE_RUN = ("bound", "--scores=scores.npz", "--dimension=100")


def cosines(folder):
    """scores.npz of one run, in which nothing is wrong."""
    np.savez(folder / "scores.npz", observed=COSINES)


RUNS = [
    *(
        named(Bad(ONE_RUN, says, holding(npz(**arrays), "scores.npz")), f": {what}")
        for what, (arrays, says) in BAD_RUNS.items()
    ),
    *rows(BOUND, "dimension", "--dimension={}: give 2 to 10,000,000,000,000", 1, 0, -5, HUGE, lay=cosines),
    *(
        named(Bad((*ONE_RUN, flag), f"{flag.partition('=')[0]} does not go with --dimension", cosines))
        for flag in (
            *("--looks=10", "--noise_multiplier=1", "--insertions=3", "--sampling_rate=0.1"),
            "--figure=f.png",
        )
    ),
    named(Bad((*ONE_RUN, "--report=scores.npz/p.html"), "name another file with --report", cosines)),
    *(named(Bad((name, "--report="), "--report=: name an HTML file")) for name in ("federated", "one_shot")),
    *rows(ONE_RUN, "upper_bound", "--upper_bound={}: give a finite one", "nan", "-1.0", "inf", lay=cosines),
    named(Bad((*ONE_RUN, "--delta=0"), "delta is 0", cosines)),
    named(Bad((*ONE_RUN, "--confidence=1"), "confidence is 1", cosines)),
    named(Bad(("bound", "--scores=missing.npz", "--dimension=9"), "missing.npz: No such file")),
    named(Bad(("bound", "--scores=s.csv", "--dimension=9"), "give a .npz file with observed cosines")),
    named(Bad(("bound", "--scores=a.npy,b.npy", "--dimension=9"), "give one .npz file")),
    named(Bad(("bound", "--scores=scores.npz", "--dimension=9"), "damaged", holding(b"no", "scores.npz"))),
    named(Bad(("bound", "--scores=scores.npz"), "has no array in, out", cosines)),
]


# ------------------------------------------------------------------------------------------ stores

SETTING = setting_of("fcnn", adversary="gc_r", noise_multiplier=1.0, insertions=4)
OTHER = setting_of("fcnn", adversary="gc_r", noise_multiplier=1.0, insertions=4, seed=1)
CONCLUDED = {
    "bounds": [{"method": "if_gaussian", "epsilon": 1.5, "delta": 1e-5, "confidence": 0.95}],
    "upper_bound": 9.75,
    "runs": 40,
    "provenance": {"jax": "0"},
}


def audited(root, setting=SETTING, runs=40, **more):
    """A setting's folder with made-up scores and their conclusion, named r/<hash>."""
    store = Store(root, {**identity(setting), "data_sha256": "0" * 64, **more})
    presence = np.arange(runs)[:, None] % 2 == 1
    store.save(Scores(0, FORTY[:runs, None] + presence, presence))
    store.write_result(json.dumps(CONCLUDED))
    return store.path


def scores_of(store):
    """The path of its only file of scores."""
    (path,) = store.glob("scores_*")
    return path


def stored(change, beside=False):
    """Lays a store r of an audit that `change` damages, given its folder, and of a good one beside it."""

    def lay(folder):
        change(audited(folder / "r"))
        if beside:
            audited(folder / "r", OTHER)

    return lay


def writing(name, content):
    """Writes a file of the audit's anew."""
    return lambda audit: (audit / name).write_bytes(content)


def concluding(**changes):
    """An audit.json with changes."""
    return writing("audit.json", json.dumps(CONCLUDED | changes).encode())


def configured(**changes):
    """Another config, under the name that is its own; None drops a field."""

    def change(audit):
        config = json.loads((audit / "config.json").read_text()) | changes
        shutil.rmtree(audit)
        store = Store(audit.parent, {name: value for name, value in config.items() if value is not None})
        store.save(Scores(0, FORTY[:, None], np.arange(40)[:, None] % 2 == 1))

    return change


def scored(damage):
    """Another content of the file of scores."""

    def change(audit):
        path = scores_of(audit)
        path.write_bytes(damage(path.read_bytes()))

    return change


def replaced(name, make):
    """Something else in a file's place."""

    def change(audit):
        path = scores_of(audit) if name == "scores" else audit / name
        path.unlink()
        make(path)

    return change


def looping(path):
    """A link to itself."""
    path.symlink_to(path.name)


def of_nan(audit):
    """Scores that are not finite, with their own checksum."""
    scores_of(audit).unlink()
    store = Store.at(audit)
    store.save(Scores(0, np.full((40, 1), np.nan), np.arange(40)[:, None] % 2 == 1))


def of_one_world(audit):
    """Scores of runs that are all in."""
    scores_of(audit).unlink()
    Store.at(audit).save(Scores(0, FORTY[:, None], np.ones((40, 1), bool)))


def of_two_canaries(audit):
    """A second file of scores, of two canaries a run."""
    Store.at(audit).save(Scores(40, np.zeros((4, 2)), np.zeros((4, 2), bool)))


BOUND_ROW = CONCLUDED["bounds"][0]
BAD_CONCLUSIONS = {
    "empty": writing("audit.json", b""),
    "torn": writing("audit.json", json.dumps(CONCLUDED).encode()[:60]),
    "binary": writing("audit.json", bytes(range(256))),
    "UTF-16": writing("audit.json", json.dumps(CONCLUDED).encode("utf-16")[:99]),
    "a list": writing("audit.json", b"[]"),
    "null": writing("audit.json", b"null"),
    "a number": writing("audit.json", b"3"),
    "brackets": writing("audit.json", b"[" * 100_000),
    "a number of 5,000 digits": writing("audit.json", b'{"runs": ' + b"9" * 5000 + b"}"),
    "bounds of nothing": concluding(bounds=[{}]),
    "bounds of numbers": concluding(bounds=[3]),
    "bounds in an object": concluding(bounds={"method": 1}),
    "no bounds": concluding(bounds=None),
    "delta of words": concluding(bounds=[BOUND_ROW | {"delta": "x"}]),
    "delta of 0": concluding(bounds=[BOUND_ROW | {"delta": 0}]),
    "delta NaN": concluding(bounds=[BOUND_ROW | {"delta": float("nan")}]),
    "confidence of 2": concluding(bounds=[BOUND_ROW | {"confidence": 2}]),
    "confidence true": concluding(bounds=[BOUND_ROW | {"confidence": True}]),
    "epsilon of words": concluding(bounds=[BOUND_ROW | {"epsilon": "x"}]),
    "runs of words": concluding(runs="x"),
    "runs of 3.5": concluding(runs=3.5),
    "runs true": concluding(runs=True),
    "runs below 0": concluding(runs=-1),
    "provenance of numbers": concluding(provenance={"jax": 3}),
    "provenance of a list": concluding(provenance=[1]),
    "no provenance": concluding(provenance=None),
    "upper bound of words": concluding(upper_bound="x"),
    "upper bound NaN": concluding(upper_bound=float("nan")),
    "a folder": replaced("audit.json", Path.mkdir),
    "a loop": replaced("audit.json", looping),
}
BAD_CONFIGS = {  # of which the folder's name is not the hash, or no setting
    "empty": (writing("config.json", b""), "is not the setting that its folder is named after"),
    "altered": (writing("config.json", b"{}"), "is not the setting that its folder is named after"),
    "binary": (
        writing("config.json", bytes(range(256))),
        "is not the setting that its folder is named after",
    ),
    "a folder": (replaced("config.json", Path.mkdir), "config.json (Is a directory)"),
    "a loop": (replaced("config.json", looping), "config.json (Too many levels of symbolic links)"),
}
FOREIGN_CONFIGS = {  # which describe no audit
    "another experiment": configured(experiment="canary_norms"),
    "no experiment": configured(experiment=None),
    "no mechanism": configured(mechanism=None),
    "a mechanism of numbers": configured(mechanism=3),
    "an unknown field": configured(mechanism={"name": "dp_sgd", "magic": 1}),
    "no schedule": configured(schedule=None),
    "a periodicity of 0": configured(schedule={"steps": 4, "periodicity": 0}),
    "steps of words": configured(schedule={"steps": "4", "periodicity": 1}),
    "an unknown adversary": configured(adversary={"name": "nobody"}),
    "an adversary of words": configured(adversary="gc_r"),
    "simulations of 10**9": configured(adversary={"name": "gc_s", "simulations": 10**9}),
    "a seed of words": configured(seed="0"),
    "a seed below 0": configured(seed=-1),
    "a model of numbers": configured(model=3),
    "data of numbers": configured(data_sha256=3),
}
BAD_SCORES = {
    "empty": (scored(lambda content: b""), "lacks runs 0 to 39"),
    "torn": (scored(lambda content: content[:200]), "lacks runs 0 to 39"),
    "torn at its end": (scored(lambda content: content[:-1]), "lacks runs 0 to 39"),
    "a score flipped": (scored(lambda content: flipped(content, 300, 304)), "lacks runs 0 to 39"),
    "its directory flipped": (scored(lambda content: flipped(content, -22, -18)), "lacks runs 0 to 39"),
    "text": (scored(lambda content: b"scores"), "lacks runs 0 to 39"),
    "an npy": (scored(lambda content: npy(FORTY)), "lacks runs 0 to 39"),
    "an npz of others": (scored(lambda content: npz(a=FORTY)), "lacks runs 0 to 39"),
    "without a checksum": (
        scored(lambda content: npz(scores=FORTY, presence=FORTY > 0)),
        "lacks runs 0 to 39",
    ),
    "another checksum": (
        scored(lambda content: npz(scores=FORTY, presence=FORTY > 0, sha256=np.array("0" * 64))),
        "lacks runs 0 to 39",
    ),
    "of words": (scored(lambda content: npz(scores=["a"], presence=[1], sha256=["b"])), "lacks runs"),
    "of objects": (
        scored(lambda content: npz(scores=np.array([{}]), presence=np.array([1]), sha256=["b"])),
        "lacks runs",
    ),
    "400 GB claimed": (
        scored(lambda content: archive(claiming((50_000_000_000,)), "scores.npy")),
        "lacks runs 0 to 39",
    ),
    "a folder": (replaced("scores", Path.mkdir), "(Is a directory)"),
    "a loop": (replaced("scores", looping), "(Too many levels of symbolic links)"),
    "not finite": (of_nan, "not finite"),
    "one world": (of_one_world, "both are needed"),
    "two canaries": (of_two_canaries, "mixes scores of 1 and 2 canaries a run"),
    "fewer than concluded": (concluding(runs=41), "lacks runs 40 to 40"),
}
LIST, REPORT, ALL = (("list", "--out=r"), ("report", "--out=r"), ("report", "--out=r", "--setting=all"))
STORES = [
    *(
        named(Bad((*LIST, *json_), "r/920f8cebe5bfd86a/", stored(change, beside=True), status=0), f": {what}")
        for json_, what, change in (
            *(((), f"a conclusion, {what}", change) for what, change in BAD_CONCLUSIONS.items()),
            *((("--json",), f"a config, {what}", change) for what, (change, _) in BAD_CONFIGS.items()),
        )
    ),
    *(
        named(Bad(LIST, "skipped: 1 folder holds other", stored(change, beside=True), status=0), f": {what}")
        for what, change in FOREIGN_CONFIGS.items()
    ),
    *(
        named(Bad(REPORT, "error: r/", stored(change)), f": a conclusion, {what}")
        for what, change in list(BAD_CONCLUSIONS.items())[::3]
    ),
    *(
        named(Bad(REPORT, "holds no audits", stored(change)), f": a config, {what}")
        for what, (change, _) in BAD_CONFIGS.items()
    ),
    *(
        named(Bad(ALL, says, stored(change)), f": a config, {what}")
        for what, (change, says) in BAD_CONFIGS.items()
    ),
    *(
        named(Bad(REPORT, "holds no audits (1 with other results): run", stored(change)), f": {what}")
        for what, change in list(FOREIGN_CONFIGS.items())[::3]
    ),
    *(
        named(Bad(ALL, says, stored(change)), f": scores, {what}")
        for what, (change, says) in BAD_SCORES.items()
    ),
    *rows(
        ["report", "--out=r"], "setting", "--setting={} is no audit in r", "zzz", "../x", lay=stored(nothing)
    ),
    *rows(["report", "--out=r"], "setting", "--setting= is no audit in r", "", ",", lay=stored(nothing)),
    named(Bad((*REPORT, "--report="), "--report=: name an HTML file", stored(nothing))),
    named(Bad((*REPORT, "--setting=all", "--delta=2"), "delta is 2.0", stored(nothing))),
    *(
        named(Bad((*argv, f"--out={place}"), says, odd_places), ": no folder")
        for argv in (
            ("list",),
            ("report",),
            ("figures",),
            ("sweep", "--list"),
            ("sweep", "--name=figure_4"),
            ("landscape",),
        )
        for place, says in (
            ("", "--out=: name a folder"),
            ("s.txt", "s.txt (Not a directory)"),
            ("n" * 300, "File name too long"),
            ("device.csv", "device.csv (Not a directory)"),
            ("loop.npz", "loop.npz (Too many levels of symbolic links)"),
        )
    ),
    *(
        named(Bad((command, "--out="), "--out=: name a folder"))
        for command in ("audit", "norms", "own_model")
    ),
    *(
        named(Bad((*argv, "--out=missing"), says))
        for argv, says in (
            (("report",), "--out=missing holds no audits: run ./run.sh audit, or name another folder"),
            (("figures",), "missing holds no finished cell of all at scale laptop"),
            (("report", "--sweep=figure_4"), "holds no finished cell of figure_4 at scale laptop"),
            (("report", "--setting=all"), "holds no audits"),
            (("report", "--setting=1f"), "holds no audits"),
        )
    ),
]


# ------------------------------------------------------------------------------------------ sweeps' stores


def smoke_cells(folder):
    """Two cells of figure_7 at scale smoke: one whole, and the folder of the other."""
    one, two = sweeps.sweeps("smoke")["figure_7"].audits()[:2]
    return [audited(folder / "r", cell.setting, cell.runs) for cell in (one, two)]


def smoke(change, both=False):
    """Lays two cells of which `change` damages one, or both."""
    return lambda folder: [change(cell) for cell in smoke_cells(folder)[0 if both else 1 :]]


def twice(audit):
    """The same setting on other data beside it."""
    config = json.loads((audit / "config.json").read_text())
    Store(audit.parent, config | {"data_sha256": "1" * 64})


STUDY = landscapes.study(sweeps.GRIDS["smoke"], 1e-5, 0.95)
SOLVED = Exact([0.5], [1.0] * 5, [1.0] * 5, 1.5)


@functools.cache
def answered():
    """{file: content} of a smoke sweep's landscape, made up."""
    answers = {law: SOLVED for law in STUDY.all_laws()}
    row = {"method": "in_sample", "assumes": "", "epsilon": 1.0}
    answers |= {STUDY.audit(cell): Simulated([1.0] * 5, [row], [row]) for cell in STUDY.cells}
    answers |= {search: Search([1.0] * 49) for search in STUDY.searches()}
    found = {}
    for asked, result in answers.items():
        config = store._text(asked.setting())
        folder = store._hash(config.encode())
        place = landscapes.CELLS / folder
        found |= {f"{place}/config.json": config, f"{place}/result.json": landscapes.text(result)}
    return found


def landscape(change):
    """Lays that landscape, of which `change` damages the first result."""

    def lay(folder):
        for name, content in answered().items():
            (folder / "r" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "r" / name).write_text(content)
        change((folder / "r" / next(iter(answered()))).parent)

    return lay


def altered(audit):
    """One number of a result changed."""
    path = audit / "result.json"
    path.write_text(path.read_text().replace("1.5", "99.5"))


BAD_RESULTS = {
    "empty": writing("result.json", b""),
    "torn": writing("result.json", b'{"thresholds": [0.5'),
    "binary": writing("result.json", bytes(range(256))),
    "null": writing("result.json", b"null"),
    "brackets": writing("result.json", b"[" * 100_000),
    "altered": altered,
    "other fields": writing("result.json", b'{"claimed": [1]}'),
    "words for numbers": writing(
        "result.json",
        json.dumps(dataclasses.asdict(SOLVED) | {"epsilon_upper": "x"}).encode(),
    ),
}
SMOKE = ("--scale=smoke", "--out=r")
SWEEPS = [
    *(
        named(Bad(("sweep", "--list", *SMOKE), f"result.json{COUNTED}", landscape(change), 0), f": {what}")
        for what, change in BAD_RESULTS.items()
    ),
    *(
        named(Bad(("sweep", "--list", *SMOKE), f"result.json{says}", landscape(change)), f": {what}")
        for what, change, says in (
            (
                "a folder",
                lambda audit: ((audit / "result.json").unlink(), (audit / "result.json").mkdir()),
                "",
            ),
            ("a loop", lambda audit: ((audit / "result.json").unlink(), looping(audit / "result.json")), ""),
        )
    ),
    named(Bad(("sweep", "--list", *SMOKE), "are one setting on different data", smoke(twice))),
    named(
        Bad(
            ("sweep", "--name=figure_7", *SMOKE, "--california_housing=missing.csv"),
            "missing.csv cannot be used",
        )
    ),
    *(
        named(
            Bad(
                ("report", "--sweep=figure_7", *SMOKE),
                says,
                lambda folder, lay=lay: [lay(x) for x in smoke_cells(folder)],
            ),
            f": {what}",
        )
        for what, lay, says in (
            ("scores torn", scored(lambda content: content[:99]), "holds no finished cell of figure_7"),
            ("a conclusion torn", writing("audit.json", b"{"), "audit.json cannot be read"),
            ("scores a folder", replaced("scores", Path.mkdir), "Is a directory"),
        )
    ),
]

# ------------------------------------------------------------------------------------------ data, weights

TABLE = np.random.default_rng(1).normal(size=(30, 9))


def housing(header=COLUMNS, **changes):
    """A CSV of California Housing's columns, with cells changed by (row, column)."""
    cells = [[f"{value:.4f}" for value in row] for row in TABLE]
    for place, text in changes.items():
        row, column = map(int, place[1:].split("_"))
        cells[row][column] = text
    return "\n".join(map(",".join, [header, *cells])).encode() + b"\n"


def columns(**changes):
    """An .npz of California Housing's columns."""
    return npz(**dict(zip(COLUMNS, TABLE.T, strict=True)) | changes)


def tarred(**members):
    """A tar.gz."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def images(side=32, channels=(3,), count=20, **changes):
    """An .npz of image data."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, side, side, *channels), np.uint8)
        arrays[f"{part}_labels"] = rng.integers(0, 10, count)
    return npz(**arrays | changes)


BAD_HOUSING = {
    "empty": ("h.csv", b"", "h.csv cannot be used"),
    "no rows": ("h.csv", (",".join(COLUMNS) + "\n").encode(), "h.csv cannot be used"),
    "a missing column": ("h.csv", housing(["x", *COLUMNS[1:]]), "column MedInc is missing"),
    "words": ("h.csv", housing(_3_2="high"), "column AveRooms holds something that is not a number"),
    "a NaN": ("h.csv", housing(_3_2="nan"), "column AveRooms has a NaN"),
    "an infinity": ("h.csv", housing(_3_2="inf"), "column AveRooms has a NaN, infinite or huge"),
    "a huge number": ("h.csv", housing(_3_2="1e300"), "column AveRooms has a NaN, infinite or huge"),
    "an empty cell": ("h.csv", housing(_3_2=""), "column AveRooms has a NaN"),
    "a row too long": ("h.csv", housing(_3_2="1,2"), "h.csv cannot be used"),
    "escapes": ("h.csv", housing(_3_2="1,\x1b[2J"), r"\x1b[2J"),
    "binary": ("h.csv", bytes(range(256)) * 9, "h.csv cannot be used"),
    "UTF-16": ("h.csv", housing().decode().encode("utf-16"), "h.csv cannot be used"),
    "HTML": ("h.csv", b"<!DOCTYPE html><p>404", "h.csv cannot be used"),
    "an archive": ("h.csv", columns(), "h.csv cannot be used"),
    "constant": ("h.npz", columns(MedInc=np.ones(30)), "column MedInc is constant"),
    "another length": ("h.npz", columns(MedInc=np.arange(9.0)), "the columns differ in length"),
    "a table for a column": (
        "h.npz",
        columns(MedInc=np.ones((30, 2))),
        "column MedInc has fewer than 2 rows",
    ),
    "objects": ("h.npz", columns(MedInc=np.array([{}] * 30)), "h.npz cannot be used"),
    "complex": ("h.npz", columns(MedInc=np.arange(30) * 1j), "column MedInc holds"),
    "dates": ("h.npz", columns(MedInc=np.arange(30).astype("M8[s]")), "column MedInc holds"),
    "structured": ("h.npz", columns(MedInc=np.zeros(30, "f8,i4")), "column MedInc holds"),
    "torn npz": ("h.npz", columns()[:99], "h.npz cannot be used"),
    "400 GB claimed": ("h.npz", archive(claiming((50_000_000_000,)), "MedInc.npy"), "h.npz cannot be used"),
    "an npy as npz": ("h.npz", npy(TABLE), "h.npz cannot be used"),
    "text as parquet": ("h.parquet", b"PAR1 and nothing", "h.parquet cannot be used"),
    "zeros as parquet": ("h.parquet", bytes(99), "h.parquet cannot be used"),
    "brotli": ("h.brotli", bytes(99), "h.brotli cannot be used"),
    "another ending": ("h.txt", housing(), "it ends in .txt, not .csv"),
    "none above the median": ("h.npz", columns(MedHouseVal=np.array([1.0] * 29 + [0.0])), "above the median"),
}
BAD_IMAGES = {
    "h.npz of housing": ("h.npz", columns(), "h.npz cannot be used"),
    "another side": ("h.npz", images(side=28), "h.npz cannot be used"),
    "floats": ("h.npz", images(train_images=np.zeros((20, 32, 32, 3))), "h.npz cannot be used"),
    "labels of 10": ("h.npz", images(train_labels=np.full(20, 10)), "h.npz cannot be used"),
    "labels below 0": ("h.npz", images(train_labels=np.full(20, -1)), "h.npz cannot be used"),
    "labels of words": ("h.npz", images(train_labels=np.array(["a"] * 20)), "h.npz cannot be used"),
    "too few labels": ("h.npz", images(train_labels=np.zeros(3, int)), "h.npz cannot be used"),
    "none": ("h.npz", images(count=0), "h.npz cannot be used"),
    "no gzip": ("h.tar.gz", b"text", "h.tar.gz cannot be used"),
    "torn gzip": ("h.tar.gz", tarred(test_batch=bytes(3073))[:40], "h.tar.gz cannot be used"),
    "no batches": ("h.tar.gz", tarred(other=b"1"), "only cifar-10-binary.tar.gz is read, no pickles"),
    "torn batches": (
        "h.tar.gz",
        tarred(**{f"data_batch_{i}": bytes(3073) for i in range(1, 6)}, test_batch=bytes(99)),
        "test_batch is torn",
    ),
    "a picture": ("h.png", b"\x89PNG", "it ends in .png"),
}
BAD_FASHION = {
    "a folder of nothing": ("h", None, "the folder holds no train-images-idx3-ubyte.gz"),
    "CIFAR-10": ("h.npz", images(), "h.npz cannot be used"),
    "no package": ("h.deb", b"!<arch>\n", "h.deb cannot be used"),
    "a torn package": ("h.deb", b"!<arch>\n" + b"debian-binary   " * 9, "h.deb cannot be used"),
    "text": ("h.deb", b"text", "h.deb cannot be used"),
}
SAFE = safetensors.numpy.save({"weight": np.ones(3, np.float32)})


def pickled(body):
    """A torch file of the zip format whose pickle is this."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as members:
        members.writestr("archive/data.pkl", body)
    return file.getvalue()


BAD_WEIGHTS = {
    "empty": ("w.pth", b"", "it is neither a state dict that torch.save wrote nor a safetensors file"),
    "text": ("w.pth", b"weights", "it is neither a state dict"),
    "HTML": ("w.pth", b"<!DOCTYPE html><p>404", "it is neither a state dict"),
    "another network": ("w.safetensors", SAFE, "is missing: it holds another network"),
    "torn": ("w.safetensors", SAFE[:-4], "is torn"),
    "a header of 2**63": ("w.safetensors", b"\xff" * 7 + b"\x7f" + SAFE[8:], "is torn"),
    "a header of no JSON": ("w.safetensors", SAFE[:8] + b"{" + b"}" * (len(SAFE) - 9), "is torn"),
    "a bare zip": ("w.pth", archive(), "it holds 0 data.pkl, not one"),
    "a torn zip": ("w.pth", archive()[:99], "is torn"),
    "a pickle of code": ("w.pth", pickled(b"cos\nsystem\n(S'touch owned'\ntR."), "it names os.system"),
    "a pickle of eval": ("w.pth", pickled(b"cbuiltins\neval\n(S'1'\ntR."), "it names builtins.eval"),
    "a pickle of a list": ("w.pth", pickled(b"(lp0\n."), "it holds a list: save a state_dict() alone"),
    "a torn pickle": ("w.pth", pickled(b"\x80\x02"), "is torn"),
    "no pickle": ("w.pth", pickled(b""), "is torn"),
    "the older format, torn": (
        "w.pth",
        b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",
        "is torn",
    ),
    "another ending": ("w.npz", npz(a=FORTY), "it ends in .npz, not .pth"),
}


def into(name, content):
    """Lays the file, or a folder where there is no content."""
    return lambda folder: (folder / name).mkdir() if content is None else (folder / name).write_bytes(content)


HEAD = ("audit", "--model=mobilenet_head")
DATA = [
    *(
        named(
            Bad(("audit", f"--model={model}", f"--data_file={name}"), says, into(name, content)), f": {what}"
        )
        for model, bad in (("fcnn", BAD_HOUSING), ("convnet", BAD_IMAGES), ("mlp", BAD_FASHION))
        for what, (name, content, says) in bad.items()
    ),
    *(
        named(Bad((*HEAD, f"--weights={name}"), says, into(name, content)), f": {what}")
        for what, (name, content, says) in BAD_WEIGHTS.items()
    ),
    *rows(HEAD, "weights", "cannot be used", "missing.pth", "", ".", "/dev/null", "/dev/null/w.pth"),
    *rows(HEAD, "input_size", "--input_size={}: give 32 to 512 pixels", 0, -1, 31, 513, HUGE),
    *(
        case
        for command in ("audit", "plan", "precision")
        for case in (
            *rows(
                [command],
                "data_file",
                "cannot be used",
                "",
                ".",
                "/dev/null",
                "missing.csv",
                "n" * 300 + ".csv",
            ),
            *rows([command], "tfds_dir", "it holds no prepared california_housing", "", ".", "missing"),
        )
    ),
    *(
        named(
            Bad(
                (*argv, "--data_file=loop.csv"),
                "loop.csv cannot be used",
                lambda folder: looping(folder / "loop.csv"),
            )
        )
        for argv in (("audit",), ("audit", "--model=linear"))
    ),
]


# ------------------------------------------------------------------------------------------ one's own model

SCRIPT = """
import flax.linen as nn, jax.numpy as jnp, numpy as np, optax
from experiments import cli

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x)

class Drop(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x))

class Batch(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=False)(nn.Dense(3)(x))

class Empty(nn.Module):
    def __call__(self, x):
        return x

def main():
    cli.prepare_jax()
    from experiments import own
    module, criterion = Net(), optax.softmax_cross_entropy_with_integer_labels
    features, labels = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 3
    named = dict(runs=4, steps=3, batch_size=8, adversary="gc_r")
    {change}
    own.audit_model(module, criterion, features, labels, **named)

cli.run(main)
"""
CHANGES = {
    "named['runs'] = 1": "--runs=1: give at least 2",
    "named['runs'] = 10**18": "give at most 100,000,000",
    "named['steps'] = 0": "--steps=0: give at least 1 step",
    "named['batch_size'] = 0": "--batch_size=0: give at least 1",
    "named['learning_rate'] = float('nan')": "--learning_rate=nan: give",
    "named['noise_multiplier'] = -1": "--noise_multiplier=-1: give",
    "named['delta'] = 0": "delta is 0",
    "named['confidence'] = 1": "confidence is 1",
    "named['adversary'] = 'nobody'": "--adversary=nobody is unknown",
    "named['clipping'] = 'ghost'": "--clipping=ghost is none that",
    "named['optimizer'] = 'rmsprop'": "--optimizer=rmsprop is none that",
    "named['seed'] = -1": "--seed=-1: give",
    "named['k'] = 2": "k is no field of a setting",
    "named['magic'] = 2": "magic is no field of a setting",
    "named['simulations'] = '4'": "--simulations='4' is no int",
    "named['gc_s'] = [1]": "--gc_s=[1] is no str",
    "named['unknown_initialisation'] = 'no'": "is no bool",
    "named['model'] = 3": "--model=3 is no str",
    "named['out'] = ''": "--out=: name a folder",
    "named['runs'] = '4'": "--runs='4' is no int",
    "named['runs'] = 4.5": "--runs=4.5 is no int",
    "named['steps'] = '3'": "--steps='3' is no int",
    "named['steps'] = 3.5": "--steps=3.5 is no int",
    "named['batch_size'] = None; named['learning_rate'] = 'fast'": "--learning_rate='fast' is no float",
    "named['seed'] = 1.5": "--seed=1.5 is no int",
    "named['delta'] = 'small'": "--delta='small' is no float",
    "named['adversary'] = ['gc_r']": "--adversary=['gc_r'] is no str",
    "named['adversary'] = 'loss'; labels = labels * 0": "flips labels",
    "named['adversary'] = 'loss'; labels = labels - 1": "flips labels",
    "features = features[:30]": "there are 30 features and 40 labels",
    "features = features[:0]; labels = labels[:0]": "need an axis of examples each",
    "features = 3.0": "need an axis of examples each",
    "features = features * np.nan": "features hold 200 values that are not finite",
    "features[3, 2] = np.inf": "features hold 1 values that are not finite",
    "features = features * 1e300": "that are not finite or too large",
    "features = features * 1j": "features are complex128: give numbers",
    "features = features.astype(str)": "features are <U",
    "features = [[1, 2], [3]]": "features are no array: give rows of one length",
    "features = np.array([{}] * 40)": "features are object: give numbers",
    "labels = np.arange(40).astype('M8[s]')": "labels are datetime64[s]: give numbers",
    "labels = np.array(['a'] * 40)": "labels are <U1: give numbers",
    "labels = np.arange(40) * 10**12": "labels hold",
    "labels = None": "labels are object: give numbers",
    "module = Drop()": "the module draws randomness: switch dropout off",
    "module = Batch()": "the module keeps batch_stats",
    "module = Empty()": "the module keeps nothing to train",
    "module = 3": "takes a Flax Linen module, not one of type int",
    "module = Net": "takes a Flax Linen module, not the class Net: give an instance, Net()",
    "criterion = None": "the module or criterion fails on one example",
    "criterion = lambda logits, label: logits": "the loss of one example has shape (3,), not ()",
    "criterion = lambda logits: 0.0": "the module or criterion fails on one example",
    "features = features[:, None, :]": "the module or criterion fails on one example of shape (1, 5)",
}
OWN = [
    named(
        Bad(("python", "mine.py"), says, holding(SCRIPT.format(change=change).encode(), "mine.py")),
        f": {change}",
    )
    for change, says in CHANGES.items()
]


# -------------------------------------------------------------------------------------------- the checks

# ------------------------------------------------------------------------------------------ federated runs


def images(folder):
    """images.npz, 40 random ones and 10 to test on; rounds.csv, one round of two clients."""
    rng, arrays = np.random.default_rng(0), {}
    for name, count in (("train", 40), ("test", 10)):
        arrays[f"{name}_images"] = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        arrays[f"{name}_labels"] = rng.integers(0, 10, count).astype(np.int32)
    np.savez(folder / "images.npz", **arrays)


FEDERATED_AUDIT = ("federated", "--model=linear")
WITH_IMAGES = (*FEDERATED_AUDIT, "--data_file=images.npz", "--clients=4", "--cohort=2", "--rounds=3")
LISTED = (*WITH_IMAGES, "--participation=listed", "--cohorts=rounds.csv", "--alpha=100")


def with_rounds(text):
    """Lays images and rounds.csv."""

    def lay(folder):
        images(folder)
        (folder / "rounds.csv").write_text(text)

    return lay


FEDERATED = [
    *rows(["federated"], "model", "--model={} is unknown: choose one of two_layer", "nobody", "fcnn"),
    *rows(FEDERATED_AUDIT, "observe", "--observe={} is unknown: choose one of final", "some", ""),
    *rows(FEDERATED_AUDIT, "participation", "--participation={} is unknown: choose", "some"),
    *rows(FEDERATED_AUDIT, "participation", "--cohorts and --participation=listed go together", "listed"),
    *rows(FEDERATED_AUDIT, "cohorts", "--cohorts and --participation=listed go together", "x.csv"),
    *rows(FEDERATED_AUDIT, "runs", "--runs={}: give 1 to 1,000,000", 0, -1, HUGE),
    *rows(FEDERATED_AUDIT, "rounds", "--rounds={}: give 1 to 1,000,000", 0, -1, HUGE),
    *rows(FEDERATED_AUDIT, "rounds", "their product is to be at most 100,000,000", 10**6),
    *rows(FEDERATED_AUDIT, "cohort", "--cohort={}: give 1 to", 0, -1, HUGE),
    *rows(FEDERATED_AUDIT, "clients", "--clients={}: give 0 to", -1, HUGE),
    *rows(FEDERATED_AUDIT, "client_epochs", "--client_epochs={}: give 1 to", 0, HUGE),
    *rows(FEDERATED_AUDIT, "batch_size", "--batch_size={}: give 1 to", 0, HUGE),
    *rows(FEDERATED_AUDIT, "canaries", "--canaries={}: give 100 to", 0, 99, HUGE),
    *rows((*FEDERATED_AUDIT, "--rounds=3"), "repetitions", "--repetitions={}: give 1 to 3", 0, 4, HUGE),
    *rows(FEDERATED_AUDIT, "seed", "--seed={}: give 0 to", -1, 2**32),
    *rows(FEDERATED_AUDIT, "learning_rate", "--learning_rate={}: give 1e-6 to", "nan", "inf", "0.0"),
    *rows(FEDERATED_AUDIT, "client_learning_rate", "_rate={}: give 1e-6 to", "nan", "inf", "-1.0"),
    *rows(FEDERATED_AUDIT, "clipping_norm", "--clipping_norm={}: give 1e-6 to", "nan", "inf", "0.0"),
    *rows(FEDERATED_AUDIT, "noise_multiplier", "--noise_multiplier={}: give 0, or", "nan", "-1.0"),
    *rows(FEDERATED_AUDIT, "momentum", "--momentum={}: give 0 to below 1", "nan", "1.0", "-0.1"),
    *rows(FEDERATED_AUDIT, "quantile", "--quantile={}: give 0 to below 1", "nan", "1.0", "-0.1"),
    *rows(FEDERATED_AUDIT, "alpha", "--alpha={}: give a finite number", "nan", "inf", "0.0"),
    *rows(FEDERATED_AUDIT, "delta", "delta is {}", "nan", "-1.0"),
    *rows(FEDERATED_AUDIT, "confidence", "confidence is {}", "nan", "-1.0"),
    *rows(FEDERATED_AUDIT, "out", "--out=: name a folder", ""),
    *(
        named(Bad(argv, says, lay), says)
        for argv, says, lay in (
            ((*WITH_IMAGES, "--clients=41"), "--clients=41: give 1 to 40", images),
            ((*WITH_IMAGES, "--clients=30", "--alpha=1e-9"), "without examples: raise it", images),
            ((*WITH_IMAGES, "--cohort=5", "--alpha=100"), "--cohort=5 is more than the 4 clients", images),
            (
                (*WITH_IMAGES, "--alpha=100", "--quantile=0.5", "--noise_multiplier=1"),
                "on the count costs more: lower it, or raise --cohort",
                images,
            ),
            ((*WITH_IMAGES, "--data_file=nowhere.npz"), "nowhere.npz", images),
            (("federated", "--model=emnist_cnn"), "emnist_all.sqlite", nothing),
            (("federated", "--model=word_lstm"), "stackoverflow", nothing),
            (LISTED, "--cohorts=rounds.csv: there is no such file", images),
            (LISTED, "rounds.csv holds no rounds", with_rounds("")),
            (LISTED, "rounds.csv, line 2: '1;2' is not round,client", with_rounds("1,1\n1;2\n")),
            (LISTED, "round 1 names client [4]: there are 4", with_rounds("1,1\n1,4\n")),
            (LISTED, "round 1 names a client twice", with_rounds("1,1\n1,1\n")),
        )
    ),
]

CORPUS = [
    *(*FLAGS, *SIZES, *CHOICES, *TOGETHER, *BOUNDS, *SCORES, *RUNS, *STORES, *SWEEPS, *DATA, *OWN),
    *FEDERATED,
]


@pytest.fixture
def folder(tmp_path):
    """A case's folder, beside which lies something."""
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "precious").write_text("precious")
    (tmp_path / "case").mkdir()
    return tmp_path / "case"


@pytest.mark.parametrize("case", CORPUS)
def test_a_bad_input_is_one_line_and_nothing_else_happens(forked, homes, folder, case):
    case.lay(folder)
    before, home = tree(folder.parent), tree(homes[0])
    ended = forked(*case.argv, folder=folder)
    *said, last = shown(ended.stderr)
    lines = [*(line for line in said if not line.endswith(COUNTED)), last]
    assert "Traceback" not in ended.stderr and "Warning" not in ended.stderr, ended
    assert ended.status == case.status and len(lines) == 1, ended
    assert case.says in lines[0]
    if case.status:
        assert lines[0].startswith("error: ") and ended.stdout == ""
    assert all(character.isprintable() or character == "\udcff" for character in lines[0])
    assert tree(folder.parent) == before and tree(homes[0]) == home


def test_the_corpus_is_large():
    assert len(CORPUS) >= 450 and len({one.id for one in CORPUS}) == len(CORPUS)
