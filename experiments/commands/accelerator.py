"""Measure an accelerator: all that matters, in half an hour.

    ./run.sh accelerator                                    all parts, at most 30 minutes
    ./run.sh accelerator --only=golden,directions           is it right, and what does it prove
    ./run.sh accelerator --scale=0.01                       a rehearsal on a CPU, in some minutes

Works through its parts in order of worth: what products of matrices reach, whether recorded scores come out
again in float32, tf32 and bf16, how fast FCNNs, ConvNets and ResNets train and whether their memory was
predicted, and what the exact null proves. Each part has a process of its own and at most 9 minutes. Its
results go into a JSON file and a page as soon as it ends; the same command goes on where it was, and tries
again what failed.

It needs JAX, Flax, Optax, SciPy and absl, and fetches nothing: data come from the files that flags name, else
from the cache, else random numbers of the same shapes stand in for them, as the page says.
"""

import os
import sys
from pathlib import Path

from absl import flags

from audit.commands import cli
from audit.errors import require

FLAGS = flags.FLAGS
flags.DEFINE_float("scale", 1.0, "Of the parts' numbers of models; steps go with its square root.")
flags.DEFINE_float("minutes", 30.0, "Minutes in all; nothing is begun after that.")
flags.DEFINE_list("only", None, "Parts to do, by default all; the page lists them.")
flags.DEFINE_string(
    "california_housing", None, "California Housing as a file: .csv, .npz, .parquet."
)
flags.DEFINE_string("cifar10", None, "CIFAR-10 as a file: .npz, or the published archive.")
cli.define_out("Folder for the JSON file and the page; they go into its accelerator.")


def main() -> None:
    """Parses the flags, measures this machine's accelerator, and prints the paths of the files of results.

    What is measured comes in parts, such as the speed of products of matrices or of training a ConvNet. The
    files are a JSON file and a page. They have the results of earlier calls too: a part that was measured
    without a failure is not measured again.

    Raises:
      InputError: Flags are out of range; or, at the end, a part failed or was not reached in time.
    """
    require(0 < FLAGS.scale <= 1, f"--scale={FLAGS.scale}: give more than 0, up to 1")
    # Up to a day.
    require(0.01 <= FLAGS.minutes <= 1440, f"--minutes={FLAGS.minutes}: give 0.01 to 1,440")
    out = cli.folder() / "accelerator"
    from experiments.engine import device_parts, device_report

    chosen = cli.chosen("only", [part.name for part in device_parts.PARTS])
    parts = [part for part in device_parts.PARTS if part.name in chosen]
    # The files are looked for now, since the parts that read them may come late.
    for flag in ("california_housing", "cifar10"):
        file = FLAGS[flag].value
        require(
            file is None or Path(file).exists(),
            f"--{flag}={file}: there is no such file; name another",
        )

    trial = device_parts.Trial(FLAGS.scale, FLAGS.california_housing, FLAGS.cifar10)
    most_seconds = 60 * FLAGS.minutes  # after which no part begins
    results = device_report.work(out, parts, trial, most_seconds, _print_progress)
    for name in (device_report.JSON, device_report.PAGE):
        print(os.fspath(out / name))

    done = [result.name for result in results if not result.failure]
    left = ", ".join(part.name for part in parts if part.name not in done)
    require(
        not left,
        f"not done, or not whole: {left}; start again to try them, or leave them out of --only",
    )


def _print_progress(line: str) -> None:
    """Prints a line on how far the parts are on stderr."""
    print(cli.one_line(line), file=sys.stderr, flush=True)


if __name__ == "__main__":
    cli.run(main, keeps=True)
