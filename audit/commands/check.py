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

from audit.check.accounting import read_noise_multiplier
from audit.check.batches import check_batches, read_epochs, read_sampling_rate, require_kind
from audit.check.loaders import read_examples
from audit.check.probe import read_setting
from audit.check.report import CheckReport
from audit.check.step import check_step, read_seeds
from audit.commands import cli
from audit.commands.user_file import run_file
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
flags.DEFINE_integer("epochs", 1, "After which --noise_multiplier says what shuffled batches leak.")
flags.DEFINE_float("clipping_norm", None, "C, in place of the file's.")
flags.DEFINE_float("noise_multiplier", None, "sigma, in place of the file's.")
flags.DEFINE_float("learning_rate", None, "eta, in place of the file's.")
flags.DEFINE_float("batch_size", None, "B, in place of the file's.")
flags.DEFINE_integer("seeds", None, "Draws of the noise; by default as many as its layers need.")
flags.DEFINE_string("report", None, "Also write a page with pictures into this HTML file.")
cli.define_json()

_OF_BATCHES = ("sampling_rate", "examples", "assumed", "epochs")  # without a meaning for a step
_OF_STEPS = ("clipping_norm", "learning_rate", "batch_size", "seeds")  # without one for batches


def main() -> None:
    """Checks the step or the batches that the flags name.

    Exits with status 3 where a bug is found, and with 4 where none is, but a check that is needed could not
    be tried.
    """
    exactly_one = (FLAGS.step is None) != (FLAGS.batches is None)
    require(exactly_one, "give one of --step=mine.py:step, --batches=mine.py:loader")
    if FLAGS.step is not None:
        path, function = _read_place("step", FLAGS.step)
        return check(path, function)
    path, name = _read_place("batches", FLAGS.batches)
    return _check_batches(path, name)


def check(path: Path, function: str) -> None:
    """Checks a single step of DP-SGD, a function in a user's file, and prints the report.

    Exits with status 3 where a bug is found, and with 4 where none is, but a check that is needed could not
    be tried.

    Args:
      path: the file. It also defines params, batch and, unless flags replace all its numbers, stated.
      function: the function's name.

    Raises:
      InputError: the file fails, or lacks a definition, or a flag is given that batches alone have a use for.
    """
    cli.refuse(_OF_BATCHES, "is for --batches=, not for a step: leave it out")
    cli.require_output("report", "an HTML file")
    _require_ranges_for_step()
    definitions = run_file(path)
    missing = [name for name in (function, "params", "batch") if name not in definitions]
    advice = f"define {function}, params, batch and stated"
    require(not missing, f"{path.name} has no {', '.join(missing)}: {advice}")
    stated = _read_stated(path, definitions)

    report = check_step(
        definitions[function],
        definitions["params"],
        definitions["batch"],
        seeds=FLAGS.seeds,
        **stated,
    )
    _print_report(_add_source(report, path))


def _check_batches(path: Path, name: str) -> None:
    """Checks the batches that a user's file draws, and prints the report; exits with 3 or 4 as `check` does.

    Args:
      path: the file.
      name: the name of a loader in the file, or of a function seed -> the batches of a pass.

    Raises:
      InputError: the file fails, a flag or the definition is missing, or a flag is given without a use.
    """
    cli.refuse(_OF_STEPS, "is for --step=, not for batches: leave it out")
    if FLAGS.noise_multiplier is None:
        cli.refuse(("epochs",), "is of use with --noise_multiplier= only: give that, too")
    cli.require_output("report", "an HTML file")
    require(FLAGS.sampling_rate is not None, "give --sampling_rate=, as the accountant is told")
    _require_ranges_for_batches()
    definitions = run_file(path)
    require(name in definitions, f"{path.name} has no {name}: define a loader, or seed -> batches")
    try:
        report = check_batches(
            definitions[name],
            FLAGS.examples,
            FLAGS.sampling_rate,
            assumed=FLAGS.assumed,
            noise_multiplier=FLAGS.noise_multiplier,
            epochs=FLAGS.epochs,
        )
    except InputError as error:  # it may name the argument `draw`, whose flag is --batches
        raise InputError(str(error).replace("`draw", "`batches")) from error
    _print_report(_add_source(report, path))


def _require_ranges_for_step() -> None:
    """Raises InputError for a number out of range, before the user's file is run, which may take long."""
    for name in STATED:
        if FLAGS[name].value is not None:
            read_setting(name, FLAGS[name].value)
    if FLAGS.seeds is not None:
        read_seeds(FLAGS.seeds)


def _require_ranges_for_batches() -> None:
    """Raises InputError for a flag out of range, before the user's file is run, which may take long."""
    read_sampling_rate(FLAGS.sampling_rate)
    require_kind(FLAGS.assumed)
    if FLAGS.examples is not None:
        read_examples(FLAGS.examples)
    if FLAGS.noise_multiplier is not None:
        read_noise_multiplier(FLAGS.noise_multiplier)
        read_epochs(FLAGS.epochs)


def _read_place(flag: str, value: str) -> tuple[Path, str]:
    """Splits a flag's value, such as mine.py:step, into a file and a name that the file defines.

    Raises InputError where either is missing, or where there is no such file.
    """
    file, _, name = value.rpartition(":")
    what = "function" if flag == "step" else "loader"
    example = f"mine.py:{flag}" if flag == "step" else "mine.py:loader"
    require(file and name, f"--{flag}={value}: name a file and its {what}, {example}")
    path = Path(file)
    require(path.is_file(), f"--{flag}={value}: there is no file {file}")
    return path, name


def _add_source(report: CheckReport, path: Path) -> CheckReport:
    """Returns the report with the command and the checksum of the user's file in its provenance."""
    source = {
        f"SHA-256 of {path.name}": files.compute_sha256(path),
        "command": shlex.join(["check", *sys.argv[1:]]),
    }
    return dataclasses.replace(report, provenance={**report.provenance, **source})


def _print_report(report: CheckReport) -> None:
    """Prints a report, and writes its page if --report asks for one.

    Where the report has not passed, it exits with status 3 if there are findings, else with 4.
    """
    print(report.to_json() if FLAGS.json else report)
    if FLAGS.report is not None:
        print(f"report: {report.page(FLAGS.report)}", file=sys.stderr)
    if not report.passed:
        sys.stdout.flush()  # before the exit, where a full disk would still be reported
        sys.exit(FAILED if report.findings else INCOMPLETE)


def _read_stated(path: Path, definitions: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers that the user states of the step, by name, each from its flag or else the file.

    These are the clipping norm, the noise multiplier, the learning rate and the batch size (STATED).

    Args:
      path: the file, for messages.
      definitions: what the file defines, by name; `stated` holds the numbers.

    Raises:
      InputError: a number is given neither by a flag nor by the file.
    """
    stated = definitions.get("stated", {})
    require(isinstance(stated, dict), f"{path.name}: stated is no dict, give {', '.join(STATED)}")
    numbers = {}
    missing = []
    for name in STATED:
        flag = FLAGS[name].value
        if flag is not None:
            numbers[name] = flag
        elif name in stated:
            numbers[name] = stated[name]
        else:
            missing.append(name)
    flags_to_give = "=, --".join(missing)
    require(not missing, f"{path.name} states no {', '.join(missing)}: give --{flags_to_give}=")
    return numbers


if __name__ == "__main__":
    cli.run(main)
