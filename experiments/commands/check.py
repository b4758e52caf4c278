"""Is one step of this DP-SGD right, and are its batches?

./run.sh check --example=numpy                     one of the examples
./run.sh check --step=mine.py:step                 a step of yours
./run.sh check --step=mine.py:step --report=p.html   with pictures
./run.sh check --batches=mine.py:loader --sampling_rate=0.01 --examples=50000   a loader of yours

mine.py holds a function step(params, batch, seed) -> params, and beside it params, batch, and stated, a dict
with clipping_norm, noise_multiplier, learning_rate and batch_size, which the flags replace; or a loader of
batches of indices, or a function seed -> such batches of a pass.

The exit status is 3 where a bug is found, and 4 where none is, but something needed could not be tried.
"""

from pathlib import Path

from absl import flags

from audit.commands import check, cli
from audit.errors import require

_FOLDER = Path(__file__).parents[1] / "examples"
# The examples' files by the name that --example takes.
_EXAMPLES = {path.stem.removeprefix("check_"): path for path in _FOLDER.glob("check_*.py")}
FLAGS = flags.FLAGS
flags.DEFINE_string("example", None, f"A step that is here: {', '.join(sorted(_EXAMPLES))}.")


def main() -> None:
    """Checks whether a step of DP-SGD is right, an example's or the user's own, or the user's own batches.

    Exits with status 3 where a check shows a bug. Exits with status 4 where no check does, but a check that
    is needed could not be tried.
    """
    given = [FLAGS.example, FLAGS.step, FLAGS.batches]
    exactly_one = given.count(None) == 2
    require(
        exactly_one, "give one of --example=NAME, --step=mine.py:step, --batches=mine.py:loader"
    )
    if FLAGS.example is None:
        return check.main()  # which reads --step and --batches
    choices = ", ".join(sorted(_EXAMPLES))
    require(FLAGS.example in _EXAMPLES, f"--example={FLAGS.example}: give {choices}")
    check.check_user_step("example", f"{_EXAMPLES[FLAGS.example]}:step")


if __name__ == "__main__":
    cli.run(main)
