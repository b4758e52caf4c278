"""Bounds on the epsilon of training with the batches of a sampler, and advice."""

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from numpy.typing import ArrayLike

from audit.check.accounting import read_noise_multiplier
from audit.claims import accounting, brackets, samplers
from audit.claims.accounting import Composition
from audit.claims.brackets import ZERO_OUT, EveryModel
from audit.claims.samplers import MixtureLimit, ShuffledSteps
from audit.errors import number, require, shown
from audit.laws import conversions
from audit.report.table import Column, Table, at_least, at_most
from audit.written import counted, write_json

_MAX_STEPS = 10**6
_TAILS = (1, 2, 5, 10, 20, 50, 100)  # numbers of noise-only steps for the advice
_DECIMALS = 2
_COLUMNS = 80


@dataclass(frozen=True)
class TruncatedPoisson:
    """The sampler of Poisson batches that are cut, at random, to at most `largest_batch` examples.

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
    """Upper bounds on epsilon against an adversary who only sees the last model.

    Attributes:
      upper: the bound without noise-only steps at the end; None if there is not any.
      tail: the bound with these steps; None without them.
      assumes: what both bounds assume, in words.
    """

    upper: float | None
    tail: float | None
    assumes: str


class SamplerClaim(NamedTuple):
    """The epsilon that may be claimed for a sampler.

    Attributes:
      sampler: the sampler's name.
      yours: whether it is the caller's sampler, not one to compare with.
      every_model: lower and upper bound on epsilon against an adversary who sees every model.
      last_model: upper bounds on epsilon against an adversary who only sees the last model.
      advice: a sentence with the changes to make, or with the condition of the claim.
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
    """The epsilon that may be claimed for a sampler, and that of Poisson sampling; it prints as a table.

    Attributes:
      rows: the claims, that of the caller's sampler first.
      delta: the delta of all epsilons.
      tail: the number of noise-only steps at the end.
      order: the condition on the order of examples, in words; empty if batches do not have an order.
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
        """Returns `to_dict` as JSON text, with null for infinity."""
        return write_json(self.to_dict(), indent=2)

    def __str__(self) -> str:
        """Returns the table with its notes, at most 80 columns wide."""
        columns = [
            Column("sampler", _show_sampler, "sampler", left=True),
            Column("every_model", _show_bracket, "every model\nseen"),
            Column("last", lambda row: row.last_model.upper, "last model\nalone", _show_upper),
        ]
        if self.tail:  # training ends with noise-only steps
            head = f"and {self.tail} noise-\nonly steps"
            columns.append(Column("tail", lambda row: row.last_model.tail, head, _show_upper))
        lines = [f"epsilon at delta {self.delta:g}", "", Table(columns, self.rows).text(), ""]
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
    """Formats a row's bounds on epsilon for every model: "lower to upper", or only the upper bound.

    The lower bound is left out if it is missing, or if both round to the same text.
    """
    lower, upper, _ = row.every_model
    shown_upper = _show_upper(upper)
    if lower is None or _show_upper(lower) == shown_upper:
        return shown_upper
    return f"{at_least(lower, _DECIMALS)} to {shown_upper}"


class _Sampler(NamedTuple):
    """How a sampler is accounted for.

    Attributes:
      bracket: returns the bounds on epsilon if every model is seen, from steps and delta.
      bound: returns an upper bound on the epsilon of the last model, from steps and delta.
      advice: the condition of the claim; empty if changes to the training are advised instead.
      unseen: for the last model's bound, the information that must not be seen, in words.
      order: the condition on the order of examples, in words.
    """

    bracket: Callable[[ShuffledSteps, float], EveryModel]
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
      delta: the delta of epsilon.

    Returns:
      A row for the caller's sampler and another for Poisson sampling; a single row if these are the same.

    Raises:
      InputError: a number is out of range, or the sampler is unknown.

    >>> claims = audit.sampler_claims("cyclic", noise_multiplier=1.0, batches=4, epochs=2)
    >>> round(claims.rows[0].every_model.upper, 2), round(claims.rows[0].last_model.upper, 2)
    (6.57, 4.98)
    """
    name = "truncated_poisson" if isinstance(sampler, TruncatedPoisson) else sampler
    is_sampler = isinstance(name, str) and name in _SAMPLERS
    require(is_sampler, f"`sampler={shown(sampler)}`: give {', '.join(_SAMPLERS)}")
    method = _SAMPLERS[str(name)]
    if isinstance(sampler, TruncatedPoisson):
        method = method._replace(bracket=partial(_bracket_truncated, sampler))
    sigma = read_noise_multiplier(noise_multiplier)
    # With a single batch an epoch, every example is in every step, without sampling.
    counts = {"batches": (batches, 2), "epochs": (epochs, 1), "tail": (tail, 0)}
    for count_name, (value, least) in counts.items():
        in_range = least <= number(count_name, value, int) <= _MAX_STEPS
        require(in_range, f"`{count_name}={value}`: give {least} to {_MAX_STEPS:,}")
    few = batches * epochs <= _MAX_STEPS
    require(few, f"`batches={batches}` and `epochs={epochs}`: give at most {_MAX_STEPS:,} steps")
    delta = number("delta", delta, float)
    conversions.require_delta(delta)
    least_delta = accounting.LEAST_SAMPLED_DELTA
    require(delta >= least_delta, f"`delta={delta:g}`: give at least {least_delta:g}")

    constants = 1.0 if lipschitz is None else lipschitz
    schedule = samplers.make_schedule(sigma, batches, epochs, constants)
    poisson = _bracket_poisson(schedule, delta)
    every_model = poisson if name == "poisson" else method.bracket(schedule, delta)
    limit = method.bound(schedule, delta)
    upper = min(limit.epsilon, every_model.upper)  # the last model leaks no more than all models
    with_tail = None
    if tail:  # steps without a gradient do not leak more
        with_tail = min(method.bound(_add_tail(schedule, tail), delta).epsilon, upper)
    condition = "if every step is Lipschitz with constant 1, which is not checked"
    if lipschitz is not None:
        condition = f"if steps are Lipschitz with constants up to {schedule.lipschitz.max():g}"
    assumes = f"holds {condition}, and nobody sees {method.unseen}"
    if limit.error:  # the bound was simulated, and may be too low with this probability
        assumes = f"{assumes}; simulated from above, too low with probability {limit.error:g}"
    advice = method.advice or _advise_changes(schedule, delta, poisson.upper, upper, method)
    last_model = LastModel(upper, with_tail, assumes)
    rows = [SamplerClaim(str(name), True, every_model, last_model, advice)]
    if name != "poisson":  # to compare with: the last model leaks no more than all models together
        with_tail = poisson.upper if tail else None
        last_model = LastModel(poisson.upper, with_tail, "no more than every model leaks")
        advice = _SAMPLERS["poisson"].advice
        rows.append(SamplerClaim("poisson", False, poisson, last_model, advice))
    return SamplerClaims(tuple(rows), delta, tail, method.order)


