"""An audit's setting: all that decides a run's scores, but for the data. Importing it starts no JAX.

A setting is made of small parts: the model's name, the mechanism's own fields, the adversary and *its* own
fields, the schedule and the seed. `identity` is how the store knows it: a field that equals its default is
left out, so that a further field changes no stored name.
"""

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

from audit.adversaries.base import AdversaryFields
from audit.errors import MAX_NOISE, MIN_NOISE, InputError, plain_digits, require
from audit.settings import fields
from audit.settings.fields import MOST_SEED, deciding, declared, described, require_fields

MOST_RUNS = 10**8
MOST_STEPS = 10**7
MOST_DRAWS = 10**9  # indices in all mini-batches together, steps * batch size: 4 GB
MOST_REPEATED_STEPS = 10**9  # canaries * steps, where each canary has steps of its own
MOST_CANARIES = 100_000

NOISE_LIMITS: dict[str, Any] = {"least": MIN_NOISE, "most": MAX_NOISE, "zero_too": True}

OPTIMIZERS = ("sgd", "momentum", "adam")
PRECISIONS = ("float32", "tf32")

# Words for the step of a period that inserts the canary, which may also be a number.
LAST = "last"
FIRST = "first"

# How canaries come to the steps of a training run, as the text of the field `sampler`. The adversary knows
# which steps take a canary with `every` and `known`, and with no other.
#
#     every               all steps of the schedule that insert take all canaries that are in
#     poisson:0.01        each of these steps takes each canary with probability 0.01, by a coin
#     shuffled:98         canaries are shuffled in every epoch of 98 steps, and each comes in one of these
#     balls_in_bins:98    each canary comes in a single step of every epoch of 98, by a die of its own
#     random_allocation:98  the same
#     known:30            each canary comes in 30 steps drawn beforehand, the same in all runs
EVERY = "every"
POISSON = "poisson"
SHUFFLED = "shuffled"
BALLS_IN_BINS = "balls_in_bins"
RANDOM_ALLOCATION = "random_allocation"
KNOWN = "known"
BY_EPOCHS = (SHUFFLED, BALLS_IN_BINS, RANDOM_ALLOCATION)


