"""Check a DP-SGD step, its batches, or correlated noise.

./run.sh check --example=numpy                     one of the examples
./run.sh check --step=mine.py:step                 your step
./run.sh check --step=mine.py:step --report=p.html   with pictures
./run.sh check --batches=mine.py:loader --sampling_rate=0.01 --examples=50000   your loader
./run.sh check --noise=mine.py:draw --strategy=bisr:16 --noise_multiplier=2   noise of a matrix mechanism

For --step, mine.py defines a function step(params, batch, seed) -> params, and also params, batch, and
stated, a dict with clipping_norm, noise_multiplier, learning_rate and batch_size. Flags override its values.
For --batches, it defines a loader of batches of indices, or a function from a seed to the batches of a pass.
For --noise, it defines the noise of T steps in d parameters, (T, d), or a function that returns it.

The exit status is 3 if a bug was found, or else 4 if a required check could not run.
"""

from pathlib import Path

from absl import flags

from audit.commands import check, cli

_FOLDER = Path(__file__).parents[1] / "examples"
# The files of the examples, by the value of --example.
_EXAMPLES = {path.stem.removeprefix("check_"): path for path in _FOLDER.glob("check_*.py")}
FLAGS = flags.FLAGS
flags.DEFINE_enum("example", None, sorted(_EXAMPLES), "Check an example.")


def main() -> None:
    """Checks a step of an example, or the user's step, batches or noise; sets the exit status."""
    if FLAGS.example is None:
        return check.main()
    cli.refuse_both("example", ("step", "batches", "noise"))
    check.check_user_file("step", f"{_EXAMPLES[FLAGS.example]}:step")


if __name__ == "__main__":
    cli.run(main)
