"""The setting of an audit: everything that determines the scores of a run, except the data.

Stores are named after `identity`. Importing this module does not load JAX.
"""

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

import numpy as np

from audit.adversaries.base import AdversaryFields
from audit.claims.strategies import INDEPENDENT, read_strategy
from audit.errors import LAST, MAX_NOISE, MIN_NOISE, InputError, insert_step, require
from audit.settings.fields import MAX_SEED, deciding, declared, described, require_fields

MAX_RUNS = 10**8
MAX_STEPS = 10**7
MAX_DRAWS = 10**9  # indices in all mini-batches, steps * batch size: 4 GB
MAX_CANARIES = 100_000

NOISE_LIMITS: dict[str, Any] = {"least": MIN_NOISE, "most": MAX_NOISE, "zero_too": True}

ADAPTIVE = ("adam", "adamw")
OPTIMIZERS = ("sgd", "momentum", *ADAPTIVE)
PRECISIONS = ("float32", "tf32")

# The field `sampler` describes how the steps that use a canary are chosen.
#
#     every               every step of the schedule that inserts
#     poisson:0.01        each of these steps with probability 0.01, independently for each canary
#     shuffled:98         one step of every epoch of 98; canaries are shuffled over the epoch's steps
#     balls_in_bins:98    one step of every epoch of 98, drawn independently for each canary
#     random_allocation:98  the same
#     known:30            30 steps, drawn in advance for each canary, the same in all runs
EVERY = "every"
POISSON = "poisson"
SHUFFLED = "shuffled"
BALLS_IN_BINS = "balls_in_bins"
RANDOM_ALLOCATION = "random_allocation"
KNOWN = "known"
BY_EPOCHS = (SHUFFLED, BALLS_IN_BINS, RANDOM_ALLOCATION)


class Sampling(NamedTuple):
    """A sampler, which chooses the steps that use a canary.

    Attributes:
      name: `every`, `poisson`, `known` or one of BY_EPOCHS.
      rate: for `poisson`, the probability that a step uses the canary; otherwise 1.
      batches: for the samplers in BY_EPOCHS, the number of steps in an epoch; otherwise 0.
      times: for `known`, the number of steps that use the canary; otherwise 0.
    """

    name: str = EVERY
    rate: float = 1.0
    batches: int = 0
    times: int = 0

    @property
    def is_hidden(self) -> bool:
        """True if the adversary does not know which steps use a canary."""
        return self.name not in (EVERY, KNOWN)

    def __str__(self) -> str:
        """Returns the sampler as text; `read_sampler` is the inverse."""
        if self.name == EVERY:
            return EVERY
        if self.name == POISSON:
            return f"{POISSON}:{self.rate!r}"
        return f"{self.name}:{self.batches or self.times}"

    def identity(self) -> dict[str, Any]:
        """Returns the identity fields that describe the sampler; empty for `every`, the default.

        Two samplers keep their old field names, because identities never change.
        """
        if self.name == EVERY:
            return {}
        if self.name == POISSON:
            return {"sampling_rate": self.rate}
        if self.name == KNOWN:
            return {"repetitions": self.times}
        return {"sampler": str(self)}