class Sampling(NamedTuple):
    """How it is decided which steps of a training run take a canary that is in.

    Attributes:
      name: one of the names above.
      rate: with `poisson` the probability with which a step takes a canary; else 1.
      batches: with samplers by epochs the number of steps in an epoch, one of which takes the canary; else 0.
      times: with `known` the number of steps that take a canary; else 0.
    """

    name: str = EVERY
    rate: float = 1.0
    batches: int = 0
    times: int = 0

    @property
    def is_hidden(self) -> bool:
        """Whether the adversary does not know which steps take a canary."""
        return self.name not in (EVERY, KNOWN)

    @property
    def chance(self) -> float:
        """The probability with which a step takes a canary that is in, if it is a step that may take it."""
        return 1 / self.batches if self.batches else self.rate

    def __str__(self) -> str:
        """Returns the text from which `read_sampler` makes this sampler."""
        if self.name == EVERY:
            return EVERY
        if self.name == POISSON:
            return f"{POISSON}:{self.rate!r}"
        return f"{self.name}:{self.batches or self.times}"

    def identity(self) -> dict[str, Any]:
        """Returns the entries about the sampler in a setting's identity in the store; none for `every`."""
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
      text: a sampler's name, or its name, a colon and its number: the rate of `poisson`, the number of steps
        of `known`, the number of batches in an epoch of each other sampler.
      batches: the number of batches in an epoch of the data; 0 where it is unknown. It is used where the text
        lacks a number: `poisson` then has the rate 1 / batches. `known` always needs its number.

    Raises:
      InputError: the text describes no sampler.
    """
    form = f"give every, poisson:RATE, {', '.join(BY_EPOCHS)}, each with :BATCHES of an epoch"
    wrong = InputError(f"`sampler={text}`: {form}, or known:STEPS")
    name, colon, number = text.partition(":")
    if text == EVERY:
        return Sampling()
    if name not in (POISSON, KNOWN, *BY_EPOCHS) or bool(colon) != bool(number):
        raise wrong
    if not number:
        # An epoch of a single batch would leave nothing to sample.
        if batches < 2 or name == KNOWN:
            raise wrong
        number = str(batches)
        if name == POISSON:
            number = repr(1 / batches)
    if name == POISSON:
        try:
            rate = float(plain_digits(number))
        except ValueError:
            raise wrong from None
        require(0 < rate <= 1, f"{wrong}; a rate is above 0, at most 1")
        return Sampling(POISSON, rate=rate) if rate < 1 else Sampling()
    # Nine digits or more are above any number of steps that a setting may have.
    if not (number.isascii() and number.isdecimal() and len(number) < 9):
        raise wrong
    count = int(number)
    if name == KNOWN:
        return Sampling(KNOWN, times=count) if count else Sampling()
    require(count >= 2, f"`sampler={text}`: give at least 2 batches an epoch")
    return Sampling(name, batches=count)


@dataclasses.dataclass(frozen=True)
class DpSgdFields:
    """DP-SGD's own fields.

    The noise on the sum of clipped gradients has standard deviation noise_multiplier * clipping_norm.
    """

    name: ClassVar[str] = "dp_sgd"
    group: ClassVar[str] = fields.DP_SGD
    learning_rate: float = described(
        "Learning rate; by default the model's.", least=1e-37, most=1e38
    )
    clipping_norm: float = described("Clipping norm C.", usual=1.0, least=1e-6, most=1e6)
    noise_multiplier: float = described(
        "Noise multiplier sigma: noise has deviation sigma * C.", usual=4.0, **NOISE_LIMITS
    )
    batch_size: int = described(
        "Examples a mini-batch; by default the model's.", least=1, most=MOST_DRAWS
    )
    optimizer: str = described(
        "sgd, momentum or adam, on the privatised mean gradient.", default="sgd", choices=OPTIMIZERS
    )
    precision: str = described(
        "Precision of the training's matrix products: float32, or tf32 on a GPU.",
        default="float32",
        choices=PRECISIONS,
    )
    weight_decay: float = described(
        "Weight decay lambda, outside the clipping: lambda theta joins the private mean gradient.",
        default=0.0,
        least=0,
        most=1e6,
    )


@dataclasses.dataclass(frozen=True)
class ScheduleFields:
    """How many steps a training run has, and which of them, one in each period of k, inserts the canary."""

    group: ClassVar[str] = fields.AUDITED
    steps: int = described("Training steps, instead of --insertions.", least=1, most=MOST_STEPS)
    periodicity: int = described(
        "Periodicity: the canary is inserted every k steps.",
        usual=1,
        flag="k",
        least=1,
        most=MOST_STEPS,
    )
    insert: str = described(
        "At which of each k steps: last, first, or a number from 1 to k.",
        default=LAST,
        choices=(LAST, FIRST),
        numbers_too=True,
    )

    @property
    def place(self) -> int:
        """Returns the step, counted from 1, of each period of `periodicity` steps that inserts the canary."""
        if self.insert == LAST:
            return self.periodicity
        if self.insert == FIRST:
            return 1
        return int(self.insert)


@dataclasses.dataclass(frozen=True)
class Setting:
    """The setting of a single audit.

    Attributes:
      model: the name of a task, or any name of a caller's own model.
      adversary: what attacks the model, with its own fields.
      mechanism: DP-SGD's hyperparameters.
      schedule: the number of steps, and which of them insert the canary.
    """

    model: str
    adversary: AdversaryFields
    mechanism: DpSgdFields
    schedule: ScheduleFields
    seed: int = described(
        "Seed of all randomness.", usual=0, group=fields.AUDITED, least=0, most=MOST_SEED
    )
    unknown_initialisation: bool = described(
        "Draw theta_0 afresh for each run.", default=False, group=fields.AUDITED
    )
    canaries: int = described(
        "Canaries a run, each with a coin of its own; auto: the model's.",
        default=1,
        group=fields.ADVERSARY,
        auto=True,
        least=1,
        most=MOST_CANARIES,
    )
    sampler: str = described(
        "How canaries come: in every step that inserts; poisson, shuffled, balls_in_bins or "
        "random_allocation, in one of an epoch's steps, with :N for an epoch of N steps, or poisson:RATE; "
        "known:N in N random steps that the adversary knows.",
        default=EVERY,
        group=fields.ADVERSARY,
    )

    @functools.cached_property
    def sampling(self) -> Sampling:
        """How it is decided which steps take a canary that is in: the parsed field `sampler`."""
        return read_sampler(self.sampler)

    @functools.cached_property
    def insertions(self) -> int:
        """The number of steps at which a canary that is in is inserted.

        With Poisson sampling it is the number of steps at which the canary may be inserted. With a sampler by
        epochs it is the number of epochs, each of which inserts the canary once.
        """
        sampling = self.sampling
        if sampling.times:  # at least 1 with `known`, 0 with other samplers
            return sampling.times
        schedule = self.schedule
        if sampling.batches:  # a sampler by epochs
            return schedule.steps // sampling.batches
        # The steps place, place + k, place + 2 k, ... up to the last step.
        return (schedule.steps - schedule.place) // schedule.periodicity + 1

    @property
    def composition(self) -> tuple[float, int, float]:
        """(noise multiplier, insertions, sampling rate): what an accountant needs for an upper bound."""
        return self.mechanism.noise_multiplier, self.insertions, self.sampling.rate


def identity(setting: Setting, experiment: str = "audit") -> dict[str, Any]:
    """Returns what identifies a setting in the store, as a dict for JSON; the data's checksum is not in it.

    At its top it holds the experiment, the model and the setting's other fields. The fields of the mechanism,
    of the adversary and of the schedule are in dicts of their own. A field at its dataclass's default is left
    out. Of the samplers `poisson` and `known` it holds only the number, as `sampling_rate` or `repetitions`.

    Args:
      setting: the setting.
      experiment: the name of what is computed for the setting.
    """
    top_level_fields = deciding(setting)
    top_level_fields.pop("sampler", None)
    return {
        "experiment": experiment,
        **top_level_fields,
        **setting.sampling.identity(),
        "mechanism": {"name": setting.mechanism.name, **deciding(setting.mechanism)},
        "adversary": {"name": setting.adversary.name, **setting.adversary.deciding()},
        "schedule": deciding(setting.schedule),
    }


def flat(setting: Setting) -> dict[str, Any]:
    """Returns the values of all fields of a setting and of its parts in one dict, by the fields' names."""
    values = {"model": setting.model, "adversary": setting.adversary.name}
    for part in (setting.adversary, setting.mechanism, setting.schedule):
        values |= dataclasses.asdict(part)
    for name in declared(Setting):
        values[name] = getattr(setting, name)
    return values


