"""Is one step of this DP-SGD right, and are its batches?

./run.sh check --step=mine.py:step                 a step of yours
./run.sh check --step=mine.py:step --report=p.html   with pictures
./run.sh check --batches=mine.py:loader --sampling_rate=0.01 --examples=50000   a loader of yours

mine.py holds a function step(params, batch, seed) -> params, and beside it params, batch, and stated, a dict
with clipping_norm, noise_multiplier, learning_rate and batch_size, which the flags replace; or a loader of
batches of indices, or a function seed -> such batches of a pass.

The exit status is 3 where a bug is found, and 4 where none is, but something needed could not be tried.
"""

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

from absl import flags

from audit.check.batches import check_batches
from audit.check.report import CheckReport
from audit.check.step import check_step
from audit.commands import cli
from audit.commands.user_file import UserFile, run_user_file
from audit.errors import InputError, require
from audit.storage import files

STATED = ("clipping_norm", "noise_multiplier", "learning_rate", "batch_size")
FAILED = 3  # exit status where a bug is found
INCOMPLETE = 4  # exit status where none is, but a check that is needed could not be tried

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "step", None, "A step of yours: mine.py:step, a file, which is executed, and a function in it."
)
flags.DEFINE_string(
    "batches",
    None,
    "Batches of yours: mine.py:loader, or a function seed -> indices. The file is executed.",
)
flags.DEFINE_float("sampling_rate", None, "With which the accountant lets a batch take an example.")
flags.DEFINE_integer("examples", None, "Of the data set; by default as many as the loader's own.")
flags.DEFINE_string("assumed", "poisson", "Batches: poisson, fixed, shuffled or balls_in_bins.")
flags.DEFINE_float("clipping_norm", None, "C, in place of the file's.")
flags.DEFINE_float("noise_multiplier", None, "sigma, in place of the file's.")
flags.DEFINE_float("learning_rate", None, "eta, in place of the file's.")
flags.DEFINE_float("batch_size", None, "B, in place of the file's.")
flags.DEFINE_integer("seeds", None, "Draws of the noise; by default as many as its layers need.")
flags.DEFINE_string("report", None, "Also write a page with pictures into this HTML file.")
cli.define_json()

_OF_BATCHES = ("sampling_rate", "examples", "assumed")  # without a meaning for a step
_OF_STEPS = (*STATED, "seeds")  # without one for batches


def main() -> None:
    """Checks the step or the batches that the flags name.

    Exits with status 3 if a bug is found, and with 4 if none is, but a check that is needed could not be
    tried.
    """
    exactly_one = (FLAGS.step is None) != (FLAGS.batches is None)
    require(exactly_one, "give one of --step=mine.py:step, --batches=mine.py:loader")
    if FLAGS.step is not None:
        check_user_step("step", FLAGS.step)
    else:
        _check_user_batches()


def check_user_step(flag: str, value: str) -> None:
    """Checks a step of DP-SGD in a user's file, prints the report, and exits as `main` does.

    Args:
      flag: the name of the flag that names the step, for messages.
      value: the file and the step's name, mine.py:step. The file also defines params, batch and, unless flags
        replace all its numbers, stated.

    Raises:
      InputError: the file fails or lacks a definition, or a flag is given that only batches have a use for.
    """
    cli.refuse(_OF_BATCHES, "is for --batches=, not for a step: leave it out")
    cli.require_output("report", "an HTML file")
    file = run_user_file(flag, value)
    missing = [name for name in ("params", "batch") if name not in file.definitions]
    advice = f"define {file.name}, params, batch and stated"
    require(not missing, f"{file.path.name} has no {', '.join(missing)}: {advice}")
    report = check_step(
        file.definitions[file.name],
        file.definitions["params"],
        file.definitions["batch"],
        seeds=FLAGS.seeds,
        tell=_show_progress,
        **_read_stated(file),
    )
    _print_report(report, file.path)


def _check_user_batches() -> None:
    """Checks the batches that --batches names, prints the report, and exits as `main` does."""
    cli.refuse(_OF_STEPS, "is for --step=, not for batches: leave it out")
    cli.require_output("report", "an HTML file")
    require(FLAGS.sampling_rate is not None, "give --sampling_rate=, as the accountant is told")
    file = run_user_file("batches", FLAGS.batches)
    try:
        report = check_batches(
            file.definitions[file.name],
            FLAGS.examples,
            FLAGS.sampling_rate,
            assumed=FLAGS.assumed,
        )
    except InputError as error:  # it may name the argument `draw`, whose flag is --batches
        raise InputError(str(error).replace("`draw", "`batches")) from error
    _print_report(report, file.path)


def _show_progress(line: str) -> None:
    """Prints a line on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr)


def _print_report(report: CheckReport, path: Path) -> None:
    """Prints a report on a file of the user's, and writes its page if --report asks for one.

    If the report has not passed, it exits with status 3 if there are findings, else with 4.
    """
    source = {
        f"SHA-256 of {path.name}": files.compute_sha256(path),
        "command": shlex.join(["./run.sh", "check", *sys.argv[1:]]),
    }
    report = dataclasses.replace(report, provenance={**report.provenance, **source})
    print(report.to_json() if FLAGS.json else report)
    if FLAGS.report is not None:
        print(f"report: {report.page(FLAGS.report)}", file=sys.stderr)
    if not report.passed:
        sys.stdout.flush()  # before the exit, when a full disk would still be reported
        sys.exit(FAILED if report.findings else INCOMPLETE)


def _read_stated(file: UserFile) -> dict[str, Any]:
    """Returns the numbers that the user states of the step (STATED), each from its flag or else the file."""
    stated = file.definitions.get("stated", {})
    name = file.path.name
    require(isinstance(stated, dict), f"{name}: stated is no dict, give {', '.join(STATED)}")
    given = {name: FLAGS[name].value for name in STATED if FLAGS[name].value is not None}
    numbers = {**stated, **given}
    missing = [name for name in STATED if name not in numbers]
    flags_to_give = "=, --".join(missing)
    require(not missing, f"{name} states no {', '.join(missing)}: give --{flags_to_give}=")
    return {name: numbers[name] for name in STATED}


if __name__ == "__main__":
    cli.run(main)