def read_sampler(text: str, batches: int = 0) -> Sampling:
    """Returns the sampler that a text describes, such as "every", "poisson:0.01" or "shuffled:98".

    Args:
      text: a name, optionally followed by a colon and a number. "known:30" uses each canary in 30 steps,
        drawn before training and known to the adversary; "known:0" means "every".
      batches: the number of batches in an epoch of the data, or 0 if unknown. If it is at least 2, it
        replaces a missing number, except for `known`; a missing rate becomes 1 / batches.

    Raises:
      InputError: the text does not describe a sampler.
    """
    if text == EVERY:
        return Sampling()
    by_epochs = f"one of {', '.join(BY_EPOCHS)} followed by :BATCHES"
    wrong = InputError(f"`sampler={text}`: give every, poisson:RATE, known:STEPS, or {by_epochs}")
    name, colon, number = text.partition(":")
    if name not in (POISSON, KNOWN, *BY_EPOCHS):
        raise wrong
    if not colon and name != KNOWN and batches >= 2:
        number = repr(1 / batches) if name == POISSON else str(batches)
    if name == POISSON:
        try:
            rate = float(number)
        except ValueError:
            raise wrong from None
        require(0 < rate <= 1, f"{wrong}; the rate must be above 0 and at most 1")
        if rate == 1:  # every step
            return Sampling()
        return Sampling(POISSON, rate=rate)
    # Longer numbers exceed MAX_STEPS.
    if not (number.isascii() and number.isdecimal() and len(number) < 9):
        raise wrong
    count = int(number)
    if name == KNOWN:
        return Sampling(KNOWN, times=count) if count else Sampling()
    require(count >= 2, f"`sampler={text}`: give at least 2 batches per epoch")
    return Sampling(name, batches=count)


@dataclasses.dataclass(frozen=True)
class DpSgdFields:
    """The hyperparameters of DP-SGD."""

    name: ClassVar[str] = "dp_sgd"
    learning_rate: float = described(
        "Learning rate; the default depends on the model.", least=1e-37, most=1e38
    )
    clipping_norm: float = described("Clipping norm C.", usual=1.0, least=1e-6, most=1e6)
    noise_multiplier: float = described(
        "Noise multiplier sigma: the noise has standard deviation sigma * C.",
        usual=4.0,
        **NOISE_LIMITS,
    )
    batch_size: int = described(
        "Examples per mini-batch; the default depends on the model.", least=1, most=MAX_DRAWS
    )
    noise: str = described(
        "Correlation of noise across steps: independent, lambda:0.9, sqrt, bsr:16, bisr:16, or a file of "
        "coefficients.",
        default=INDEPENDENT,
    )
    optimizer: str = described(
        "Optimizer for the private gradient: sgd, momentum, adam or adamw.",
        default="sgd",
        choices=OPTIMIZERS,
    )
    precision: str = described(
        "Precision of matrix products in training: float32, or tf32 on a GPU.",
        default="float32",
        choices=PRECISIONS,
    )
    weight_decay: float = described(
        "Weight decay lambda: adds lambda theta to the private mean gradient, or, for adamw, to the update.",
        default=0.0,
        least=0,
        most=1e6,
    )


@dataclasses.dataclass(frozen=True)
class ScheduleFields:
    """The schedule of a training run: one step in each period of k inserts the canary."""

    steps: int = described(
        "Number of training steps, instead of --insertions.", least=1, most=MAX_STEPS
    )
    periodicity: int = described(
        "Insert the canary every k steps.",
        usual=1,
        flag="k",
        least=1,
        most=MAX_STEPS,
    )
    insert: str = described(
        "Which of every k steps inserts the canary: last, first, or a number from 1 to k.",
        default=LAST,
    )

    @property
    def place(self) -> int:
        """The step that inserts the canary in each period, counted from 1."""
        return insert_step(self.insert, self.periodicity)


