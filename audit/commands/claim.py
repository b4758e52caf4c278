"""Compute the epsilon that you may claim for a sampler or for correlated noise.

    ./run.sh claim --sampler=shuffled --noise_multiplier=1 --batches=98 --epochs=30
                                                         a sampler
    ./run.sh claim --sampler=shuffled --noise_multiplier=1 --batches=98 --epochs=30 --tail=10
                                                         ten noise-only steps at the end
    ./run.sh claim --sampler=shuffled --claim=8 --batches=98 --epochs=30
                                                         the noise for epsilon 8
    ./run.sh claim --batches=mine.py:loader --noise_multiplier=1 --epochs=30
                                                         your loader
    ./run.sh claim --noise=bisr:16 --noise_multiplier=3 --steps=1250 --k=25
                                                         a matrix mechanism (DP-FTRL)

mine.py defines a loader over range(examples), or a function loader(seed) that returns the batches of one pass
as example indices. If loader is a function, mine.py also defines examples, the size of the data set. The file
is executed.
"""

import dataclasses
from typing import NamedTuple

from absl import flags

from audit.check.batches import ANOTHER_RATE, check_batches
from audit.check.loaders import MAX_BATCHES, count_examples, draw_pass, make_draw
from audit.check.order import OrderTest
from audit.check.report import LEVEL, CheckReport
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
from audit.report.claims_table import list_noise_claims, show_claims, show_noise_claims
from audit.written import counted, write_json

FLAGS = flags.FLAGS
cli.define_optional(
    str,
    sampler=f"How batches are drawn: {', '.join(SAMPLERS)}.",
    batches="Batches per epoch, or your loader: mine.py:loader. The file is executed.",
    noise="Strategy of correlated noise: lambda:0.9, sqrt, bsr:16, bisr:16, or a file.",
)
cli.define_optional(
    float,
    noise_multiplier="Noise multiplier sigma.",
    claim="Claimed epsilon, used to compute sigma (for samplers, by Poisson accounting).",
    lipschitz="Lipschitz constant of every step; by default 1.",
)
cli.define_optional(
    int,
    epochs="Number of epochs.",
    examples="With --sampler=truncated_poisson: size of the data set.",
    largest_batch="With --sampler=truncated_poisson: batch size after truncation.",
    steps="With --noise: number of steps.",
    k="With --noise: the canary is inserted every k steps; by default 1.",
)
flags.DEFINE_integer("tail", 0, "Number of noise-only steps at the end.")
flags.DEFINE_float("delta", 1e-5, "delta of epsilon.")
cli.define_json()

_TRUNCATED_FLAGS = ("examples", "largest_batch")
_SAMPLER_FLAGS = ("sampler", "batches", "epochs", "lipschitz", "tail", *_TRUNCATED_FLAGS)


class _Sampler(NamedTuple):
    """A sampler, specified by flags or recognized from a loader's batches.

    Attributes:
      sampler: The sampler's name, or a truncated Poisson sampler.
      batches: The number of batches in an epoch.
      order: A description of the order of a loader's examples, or "".
    """

    sampler: str | TruncatedPoisson
    batches: int
    order: str = ""


def main() -> None:
    """Prints the valid claims for a sampler or loader or, with --noise, for correlated noise."""
    is_sigma_known = cli.is_given("noise_multiplier") or cli.is_given("claim")
    require(is_sigma_known, "--noise_multiplier is missing: give sigma, or --claim=epsilon")
    cli.refuse_both("claim", ["noise_multiplier"])
    if FLAGS.noise is None:
        cli.refuse(("steps", "k"), "requires --noise")
        _print_sampler_claims()
    else:
        cli.refuse(_SAMPLER_FLAGS, "does not apply with --noise: leave it out")
        _print_noise_claims()


