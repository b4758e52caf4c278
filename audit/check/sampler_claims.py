"""What may be claimed for the batches that are really drawn: a bracket for every sampler, and advice."""

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.check.accounting import read_noise_multiplier
from audit.claims import accounting, brackets, samplers
from audit.claims.accounting import Composition
from audit.claims.brackets import ZERO_OUT, EveryModel
from audit.claims.samplers import MixtureLimit, ShuffledSteps
from audit.errors import number, require, shown
from audit.laws import conversions
from audit.report.table import Column, Table, at_least, at_most
from audit.written import counted, write_json

_MOST_STEPS = 10**6
_TAILS = (1, 2, 5, 10, 20, 50, 100)  # the numbers of noise-only steps that are tried for the advice
_DECIMALS = 2
_COLUMNS = 80


@dataclass(frozen=True)
class TruncatedPoisson:
    """The sampler whose Poisson batches are cut, at random, to at most `largest_batch` examples.

    Args:
      examples: the number of examples of the data set.
      largest_batch: the largest number of examples of a batch.

    Raises InputError for values out of range.

    >>> audit.TruncatedPoisson(examples=60_000, largest_batch=700).largest_batch
    700
    """

    examples: int
    largest_batch: int

    def __post_init__(self) -> None:
        """Raises InputError for values out of range."""
        examples = number("examples", self.examples, int)
        largest = number("largest_batch", self.largest_batch, int)
        require(1 <= examples <= 10**9, f"`examples={examples}`: give 1 to 1,000,000,000")
        require(1 <= largest <= examples, f"`largest_batch={largest}`: give 1 to {examples}")


class LastModel(NamedTuple):
    """Upper bounds on epsilon against an adversary who sees the last model alone.

    Attributes:
      upper: the bound without noise-only steps at the end; None where there is no bound.
      tail: the bound with these steps; None where there are none.
      assumes: what both bounds assume, in words.
    """

    upper: float | None
    tail: float | None
    assumes: str


class SamplerClaim(NamedTuple):
    """The epsilon that may be claimed for a sampler.

    Attributes:
      sampler: the sampler's name.
      yours: whether it is the caller's sampler; others are there to compare with.
      every_model: lower and upper bound on epsilon against an adversary who sees every model.
      last_model: upper bounds on epsilon against an adversary who sees the last model alone.
      advice: a sentence on what to change, or on what makes the claim hold.
    """

    sampler: str
    yours: bool
    every_model: EveryModel
    last_model: LastModel
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """Returns the row as nested dicts, ready for json.dumps."""
        nested = {
            "every_model": self.every_model._asdict(),
            "last_model": self.last_model._asdict(),
        }
        return {**self._asdict(), **nested}


@dataclass(frozen=True)
class SamplerClaims:
    """The epsilon that may be claimed for a sampler, beside that of Poisson sampling; it prints as a table.

    Attributes:
      rows: the claims, that of the caller's sampler first.
      delta: the delta of all epsilons.
      tail: the number of noise-only steps at the end.
      order: the condition on the order of examples, in words; empty where batches have no order.
    """

    rows: tuple[SamplerClaim, ...]
    delta: float
    tail: int
    order: str

    def to_dict(self) -> dict[str, Any]:
        """Returns the claims as nested dicts and lists, ready for json.dumps."""
        rows = [row.to_dict() for row in self.rows]
        return {
            "delta": self.delta,
            "tail": self.tail,
            "neighbours": ZERO_OUT,
            "order": self.order,
            "rows": rows,
        }

    def to_json(self) -> str:
        """Returns `to_dict` as JSON text, in which null stands for infinity."""
        return write_json(self.to_dict(), indent=2)

    def __str__(self) -> str:
        """Returns the table with its notes, at most 80 columns wide."""
        # Of each column its key, its value in a row, its head, and how the value is shown.
        columns = [
            Column("sampler", _show_sampler, "sampler", left=True),
            Column("every_model", _show_bracket, "every model\nseen"),
        ]
        of_last_model = {"last model\nalone": lambda row: row.last_model.upper}
        if self.tail:  # training ends with noise-only steps
            head = f"and {self.tail} noise-\nonly steps"
            of_last_model[head] = lambda row: row.last_model.tail
        for head, read in of_last_model.items():
            columns.append(Column(head, read, head, _show_upper, none="no bound"))
        lines = [f"epsilon at delta {self.delta:g}", "", Table(columns, self.rows).text(), ""]
        # Below the table, what computed each row's bounds, the advice, and what all bounds assume.
        notes = [f"{row.sampler}: {row.every_model.accountant}. {row.advice}" for row in self.rows]
        assumes = self.rows[0].last_model.assumes
        notes.append(f"last model alone: {assumes}. Neighbours: {ZERO_OUT}.")
        if self.order:
            notes.append(f"order: {self.order}.")
        for note in notes:
            lines.extend(textwrap.wrap(note, _COLUMNS, subsequent_indent="  "))
        return "\n".join(lines)


