"""Check a DP-SGD step, its batches, or correlated noise.

./run.sh check --step=mine.py:step                 your step
./run.sh check --step=mine.py:step --report=p.html   with pictures
./run.sh check --batches=mine.py:loader --sampling_rate=0.01 --examples=50000   your loader
./run.sh check --noise=mine.py:draw --strategy=bisr:16 --noise_multiplier=2   noise of a matrix mechanism

For --step, mine.py defines params, batch, a function step(params, batch, seed) -> params, and stated, a dict
with clipping_norm, noise_multiplier, learning_rate and batch_size. Flags override the values in stated.
For --batches, mine.py defines a loader that yields batches of indices, or a function that maps a seed to the
batches of one pass. For --noise, mine.py defines an array of shape (T, d) with the noise for T steps and d
parameters, or a function that returns the array.

The exit status is 3 if a bug was found, and 4 if there is no bug but a required check could not run.
"""

import shlex
import sys
from collections.abc import Iterable
from typing import Any

from absl import flags

from audit.check.batches import check_batches
from audit.check.correlated import check_noise
from audit.check.report import CheckReport
from audit.check.step import check_step
from audit.commands import cli
from audit.commands.user_file import UserFile, run_user_file
from audit.errors import InputError, require
from audit.storage import files

STATED = {
    "clipping_norm": "C",
    "noise_multiplier": "sigma",
    "learning_rate": "eta",
    "batch_size": "B",
}
FAILED = 3  # the exit status if a bug was found
INCOMPLETE = 4  # the exit status if no bug was found, but a required check could not run

FLAGS = flags.FLAGS
cli.define_optional(
    str,
    step="Your step function: mine.py:step. The file is executed.",
    batches="Your loader, or a function that maps a seed to batches: mine.py:loader. The file is executed.",
    noise="The noise added by your steps: mine.py:draw. The file is executed.",
    strategy="With --noise: independent, sqrt, bsr:16, bisr:16, lambda:0.9, or a strategy file.",
    report="Also write a page with figures to this HTML file.",
)
cli.define_optional(float, sampling_rate="Sampling rate that the accountant assumes.")
cli.define_optional(
    float,
    **{name: f"{symbol}; overrides the value in the file." for name, symbol in STATED.items()},
)
cli.define_optional(
    int,
    examples="Size of the data set; by default, the loader's.",
    seeds="Number of noise draws; the default depends on the layers.",
)
flags.DEFINE_string(
    "assumed", "poisson", "Assumed sampler: poisson, fixed, shuffled, balls_in_bins, cyclic."
)
cli.define_json()

_FLAGS_OF_SUBJECT = {
    "step": (*STATED, "seeds"),
    "batches": ("sampling_rate", "examples", "assumed"),
    "noise": (*STATED, "strategy"),
}


def main() -> None:
    """Checks the step, the batches or the noise, as the flags specify."""
    given = list(filter(cli.is_given, _FLAGS_OF_SUBJECT))
    require(
        len(given) == 1,
        "give one of --step=mine.py:step, --batches=mine.py:loader, --noise=mine.py:draw",
    )
    check_user_file(given[0], str(FLAGS[given[0]].value))


def check_user_file(subject: str, value: str) -> None:
    """Checks a definition in a user's file, prints the report, and writes the page named by --report.

    If the check does not pass, exits with status FAILED or INCOMPLETE.

    Args:
      subject: "step", "batches" or "noise".
      value: the file and the name of the definition, such as "mine.py:step".

    Raises:
      InputError: the file raises an error, a definition is missing, or a flag does not apply to the subject.
    """
    for names in _FLAGS_OF_SUBJECT.values():
        others = [name for name in names if name not in _FLAGS_OF_SUBJECT[subject]]
        cli.refuse(others, f"does not apply to --{subject}: leave it out")
    file = run_user_file(subject, value)
    report = _run_check(subject, file)
    source = {
        f"SHA-256 of {file.path.name}": files.compute_sha256(file.path),
        "command": shlex.join(["./run.sh", "check", *sys.argv[1:]]),
    }
    report = report._replace(provenance={**report.provenance, **source})
    print(report.to_json() if FLAGS.json else report)
    if FLAGS.report is not None:
        written_page = report.page(FLAGS.report)
        print(f"report: {written_page}", file=sys.stderr)
    if not report.passed:
        sys.stdout.flush()  # sys.exit skips the usual flush
        sys.exit(FAILED if report.findings else INCOMPLETE)


def _run_check(subject: str, file: UserFile) -> CheckReport:
    """Checks the subject ("step", "batches" or "noise") that a user's file defines.

    Error messages name this command's flags, not the arguments of `check_batches` and `check_noise`.
    """
    checks = {"step": _check_step, "batches": _check_batches, "noise": _check_noise}
    try:
        return checks[subject](file)
    except InputError as error:
        # The argument `noise` is the flag --strategy, and `draw` is --batches or --noise.
        message = str(error).replace("`noise=", "`strategy=").replace("`draw", f"`{subject}")
        raise InputError(message) from error


def _check_step(file: UserFile) -> CheckReport:
    """Checks the step in a user's file, using the file's `params` and `batch`."""
    missing = [name for name in ("params", "batch") if name not in file.definitions]
    advice = f"define {file.requested_name}, params, batch and stated"
    require(not missing, f"{file.path.name} has no {', '.join(missing)}: {advice}")
    return check_step(
        file.definitions[file.requested_name],
        file.definitions["params"],
        file.definitions["batch"],
        seeds=FLAGS.seeds,
        tell=_show_progress,
        **_read_stated(file, STATED),
    )


def _check_batches(file: UserFile) -> CheckReport:
    """Checks whether a user's file draws batches with the assumed sampler and sampling rate."""
    rate = FLAGS.sampling_rate
    require(rate is not None, "--sampling_rate is missing: give the accountant's rate")
    draw = file.definitions[file.requested_name]
    return check_batches(draw, FLAGS.examples, rate, assumed=FLAGS.assumed)


def _check_noise(file: UserFile) -> CheckReport:
    """Checks the noise drawn by a user's file."""
    require(FLAGS.strategy, "--strategy is missing: give the noise strategy, such as bisr:16")
    stated = _read_stated(file, ("noise_multiplier",))
    return check_noise(file.definitions[file.requested_name], FLAGS.strategy, **stated)


def _show_progress(line: str) -> None:
    """Prints a line to stderr if stderr is a terminal."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr)


def _read_stated(file: UserFile, needed: Iterable[str]) -> dict[str, Any]:
    """Returns the stated numbers by name. Flags override the file's optional dict `stated`."""
    stated = file.definitions.get("stated", {})
    path = file.path.name
    require(isinstance(stated, dict), f"{path}: stated is not a dict, give {', '.join(STATED)}")
    numbers = {name: stated[name] for name in STATED if name in stated}
    for name in filter(cli.is_given, STATED):
        numbers[name] = FLAGS[name].value
    missing = [name for name in needed if name not in numbers]
    missing_flags = ", ".join(f"--{name}=" for name in missing)
    require(not missing, f"{path} does not state {', '.join(missing)}: give {missing_flags}")
    return numbers


if __name__ == "__main__":
    cli.run(main)
