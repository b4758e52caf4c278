"""Is one step of this DP-SGD right? Clipping, noise, averaging, in a minute.

./run.sh check --step=mine.py:step                 a step of yours
./run.sh check --step=mine.py:step --report=p.html   with pictures

mine.py holds a function step(params, batch, seed) -> params, and beside it params, batch, and stated, a dict
with clipping_norm, noise_multiplier, learning_rate and batch_size, which the flags replace.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

from absl import flags

from audit.check.step import check_step
from audit.commands import cli
from audit.errors import InputError, require

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
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of a table.")


def main() -> None:
    """Load, check, print; exit status 3 where something was found."""
    require(FLAGS.step is not None, "give --step=mine.py:step, a file and its function")
    file, _, name = FLAGS.step.rpartition(":")
    require(file and name, f"--step={FLAGS.step}: name a file and its function, mine.py:step")
    require(Path(file).is_file(), f"--step={FLAGS.step}: there is no file {file}")
    check(Path(file), name)


def check(path: Path, name: str) -> None:
    """Checks that function of a file as the flags say, and prints; exit status 3 for a finding."""
    require(FLAGS.report != "", "--report=: name an HTML file")
    found = _loaded(path)
    missing = [one for one in (name, "params", "batch") if one not in found]
    require(not missing, f"{path.name} has no {', '.join(missing)}: define {name}, params, batch and stated")
    given = found.get("stated", {})
    require(isinstance(given, dict), f"{path.name}: stated is no dict, give {', '.join(STATED)}")
    stated = given | {flag: FLAGS[flag].value for flag in STATED if FLAGS[flag].value is not None}
    lacking = [flag for flag in STATED if flag not in stated]
    require(not lacking, f"{path.name} states no {', '.join(lacking)}: give --{'=, --'.join(lacking)}=")
    numbers = {flag: stated[flag] for flag in STATED}
    report = check_step(found[name], found["params"], found["batch"], seeds=FLAGS.seeds, **numbers)
    print(report.to_json() if FLAGS.json else report)
    if FLAGS.report is not None:
        print(f"report: {report.page(FLAGS.report)}", file=sys.stderr)
    if report.findings:
        sys.stdout.flush()
        sys.exit(FAILED)


def _loaded(path: Path) -> dict[str, Any]:
    """What a file defines; raises InputError, with its own error in a line, where it fails."""
    sys.path.append(str(path.resolve().parent))
    if "jax" in path.read_text(encoding="utf-8", errors="replace"):
        cli.prepare_jax()
    try:
        return runpy.run_path(str(path), run_name="check")
    except InputError:
        raise
    except ModuleNotFoundError as error:
        mend = f"{sys.prefix}/bin/pip install {error.name}"
        raise InputError(f"{path.name} needs {error.name}, which is not installed: {mend}") from error
    except Exception as error:  # of the user's file
        said = " ".join(str(error).split())[:200]
        raise InputError(f"{path.name} fails with {type(error).__name__}: {said}") from error


if __name__ == "__main__":
    cli.run(main)
