"""What may be claimed for the batches that are really drawn, or for correlated noise?

    ./run.sh claim --sampler=shuffled --noise_multiplier=1 --batches=98 --epochs=30
                                                         by a sampler's name
    ./run.sh claim --sampler=shuffled --noise_multiplier=1 --batches=98 --epochs=30 --tail=10
                                                         ten noise-only steps at the end
    ./run.sh claim --sampler=shuffled --claim=8 --batches=98 --epochs=30
                                                         with the noise of a stated epsilon
    ./run.sh claim --batches=mine.py:loader --noise_multiplier=1 --epochs=30
                                                         by your loader
    ./run.sh claim --noise=bisr:16 --noise_multiplier=3 --steps=1250 --k=25
                                                         of a matrix mechanism (DP-FTRL)

mine.py defines a loader on range(examples), or a function loader(seed) -> the batches of a pass, each the
indices of its examples. With a function, it also defines examples, the size of the data set. The file is
executed like your own program.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from absl import flags

from audit.check.accounting import read_sampling_rate
from audit.check.batches import ANOTHER_RATE, check_batches
from audit.check.loaders import MAX_BATCHES, count_examples, draw_pass, make_draw
from audit.check.report import LEVEL
from audit.claims.matrix import MatrixMechanism
from audit.claims.sampler_claims import (
    SAMPLERS,
    TruncatedPoisson,
    find_noise_multiplier,
    sampler_claims,
)
from audit.claims.strategies import INDEPENDENT
from audit.commands import cli
from audit.commands.user_file import UserFile, run_user_file
from audit.errors import InputError, require
from audit.report.claims_table import make_noise_table, show_claims
from audit.written import write_json

FLAGS = flags.FLAGS
flags.DEFINE_string("sampler", None, f"How batches are drawn: {', '.join(SAMPLERS)}.")
flags.DEFINE_string(
    "batches", None, "Batches of an epoch, or your loader: mine.py:loader, which is executed."
)
flags.DEFINE_float("noise_multiplier", None, "sigma.")
flags.DEFINE_float(
    "claim",
    None,
    "Instead of sigma: the epsilon that is stated, by Poisson accounting for a sampler.",
)
flags.DEFINE_integer("epochs", None, "Epochs of training.")
flags.DEFINE_list("lipschitz", None, "Lipschitz constant of a step, or one for each; by default 1.")
flags.DEFINE_integer("tail", 0, "Noise-only steps at the end.")
flags.DEFINE_integer("examples", None, "With --sampler=truncated_poisson: size of the data set.")
flags.DEFINE_integer("largest_batch", None, "With --sampler=truncated_poisson: after truncation.")
flags.DEFINE_string(
    "noise", None, "Strategy of correlated noise: lambda:0.9, sqrt, bsr:16, bisr:16, or a file."
)
flags.DEFINE_integer("steps", None, "With --noise: the number of steps.")
flags.DEFINE_integer("k", None, "With --noise: the canary comes once in k steps; by default 1.")
flags.DEFINE_float("delta", 1e-5, "delta of epsilon.")
cli.define_json()

_ROUNDING = 1e-6  # relative


class _Loader(NamedTuple):
    """The sampler of the batches, from the flags or from a loader's batches.

    Attributes:
      sampler: the sampler's name, or a truncated Poisson sampler.
      batches: the number of batches in an epoch.
      order: the order of examples in a loader's passes; empty without a loader.
    """

    sampler: str | TruncatedPoisson
    batches: int
    order: str = ""


def main() -> None:
    """Prints the valid claims for a sampler, a loader or a matrix mechanism."""
    has_sigma = FLAGS.noise_multiplier is not None
    has_claim = FLAGS.claim is not None
    require(has_sigma or has_claim, "--noise_multiplier is missing: give sigma, or --claim=epsilon")
    require(not (has_sigma and has_claim), "give either --noise_multiplier or --claim")
    if FLAGS.noise is None:
        cli.refuse(("steps", "k"), "requires --noise")
        _print_sampler_claims()
    else:
        sampling = (
            "sampler",
            "batches",
            "epochs",
            "lipschitz",
            "tail",
            "examples",
            "largest_batch",
        )
        cli.refuse(sampling, "does not apply with --noise: leave it out")
        _print_noise_claims()


def _print_noise_claims() -> None:
    """Prints epsilon of all models and of the last model, for --noise and for DP-SGD at equal epsilon."""
    require(FLAGS.steps is not None, "--steps is missing: give the number of steps")
    k = 1 if FLAGS.k is None else FLAGS.k
    sigma = FLAGS.noise_multiplier
    if sigma is not None:
        require(sigma > 0, f"--noise_multiplier={sigma:g}: give a number above 0")
    claim = MatrixMechanism(FLAGS.noise, sigma or 1.0, FLAGS.steps, k)
    if sigma is None:
        claim = claim.with_epsilon(FLAGS.claim, FLAGS.delta)
    claims = [claim]
    if FLAGS.noise != INDEPENDENT:
        dp_sgd = dataclasses.replace(claim, strategy=INDEPENDENT)
        claims.append(dp_sgd.with_epsilon(claim.epsilon(FLAGS.delta), FLAGS.delta))
    table = make_noise_table(claims, FLAGS.delta)
    answer = {"delta": FLAGS.delta, "steps": FLAGS.steps, "k": k, "rows": table.json()}
    print(write_json(answer, indent=2) if FLAGS.json else table.text())


def _print_sampler_claims() -> None:
    """Prints the valid claims for a sampler or a loader."""
    require(FLAGS.batches, "--batches is missing: give batches an epoch, or mine.py:loader")
    require(FLAGS.epochs is not None, "--epochs is missing: give a number")
    constants = cli.numbers("lipschitz")
    require(constants or FLAGS.lipschitz is None, "--lipschitz=: give a number, or one a step")
    loader = _read_user_loader() if ":" in FLAGS.batches else _read_sampler()
    sigma = FLAGS.noise_multiplier
    if sigma is None:
        sigma = find_noise_multiplier(FLAGS.claim, loader.batches, FLAGS.epochs, FLAGS.delta)
    claims = sampler_claims(
        loader.sampler,
        noise_multiplier=sigma,
        batches=loader.batches,
        epochs=FLAGS.epochs,
        lipschitz=constants[0] if len(constants) == 1 else constants or None,
        tail=FLAGS.tail,
        delta=FLAGS.delta,
    )
    if loader.order:
        claims = dataclasses.replace(claims, order=loader.order)
    print(claims.to_json() if FLAGS.json else show_claims(claims))


def _read_sampler() -> _Loader:
    """Returns the sampler that --sampler names, with the number of batches that --batches gives.

    --examples and --largest_batch describe a truncated Poisson sampler. Raises InputError if the name or the
    number is missing, or if only one of these two flags is given.
    """
    sampler = FLAGS.sampler
    require(sampler, f"--sampler is missing: give {', '.join(SAMPLERS)}")
    is_whole = FLAGS.batches.isdecimal()
    require(is_whole, f"--batches={FLAGS.batches}: give a whole number, or mine.py:loader")
    sizes = (FLAGS.examples, FLAGS.largest_batch)
    if sizes != (None, None):
        are_together = None not in sizes and sampler == "truncated_poisson"
        require(
            are_together, "--sampler=truncated_poisson takes both --examples and --largest_batch"
        )
        sampler = TruncatedPoisson(*sizes)
    return _Loader(sampler, int(FLAGS.batches))


def _read_user_loader() -> _Loader:
    """Returns the sampler of the user's loader."""
    unused = ("sampler", "examples", "largest_batch")
    cli.refuse(unused, "does not apply to a loader: leave it out")
    user_file = run_user_file("batches", FLAGS.batches)
    try:
        return _name_loader(user_file)
    except InputError as error:  # the flag of the argument `draw` is --batches
        message = str(error).replace("`draw", "`batches")
        raise InputError(f"{user_file.path.name}: {message}") from error