def _print_noise_claims() -> None:
    """Prints the epsilons of the correlated noise in --noise and, for comparison, of DP-SGD.

    Each mechanism has two epsilons: one if all models are released, and one if only the last is. We choose
    DP-SGD's noise to match the first epsilon.
    """
    require(FLAGS.steps is not None, "--steps is missing: give the number of steps")
    k = 1 if FLAGS.k is None else FLAGS.k  # one insertion in k steps
    if FLAGS.claim is None:
        sigma = FLAGS.noise_multiplier
        require(sigma > 0, f"--noise_multiplier={sigma:g}: give a number above 0")
        claim = MatrixMechanism(FLAGS.noise, sigma, FLAGS.steps, k)
    else:  # `with_epsilon` finds sigma
        any_claim = MatrixMechanism(FLAGS.noise, 1.0, FLAGS.steps, k)
        claim = any_claim.with_epsilon(FLAGS.claim, FLAGS.delta)
    claims = [claim]
    if FLAGS.noise != INDEPENDENT:
        dp_sgd = dataclasses.replace(claim, strategy=INDEPENDENT)
        claims.append(dp_sgd.with_epsilon(claim.epsilon(FLAGS.delta), FLAGS.delta))
    records = list_noise_claims(claims, FLAGS.delta)
    if FLAGS.json:
        answer = {"delta": FLAGS.delta, "steps": FLAGS.steps, "k": k, "rows": records}
        print(write_json(answer, indent=2))
    else:
        steps = f"{FLAGS.steps:,} steps, canary in 1 of {k}"
        print(show_noise_claims(records, f"epsilon at delta {FLAGS.delta:g}, {steps}"))


def _print_sampler_claims() -> None:
    """Prints the valid claims for a sampler or a loader."""
    require(FLAGS.batches, "--batches is missing: give batches per epoch, or mine.py:loader")
    require(FLAGS.epochs is not None, "--epochs is missing: give a number")
    is_loader = ":" in FLAGS.batches  # such as mine.py:loader
    sampler, batches, order = _read_user_loader() if is_loader else _read_sampler()
    sigma = FLAGS.noise_multiplier
    if sigma is None:  # only --claim was given
        sigma = find_noise_multiplier(FLAGS.claim, batches, FLAGS.epochs, FLAGS.delta)
        if not FLAGS.json:
            print(
                f"claim of {FLAGS.claim:g} without a noise multiplier: {sigma:.4g} would give it with "
                "Poisson batches\n"
            )
    claims = sampler_claims(
        sampler,
        noise_multiplier=sigma,
        batches=batches,
        epochs=FLAGS.epochs,
        lipschitz=FLAGS.lipschitz,
        tail=FLAGS.tail,  # noise-only steps
        delta=FLAGS.delta,
    )
    if order:  # the tested order of a user's loader
        claims = dataclasses.replace(claims, order=order)
    print(claims.to_json() if FLAGS.json else show_claims(claims))


def _read_sampler() -> _Sampler:
    """Returns --sampler and its number of batches; the caller handles --batches=mine.py:loader."""
    sampler = FLAGS.sampler
    require(sampler, f"--sampler is missing: give {', '.join(SAMPLERS)}")
    require(
        FLAGS.batches.isdecimal(),
        f"--batches={FLAGS.batches}: give a whole number, or mine.py:loader",
    )
    # Optional sizes lower the bound.
    sizes = (FLAGS.examples, FLAGS.largest_batch)
    if sizes != (None, None):
        is_complete = None not in sizes and sampler == "truncated_poisson"
        require(
            is_complete,
            "--examples and --largest_batch are for --sampler=truncated_poisson: give both or neither",
        )
        sampler = TruncatedPoisson(*sizes)
    return _Sampler(sampler, int(FLAGS.batches))


def _read_user_loader() -> _Sampler:
    """Returns the sampler of the loader in --batches."""
    cli.refuse(("sampler", *_TRUNCATED_FLAGS), "does not apply to a loader: leave it out")
    user_file = run_user_file("batches", FLAGS.batches)
    try:
        return _recognize_loader(user_file, FLAGS.lipschitz)
    except InputError as error:
        # Refer to the flag and to the name in the file, not to the check's arguments.
        message = str(error).replace("`draw", "`batches").replace("`examples`", "examples")
        raise InputError(f"{user_file.path.name}: {message}") from error


