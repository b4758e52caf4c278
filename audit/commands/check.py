"""Is one step of this DP-SGD right? Clipping, noise, averaging.

./run.sh check --step=mine.py:step                 a step of yours
./run.sh check --step=mine.py:step --report=p.html   with pictures

mine.py holds a function step(params, batch, seed) -> params, and beside it params, batch, and stated, a dict
with clipping_norm, noise_multiplier, learning_rate and batch_size, which the flags replace.
"""

import sys
from pathlib import Path
from typing import Any

from absl import flags

from audit.check.step import check_step
from audit.commands import cli
from audit.commands.user_file import run_file
from audit.errors import require

STATED = ("clipping_norm", "noise_multiplier", "learning_rate", "batch_size")
FAILED = 3  # exit status

FLAGS = flags.FLAGS
flags.DEFINE_string("step", None, "A step of yours: mine.py:step, a file and a function in it.")
flags.DEFINE_float("clipping_norm", None, "C, in place of the file's.")
flags.DEFINE_float("noise_multiplier", None, "sigma, in place of the file's.")
flags.DEFINE_float("learning_rate", None, "eta, in place of the file's.")
flags.DEFINE_float("batch_size", None, "B, in place of the file's.")
flags.DEFINE_integer("seeds", None, "Draws of the noise; by default as many as its layers need.")
flags.DEFINE_string("report", None, "Also write a page with pictures into this HTML file.")
cli.define_json()


def main() -> None:
    """Checks the step that the flags name; exit status 3 where a bug is found."""
    require(FLAGS.step is not None, "give --step=mine.py:step, a file and its function")
    file, _, function = FLAGS.step.rpartition(":")
    require(file and function, f"--step={FLAGS.step}: name a file and its function, mine.py:step")
    path = Path(file)
    require(path.is_file(), f"--step={FLAGS.step}: there is no file {file}")
    check(path, function)


def check(path: Path, function: str) -> None:
    """Checks a function of a file as the flags say, and prints the report.

    Exits with status 3 where a bug is found.

    Args:
      path: of the file, which also defines params, batch and, unless flags replace it, stated.
      function: its name.

    Raises:
      InputError: the file fails, or lacks a definition.
    """
    require(FLAGS.report != "", "--report=: name an HTML file")
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
    print(report.to_json() if FLAGS.json else report)
    if FLAGS.report is not None:
        print(f"report: {report.page(FLAGS.report)}", file=sys.stderr)
    if report.findings:
        sys.stdout.flush()
        sys.exit(FAILED)


def _read_stated(path: Path, definitions: dict[str, Any]) -> dict[str, Any]:
    """Returns the four numbers that the file states, or the flags in their place.

    Args:
      path: of the file, for errors.
      definitions: what the file defines.

    Raises:
      InputError: neither states a number.
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
