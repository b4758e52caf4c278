"""Computes the epsilon that you may claim for training with a sampler and suggests changes."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from numpy.typing import ArrayLike
from scipy import optimize

from audit.claims import accounting, brackets, samplers
from audit.claims.accounting import Composition
from audit.claims.brackets import ZERO_OUT, EveryModel
from audit.claims.hidden_state import spread_over_steps
from audit.claims.samplers import MixtureBound, Schedule
from audit.errors import number, require, shown, whole_number
from audit.laws import conversions
from audit.written import at_most, write_json

_MAX_STEPS = 10**6
_DECIMALS = 2  # of epsilon and sigma in the advice
_MIN_SIGMA = 0.05
_MAX_SIGMA = 1e4
_SIGMA_TOLERANCE = 1e-6  # in log sigma


@dataclass(frozen=True)
class TruncatedPoisson:
    """Poisson batches, truncated at random to at most `largest_batch` examples.

    Args:
      examples: the number of examples in the data set.
      largest_batch: the maximum number of examples in a batch.

    Raises InputError for out-of-range values.

    >>> audit.TruncatedPoisson(examples=60_000, largest_batch=700).largest_batch
    700
    """

    examples: int
    largest_batch: int

    def __post_init__(self) -> None:
        examples = whole_number("examples", self.examples, 1, 10**9)
        whole_number("largest_batch", self.largest_batch, 1, examples)


@dataclass(frozen=True)
class LastModel:
    """Upper bounds on epsilon if the adversary sees only the last model.

    Attributes:
      upper: the bound without noise-only steps.
      tail: the bound with noise-only steps; None without such steps.
      assumes: the assumptions of both bounds.
    """

    upper: float
    tail: float | None
    assumes: str


@dataclass(frozen=True)
class SamplerClaim:
    """The epsilon that you may claim for a sampler.

    Attributes:
      sampler: the name of the sampler.
      every_model: bounds if the adversary sees every model.
      last_model: upper bounds if the adversary sees only the last model.
      advice: the changes to make, or the condition for a valid claim.
      yours: True for the caller's sampler, False for a comparison with Poisson sampling.
    """

    sampler: str
    every_model: EveryModel
    last_model: LastModel
    advice: str
    yours: bool = False


@dataclass(frozen=True)
class SamplerClaims:
    """The claims for a sampler and for Poisson sampling.

    Attributes:
      noise_multiplier: sigma.
      delta: the delta of all epsilons.
      tail: the number of noise-only steps at the end.
      neighbours: the neighbouring relation.
      order: the condition on the order of examples; may be empty.
      rows: the claims; the first is for the caller's sampler.
    """

    noise_multiplier: float
    delta: float
    tail: int
    neighbours: str
    order: str
    rows: tuple[SamplerClaim, ...]

    def to_json(self) -> str:
        """Returns the claims as JSON text, with null for infinity."""
        return write_json(dataclasses.asdict(self), indent=2)


class _Sampler(NamedTuple):
    """The accounting functions and messages for a sampler.

    Attributes:
      bound_every_model: maps (noise multiplier, batches per epoch, epochs, delta) to bounds on epsilon.
      bound_last_model: maps (schedule, delta) to the upper bound on the last model's epsilon.
      advice: the condition for a valid claim; if it is empty, `_advise_changes` writes the advice.
      must_stay_secret: information that invalidates the last model's bound if anyone sees it.
      order: the condition on the order of examples; may be empty.
    """

    bound_every_model: Callable[[float, int, int, float], EveryModel]
    bound_last_model: Callable[[Schedule, float], MixtureBound]
    advice: str = ""
    must_stay_secret: str = "an earlier model or the batches"
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
    """Returns the epsilons you may claim for a sampler: one for all models together, one for the last model.

    Args:
      sampler: "poisson", "balls_in_bins", "random_allocation", "shuffled", "any_order" (each example once per
        epoch, in an order that is not uniform or may be known), "cyclic", "truncated_poisson" or, with known
        sizes, `TruncatedPoisson(examples, largest_batch)`.
      noise_multiplier: sigma, the standard deviation of the noise divided by the clipping norm.
      batches: the number of batches in an epoch; the sampling rate of Poisson batches is 1 / batches.
      epochs: the number of epochs.
      lipschitz: the Lipschitz constant of a step: a number (by default 1), or one for each of the batches *
        epochs steps.
      tail: the number of noise-only steps after the last epoch.
      delta: the delta of epsilon.

    Returns:
      A row for the sampler and, for comparison, one for Poisson sampling.

    Raises:
      InputError: a number is out of range, or the sampler is unknown.

    >>> claims = audit.sampler_claims("cyclic", noise_multiplier=1.0, batches=4, epochs=2)
    >>> round(claims.rows[0].every_model.upper, 2), round(claims.rows[0].last_model.upper, 2)
    (6.57, 4.98)
    """
    name, method = _find_sampler(sampler)
    sigma = read_noise_multiplier(noise_multiplier)
    whole_number("tail", tail, 0, _MAX_STEPS)
    delta = _check_training(batches, epochs, delta)

    constants: ArrayLike = 1.0
    condition = "if every step is Lipschitz with constant 1, which is not checked"
    if lipschitz is not None:
        constants = spread_over_steps("lipschitz", lipschitz, batches * epochs)
        condition = f"if steps are Lipschitz with constants up to {constants.max():g}"
    make_schedule = partial(samplers.make_schedule, sigma, batches, epochs, constants)

    poisson = _bracket_poisson(sigma, batches, epochs, delta)
    every_model = method.bound_every_model(sigma, batches, epochs, delta)
    bound = method.bound_last_model(make_schedule(), delta)
    # The last model leaks no more than all models together, and noise-only steps (`tail`) cannot increase its
    # leakage.
    upper = min(bound.epsilon, every_model.upper)
    after_tail = None
    if tail:
        after_tail = min(method.bound_last_model(make_schedule(tail), delta).epsilon, upper)

    assumes = f"holds {condition}, and nobody sees {method.must_stay_secret}"
    if bound.error:
        assumes += f"; a simulated upper bound, too low with probability {bound.error:g}"
    last_model = LastModel(upper, after_tail, assumes)
    advice = method.advice or _advise_changes(epochs, delta, poisson.upper, last_model)

    rows = [SamplerClaim(name, every_model, last_model, advice, yours=True)]
    if name != "poisson":
        upper = poisson.upper  # also valid for the last model, even after the tail
        last_model = LastModel(upper, upper if tail else None, "no more than all models leak")
        rows.append(SamplerClaim("poisson", poisson, last_model, _SAMPLERS["poisson"].advice))
    # For Poisson batches, ZERO_OUT is equivalent to removing the example.
    return SamplerClaims(
        sigma, delta, tail, neighbours=ZERO_OUT, order=method.order, rows=tuple(rows)
    )


def _find_sampler(sampler: str | TruncatedPoisson) -> tuple[str, _Sampler]:
    """Returns a sampler's name and its accounting functions; raises InputError if it is unknown."""
    if isinstance(sampler, TruncatedPoisson):
        name = "truncated_poisson"
        return name, _SAMPLERS[name]._replace(
            bound_every_model=partial(_bracket_truncated, sampler)
        )
    is_known = isinstance(sampler, str) and sampler in SAMPLERS
    require(is_known, f"`sampler={shown(sampler)}`: give {', '.join(SAMPLERS)}")
    return sampler, _SAMPLERS[sampler]