def _recognize_loader(user_file: UserFile, lipschitz: float | None) -> _Sampler:
    """Recognizes the sampler of a user's loader by checking its batches.

    `lipschitz` is the Lipschitz constant of every step; None for 1.
    """
    loader = user_file.definitions[user_file.requested_name]
    examples = count_examples(loader, user_file.definitions.get("examples"))
    draw = make_draw(loader)
    first_pass = draw_pass(draw, 0, examples, MAX_BATCHES)  # with seed 0
    require(
        first_pass.is_whole,
        f"it yields more than {MAX_BATCHES:,} batches with seed 0: let a pass over the data end, or name "
        "the sampler (--sampler) and the number of batches (--batches)",
    )
    batches = len(first_pass.batches)
    report = check_batches(draw, examples, sampling_rate=1 / batches)
    kind = _find_kind(report)
    order = report.figures.get("order")
    if order is None:  # passes use some examples twice
        return _Sampler(kind, batches)
    # Tests of the order may change `kind`. So may unequal batches, if steps increase an example's effect.
    can_expand = lipschitz is not None and lipschitz > 1
    sampler = _judge_order(kind, batches, OrderTest(**order), can_expand=can_expand)
    used = sum(map(len, first_pass.batches))
    require(
        used <= examples,
        f"a pass with seed 0 has several epochs, {used} indices of {examples} examples: let it end after one",
    )
    if used < examples:
        omitted = counted(examples - used, "example")
        why = f"a pass omits {omitted}, so epsilon may be below its lower bound"
        sampler = sampler._replace(order=f"{sampler.order}; {why}")
    return sampler


def _find_kind(report: CheckReport) -> str:
    """Returns the name of the sampler that a check of batches recognized, such as "poisson".

    Raises InputError if no bound is known for the sampler, or if its rate is not 1 / (batches per pass).
    """
    kind: str = report.figures["kind"]  # "" if not recognized
    # Other findings mean only that the batches are not Poisson samples. If passes have no repeats, a
    # wrong rate only means that they omit examples.
    for finding in report.findings:
        is_rate_wrong = finding.name == ANOTHER_RATE and "order" not in report.figures
        require(not is_rate_wrong, f"the rate is not 1 / (batches per pass): {finding.meaning}")
    require(
        kind in SAMPLERS,
        f"{kind or 'these'} batches do not come from a sampler with a bound: sample Poisson batches, or "
        "shuffle once an epoch",
    )
    return kind


def _judge_order(kind: str, batches: int, order: OrderTest, can_expand: bool) -> _Sampler:
    """Returns the sampler of batches that use every example once per pass.

    If tests reject a uniform order, the sampler is "cyclic" or "any_order", and its bounds are for an
    adversary who knows the order. Raises InputError if a pass does not end.

    Args:
      kind: The sampler's name, such as "shuffled", if the order is uniform.
      batches: The number of batches in the first pass.
      order: The results of the tests.
      can_expand: True if steps may increase an example's effect (a Lipschitz constant above 1).
    """
    require(
        order.is_whole, f"a pass does not end after {batches} batches: let it end, like an epoch"
    )
    batches = min(batches, order.batches)  # of the shortest pass
    tested = f"tested over {order.passes} passes, p {order.p_value:.2g}"
    if order.p_value <= LEVEL:  # the tests reject a uniform order
        known = "the bounds assume that the adversary knows it"  # the order
        if order.repeats:
            return _Sampler("cyclic", batches, f"the same in all of {order.passes} passes; {known}")
        evidence = order.seen.removesuffix(".")
        return _Sampler("any_order", batches, f"not uniform ({tested}); {known}. {evidence}")
    uniform = f"uniform order ({tested})"
    # The bounds for "shuffled" assume equal batches. If later batches are smaller, examples tend to be in
    # earlier batches, so they leak less unless later steps expand their effect.
    if kind == "shuffled" and not order.is_even and (can_expand or not order.is_decreasing):
        cause = "steps may expand" if order.is_decreasing else "later ones may be larger"
        why = f"batches differ in size, and {cause}; the bounds assume a known order"
        return _Sampler("any_order", batches, f"{uniform}, but {why}")
    return _Sampler(kind, batches, uniform)


if __name__ == "__main__":
    cli.run(main)
