"""Check a DP-SGD step, its batches, or correlated noise."""

from pathlib import Path

from absl import flags

from audit.commands import check, cli

# The help text of `audit.commands.check`, plus a line for the additional flag.
__doc__ = f"""{check.__doc__}
./run.sh check --example=numpy                     one of the examples
"""

_FOLDER = Path(__file__).parents[1] / "examples"
# The example files, keyed by the value of --example.
_EXAMPLES = {path.stem.removeprefix("check_"): path for path in _FOLDER.glob("check_*.py")}
FLAGS = flags.FLAGS
flags.DEFINE_enum("example", None, sorted(_EXAMPLES), "Check an example.")
flags.adopt_module_key_flags(check)  # for --help


def main() -> None:
    """Checks an example's step, or the user's step, batches or noise; sets the exit status."""
    if FLAGS.example is None:
        return check.main()
    cli.refuse_both("example", ("step", "batches", "noise"))
    check.check_user_file("step", f"{_EXAMPLES[FLAGS.example]}:step")


if __name__ == "__main__":
    cli.run(main)
