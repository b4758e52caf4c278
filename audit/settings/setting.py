"""An audit's setting: all that decides a run's scores, but for the data. Importing it starts no JAX.

A setting is made of small parts: the model's name, the mechanism's own fields, the adversary and *its* own
fields, the schedule and the seed. `identity` is how the store knows it: a field that equals its default is
left out, so that a further field changes no stored name.
"""

import dataclasses
from typing import Any, ClassVar

from audit.adversaries.base import AdversaryFields
from audit.errors import require
from audit.settings import fields
from audit.settings.fields import MOST_SEED, deciding, declared, described, require_fields
from audit.settings.sampler import EVERY, KNOWN, POISSON, Sampling, find_identity, read_sampler
from audit.values import MAX_NOISE, MIN_NOISE

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

    @property
    def sampling(self) -> Sampling:
        """How it is decided which steps take a canary that is in: the parsed field `sampler`."""
        return read_sampler(self.sampler)

    @property
    def sampling_rate(self) -> float:
        """The probability with which a step that inserts takes a canary; 1 without Poisson sampling."""
        return self.sampling.rate

    @property
    def repetitions(self) -> int:
        """The number of steps that take a canary with the sampler `known`; 0 with other samplers."""
        return self.sampling.times

    @property
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
        return self.mechanism.noise_multiplier, self.insertions, self.sampling_rate


def identity(setting: Setting, experiment: str = "audit") -> dict[str, Any]:
    """Returns what identifies a setting in the store, as a dict for JSON; the data's checksum is not in it.

    At its top it holds the experiment, the model and the setting's other fields. The fields of the mechanism,
    of the adversary and of the schedule are in dicts of their own. A field at its dataclass's default is left
    out. Of the samplers `poisson` and `known` it holds only the number, as `sampling_rate` or `repetitions`.

    Args:
      setting: the setting.
      experiment: the name of what is computed for the setting.
    """
    # The entries for the sampler and for the setting's three parts are made below.
    top_level_fields = deciding(setting)
    top_level_fields.pop("sampler", None)
    return {
        "experiment": experiment,
        **top_level_fields,
        **find_identity(setting.sampling),
        "mechanism": {"name": setting.mechanism.name, **deciding(setting.mechanism)},
        "adversary": {"name": setting.adversary.name, **setting.adversary.deciding()},
        "schedule": deciding(setting.schedule),
    }


def flat(setting: Setting) -> dict[str, Any]:
    """Returns the values of all fields of a setting and of its parts in one dict, by the fields' names."""
    fields_of_setting = {name: getattr(setting, name) for name in declared(Setting)}
    return {
        "model": setting.model,
        "adversary": setting.adversary.name,
        **dataclasses.asdict(setting.adversary),
        **dataclasses.asdict(setting.mechanism),
        **dataclasses.asdict(setting.schedule),
        **fields_of_setting,
    }


def summary(setting: Setting, runs: int) -> str:
    """Returns a line on an audit: its model, adversary, runs, canaries, insertions, sigma, C and seed."""
    canaries = f" of {setting.canaries} canaries" if setting.canaries > 1 else ""
    mechanism = setting.mechanism
    return (
        f"{setting.model}, {setting.adversary.name}, {runs:,} runs{canaries}, "
        f"{setting.insertions:,} insertions in {setting.schedule.steps:,} steps, "
        f"sigma = {mechanism.noise_multiplier:g}, C = {mechanism.clipping_norm:g}, seed {setting.seed}"
    )