def find_noise_multiplier(epsilon: float, batches: int, epochs: int, delta: float) -> float:
    """Returns the smallest noise multiplier for which Poisson batches leak at most epsilon at delta.

    Raises:
      InputError: a number is out of range, or no sigma from 0.05 to 10,000 gives this epsilon.
    """
    epsilon = number("claim", epsilon, float)  # the flag is --claim
    require(epsilon > 0, f"`claim={epsilon:g}`: give a number above 0")
    delta = _check_training(batches, epochs, delta)

    def compute_excess(log_sigma: float) -> float:
        """Returns log(epsilon of Poisson batches / requested epsilon)."""
        sigma = min(math.exp(log_sigma), _MAX_SIGMA)  # corrects rounding errors
        upper = _bracket_poisson(sigma, batches, epochs, delta).upper
        return math.log(max(upper, 1e-9) / epsilon)  # avoids the logarithm of 0

    lowest = math.log(_MIN_SIGMA)
    highest = math.log(_MAX_SIGMA)
    # Epsilon falls as sigma rises.
    require(
        compute_excess(lowest) >= 0 >= compute_excess(highest),
        f"`claim={epsilon:g}`: no sigma from {_MIN_SIGMA} to {_MAX_SIGMA:,.0f} gives this epsilon",
    )
    root = optimize.brentq(compute_excess, lowest, highest, xtol=_SIGMA_TOLERANCE)
    return math.exp(root + _SIGMA_TOLERANCE)  # the root may be too low by the tolerance


def _check_training(batches: int, epochs: int, delta: float) -> float:
    """Returns delta as a float; raises InputError if delta, `batches` or `epochs` is out of range."""
    whole_number("batches", batches, 2, _MAX_STEPS)  # with 1 batch per epoch, there is no sampling
    whole_number("epochs", epochs, 1, _MAX_STEPS)
    require(
        batches * epochs <= _MAX_STEPS,
        f"`batches={batches}` and `epochs={epochs}`: give at most {_MAX_STEPS:,} steps",
    )
    delta = number("delta", delta, float)
    conversions.require_delta(delta)
    require(
        delta >= accounting.LEAST_SAMPLED_DELTA,
        f"`delta={delta:g}`: give at least {accounting.LEAST_SAMPLED_DELTA:g}",
    )
    return delta


def read_noise_multiplier(noise_multiplier: Any) -> float:
    """Returns a noise multiplier; raises InputError unless it is a number from 0.05 to 10,000."""
    sigma = number("noise_multiplier", noise_multiplier, float)
    require(_MIN_SIGMA <= sigma <= _MAX_SIGMA, f"`noise_multiplier={sigma:g}`: give 0.05 to 10,000")
    return sigma