def summary(setting: Setting, runs: int) -> str:
    """Returns a line on an audit: its model, adversary, runs, canaries, insertions, sigma, C and seed."""
    canaries = f" of {setting.canaries} canaries" if setting.canaries > 1 else ""
    mechanism = setting.mechanism
    return (
        f"{setting.model}, {setting.adversary.name}, {runs:,} runs{canaries}, "
        f"{setting.insertions:,} insertions in {setting.schedule.steps:,} steps, "
        f"sigma = {mechanism.noise_multiplier:g}, C = {mechanism.clipping_norm:g}, seed {setting.seed}"
    )


def validate(setting: Setting, runs: int | None = None, delta: float = 1e-5) -> None:
    """Raises InputError for a setting with a value out of range, or for too few or too many runs.

    What needs the data is checked when the game is built.

    Args:
      setting: the setting.
      runs: the number of runs to train; None if it is not known yet.
      delta: the delta at which Poisson sampling needs an upper bound on epsilon: without one, nothing could
        be concluded from the runs.
    """
    require_fields(setting)
    steps = setting.schedule.steps
    k = setting.schedule.periodicity
    require(
        k <= steps, f"`periodicity={k}` inserts nothing in {steps} steps: lower it or add steps"
    )
    choices = f"choose last, first, or one of 1 to {k}, the steps of a period"
    require(setting.schedule.place <= k, f"`insert={setting.schedule.insert}`: {choices}")

    # The indices of all mini-batches are held in memory.
    batch_size = setting.mechanism.batch_size
    draws = f"`steps={steps}` of `batch_size={batch_size}`"
    require(
        steps * batch_size <= MOST_DRAWS, f"{draws}: their product is to be at most {MOST_DRAWS:,}"
    )
    if setting.sampling.name != EVERY:
        _validate_sampler(setting, delta)
    if runs is not None:
        _validate_runs(setting, runs)


