"""The accelerator's parts, rehearsed on a CPU, and the work on parts that fail, hang or die."""

import json
import os
import re
import time

import numpy as np
import pytest

from audit import processes
from audit.errors import InputError
from experiments.engine import ahead, device_parts, device_report
from experiments.engine.device_parts import PARTS, Part, Trial
from tests.cases import mostly_slow
from tests.forks import ROOT, python

MISSING = ("tqdm", "matplotlib", "pandas", "dp_accounting", "filelock", "pyarrow", "PIL", "safetensors")


def played(name, trial):
    """Parts by what befalls them."""
    yield {"device": "a device"}
    yield {"models": 1, "at_once": name, "train_s": 0.25}
    if name == "refused":
        raise InputError("`device` wants more")
    if name == "broken":
        raise ValueError("no\nnot at all")
    if name == "dead":
        os._exit(3)
    if name == "endless":
        time.sleep(600)
    yield {"models": 1, "at_once": 2, "rate": 1234.5, "peak": None}


def parts(*names):
    return [Part(name, f"{name}'s measures.", None) for name in names]


WHOLE = Trial()


def work(folder, *names, trial=WHOLE, seconds=60.0, longest=60.0):
    said = []
    found = device_report.work(folder, parts(*names), trial, seconds, said.append, played, longest)
    return found, said


def kept(folder):
    return json.loads((folder / device_report.JSON).read_text())["parts"]


@pytest.mark.slow
def test_what_fails_hangs_or_dies_is_said_and_the_rest_goes_on(tmp_path):
    names = ("refused", "broken", "dead", "endless", "good")
    found, said = work(tmp_path, *names, longest=4.0)
    failures = [
        "`device` wants more",
        "ValueError: no",
        "its process ended with status 3",
        "not done after 4 s",
        "",
    ]
    assert [one.failure for one in found] == failures
    assert [len(one.rows) for one in found] == [1, 1, 1, 1, 2]  # what was told before is kept
    assert [line.partition(":")[0] for line in said] == list(names)
    assert kept(tmp_path) == [one._asdict() for one in found]
    text = (tmp_path / device_report.PAGE).read_text()
    assert all(failure in text for failure in failures) and "1,234" in text
    assert not re.search(r"<script|https?://", text)


def test_a_second_start_goes_on_where_the_first_was_and_tries_again_what_failed_last(tmp_path):
    work(tmp_path, "broken", "good")
    first = kept(tmp_path)
    found, said = work(tmp_path, "broken", "good", "other")
    assert [line.partition(":")[0] for line in said] == ["other", "broken"]
    assert [one.name for one in found] == ["broken", "good", "other"]
    assert kept(tmp_path)[1] == first[1]


def test_nothing_is_begun_when_the_time_is_up(tmp_path):
    found, said = work(tmp_path, "good", "other", seconds=0.0)
    assert not found and all("start again" in line for line in said) and len(said) == 2


@pytest.mark.parametrize(
    "content", mostly_slow([b"{", b'{"parts": [{"name": 1}]}', b"", b"[]", b"\xff"], quick=2)
)
def test_a_file_that_is_damaged_or_of_another_trial_counts_as_missing(tmp_path, content):
    work(tmp_path, "good", trial=Trial(0.5))
    if content:
        (tmp_path / device_report.JSON).write_bytes(content)
    assert work(tmp_path, "good")[1] != []


@pytest.mark.slow
def test_an_attempt_yields_its_results_and_leaves_no_process():
    begin = time.monotonic()
    found, why = processes.attempt(endless, 3.0)
    assert (found, why) == ([1], "not done after 3 s") and time.monotonic() - begin < 30


def endless():
    yield 1
    time.sleep(600)


@pytest.mark.slow
def test_files_that_are_named_come_first_and_random_numbers_last(housing_file, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    named, made_up = Trial(1.0, str(housing_file)).dataset("fcnn"), Trial().dataset("fcnn")
    assert named.source.startswith("file ") and "random numbers" in made_up.source
    assert made_up.features.shape == (20_640, 8) and made_up.features.dtype == np.float32
    images = Trial().dataset("resnet18")
    assert images.features.shape == (50_000, 32, 32, 3) and images.features.dtype == np.uint8
    assert set(images.labels) == set(range(10))


@pytest.mark.slow
def test_the_whole_is_rehearsed_on_a_cpu_without_what_an_accelerators_machine_may_lack(
    tmp_path, housing_file
):
    for name in MISSING:
        lines = f"raise ModuleNotFoundError({f'No module named {name!r}'!r}, name={name!r})\n"
        (tmp_path / f"{name}.py").write_text(lines)
    rng, images = np.random.default_rng(0), {}
    for name, count in (("train", 400), ("test", 20)):
        images[f"{name}_images"] = rng.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
        images[f"{name}_labels"] = rng.integers(0, 10, count).astype(np.int32)
    np.savez(tmp_path / "cifar10.npz", **images)
    paths, begin = os.pathsep.join([str(tmp_path), str(ROOT)]), time.monotonic()
    flags = ("--scale=0.01", f"--out={tmp_path}", f"--cifar10={tmp_path}/cifar10.npz")
    changes = {"PYTHONPATH": paths, "XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    done = python("-P", "-m", "experiments", "accelerator", *flags, **changes)
    print(f"{time.monotonic() - begin:.0f} s\n{done.stderr}")
    content = json.loads((tmp_path / "accelerator" / "accelerator.json").read_text())
    found = {one["name"]: one for one in content["parts"]}
    assert list(found) == [part.name for part in PARTS] and content["trial"]["scale"] == 0.01
    able = set(found) if ahead.is_installed("jax_plugins.xla_cuda12") else {*found} - {"compile"}
    assert {name for name, one in found.items() if not one["failure"]} == able, done.stderr
    assert done.returncode == (0 if "compile" in able else 2), done.stderr
    assert {row["agrees"] for row in found["golden"]["rows"]} == {"yes"} and len(
        found["golden"]["rows"]
    ) == 21
    for name in ("fcnn", "chunks", "convnet", "resnet18"):
        for row in found[name]["rows"]:
            assert row["model_steps_per_s"] > 0 and 0 < row["share_of_float32_gemm"] < 3, row
            assert row["foretold_bytes"] > 0 and row["peak_bytes"] > 0
    assert len(found["chunks"]["rows"]) == 2 and found["fcnn"]["rows"][0]["data"] == device_parts.MADE_UP
    proven = found["directions"]["rows"][-1]
    assert proven["data"].startswith("file ") and 0 < proven["proven"] <= proven["upper_bound"]
    page = (tmp_path / "accelerator" / "accelerator.html").read_text()
    assert all(f"<h2>{name}</h2>" in page for name in found) and device_parts.MADE_UP in page