def _bracket_poisson(sigma: float, batches: int, epochs: int, delta: float) -> EveryModel:
    """Returns dp-accounting's upper bound on epsilon for Poisson batches."""
    steps = Composition(sigma, batches * epochs, 1 / batches)
    epsilon = accounting.participant_upper_bound(steps, delta)
    return EveryModel(epsilon, "dp-accounting (PLD)")


def _compose_truncated(sigma: float, batches: int, epochs: int, delta: float) -> EveryModel:
    """Returns an upper bound on epsilon for truncated Poisson batches, valid for any maximum size.

    An example may displace another from a full batch and thus change the sum by up to 2 C. So we compose all
    steps at sigma / 2 and ignore sampling.
    """
    epsilon = accounting.epsilon_upper_bound(sigma / 2, batches * epochs, delta)
    accountant = (
        "composition of all steps; with examples and largest_batch (audit.TruncatedPoisson), "
        "dp-accounting gives a tighter bound"
    )
    return EveryModel(epsilon, accountant)


def _bracket_truncated(
    sampler: TruncatedPoisson, sigma: float, batches: int, epochs: int, delta: float
) -> EveryModel:
    """Returns dp-accounting's upper bound on epsilon for truncated batches, or composition's if smaller."""
    import dp_accounting  # slow to load
    from dp_accounting.pld import PLDAccountant

    composed = _compose_truncated(sigma, batches, epochs, delta).upper
    # The sampling rate is 1 / batches.
    step = dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent(
        sampler.examples, 1 / batches, sampler.largest_batch, sigma
    )
    spacing = max(1e-4, 1e-7 * composed)  # of privacy losses; a finer grid would be too large
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, spacing)
    epsilon = float(accountant.compose(step, batches * epochs).get_epsilon(delta))
    if composed < epsilon:
        return EveryModel(composed, "composition of all steps")
    return EveryModel(epsilon, "dp-accounting (truncated PLD)")


def _bracket_cyclic(sigma: float, batches: int, epochs: int, delta: float) -> EveryModel:
    """Returns the exact epsilon for any number of batches in a fixed order."""
    epsilon = accounting.epsilon_upper_bound(sigma, epochs, delta)
    return EveryModel(epsilon, "composition of epochs, exact", lower=epsilon)


def _advise_changes(epochs: int, delta: float, poisson: float, last_model: LastModel) -> str:
    """Returns advice on how to validly claim `poisson`, the epsilon of Poisson sampling.

    If the last model's epsilon is at most `poisson`, perhaps after noise-only steps at the end
    (`last_model.tail`), the advice also suggests releasing only that model. Otherwise, it states that
    model's epsilon.

    The recommended noise suffices for any order, since training that uses an example once per epoch is mu-GDP
    with mu = sqrt(epochs) / sigma.
    """
    sigma = math.sqrt(epochs) / conversions.mu_from_epsilon(poisson, delta)
    noise = f"raise the noise multiplier to {at_most(sigma, _DECIMALS)}"
    advice = f"To claim {at_most(poisson, _DECIMALS)}, draw Poisson batches, or {noise}"
    epsilon = last_model.upper
    steps = ""
    if epsilon > poisson and last_model.tail is not None:
        epsilon = last_model.tail
        steps = " after the noise-only steps"
    if epsilon > poisson:
        return f"{advice}; for the last model alone{steps}, you may claim {at_most(epsilon, _DECIMALS)}."
    # Reports print the condition, `last_model.assumes`, below the advice.
    return f"{advice}, or release the last model alone{steps}, under the condition below."


_UNIFORM = "every epoch draws a fresh uniform order, which is not checked"
_ALLOCATION = _Sampler(
    brackets.bracket_allocation,
    samplers.bound_one_of_each_epoch,
    advice="The claim is true if every example's step is drawn independently in each epoch.",
    order=_UNIFORM,
)

_ANY_ORDER = _Sampler(
    brackets.bracket_shuffled,
    samplers.bound_any_order,
    must_stay_secret="an earlier model",
    order="each example is used once per epoch, in any step, which may be known",
)
_SAMPLERS = {
    "poisson": _Sampler(
        _bracket_poisson,
        samplers.bound_poisson,
        advice="The claim is true if the loader samples every example independently: test it with "
        "audit.check_batches.",
    ),
    "truncated_poisson": _Sampler(
        _compose_truncated,
        samplers.bound_poisson,
        advice="Truncation costs little if largest_batch is well above the expected size.",
    ),
    "balls_in_bins": _ALLOCATION,
    "random_allocation": _ALLOCATION,
    "shuffled": _Sampler(
        brackets.bracket_shuffled, samplers.bound_one_of_each_epoch, order=_UNIFORM
    ),
    "any_order": _ANY_ORDER,
    "cyclic": _ANY_ORDER._replace(
        bound_every_model=_bracket_cyclic,
        order="every epoch has the same order, which may be known",
    ),
}
SAMPLERS = tuple(_SAMPLERS)
