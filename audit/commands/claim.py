"""What may be claimed for the batches that are really drawn?

    ./run.sh claim --sampler=shuffled --noise_multiplier=1 --batches=98 --epochs=30
                                                         by a sampler's name
    ./run.sh claim --sampler=shuffled --noise_multiplier=1 --batches=98 --epochs=30 --tail=10
                                                         ten noise-only steps at the end
    ./run.sh claim --batches=mine.py:loader --noise_multiplier=1 --epochs=30
                                                         by a loader of yours
    ./run.sh claim --batches=mine.py:loader --noise_multiplier=1 --epochs=30 --refute
                                                         do its batches refute Poisson's claim?

mine.py holds a loader on audit.Indices, or a function loader(seed) -> the batches of a pass, each the indices
of its examples, and beside a function examples, how many the data set has. Where it gives one batch at a
time it has also sampling_rate, with which it takes each example; where noise is not Gaussian, or its law not
known, a function noise(rng) -> the noise of one sum in units of C, with which --refute plays. Where the claim
is refuted, the exit status is 3.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from audit.check.accounting import require_least_rate
from audit.check.batches import check_batches
from audit.check.findings import ANOTHER_RATE
from audit.check.loaders import count_examples, make_draw
from audit.check.refutation import DrawNoise, refute_sampler
from audit.check.report import describe_error
from audit.check.sampler_claims import SAMPLERS, TruncatedPoisson, sampler_claims
from audit.claims.claim import DpSgd
from audit.commands import cli
from audit.commands.user_file import run_file
from audit.errors import InputError, require
from audit.values import number

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
flags.DEFINE_bool(
    "refute", False, "Test Poisson's claim by your loader's batches, in the worst case."
)
flags.DEFINE_integer("passes", 200, "With --refute: runs through all epochs, at most.")
cli.define_json()

REFUTED = 3  # exit status with --refute where the claim is refuted
_ROUNDING = 1e-6  # relative, that the inverse of a stated sampling rate may be from a whole number


class _Loader(NamedTuple):
    """The sampler that draws the batches, as the flags name it or as a loader's batches show it.

    Attributes:
      sampler: the sampler's name.
      batches: the number of batches in an epoch.
    """

    sampler: str
    batches: int


def main() -> None:
    """Prints what may be claimed for the sampler or the loader that the flags name.

    With --refute it instead tests the claim of Poisson sampling by the loader's batches. Raises InputError
    for flags that are missing or do not go together.
    """
    require(FLAGS.batches, "--batches is missing: give batches an epoch, or mine.py:loader")
    require(FLAGS.noise_multiplier is not None, "--noise_multiplier is missing: give sigma")
    require(FLAGS.epochs is not None, "--epochs is missing: give a number")
    lipschitz = None
    if FLAGS.lipschitz is not None:
        constants = cli.numbers("lipschitz")
        require(constants, "--lipschitz=: give a number, or one for each step")
        lipschitz = constants[0] if len(constants) == 1 else constants
    if FLAGS.refute:
        _refute()
        return
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


def _refute() -> None:
    """Prints whether a loader's batches refute the claim of Poisson sampling; exits with 3 if they do.

    The claim is that of --epochs epochs of b steps, each of which takes an example with the loader's sampling
    rate. An epoch's b is 1 / that rate, rounded.
    """
    without_use = ("delta", "tail", "lipschitz", "examples", "largest_batch")
    cli.refuse(without_use, "does not go with --refute: leave it out")
    require(":" in FLAGS.batches, "--refute needs a loader: give --batches=mine.py:loader")
    require(FLAGS.sampler is None, "--sampler does not go with a loader, which is named: drop it")
    loader = _read_loader()
    batches = round(1 / loader.rate)
    require(FLAGS.epochs >= 1, f"--epochs={FLAGS.epochs}: give at least 1")
    claim = DpSgd(FLAGS.noise_multiplier, batches * FLAGS.epochs, loader.rate)
    refutation = refute_sampler(
        loader.draw, loader.examples, claim, passes=FLAGS.passes, noise=loader.noise
    )
    print(refutation.to_json() if FLAGS.json else refutation)
    if refutation.refuted:
        sys.stdout.flush()  # before the exit, where a full disk would still be reported
        sys.exit(REFUTED)


def _find_loader() -> _Loader:
    """Returns the sampler, and the number of batches in an epoch, that the flags name or a loader shows.

    --batches is a number of batches, which goes with --sampler, or a loader in a file: mine.py:loader. A
    loader's sampler is recognised by the batches that it draws.

    Raises InputError for flags that are missing or do not go together, and where the loader's sampler is
    unknown.
    """
    if ":" not in FLAGS.batches:
        require(FLAGS.sampler, f"--sampler is missing: give {', '.join(SAMPLERS)}")
        # Nine digits are more than enough; int() refuses thousands of them.
        is_plain = FLAGS.batches.isascii() and FLAGS.batches.isdecimal()
        is_whole = is_plain and len(FLAGS.batches) < 10
        require(is_whole, f"--batches={FLAGS.batches}: give a whole number, or mine.py:loader")
        return _Loader(FLAGS.sampler, int(FLAGS.batches))
    require(FLAGS.sampler is None, "--sampler does not go with a loader, which is named: drop it")
    return _name_loader(_read_loader())


class _Definitions(NamedTuple):
    """What a user's file says of a loader.

    Attributes:
      file: the file's name, for messages.
      draw: seed -> the batches of a pass.
      examples: the number of examples in the data set.
      rate: the sampling rate that the file states, or else 1 / the number of batches of a pass.
      noise: generator -> the noise of a single sum, in units of C; None where the file has no such function.
    """

    file: str
    draw: Callable[[int], Any]
    examples: int
    rate: float
    noise: DrawNoise | None


def _read_loader() -> _Definitions:
    """Runs the file that --batches names, and returns what it says of the loader.

    The file defines the loader. It may also define `examples`, `sampling_rate` and `noise`, a function that
    draws the noise of a sum.

    Raises InputError where the file fails, lacks a definition, or has a sampling rate out of range.
    """
    file, _, function = FLAGS.batches.rpartition(":")
    path = Path(file)
    flag = f"--batches={FLAGS.batches}"
    require(file and function, f"{flag}: name a file and its function, mine.py:loader")
    require(path.is_file(), f"{flag}: there is no file {file}")
    definitions = run_file(path)
    require(
        function in definitions,
        f"{path.name} has no {function}: define a loader, or seed -> batches",
    )
    loader = definitions[function]

    # The size of the data set: as the file defines it, or that of the `dataset` of a loader. A function has
    # no such attribute.
    examples = definitions.get("examples")
    if examples is None:
        has_size = hasattr(getattr(loader, "dataset", None), "__len__")
        require(has_size, f"{path.name} has no examples: define examples, the size of the data set")
        examples = count_examples(loader, None)

    # The sampling rate: as the file defines it, or 1 / the number of batches of a pass.
    draw = make_draw(loader)
    rate = definitions.get("sampling_rate")
    if rate is None:
        rate = 1 / _count_batches(path.name, draw)
    rate = number("sampling_rate", rate, float)
    require_least_rate(rate)
    # An epoch has at least two batches, as in `sampler_claims`.
    require(rate <= 0.5, f"{path.name}: a sampling rate of {rate:g}: give 0.5 at most")
    return _Definitions(path.name, draw, examples, rate, definitions.get("noise"))


def _count_batches(file: str, draw: Callable[[int], Any]) -> int:
    """Returns the number of batches in a pass of a user's loader, the one with seed 0.

    Raises InputError where the loader fails, or gives a single batch instead of a pass.

    Args:
      file: the file's name, for messages.
      draw: seed -> the batches of a pass.
    """
    try:
        first = list(draw(0))
    except Exception as error:  # of the user's code
        raise InputError(f"{file} fails with seed 0: {describe_error(error)}") from error
    # A batch is a list of indices. Where the loader gives a single batch, its items are indices themselves.
    is_pass = len(first) > 1 and np.ndim(first[0]) == 1
    require(is_pass, f"{file} gives one batch at a time: define sampling_rate beside it")
    return len(first)


def _name_loader(loader: _Definitions) -> _Loader:
    """Returns the sampler that draws a loader's batches, as the check of batches recognises it.

    The number of batches in an epoch is 1 / the sampling rate. Raises InputError where that is not whole,
    where the batches show another rate, and where no sampler with a proven bound draws such batches.
    """
    batches = round(1 / loader.rate)
    # A claim for a rounded number of batches would be one for another sampling rate.
    is_whole = abs(1 / loader.rate - batches) <= _ROUNDING * batches
    require(
        is_whole,
        f"{loader.file}: a sampling rate of {loader.rate:g} is one in {1 / loader.rate:.6g} batches: "
        "state 1 / a whole number, or, of Poisson batches, take "
        "audit.DpSgd(sigma, steps, sampling_rate).epsilon(delta)",
    )
    report = check_batches(loader.draw, loader.examples, loader.rate)
    for finding in report.findings:
        if finding.name == ANOTHER_RATE.name:
            raise InputError(f"{loader.file}: {finding.name}: {finding.meaning}")
    kind = report.figures["kind"]  # such as "poisson"; empty if it is not recognised
    # The check calls batches "shuffled" even if they come in the same order in every pass.
    if kind == "shuffled" and _repeats(loader.draw):
        kind = "cyclic"
    unknown = f"{loader.file}: {kind or 'these'} batches are of no sampler with a bound; "
    require(kind in SAMPLERS, f"{unknown}sample Poisson batches, or shuffle once an epoch")
    return _Loader(kind, batches)


def _repeats(draw: Callable[[int], Any]) -> bool:
    """Returns whether a loader's passes with seeds 0 and 1 have the same batches in the same order.

    The order of examples within a batch does not matter.
    """
    passes = []
    for seed in (0, 1):
        batches = [sorted(np.asarray(batch).ravel().tolist()) for batch in draw(seed)]
        passes.append(batches)
    return bool(passes[0] == passes[1])


def _add_truncation(sampler: str) -> str | TruncatedPoisson:
    """Returns the sampler as `sampler_claims` takes it: its name, or a truncated Poisson sampler with sizes.

    The sizes are --examples, of the data set, and --largest_batch, after truncation. Raises InputError where
    a single one of these is given, or where they do not go with the sampler.
    """
    sizes = (FLAGS.examples, FLAGS.largest_batch)
    if sizes == (None, None):
        return sampler
    require(
        None not in sizes and sampler == "truncated_poisson",
        "--examples and --largest_batch go together, with --sampler=truncated_poisson",
    )
    return TruncatedPoisson(*sizes)


if __name__ == "__main__":
    cli.run(main)