def _show_upper(value: float) -> str:
    """Returns an upper bound as text with two decimals, rounded up."""
    return at_most(value, _DECIMALS)


def _show_sampler(row: SamplerClaim) -> str:
    """Returns a sampler's name, marked if it is the caller's."""
    if row.yours:
        return f"{row.sampler} (yours)"
    return row.sampler


def _show_bracket(row: SamplerClaim) -> str:
    """Returns a row's bounds on epsilon for every model as text: "lower to upper", or the upper one alone.

    The upper one stands alone where there is no lower one, or both round to the same text.
    """
    lower, upper, _ = row.every_model
    shown_upper = _show_upper(upper)
    if lower is None or _show_upper(lower) == shown_upper:
        return shown_upper
    return f"{at_least(lower, _DECIMALS)} to {shown_upper}"


class _Training(NamedTuple):
    """The training run that claims are made for.

    Attributes:
      schedule: its steps without noise-only steps at the end.
      with_tail: its steps with the noise-only steps at the end.
      delta: the delta at which epsilon is bounded.
      truncation: the numbers of a truncated Poisson sampler; None for another sampler or unknown numbers.
      constants: the condition on the steps' Lipschitz constants under which bounds hold, in words.
    """

    schedule: ShuffledSteps
    with_tail: ShuffledSteps
    delta: float
    truncation: TruncatedPoisson | None
    constants: str

    @property
    def epochs_of_batches(self) -> tuple[float, int, int, float]:
        """The noise multiplier, the number of batches of an epoch, that of epochs, and delta."""
        schedule = self.schedule
        return schedule.noise_multiplier, schedule.batches, schedule.epochs, self.delta

    @property
    def composition(self) -> Composition:
        """The steps, without noise-only steps, as if batches were drawn by Poisson sampling."""
        schedule = self.schedule
        return Composition(schedule.noise_multiplier, schedule.insertable, 1 / schedule.batches)


class _Sampler(NamedTuple):
    """How a sampler is accounted for.

    Attributes:
      bracket: returns lower and upper bound on epsilon where every model is seen.
      bound: returns an upper bound on the epsilon of the last model alone, from steps and delta.
      advice: what makes the claim hold; empty where changes to the training are advised instead.
      unseen: what nobody may see if the last model's bound is to hold, in words.
      order: the condition on the order of examples, in words.
    """

    bracket: Callable[[_Training], EveryModel]
    bound: Callable[[ShuffledSteps, float], MixtureLimit]
    advice: str = ""
    unseen: str = "an earlier model or the batches"
    order: str = ""