def _add_tail(schedule: ShuffledSteps, tail: int) -> ShuffledSteps:
    """Returns steps with noise-only steps at their end."""
    return samplers.make_schedule(*schedule[:4], tail)


def _compose(schedule: ShuffledSteps) -> Composition:
    """Returns the steps as if batches were drawn by Poisson sampling."""
    return Composition(schedule.noise_multiplier, schedule.insertable, 1 / schedule.batches)


def _bracket_poisson(schedule: ShuffledSteps, delta: float) -> EveryModel:
    """Returns dp-accounting's upper bound on epsilon for Poisson batches."""
    epsilon = accounting.participant_upper_bound(_compose(schedule), delta)
    return EveryModel(None, epsilon, "dp-accounting (PLD)")


def _bracket_truncated(
    truncation: TruncatedPoisson | None, schedule: ShuffledSteps, delta: float
) -> EveryModel:
    """Returns an upper bound on epsilon for truncated Poisson batches, if every model is seen.

    It is the smaller of two bounds: dp-accounting's, and the composition of all steps without sampling.
    Without the numbers of the truncation there is only the latter. An example may push another out of a batch
    that is cut. It then moves the sum by up to 2 C, as if sigma were halved.
    """
    sigma, steps, rate = _compose(schedule)
    composed = accounting.epsilon_upper_bound(sigma / 2, steps, delta)
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
    epsilon = float(accountant.compose(step, steps).get_epsilon(delta))
    return EveryModel(None, min(epsilon, composed), "dp-accounting (truncated PLD)")


