"""The accelerator's parts, rehearsed on a CPU, and the work on parts that fail, hang or die."""

import json
import os
import re
import time

import numpy as np
import pytest

from audit.errors import InputError
from audit.runtime import processes
from experiments.engine import device_parts, device_report
from experiments.engine.device_parts import PARTS, Part, Trial
from tests.cases import mostly_slow
from tests.forks import ROOT, python

MISSING = (
    "tqdm",
    "matplotlib",
    "pandas",
    "dp_accounting",
    "filelock",
    "pyarrow",
    "PIL",
    "safetensors",
)


def tell(name, trial):
    """Yields the rows of parts that are called by what befalls them."""
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


def make_parts(*names):
    """Returns parts of these names."""
    return [Part(name, f"{name}'s measures.", None) for name in names]


WHOLE = Trial()


def work(folder, *names, trial=WHOLE, seconds=60.0, longest=60.0):
    """Works through parts; returns their results, and the lines on them."""
    lines = []
    parts = make_parts(*names)
    results = device_report.work(folder, parts, trial, seconds, lines.append, tell, longest)
    return results, lines


def read_parts(folder):
    """Returns the results in the folder's JSON file."""
    return json.loads((folder / device_report.JSON).read_text())["parts"]


def test_bounds_are_rounded_against_the_claim_on_the_page():
    bounds = {"proven": 1.239, "upper_bound": 2.001, "seconds": 3.456}
    result = device_report.PartResult("convnet", "Its bounds.", 1.0, {}, [bounds])
    text = device_report.as_page(WHOLE, [result]).decode()
    assert all(f"{number}<" in text for number in ("1.23", "2.01", "3.46"))


@pytest.mark.slow
def test_what_fails_hangs_or_dies_is_said_and_the_rest_goes_on(tmp_path):
    names = ("refused", "broken", "dead", "endless", "good")
    results, lines = work(tmp_path, *names, longest=4.0)
    failures = [
        "`device` wants more",
        "ValueError: no",
        "its process ended with status 3",
        "not done after 4 s",
        "",
    ]
    assert [result.failure for result in results] == failures
    assert [len(result.rows) for result in results] == [
        1,
        1,
        1,
        1,
        2,
    ]  # what was told before is stored
    assert [line.partition(":")[0] for line in lines] == list(names)
    assert read_parts(tmp_path) == [result._asdict() for result in results]
    text = (tmp_path / device_report.PAGE).read_text()
    assert all(failure in text for failure in failures)
    assert "1,234" in text
    assert not re.search(r"<script|https?://", text)


@pytest.mark.slow
def test_a_second_start_goes_on_where_the_first_was_and_tries_again_what_failed_last(tmp_path):
    work(tmp_path, "broken", "good")
    first = read_parts(tmp_path)
    results, lines = work(tmp_path, "broken", "good", "other")
    assert [line.partition(":")[0] for line in lines] == ["other", "broken"]
    assert [result.name for result in results] == ["broken", "good", "other"]
    assert read_parts(tmp_path)[1] == first[1]


def test_nothing_is_begun_when_the_time_is_up(tmp_path):
    results, lines = work(tmp_path, "good", "other", seconds=0.0)
    assert not results
    assert len(lines) == 2
    assert all("start again" in line for line in lines)


@pytest.mark.parametrize(
    "content", mostly_slow([b"{", b'{"parts": [{"name": 1}]}', b"", b"[]", b"\xff"], quick=2)
)
def test_a_file_that_is_damaged_or_of_another_trial_counts_as_missing(tmp_path, content):
    work(tmp_path, "good", trial=Trial(0.5))
    if content:
        (tmp_path / device_report.JSON).write_bytes(content)
    _, lines = work(tmp_path, "good")
    assert lines != []


@pytest.mark.slow
def test_an_attempt_yields_its_results_and_leaves_no_process():
    begin = time.monotonic()
    results, why = processes.run_with_limit(endless, 3.0)
    assert (results, why) == ([1], "not done after 3 s")
    assert time.monotonic() - begin < 30


def endless():
    """Yields once, and never ends."""
    yield 1
    time.sleep(600)


@pytest.mark.slow
def test_files_that_are_named_come_first_and_random_numbers_last(
    housing_file, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    from_file = Trial(1.0, str(housing_file)).dataset("fcnn")
    made_up = Trial().dataset("fcnn")
    assert from_file.source.startswith("file ")
    assert "random numbers" in made_up.source
    assert made_up.features.shape == (20_640, 8)
    assert made_up.features.dtype == np.float32
    images = Trial().dataset("resnet18")
    assert images.features.shape == (50_000, 32, 32, 3)
    assert images.features.dtype == np.uint8
    assert set(images.labels) == set(range(10))


@pytest.mark.slow
def test_the_whole_is_rehearsed_on_a_cpu_without_what_an_accelerators_machine_may_lack(
    tmp_path, housing_file
):
    for name in MISSING:
        lines = f"raise ModuleNotFoundError({f'No module named {name!r}'!r}, name={name!r})\n"
        (tmp_path / f"{name}.py").write_text(lines)
    rng = np.random.default_rng(0)
    images = {}
    for name, count in (("train", 400), ("test", 20)):
        images[f"{name}_images"] = rng.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
        images[f"{name}_labels"] = rng.integers(0, 10, count).astype(np.int32)
    np.savez(tmp_path / "cifar10.npz", **images)
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    flags = ("--scale=0.01", f"--out={tmp_path}", f"--cifar10={tmp_path}/cifar10.npz")
    changes = {"PYTHONPATH": paths, "XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    begin = time.monotonic()
    process = python("-P", "-m", "experiments", "accelerator", *flags, **changes)
    print(f"{time.monotonic() - begin:.0f} s\n{process.stderr}")

    content = json.loads((tmp_path / "accelerator" / "accelerator.json").read_text())
    parts = {part["name"]: part for part in content["parts"]}
    assert list(parts) == [part.name for part in PARTS]
    assert content["trial"]["scale"] == 0.01
    assert not any(part["failure"] for part in parts.values()), process.stderr
    assert process.returncode == 0, process.stderr

    golden_rows = parts["golden"]["rows"]
    assert {row["agrees"] for row in golden_rows} == {"yes"}
    assert len(golden_rows) == 21
    for name in ("fcnn", "chunks", "convnet", "resnet18"):
        for row in parts[name]["rows"]:
            assert row["model_steps_per_s"] > 0, row
            assert 0 < row["share_of_float32_gemm"] < 3, row
            assert row["foretold_bytes"] > 0
            assert row["peak_bytes"] > 0
    assert len(parts["chunks"]["rows"]) == 2
    assert parts["fcnn"]["rows"][0]["data"] == device_parts.MADE_UP
    directions = parts["directions"]["rows"][-1]
    assert directions["data"].startswith("file ")
    assert 0 < directions["proven"] <= directions["upper_bound"]

    page = (tmp_path / "accelerator" / "accelerator.html").read_text()
    assert all(f"<h2>{name}</h2>" in page for name in parts)
    assert device_parts.MADE_UP in page