@dataclasses.dataclass(frozen=True)
class Setting:
    """The setting of an audit; `model` names a custom model or one of the repository's."""

    model: str
    adversary: AdversaryFields
    mechanism: DpSgdFields
    schedule: ScheduleFields
    seed: int = described("Seed for all randomness.", usual=0, least=0, most=MAX_SEED)
    unknown_initialisation: bool = described("Draw a new theta_0 for each run.", default=False)
    canaries: int = described(
        "Canaries per run, each with its own coin flip; auto: a number chosen for the model.",
        default=1,
        auto=True,
        least=1,
        most=MAX_CANARIES,
    )
    sampler: str = described(
        "Steps that use a canary: every (each step that inserts); poisson or poisson:RATE; shuffled, "
        "balls_in_bins or random_allocation (one step per epoch; :N sets N steps per epoch); or known:N (N "
        "random steps that the adversary knows).",
        default=EVERY,
    )

    @functools.cached_property
    def sampling(self) -> Sampling:
        """The parsed field `sampler`."""
        return read_sampler(self.sampler)

    @functools.cached_property
    def insertions(self) -> int:
        """The number of steps in a run that insert a canary or, with Poisson sampling, may insert it."""
        sampling = self.sampling
        if sampling.times:  # `known:N` inserts each canary in N random steps
            return sampling.times
        schedule = self.schedule
        if sampling.batches:  # one step in each epoch of `batches` steps
            return schedule.steps // sampling.batches
        # Every k-th step from step `place` (counting from 1), also with Poisson sampling.
        return 1 + (schedule.steps - schedule.place) // schedule.periodicity

    @functools.cached_property
    def noise_steps(self) -> float:
        """The variance of the sum of all steps' noise, divided by the variance of the raw noise in one step.

        For noise that is independent across steps, this is the number of steps.
        """
        steps = self.schedule.steps
        if self.mechanism.noise == INDEPENDENT:  # saves loading SciPy
            return steps
        # With the strategy matrix S and independent z, the noise is S^-1 z. Its sum over all steps is the
        # product of z and the weights S^-T (1, ..., 1).
        weights = read_strategy(self.mechanism.noise, steps).solve_transposed(np.ones(steps))
        return float(np.sum(weights**2))

    def is_rehearsed(self, parameters: int) -> bool:
        """Returns True if an adversary with directions in this many parameters should rehearse training.

        A rehearsal, a training run without noise or canaries, predicts how far training examples move the
        model. It is not worth the time if the noise moves the model much further. We never rehearse training
        with adaptive optimizers, because they take much larger steps without noise.
        """
        mechanism = self.mechanism
        # In units of learning rate * C / batch size: the largest distance that clipped gradients can move
        # SGD's model, and the expected squared length of the sum of all noise.
        largest_drift = self.schedule.steps * mechanism.batch_size
        squared_noise = parameters * self.noise_steps * mechanism.noise_multiplier**2
        # Drift lengthens the displacement, which reduces cosines. If drift^2 / noise^2 is at most 0.04, SGD's
        # cosines shrink by at most 1 - 1 / sqrt(1.04) = 2% without a rehearsal.
        is_worthwhile = largest_drift**2 > 0.04 * squared_noise
        return is_worthwhile and mechanism.optimizer not in ADAPTIVE

    @property
    def composition(self) -> tuple[float, int, float]:
        """The arguments of `Composition`: (noise multiplier, insertions, sampling rate)."""
        return self.mechanism.noise_multiplier, self.insertions, self.sampling.rate


def identity(setting: Setting, experiment: str = "audit") -> dict[str, Any]:
    """Returns the JSON fields that identify a setting in the store, without the data's checksum.

    Fields with default values are omitted (`deciding`), so new fields do not change identities.
    """
    top_level_fields = deciding(setting)
    top_level_fields.pop("sampler", None)  # `sampling.identity()` replaces it
    return {
        "experiment": experiment,
        **top_level_fields,
        **setting.sampling.identity(),
        "mechanism": {"name": setting.mechanism.name, **deciding(setting.mechanism)},
        "adversary": {"name": setting.adversary.name, **setting.adversary.deciding()},
        "schedule": deciding(setting.schedule),
    }


def flat(setting: Setting) -> dict[str, Any]:
    """Returns the values of all fields of a setting and its parts in one dict."""
    values = {"model": setting.model, "adversary": setting.adversary.name}
    for part in (setting.adversary, setting.mechanism, setting.schedule):
        values |= dataclasses.asdict(part)
    for name in declared(Setting):  # fields outside the parts
        values[name] = getattr(setting, name)
    return values