def _validate_runs(setting: Setting, runs: int) -> None:
    """Raises InputError for a number of runs that is out of range, or does not go with the canaries.

    A single run is enough if every run draws its own canaries, or if there are several canaries, some in and
    others out: they are its only evidence, and bounds by coins take no fewer than LEAST_COINS. If runs share
    their canaries and all are inserted, without coins, there must be a single run, whose scores are compared
    with their known law. Several runs are compared with each other, and none would lack a canary.
    """
    adversary = setting.adversary
    canaries = setting.canaries
    if adversary.any_time:
        require_runs(runs, 1)
        return
    require_runs(runs, 1 if canaries > 1 or adversary.inserts_all else 2)
    require(
        runs == 1 or not adversary.inserts_all,
        f"`runs={runs}` with `all_in`: there is nothing to compare them with; give 1, or drop `all_in`",
    )
    if runs == 1:
        from audit.methods.one_run_bounds import LEAST_COINS  # loads SciPy

        more = f"give at least {LEAST_COINS}, or more runs"
        require(canaries >= LEAST_COINS, f"`canaries={canaries}` of a single run: {more}")


def _validate_sampler(setting: Setting, delta: float) -> None:
    """Raises InputError where the sampler does not go with the setting's steps and canaries."""
    sampling = setting.sampling
    if sampling.name == POISSON:
        from audit.claims import accounting  # loads SciPy

        accounting.require_sampled(accounting.Composition(*setting.composition), delta)
        return

    steps = setting.schedule.steps
    canaries = setting.canaries
    given = f"`sampler={setting.sampler}`"  # how the messages begin
    require(sampling.times <= steps, f"{given}: give at most {steps}, the steps")
    both = "`periodicity` and `insert` choose steps too: drop them"
    require(setting.schedule.periodicity == 1, f"{given}: {both}")
    if sampling.name == KNOWN:
        # Each canary has steps of its own, so that memory grows with canaries * steps. The canaries are dealt
        # evenly to the steps: a single canary would get steps at about even distances, as by `periodicity`.
        require(canaries > 1, f"{given} is for many canaries: raise `canaries`")
        most = f"with {given}, at most {MOST_REPEATED_STEPS:,}"
        product = f"`canaries={canaries}` times `steps={steps}`"
        require(canaries * steps <= MOST_REPEATED_STEPS, f"{product}: {most}")
        return

    # What is left are samplers by epochs. A canary joins a random step of each epoch. In a part of an epoch
    # it would join or not by chance, so that the number of insertions would not be fixed.
    whole_epochs = steps // sampling.batches * sampling.batches
    fix = f"give `steps` {whole_epochs + sampling.batches}"
    if whole_epochs > 0:
        fix = f"give `steps` {whole_epochs}, or {whole_epochs + sampling.batches}"
    require(steps == whole_epochs, f"{given}: {steps} steps are no whole epochs: {fix}")


def require_noise(sigma: float) -> None:
    """Raises InputError for a noise multiplier out of range: not 0, nor MIN_NOISE to MAX_NOISE."""
    declared(DpSgdFields)["noise_multiplier"].require(sigma)


def require_runs(runs: int, least: int = 2) -> None:
    """Raises InputError unless the number of runs is between `least` and MOST_RUNS."""
    worlds = ", half of them in each world" if least > 1 else ""
    require(runs >= least, f"`runs={runs}`: give at least {least}{worlds}")
    require(runs <= MOST_RUNS, f"`runs={runs}`: give at most {MOST_RUNS:,}")