def _name_loader(user_file: UserFile) -> _Loader:
    """Returns the sampler of a user's loader, from the check of its batches.

    The file may also define `examples`, by default the size of the loader's `dataset`, and `sampling_rate`,
    by default 1 / the number of batches of a pass.

    Raises InputError if a definition is missing, if 1 / the sampling rate is not whole, or if the batches
    show another rate or a sampler without a proven bound.
    """
    definitions = user_file.definitions
    loader = definitions[user_file.name]
    examples = definitions.get("examples")
    is_known = examples is not None or hasattr(getattr(loader, "dataset", None), "__len__")
    require(is_known, "it has no examples: define examples, the size of the data set")
    examples = count_examples(loader, examples)
    draw = make_draw(loader)
    rate = definitions.get("sampling_rate")
    if rate is None:
        drawn = draw_pass(draw, 0, examples, MAX_BATCHES)
        require(
            drawn.is_whole,
            f"it gives more than {MAX_BATCHES:,} batches with seed 0: let a pass over the data end, or name "
            "the sampler (--sampler) and the number of batches (--batches)",
        )
        rate = 1 / len(drawn.batches)
    rate = read_sampling_rate(rate)
    require(rate <= 0.5, f"a sampling rate of {rate:g}: give 0.5 at most")
    batches = round(1 / rate)
    # A rounded number would claim another sampling rate.
    require(
        abs(1 / rate - batches) <= _ROUNDING * batches,
        f"a sampling rate of {rate:g} is one in {1 / rate:.6g} batches: state 1 / a whole number, or, of "
        "Poisson batches, take audit.DpSgd(sigma, steps, sampling_rate).epsilon(delta)",
    )

    report = check_batches(draw, examples, rate)
    for finding in report.findings:
        require(finding.name != ANOTHER_RATE, f"{finding.name}: {finding.meaning}")
    kind = report.figures["kind"]  # such as "poisson"; empty if it is not recognised
    unknown = f"{kind or 'these'} batches do not come from a sampler with a bound: "
    require(kind in SAMPLERS, f"{unknown}sample Poisson batches, or shuffle once an epoch")
    order = report.figures.get("order")
    if order is None:
        return _Loader(kind, batches)
    require(
        order["is_whole"], f"a pass does not end after {batches} batches: let it end, like an epoch"
    )
    return _name_order(kind, min(batches, order["batches"]), order)


def _name_order(kind: str, batches: int, order: Mapping[str, Any]) -> _Loader:
    """Returns the sampler of batches with every example once a pass, by the tests of their order.

    Only batches without a rejected order get amplified bounds. `order` has the fields of
    `audit.check.order.OrderTest`.
    """
    passes = f"{order['passes']} passes"
    tested = f"tested over {passes}, p {order['p_value']:.2g}"
    if order["p_value"] > LEVEL:
        uniform = f"uniform order ({tested})"
        # A smaller last batch is less probable than the mixture assumes. This is not worse, unless steps
        # expand: then an earlier step may leak more.
        expands = max(cli.numbers("lipschitz"), default=1.0) > 1
        if kind == "shuffled" and expands and not order["is_even"]:
            why = "batches differ in size and steps may expand; the bounds take the order as known"
            return _Loader("any_order", batches, f"{uniform}, but {why}")
        return _Loader(kind, batches, uniform)
    known = "the bounds take it as known"
    if order["repeats"]:
        return _Loader("cyclic", batches, f"the same in all of {passes}; {known}")
    seen = order["seen"].removesuffix(".")
    return _Loader("any_order", batches, f"not uniform ({tested}); {known}. {seen}")


if __name__ == "__main__":
    cli.run(main)
