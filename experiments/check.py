"""Is one step of this DP-SGD right? Clipping, noise, averaging, in a minute.

./run.sh check --example=opacus                    one of the examples
./run.sh check --step=mine.py:step                 a step of yours
./run.sh check --step=mine.py:step --report=p.html   with pictures

mine.py holds a function step(params, batch, seed) -> params, and beside it params, batch, and stated, a dict
with clipping_norm, noise_multiplier, learning_rate and batch_size, which the flags replace.
"""

from pathlib import Path

from absl import flags

from audit.commands import check, cli
from audit.errors import require

_EXAMPLES = {
    path.stem.removeprefix("check_"): path for path in (Path(__file__).parent / "examples").glob("check_*.py")
}
FLAGS = flags.FLAGS
flags.DEFINE_string("example", None, f"A step that is here: {', '.join(sorted(_EXAMPLES))}.")


def main() -> None:
    """Check an example or a step of the user's; exit status 3 where something was found."""
    require(
        (FLAGS.example is None) != (FLAGS.step is None), "give one of --example=NAME, --step=mine.py:step"
    )
    if FLAGS.example is None:
        return check.main()
    known = ", ".join(sorted(_EXAMPLES))
    require(FLAGS.example in _EXAMPLES, f"--example={FLAGS.example}: give {known}")
    check.check(_EXAMPLES[FLAGS.example], "step")


if __name__ == "__main__":
    cli.run(main)