def sampler_claims(
    sampler: str | TruncatedPoisson,
    *,
    noise_multiplier: float,
    batches: int,
    epochs: int,
    lipschitz: ArrayLike | None = None,
    tail: int = 0,
    delta: float = 1e-5,
) -> SamplerClaims:
    """Returns the epsilon that may be claimed for a sampler, if every model is seen or only the last.

    Nothing is trained. A second row has the claim of Poisson sampling, to compare with.

    Args:
      sampler: "poisson", "balls_in_bins", "random_allocation", "shuffled", "any_order" (each example once an
        epoch, in an order that is not uniform or may be known), "cyclic", "truncated_poisson" or, with known
        numbers, `TruncatedPoisson(examples, largest_batch)`.
      noise_multiplier: sigma, the noise's standard deviation over the clipping norm.
      batches: the number of batches of an epoch; a step takes an example with probability 1 / batches.
      epochs: the number of epochs of training.
      lipschitz: the Lipschitz constant of a step, a number or one for each of the batches * epochs steps. By
        default 1 is assumed, and the bounds of the last model say so.
      tail: the number of steps at the end that add noise but no gradient.
      delta: the delta at which epsilon is bounded.

    Returns:
      A row for the caller's sampler and another for Poisson sampling; a single row if these are the same.

    Raises:
      InputError: a number is out of range, or there is no such sampler.

    >>> claims = audit.sampler_claims("cyclic", noise_multiplier=1.0, batches=4, epochs=2)
    >>> round(claims.rows[0].every_model.upper, 2), round(claims.rows[0].last_model.upper, 2)
    (6.57, 4.98)
    """
    truncation = sampler if type(sampler) is TruncatedPoisson else None
    name = "truncated_poisson" if truncation is not None else sampler
    is_sampler = isinstance(name, str) and name in _SAMPLERS
    require(is_sampler, f"`sampler={shown(sampler)}`: give {', '.join(_SAMPLERS)}")
    sigma = read_noise_multiplier(noise_multiplier)
    number_of_batches = number("batches", batches, int)
    number_of_epochs = number("epochs", epochs, int)
    noise_only = number("tail", tail, int)
    # With a single batch an epoch, every example is in every step, and nothing is sampled.
    require(number_of_batches >= 2, f"`batches={batches}`: give at least 2 an epoch")
    require(1 <= number_of_epochs <= 10_000, f"`epochs={epochs}`: give 1 to 10,000")
    require(
        number_of_batches * number_of_epochs <= _MOST_STEPS,
        f"`batches={batches}` and `epochs={epochs}`: give at most {_MOST_STEPS:,} steps",
    )
    require(0 <= noise_only <= _MOST_STEPS, f"`tail={tail}`: give 0 to {_MOST_STEPS:,}")
    level = number("delta", delta, float)
    conversions.require_delta(level)
    least = accounting.LEAST_SAMPLED_DELTA
    require(level >= least, f"`delta={level:g}`: give at least {least:g}")

    # The steps of training, without and with the noise-only steps, since the last model is bounded for both.
    constants = 1.0 if lipschitz is None else lipschitz
    steps = (sigma, number_of_batches, number_of_epochs, constants)
    schedule = samplers.make_schedule(*steps)
    with_tail = samplers.make_schedule(*steps, noise_only)
    condition = "if every step is Lipschitz with constant 1, which is not checked"
    if lipschitz is not None:
        condition = _describe_constants(schedule.lipschitz)
    training = _Training(schedule, with_tail, level, truncation, condition)
    # Each name once: the caller's sampler first, and a single row if that is Poisson sampling.
    names = dict.fromkeys([str(name), "poisson"])
    rows = tuple(_make_row(row_name, row_name == name, training) for row_name in names)
    order = _SAMPLERS[str(name)].order
    return SamplerClaims(rows, training.delta, training.with_tail.tail, order)


def _describe_constants(lipschitz: NDArray[np.float64]) -> str:
    """Returns the condition on the steps' Lipschitz constants under which bounds hold, in words."""
    least = lipschitz.min()
    largest = lipschitz.max()
    if least == largest:
        return f"if every step is Lipschitz with constant {largest:g}"
    return f"if steps are Lipschitz with constants {least:g} to {largest:g}"


def _make_row(name: str, yours: bool, training: _Training) -> SamplerClaim:
    """Returns a row of the table: the claim for a sampler.

    For a sampler that is there to compare with, the last model gets no bound of its own: it leaks no more
    than all models together.
    """
    sampler = _SAMPLERS[name]
    every_model = sampler.bracket(training)
    tail = None
    if not yours:
        if training.with_tail.tail:
            tail = every_model.upper
        last_model = LastModel(every_model.upper, tail, "no more than every model leaks")
        return SamplerClaim(name, yours, every_model, last_model, sampler.advice)

    limit = sampler.bound(training.schedule, training.delta)
    upper = min(limit.epsilon, every_model.upper)  # the last model leaks no more than all models
    if training.with_tail.tail:
        with_tail = sampler.bound(training.with_tail, training.delta)
        tail = min(with_tail.epsilon, upper)  # steps without a gradient leak nothing more

    assumes = f"holds {training.constants}, and nobody sees {sampler.unseen}"
    if limit.error:  # the bound was simulated, and may be too low with this probability
        assumes = f"{assumes}; simulated from above, too low with probability {limit.error:g}"
    advice = sampler.advice or _advise_changes(training, upper, sampler)
    return SamplerClaim(name, yours, every_model, LastModel(upper, tail, assumes), advice)


def _account_poisson(training: _Training) -> EveryModel:
    """Returns dp-accounting's upper bound on epsilon for Poisson batches."""
    return brackets.bracket_poisson(training.composition, training.delta)


