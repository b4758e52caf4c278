"""What may be claimed for the batches that are really drawn?

    ./run.sh claim --sampler=shuffled --noise_multiplier=1 --batches=98 --epochs=30
                                                         by a sampler's name
    ./run.sh claim --sampler=shuffled --noise_multiplier=1 --batches=98 --epochs=30 --tail=10
                                                         ten noise-only steps at the end
    ./run.sh claim --batches=mine.py:loader --noise_multiplier=1 --epochs=30
                                                         by a loader of yours

mine.py holds a function loader(seed) -> the batches of a pass, each the indices of its examples, and beside
it examples, how many the data set has; where it gives one batch at a time also sampling_rate, with which it
takes each example.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from audit.check.batches import check_batches
from audit.check.sampler_claims import SAMPLERS, TruncatedPoisson, sampler_claims
from audit.commands import cli
from audit.commands.user_file import run_file
from audit.errors import require

FLAGS = flags.FLAGS
flags.DEFINE_string("sampler", None, f"How batches are drawn: {', '.join(SAMPLERS)}.")
flags.DEFINE_string("batches", None, "Batches of an epoch, or a loader of yours: mine.py:loader.")
flags.DEFINE_float("noise_multiplier", None, "sigma.")
flags.DEFINE_integer("epochs", None, "Epochs of training.")
flags.DEFINE_list("lipschitz", None, "Lipschitz constant of a step, or one for each; by default 1.")
flags.DEFINE_integer("tail", 0, "Noise-only steps at the end.")
flags.DEFINE_integer("examples", None, "Of the data set, with --sampler=truncated_poisson.")
flags.DEFINE_integer("largest_batch", None, "With --sampler=truncated_poisson: after truncation.")
flags.DEFINE_float("delta", 1e-5, "delta of epsilon.")
cli.define_json()


class _Loader(NamedTuple):
    """What a loader turned out to be.

    Attributes:
      sampler: its name.
      batches: of an epoch.
    """

    sampler: str
    batches: int


def main() -> None:
    """Prints what may be claimed for the sampler or the loader that the flags name."""
    require(FLAGS.batches, "--batches is missing: give batches an epoch, or mine.py:loader")
    require(FLAGS.noise_multiplier is not None, "--noise_multiplier is missing: give sigma")
    require(FLAGS.epochs is not None, "--epochs is missing: give a number")
    lipschitz = None
    if FLAGS.lipschitz is not None:
        constants = cli.numbers("lipschitz")
        require(constants, "--lipschitz=: give a number, or one for each step")
        lipschitz = constants[0] if len(constants) == 1 else constants
    loader = _find_loader()
    claims = sampler_claims(
        _add_truncation(loader.sampler),
        noise_multiplier=FLAGS.noise_multiplier,
        batches=loader.batches,
        epochs=FLAGS.epochs,
        lipschitz=lipschitz,
        tail=FLAGS.tail,
        delta=FLAGS.delta,
    )
    print(claims.to_json() if FLAGS.json else claims)


def _find_loader() -> _Loader:
    """Returns the sampler that the flags name, or that their loader turns out to be."""
    if ":" not in FLAGS.batches:
        require(FLAGS.sampler, f"--sampler is missing: give {', '.join(SAMPLERS)}")
        is_whole = FLAGS.batches.isdecimal() and len(FLAGS.batches) < 10
        require(is_whole, f"--batches={FLAGS.batches}: give a whole number, or mine.py:loader")
        return _Loader(FLAGS.sampler, int(FLAGS.batches))
    require(FLAGS.sampler is None, "--sampler does not go with a loader, which is named: drop it")
    return _name_loader(_read_loader())


class _Definitions(NamedTuple):
    """What a file says of a loader.

    Attributes:
      file: its name, for errors.
      draw: seed -> the batches of a pass.
      examples: how many the data set has.
      sampling_rate: with which a batch takes each; None where a pass is an epoch.
    """

    file: str
    draw: Callable[[int], Any]
    examples: int
    sampling_rate: float | None


def _read_loader() -> _Definitions:
    """Returns the loader that --batches names; raises InputError where its file lacks something."""
    file, _, function = FLAGS.batches.rpartition(":")
    path = Path(file)
    named = f"--batches={FLAGS.batches}"
    require(file and function, f"{named}: name a file and its function, mine.py:loader")
    require(path.is_file(), f"{named}: there is no file {file}")
    definitions = run_file(path)
    missing = [name for name in (function, "examples") if name not in definitions]
    require(not missing, f"{path.name} has no {', '.join(missing)}: define {function}, examples")
    draw = definitions[function]
    require(callable(draw), f"{path.name}: {function} is no function of a seed")
    rate = definitions.get("sampling_rate")
    return _Definitions(path.name, draw, definitions["examples"], rate)


def _name_loader(loader: _Definitions) -> _Loader:
    """Returns the sampler of a loader by what check_batches sees; raises InputError where it is none."""
    rate = loader.sampling_rate
    if rate is None:
        first = list(loader.draw(0))
        is_pass = len(first) > 1 and np.ndim(first[0]) == 1
        require(is_pass, f"{loader.file} gives one batch at a time: define sampling_rate beside it")
        rate = 1 / len(first)
    report = check_batches(loader.draw, loader.examples, rate)
    kind = report.figures["kind"]
    if kind == "shuffled" and _repeats(loader.draw):
        kind = "cyclic"
    unknown = f"{loader.file}: {kind or 'these'} batches are of no sampler with a bound; "
    require(kind in SAMPLERS, f"{unknown}sample Poisson batches, or shuffle once an epoch")
    return _Loader(kind, round(1 / rate))


def _repeats(draw: Callable[[int], Any]) -> bool:
    """Returns whether two passes have the same batches in the same order."""
    passes = []
    for seed in (0, 1):
        batches = [sorted(np.asarray(batch).ravel().tolist()) for batch in draw(seed)]
        passes.append(batches)
    return bool(passes[0] == passes[1])


def _add_truncation(sampler: str) -> str | TruncatedPoisson:
    """Returns the sampler, with its batches where it truncates them and the flags say how."""
    given = (FLAGS.examples, FLAGS.largest_batch)
    if given == (None, None):
        return sampler
    require(
        None not in given and sampler == "truncated_poisson",
        "--examples and --largest_batch go together, with --sampler=truncated_poisson",
    )
    return TruncatedPoisson(*given)


if __name__ == "__main__":
    cli.run(main)
