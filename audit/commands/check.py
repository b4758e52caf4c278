"""Is one step of this DP-SGD correct, and are its batches?

./run.sh check --step=mine.py:step                 your step
./run.sh check --step=mine.py:step --report=p.html   with pictures
./run.sh check --batches=mine.py:loader --sampling_rate=0.01 --examples=50000   your loader

For --step, mine.py defines a function step(params, batch, seed) -> params, and also params, batch, and
stated, a dict with clipping_norm, noise_multiplier, learning_rate and batch_size. The flags replace its
values. For --batches, it defines a loader of batches of indices, or a function seed -> such batches of a
pass.

The exit status is 3 if there is a bug. It is 4 if there is no bug, but a required check could not run.
"""

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
FAILED = 3  # exit status if there is a bug
INCOMPLETE = 4  # exit status without a bug, if a required check could not run

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "step", None, "Your step: mine.py:step, a file, which is executed, and a function in it."
)
flags.DEFINE_string(
    "batches",
    None,
    "Your batches: mine.py:loader, or a function seed -> indices. The file is executed.",
)
flags.DEFINE_float("sampling_rate", None, "The accountant's sampling rate.")
flags.DEFINE_integer("examples", None, "Size of the data set; by default the loader's.")
flags.DEFINE_string("assumed", "poisson", "Batches: poisson, fixed, shuffled or balls_in_bins.")
flags.DEFINE_float("clipping_norm", None, "C, instead of the file's.")
flags.DEFINE_float("noise_multiplier", None, "sigma, instead of the file's.")
flags.DEFINE_float("learning_rate", None, "eta, instead of the file's.")
flags.DEFINE_float("batch_size", None, "B, instead of the file's.")
flags.DEFINE_integer("seeds", None, "Draws of the noise; the default depends on the layers.")
flags.DEFINE_string("report", None, "Also write a page with pictures into this HTML file.")
cli.define_json()

_OF_BATCHES = ("sampling_rate", "examples", "assumed")  # flags only for --batches
_OF_STEPS = (*STATED, "seeds")  # flags only for --step


def main() -> None:
    """Checks the step or the batches that the flags name, and exits with the module's status."""
    exactly_one = (FLAGS.step is None) != (FLAGS.batches is None)
    require(exactly_one, "give one of --step=mine.py:step, --batches=mine.py:loader")
    if FLAGS.step is not None:
        check_user_step("step", FLAGS.step)
    else:
        _check_user_batches()


def check_user_step(flag: str, value: str) -> None:
    """Checks a step of DP-SGD in a user's file, prints the report, and exits with the module's status.

    Args:
      flag: the name of the step's flag, for messages.
      value: the file and the step's name, mine.py:step.

    Raises:
      InputError: the file fails or misses a definition, or a flag is only for batches.
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
    """Checks the user's batches, prints the report, and exits with the module's status."""
    cli.refuse(_OF_STEPS, "is for --step=, not for batches: leave it out")
    cli.require_output("report", "an HTML file")
    require(
        FLAGS.sampling_rate is not None, "--sampling_rate is missing: give the accountant's rate"
    )
    file = run_user_file("batches", FLAGS.batches)
    try:
        report = check_batches(
            file.definitions[file.name],
            FLAGS.examples,
            FLAGS.sampling_rate,
            assumed=FLAGS.assumed,
        )
    except InputError as error:  # the flag of the argument `draw` is --batches
        raise InputError(str(error).replace("`draw", "`batches")) from error
    _print_report(report, file.path)


def _show_progress(line: str) -> None:
    """Prints a line to stderr if it is a terminal."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr)


def _print_report(report: CheckReport, path: Path) -> None:
    """Prints a report on a user's file, writes its page, and exits with status 3 or 4 unless it passed."""
    source = {
        f"SHA-256 of {path.name}": files.compute_sha256(path),
        "command": shlex.join(["./run.sh", "check", *sys.argv[1:]]),
    }
    report = report._replace(provenance={**report.provenance, **source})
    print(report.to_json() if FLAGS.json else report)
    if FLAGS.report is not None:
        print(f"report: {report.page(FLAGS.report)}", file=sys.stderr)
    if not report.passed:
        sys.stdout.flush()  # an error of printing is reported before the exit
        sys.exit(FAILED if report.findings else INCOMPLETE)


def _read_stated(file: UserFile) -> dict[str, Any]:
    """Returns the stated numbers of the step, from flags or the file."""
    stated = file.definitions.get("stated", {})
    name = file.path.name
    require(isinstance(stated, dict), f"{name}: stated is not a dict, give {', '.join(STATED)}")
    given = {name: FLAGS[name].value for name in STATED if FLAGS[name].value is not None}
    numbers = {**stated, **given}
    missing = [name for name in STATED if name not in numbers]
    flags_to_give = "=, --".join(missing)
    require(not missing, f"{name} does not state {', '.join(missing)}: give --{flags_to_give}=")
    return {name: numbers[name] for name in STATED}


if __name__ == "__main__":
    cli.run(main)
