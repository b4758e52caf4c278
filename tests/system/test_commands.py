"""The command line as a user types it, on a small number of runs and small made-up data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SLOW = pytest.mark.slow
METHODS = ["in_sample", "if_gaussian", "assumption_free"]


@pytest.fixture
def run(run_command, homes):
    environment = {**os.environ, "XDG_CACHE_HOME": str(homes[1])}

    def call(name, *flags, start=subprocess.run, changes=None, **more):
        if start is subprocess.run and changes is None and not more:
            return run_command(name, *flags)
        argv = [sys.executable, "-m", "experiments", name, *flags]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
        return start(argv, cwd=ROOT, env=environment | (changes or {}), **options)

    return call


@pytest.fixture
def audit(run, housing_file):
    def call(out, *flags, **more):
        small = ("--runs=120", "--insertions=20", "--batch_size=50", "--noise_multiplier=1")
        return run("audit", f"--data_file={housing_file}", f"--out={out}", *small, *flags, **more)

    return call


def only_folder(out):
    (folder,) = out.iterdir()
    return folder


def assert_one_line(process, *words):
    assert process.returncode == 2, process.stderr
    lines = process.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), process.stderr
    assert process.stdout == ""
    for word in words:
        assert word in lines[0]


@pytest.mark.slow
def test_audit_leaves_scores_result_and_figure(audit, tmp_path):
    process = audit(tmp_path / "out")
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr
    folder = only_folder(tmp_path / "out")
    assert (folder / "audit.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((folder / "audit.json").read_text())
    assert [bound["method"] for bound in result["bounds"]] == list(METHODS)
    assert result["setting"]["noise_multiplier"] == 1
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_audit_json_is_one_object_and_the_second_run_trains_nothing(audit, tmp_path):
    first = audit(tmp_path, "--json")
    folder = only_folder(tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("scores*")}
    second = audit(tmp_path, "--json", "--confidence=0.9")
    assert {path: path.stat().st_mtime_ns for path in folder.glob("scores*")} == stamps
    one, two = json.loads(first.stdout), json.loads(second.stdout)
    assert one["upper_bound"] == pytest.approx(two["upper_bound"])
    assert (
        two["bounds"][0]["epsilon"] >= one["bounds"][0]["epsilon"] > 0
    )  # less confidence, more claimed


@pytest.mark.slow
def test_looks_are_kept_and_resumed(audit, tmp_path):
    """Declared looks: the best of them at the confidence of all; no other schedule after the first look."""
    first = audit(tmp_path, "--looks=40,80,120")
    assert first.returncode == 0, first.stderr
    result = json.loads((only_folder(tmp_path) / "audit.json").read_text())
    assert result["looks"]["schedule"] == [40, 80, 120] and result["runs"] == 120
    taken = [look["bounds"] for look in result["looks"]["taken"]]
    best = [max(look[i]["epsilon"] for look in taken) for i in range(2)]
    assert [bound["epsilon"] for bound in result["bounds"][1:3]] == best
    assert {bound["confidence"] for bound in result["bounds"]} == {0.95}
    assert audit(tmp_path, "--looks=40,80,120").stdout == first.stdout
    assert_one_line(audit(tmp_path, "--looks=40,120"), "--looks=40,120", "3 of the looks 40,80,120")


@pytest.mark.slow
def test_runs_of_a_few_one_shot_canaries_are_concluded_together_alone(audit, tmp_path):
    process = audit(tmp_path, "--adversary=one_shot", "--canaries=12", "--runs=8")
    assert process.returncode == 0, process.stderr
    assert "\nlifted " in process.stdout
    line = "no table of each run alone: that takes 40 canaries a run, here: 12"
    assert line in process.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--adversary=gc_r", "--k=3", "--clipping=per_example"), marks=SLOW),
        pytest.param(
            ("--adversary=gc_s", "--gc_s=noisy_final_model", "--simulations=2"), marks=SLOW
        ),
        pytest.param(
            ("--adversary=cots", "--unknown_initialisation", "--optimizer=momentum"), marks=SLOW
        ),
        ("--adversary=loss", "--insertions=7", "--runs=2"),
    ],
)
def test_every_kind_of_audit_runs(audit, tmp_path, flags):
    process = audit(tmp_path, "--json", *flags)
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    slack = 1.5  # of 120 runs; a wrong engine is caught elsewhere, on many more
    assert result["bounds"][2]["epsilon"] <= result["upper_bound"] * slack


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--learning_rate=1e38", ("diverged", "--learning_rate")),
        ("--batch_size=501", ("--batch_size=501", "500")),
    ],
)
def test_what_the_data_or_the_training_show_is_one_line(audit, tmp_path, flag, words):
    process = audit(tmp_path / "out", flag)
    last = process.stderr.strip().splitlines()[-1]  # after the progress bar
    assert_one_line(process._replace(stderr=last), *words)
    assert not list((tmp_path / "out").glob("*/audit*")) and not list(
        (tmp_path / "out").glob("*/scores*")
    )


@pytest.mark.parametrize("command", ["audit", "sweep", "plan", "landscape"])
def test_help_is_grouped_in_80_columns(run, command):
    process = run(command, "--help")
    assert process.returncode == 0 and process.stderr == ""
    lines = process.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and str(ROOT) not in process.stdout
    assert "bounds and output:" in lines and any(line.startswith("  --") for line in lines)
    assert not any(line.split()[0] in ("--logtostderr", "--helpfull") for line in lines if line)


@pytest.mark.parametrize("command", ["bound", "claim"])
def test_what_help_says_of_a_long_example_stands_deeper_than_commands(run, command):
    about = run(command, "--help").stdout.partition("\nthis command:\n")[0]
    commands = [line for line in about.splitlines() if line.startswith("    .")]
    indented = [line for line in about.splitlines() if line.startswith("    ")]
    comments = [line for line in indented if line.startswith("        ")]
    assert len(commands) > 3 and len(comments) == len(commands)
    assert len(indented) == 2 * len(commands)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("check", "The exit status is 3 where a bug is found, and 4 where none is"),
        ("bound", "Exit status 3 where the claim is refuted, 2 where the scores cannot tell"),
        ("claim", "Where the claim is refuted, the exit status is 3."),
    ],
)
def test_help_says_what_an_exit_status_means(run, command, says):
    assert says in " ".join(run(command, "--help").stdout.split())


def test_help_whose_reader_has_left_ends_quietly(run):
    reading, writing = os.pipe()
    os.close(reading)
    process = run("plan", "--help", stdout=writing)
    os.close(writing)
    assert process.stderr == "" and process.returncode == 0


@pytest.mark.slow
def test_a_first_look_for_fonts_is_quiet(run, tmp_path):
    scores = save_scores(tmp_path / "s.npz", [1.0, 2.0, 3.0], [0.0, 1.5, 2.5])
    flags = (scores, f"--figure={tmp_path / 'f.svg'}")
    process = run("bound", *flags, changes={"MPLCONFIGDIR": str(tmp_path / "fonts")})
    assert process.returncode == 0 and process.stderr == f"figure: {tmp_path / 'f.svg'}\n"
    assert list((tmp_path / "fonts").glob("fontlist*"))


@pytest.mark.slow
def test_a_full_stdout_is_one_line(run):
    with open("/dev/full", "w") as full:
        process = run("figures", "--name=one_shot_table_1", "--scale=smoke", stdout=full)
    assert process.returncode == 2 and "Traceback" not in process.stderr
    assert process.stderr.splitlines()[-1].startswith("error: cannot print (No space left")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["audit.json", "audit.png"])
def test_bounds_are_shown_where_a_result_can_not_be_written_and_the_status_says_so(
    audit, tmp_path, name
):
    flags = ("--adversary=loss", "--insertions=7", "--runs=40")
    first = audit(tmp_path, *flags)
    result = only_folder(tmp_path) / name
    result.unlink()
    result.mkdir()  # which no file can take the place of
    second = audit(tmp_path, *flags)
    assert second.returncode == 2, second.stderr
    assert second.stdout.strip() == first.stdout.split("\n\n")[0].strip()
    assert second.stderr.splitlines()[-1].startswith(f"error: cannot write {result}")
    as_json = audit(tmp_path, *flags, "--json")
    assert json.loads(as_json.stdout)["runs"] == 40 and as_json.returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cuda", "cudaa"])
def test_a_device_that_is_not_there_is_one_line(audit, tmp_path, platform):
    process = audit(
        tmp_path / "out", changes={"JAX_PLATFORMS": platform, "CUDA_VISIBLE_DEVICES": ""}
    )
    assert_one_line(process, f"JAX_PLATFORMS={platform}", "cpu")
    assert not (tmp_path / "out").exists()


def test_an_unwritable_folder_is_one_line(audit, tmp_path):
    (tmp_path / "file").write_text("")
    assert_one_line(audit(tmp_path / "file" / "out"), "cannot write", "--out")


def save_scores(path, scores_in, scores_out):
    np.savez(path, **{"in": scores_in, "out": scores_out})
    return f"--scores={path}"