def validate(setting: Setting, runs: int) -> None:
    """Raises InputError for a setting with a value out of range, or for too few or too many runs.

    What needs the data is checked when the game is built.

    Args:
      setting: the setting.
      runs: the number of runs to train.
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
    _validate_sampler(setting)
    _validate_runs(setting, runs)


def _validate_runs(setting: Setting, runs: int) -> None:
    """Raises InputError for a number of runs that is out of range, or does not go with the canaries.

    Where runs share their canaries, two more rules hold. If all canaries are inserted, without coins, there
    must be a single run, whose scores are compared with their known law. Several runs are compared with each
    other, and none would lack a canary. A single run must have at least LEAST_COINS canaries: they alone are
    its evidence, and bounds by coins take no fewer.
    """
    adversary = setting.adversary
    canaries = setting.canaries
    # With several canaries, a single run is enough: some of them are in and others out.
    least_runs = 1 if canaries > 1 else adversary.least_runs
    require_runs(runs, least_runs)
    if adversary.any_time:  # every run draws its own canaries: the two rules do not apply
        return
    require(
        runs == 1 or not adversary.inserts_all,
        f"`runs={runs}` with `all_in`: there is nothing to compare them with; give 1, or drop `all_in`",
    )
    if runs == 1:
        from audit.methods.one_run_bounds import LEAST_COINS  # loads SciPy

        require(
            canaries >= LEAST_COINS,
            f"`canaries={canaries}` of a single run: give at least {LEAST_COINS}, or more runs",
        )


def _validate_sampler(setting: Setting) -> None:
    """Raises InputError where the sampler does not go with the setting's steps and canaries."""
    sampling = setting.sampling
    if sampling.name in (EVERY, POISSON):  # these go with any steps and canaries
        require_accounted(setting)
        return

    steps = setting.schedule.steps
    given = f"`sampler={setting.sampler}`"  # how the messages begin
    require(sampling.times <= steps, f"{given}: give at most {steps}, the steps")
    inserts_in_all_steps = setting.schedule.periodicity == 1
    require(
        inserts_in_all_steps, f"{given}: `periodicity` and `insert` choose steps too: drop them"
    )
    if sampling.name == KNOWN:
        _validate_known_steps(setting)
        return

    # What is left are samplers by epochs. A canary joins a random step of each epoch. In a part of an epoch
    # it would join or not by chance, so that the number of insertions would not be fixed.
    whole_epochs = steps // sampling.batches * sampling.batches
    fix = f"give `steps` {whole_epochs + sampling.batches}"
    if whole_epochs > 0:
        fix = f"give `steps` {whole_epochs}, or {whole_epochs + sampling.batches}"
    require(steps == whole_epochs, f"{given}: {steps} steps are no whole epochs: {fix}")


def require_accounted(setting: Setting, delta: float = 1e-5) -> None:
    """Raises InputError for Poisson sampling with values for which there is no upper bound on epsilon.

    It is called before training, so that no run is trained of which nothing could be concluded.

    Args:
      setting: the setting.
      delta: the delta of epsilon; the usual one serves where a caller has none yet.
    """
    if setting.sampling.name != POISSON:
        return
    from audit.claims import accounting  # loads SciPy

    accounting.require_sampled(accounting.Composition(*setting.composition), delta)


def _validate_known_steps(setting: Setting) -> None:
    """Raises InputError where the sampler `known` has a single canary, or canaries * steps is too large.

    Each canary has steps of its own, so that memory grows with that product. The canaries are dealt evenly to
    the steps: a single canary would get steps at about even distances, for which there is `periodicity`.
    """
    steps = setting.schedule.steps
    canaries = setting.canaries
    sampler = f"`sampler={setting.sampler}`"
    require(canaries > 1, f"{sampler} is for many canaries: raise `canaries`")
    require(
        canaries * steps <= MOST_REPEATED_STEPS,
        f"`canaries={canaries}` times `steps={steps}`: with {sampler}, at most {MOST_REPEATED_STEPS:,}",
    )


def require_noise(sigma: float) -> None:
    """Raises InputError for a noise multiplier out of range: not 0, nor MIN_NOISE to MAX_NOISE."""
    declared(DpSgdFields)["noise_multiplier"].require(sigma)


def require_runs(runs: int, least: int = 2) -> None:
    """Raises InputError unless the number of runs is between `least` and MOST_RUNS."""
    worlds = ", half of them in each world" if least > 1 else ""
    require(runs >= least, f"`runs={runs}`: give at least {least}{worlds}")
    require(runs <= MOST_RUNS, f"`runs={runs}`: give at most {MOST_RUNS:,}")