def _bracket_by_epochs(
    bracket: Callable[[float, int, int, float], EveryModel], schedule: ShuffledSteps, delta: float
) -> EveryModel:
    """Returns the bounds of a function of noise multiplier, batches and epochs."""
    return bracket(schedule.noise_multiplier, schedule.batches, schedule.epochs, delta)


def _bracket_cyclic(schedule: ShuffledSteps, delta: float) -> EveryModel:
    """Returns epsilon for batches in a fixed order: the composition of epochs, which is exact."""
    epsilon = accounting.epsilon_upper_bound(schedule.noise_multiplier, schedule.epochs, delta)
    return EveryModel(epsilon, epsilon, "composition of epochs, exact")


def _advise_changes(
    schedule: ShuffledSteps, delta: float, poisson: float, last_model: float, method: _Sampler
) -> str:
    """Returns the advice on how training may claim the epsilon of Poisson sampling.

    The ways are Poisson batches, more noise, or releasing only the last model, after noise-only steps if
    needed. With more noise the claim is true in any order of batches: an example takes part once an epoch,
    and training is mu-GDP with mu = sqrt(epochs) / sigma.
    """
    sigma = math.sqrt(schedule.epochs) / conversions.mu_from_epsilon(poisson, delta)
    ways = f"draw Poisson batches, or raise the noise multiplier to {_show_upper(sigma)}"
    advice = f"To claim {_show_upper(poisson)}, {ways}"
    if last_model <= poisson:
        return f"{advice}, or release the last model alone, on the condition below."
    for tail in _TAILS:
        if method.bound(_add_tail(schedule, tail), delta).epsilon <= poisson:
            steps = counted(tail, "noise-only step")
            return (
                f"{advice}, or release the last model alone after {steps}, on the condition below."
            )
    return f"{advice}; the last model alone may claim {_show_upper(last_model)}."


_UNIFORM = "every epoch draws a uniform order anew, which is not checked"
_EARLIER = "an earlier model"  # and the batches may be seen
_SHUFFLED = partial(_bracket_by_epochs, brackets.bracket_shuffled)
_ALLOCATION = _Sampler(
    partial(_bracket_by_epochs, brackets.bracket_allocation),
    samplers.bound_one_of_each_epoch,
    "The claim is true if every example draws its step of each epoch independently.",
    order=_UNIFORM,
)
_SAMPLERS = {
    "poisson": _Sampler(
        _bracket_poisson,
        samplers.bound_poisson,
        "The claim is true if the loader samples every example independently: audit.check_batches looks.",
    ),
    "truncated_poisson": _Sampler(
        partial(_bracket_truncated, None),
        samplers.bound_poisson,
        "Let largest_batch be well above the expected size: then truncation costs little.",
    ),
    "balls_in_bins": _ALLOCATION,
    "random_allocation": _ALLOCATION,
    "shuffled": _Sampler(_SHUFFLED, samplers.bound_one_of_each_epoch, order=_UNIFORM),
    "any_order": _Sampler(
        _SHUFFLED,
        samplers.bound_any_order,
        unseen=_EARLIER,
        order="each example comes once an epoch, in any step, which may be known",
    ),
    "cyclic": _Sampler(
        _bracket_cyclic,
        samplers.bound_fixed_order,
        unseen=_EARLIER,
        order="every epoch has the same order, which may be known",
    ),
}
SAMPLERS = tuple(_SAMPLERS)