def _account_truncated(training: _Training) -> EveryModel:
    """Returns an upper bound on epsilon where every model is seen, for truncated Poisson batches.

    It is the smaller of two bounds: dp-accounting's, and that of the composition of all steps without
    amplification by sampling. The latter stands alone if `training.truncation` is None, since dp-accounting
    needs the numbers of examples of the data set and of the largest batch.

    In the composition, sigma counts by half. A batch is cut to its largest size, so that an example may push
    another out of it. It then moves the sum by up to 2 C.
    """
    sigma, steps, rate = training.composition
    composed = accounting.epsilon_upper_bound(sigma / 2, steps, training.delta)
    truncation = training.truncation
    if truncation is None:
        sizes = "examples and largest_batch (audit.TruncatedPoisson) tighten it, by dp-accounting"
        return EveryModel(None, composed, f"composition of all steps; {sizes}")
    import dp_accounting  # here, since it takes half a second to load
    from dp_accounting.pld import PLDAccountant

    step = dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent(
        truncation.examples, rate, truncation.largest_batch, sigma
    )
    grid = max(1e-4, 1e-7 * composed)  # distance of privacy losses; coarser where epsilon is large
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, grid)
    epsilon = float(accountant.compose(step, steps).get_epsilon(training.delta))
    return EveryModel(None, min(epsilon, composed), "dp-accounting (truncated PLD)")


def _account_allocation(training: _Training) -> EveryModel:
    """Returns bounds on epsilon where every example takes part in one random step of each epoch."""
    return brackets.bracket_allocation(*training.epochs_of_batches)


def _account_shuffled(training: _Training) -> EveryModel:
    """Returns bounds on epsilon for batches that are shuffled once an epoch."""
    return brackets.bracket_shuffled(*training.epochs_of_batches)


def _account_cyclic(training: _Training) -> EveryModel:
    """Returns epsilon for batches in a fixed order: an example takes a known step of each epoch."""
    sigma, _, epochs, delta = training.epochs_of_batches
    return brackets.bracket_fixed_order(sigma, epochs, delta)


def _advise_changes(training: _Training, last_model: float, sampler: _Sampler) -> str:
    """Returns the advice on how training may claim Poisson sampling's epsilon.

    The ways are Poisson batches, more noise, or releasing the last model alone, after noise-only steps if
    need be.

    Args:
      training: the training run.
      last_model: an upper bound on the last model's epsilon without noise-only steps.
      sampler: how the training's sampler is accounted for.
    """
    poisson = accounting.participant_upper_bound(training.composition, training.delta)
    # The noise that makes the claim true whatever the order of batches. An example takes part once an epoch,
    # so that training is mu-GDP (Gaussian DP) with mu = sqrt(epochs) / sigma.
    mu = conversions.mu_from_epsilon(poisson, training.delta)
    sigma = _show_upper(math.sqrt(training.schedule.epochs) / mu)
    claim = _show_upper(poisson)
    advice = f"To claim {claim}, draw Poisson batches, or raise the noise multiplier to {sigma}"
    if last_model <= poisson:
        return f"{advice}, or release the last model alone, on the condition below."
    schedule = training.schedule
    constants = schedule.lipschitz[: schedule.insertable]  # without those of noise-only steps
    for tail in _TAILS:
        longer = samplers.make_schedule(
            schedule.noise_multiplier, schedule.batches, schedule.epochs, constants, tail
        )
        if sampler.bound(longer, training.delta).epsilon <= poisson:
            steps = counted(tail, "noise-only step")
            return (
                f"{advice}, or release the last model alone after {steps}, on the condition below."
            )
    return f"{advice}; the last model alone may claim {_show_upper(last_model)}."


_UNIFORM = "every epoch draws a uniform order anew, which is not checked"
_EARLIER = "an earlier model"  # and the batches may be seen
_ALLOCATION = _Sampler(
    _account_allocation,
    samplers.bound_one_of_each_epoch,
    "The claim holds if every example draws its step of each epoch by itself.",
    order=_UNIFORM,
)
_SAMPLERS = {
    "poisson": _Sampler(
        _account_poisson,
        samplers.bound_poisson,
        "The claim holds if the loader flips a coin for every example: audit.check_batches looks.",
    ),
    "truncated_poisson": _Sampler(
        _account_truncated,
        samplers.bound_poisson,
        "Let largest_batch lie well above the expected size, where truncation costs little.",
    ),
    "balls_in_bins": _ALLOCATION,
    "random_allocation": _ALLOCATION,
    "shuffled": _Sampler(_account_shuffled, samplers.bound_one_of_each_epoch, order=_UNIFORM),
    "any_order": _Sampler(
        _account_shuffled,
        samplers.bound_any_order,
        unseen=_EARLIER,
        order="each example comes once an epoch, in any step, which may be known",
    ),
    "cyclic": _Sampler(
        _account_cyclic,
        samplers.bound_fixed_order,
        unseen=_EARLIER,
        order="every epoch has the same order, which may be known",
    ),
}
SAMPLERS = tuple(_SAMPLERS)