def summary(setting: Setting, runs: int) -> str:
    """Returns a one-line description of an audit with this many runs."""
    canaries = f" of {setting.canaries} canaries" if setting.canaries > 1 else ""
    mechanism = setting.mechanism
    return (
        f"{setting.model}, {setting.adversary.name}, {runs:,} runs{canaries}, "
        f"{setting.insertions:,} insertions in {setting.schedule.steps:,} steps, "
        f"sigma = {mechanism.noise_multiplier:g}, C = {mechanism.clipping_norm:g}, seed {setting.seed}"
    )


def validate(setting: Setting, runs: int | None = None, delta: float = 1e-5) -> None:
    """Raises InputError for a value out of range, or for too few or too many runs (None: not checked).

    `delta` matters only for Poisson sampling.
    """
    require_fields(setting)
    steps = setting.schedule.steps
    k = setting.schedule.periodicity
    require(
        k <= steps,
        f"`periodicity={k}` exceeds the {steps} training steps, so no canary would be inserted: lower it "
        "or add steps",
    )
    insert_step(setting.schedule.insert, k)  # checks the text

    noise = setting.mechanism.noise
    if noise != INDEPENDENT:
        read_strategy(noise, steps)  # checks the text
        require(
            setting.sampling.name == EVERY,
            f"`noise={noise}` cannot be accounted for with `sampler={setting.sampler}`: drop one of them",
        )

    # All batches are drawn before training, as 4-byte indices.
    batch_size = setting.mechanism.batch_size
    require(
        steps * batch_size <= MAX_DRAWS,
        f"`steps={steps}` times `batch_size={batch_size}` must be at most {MAX_DRAWS:,}",
    )
    if setting.sampling.name != EVERY:
        _validate_sampler(setting, delta)
    if runs is not None:
        _validate_runs(setting, runs)


def _validate_runs(setting: Setting, runs: int) -> None:
    """Raises InputError if the number of runs is out of range or is too small for the canaries.

    One run is enough if every run draws its own canaries, or if a run has at least LEAST_COINS canaries.
    """
    canaries = setting.canaries
    if setting.adversary.has_fresh_canaries:  # their bounds are valid after any number of runs
        require_runs(runs, least=1)
        return
    require_runs(runs, least=1 if canaries > 1 else 2)
    if runs == 1:
        from audit.methods.one_run_bounds import LEAST_COINS  # loads SciPy

        require(
            canaries >= LEAST_COINS,
            f"`canaries={canaries}` in a single run: give at least {LEAST_COINS}, or more runs",
        )


def _validate_sampler(setting: Setting, delta: float) -> None:
    """Raises InputError if a sampler other than `every` does not fit the steps, canaries or delta."""
    sampling = setting.sampling
    # Poisson sampling has no upper bound on epsilon at a very small delta.
    if sampling.name == POISSON:
        from audit.claims import accounting  # loads SciPy

        accounting.require_sampled(accounting.Composition(*setting.composition), delta)
        return

    steps = setting.schedule.steps
    given = f"`sampler={setting.sampler}`"
    # `times` is 0 for samplers other than `known`.
    require(sampling.times <= steps, f"{given}: give at most {steps}, the number of steps")
    require(
        setting.schedule.periodicity == 1,
        f"{given}: `periodicity` and `insert` also choose steps: drop them",
    )
    if sampling.name == KNOWN:
        # `known` spaces insertions evenly. For a single canary, `periodicity` already does this.
        require(setting.canaries > 1, f"{given} is for many canaries: raise `canaries`")
        return

    # In an incomplete epoch, chance would decide whether a canary is inserted.
    require(
        steps % sampling.batches == 0,
        f"{given}: `steps={steps}` is not a whole number of epochs: give a multiple of {sampling.batches}",
    )


def require_runs(runs: int, least: int) -> None:
    """Raises InputError unless the number of runs is between `least` and MAX_RUNS."""
    # If one run is not enough, half of the runs insert the canary.
    worlds = ", half of them in each world" if least > 1 else ""
    require(runs >= least, f"`runs={runs}`: give at least {least}{worlds}")
    require(runs <= MAX_RUNS, f"`runs={runs}`: give at most {MAX_RUNS:,}")
