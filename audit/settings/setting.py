"""An audit's setting: all that decides a run's scores, but for the data. Importing it starts no JAX.

A setting is made of small parts: the model's name, the mechanism's own fields, the adversary and *its* own
fields, the schedule and the seed. `identity` is how the store knows it: a field that equals its default is
left out, so that a further field changes no stored name.
"""

import dataclasses
from typing import Any, ClassVar

from audit.errors import require
from audit.settings import fields
from audit.settings.fields import MOST_SEED, deciding, declared, described, require_fields

MOST_RUNS, MOST_STEPS, MOST_DRAWS = 10**8, 10**7, 10**9  # draws: indices of all mini-batches, 4 GB
LEAST_NOISE, MOST_NOISE = 1e-6, 1e9  # what float32 and conversions to epsilon can take
NOISE_LIMITS: dict[str, Any] = {"least": LEAST_NOISE, "most": MOST_NOISE, "zero_too": True}
MOST_CANARIES = 100_000
OPTIMIZERS = ("sgd", "momentum", "adam")
STRATEGIES = ("book_keeping", "unfolded", "per_example")  # of clipping, the fastest first
PRECISIONS = ("float32", "tf32", "bf16")
LAST, FIRST = "last", "first"


@dataclasses.dataclass(frozen=True)
class DpSgdFields:
    """The mechanism's own fields; the noise has standard deviation noise_multiplier * clipping_norm."""

    name: ClassVar[str] = "dp_sgd"
    group: ClassVar[str] = fields.DP_SGD
    learning_rate: float = described("Learning rate; by default the model's.", least=1e-37, most=1e38)
    clipping_norm: float = described("Clipping norm C.", usual=1.0, least=1e-6, most=1e6)
    noise_multiplier: float = described(
        "Noise multiplier sigma: noise has deviation sigma * C.", usual=4.0, **NOISE_LIMITS
    )
    batch_size: int = described("Examples a mini-batch; by default the model's.", least=1, most=MOST_DRAWS)
    clipping: str = described(
        "book_keeping, unfolded or per_example; by default the fastest.", choices=STRATEGIES
    )
    optimizer: str = described(
        "sgd, momentum or adam, on the privatised mean gradient.", default="sgd", choices=OPTIMIZERS
    )
    precision: str = described(
        "Operands of the training's products: float32, tf32 or bf16.", default="float32", choices=PRECISIONS
    )
    weight_decay: float = described(
        "Weight decay lambda, outside the clipping: lambda theta joins the private mean gradient.",
        default=0.0,
        least=0,
        most=1e6,
    )


@dataclasses.dataclass(frozen=True)
class ScheduleFields:
    """The training's steps, the periodicity k, and at which of each k steps the canary is inserted."""

    group: ClassVar[str] = fields.AUDITED
    steps: int = described("Training steps, instead of --insertions.", least=1, most=MOST_STEPS)
    periodicity: int = described(
        "Periodicity: the canary is inserted every k steps.", usual=1, flag="k", least=1, most=MOST_STEPS
    )
    insert: str = described(
        "At which of each k steps: last, first, or a number from 1 to k.",
        default=LAST,
        choices=(LAST, FIRST),
        numbers_too=True,
    )

    @property
    def place(self) -> int:
        """The step of each period, 1 to k, at which the canary is inserted."""
        return {LAST: self.periodicity, FIRST: 1}.get(self.insert) or int(self.insert)


@dataclasses.dataclass(frozen=True)
class AdversaryFields:
    """An adversary's own fields; `name` is a key of `audit.settings.adversaries.ADVERSARIES`."""

    name: ClassVar[str]
    group: ClassVar[str] = fields.ADVERSARY
    least_runs: ClassVar[int] = 2  # a run in each world
    usual_runs: ClassVar[int] = 5000
    any_time: ClassVar[bool] = False  # whether what is proven holds whenever one stops

    def deciding(self) -> dict[str, Any]:
        """The fields that decide scores, but for those at their defaults."""
        return deciding(self)


@dataclasses.dataclass(frozen=True)
class Setting:
    """One audit: a model (a task's name, or any name of a caller's own), who trains it, who attacks it."""

    model: str
    adversary: AdversaryFields
    mechanism: DpSgdFields
    schedule: ScheduleFields
    seed: int = described("Seed of all randomness.", usual=0, group=fields.AUDITED, least=0, most=MOST_SEED)
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
    sampling_rate: float = described(
        "Probability with which an insertion takes a canary that is in (Poisson).",
        default=1.0,
        group=fields.ADVERSARY,
        above=0,
        most=1,
    )
    repetitions: int = described(
        "Steps in which each canary takes part, at random; 0: all steps that insert.",
        default=0,
        group=fields.ADVERSARY,
        least=0,
        most=MOST_STEPS,
    )

    @property
    def insertions(self) -> int:
        """Steps at which a canary is inserted."""
        schedule = self.schedule
        return self.repetitions or (schedule.steps - schedule.place) // schedule.periodicity + 1

    @property
    def composition(self) -> tuple[float, int, float]:
        """The steps that count, as fields of `audit.statistics.accounting.Composition`."""
        return self.mechanism.noise_multiplier, self.insertions, self.sampling_rate


def identity(setting: Setting, experiment: str = "audit") -> dict[str, Any]:
    """A setting's name in the store, beside the data: {experiment, model, the mechanism's own fields,
    the adversary and its own fields, schedule, seed}, without fields at their defaults."""
    return {
        "experiment": experiment,
        **deciding(setting),
        "mechanism": {"name": setting.mechanism.name, **deciding(setting.mechanism)},
        "adversary": {"name": setting.adversary.name, **setting.adversary.deciding()},
        "schedule": deciding(setting.schedule),
    }


def flat(setting: Setting) -> dict[str, Any]:
    """All fields by name, as flags and callers name them."""
    return {
        "model": setting.model,
        "adversary": setting.adversary.name,
        **dataclasses.asdict(setting.adversary),
        **dataclasses.asdict(setting.mechanism),
        **dataclasses.asdict(setting.schedule),
        **{name: getattr(setting, name) for name in declared(Setting)},
    }


def summary(setting: Setting, runs: int) -> str:
    """What is audited, in a line: the model, the adversary, and what decides the upper bound."""
    steps, (sigma, insertions, _) = setting.schedule.steps, setting.composition
    canaries = f" of {setting.canaries} canaries" if setting.canaries > 1 else ""
    return (
        f"{setting.model}, {setting.adversary.name}, {runs:,} runs{canaries}, {insertions:,} insertions in "
        f"{steps:,} steps, sigma = {sigma:g}, C = {setting.mechanism.clipping_norm:g}, seed {setting.seed}"
    )


def validate(setting: Setting, runs: int, strategies: tuple[str, ...]) -> None:
    """Raises InputError for a value out of range, or a clipping strategy that the model can't take; what
    needs the data is checked when the game is built."""
    require_fields(setting)
    clipping = setting.mechanism.clipping
    fits = f"`clipping={clipping}` is none that {setting.model} can take"
    require(clipping in strategies, f"{fits}: choose one of {', '.join(strategies)}")
    steps, k, batch_size = setting.schedule.steps, setting.schedule.periodicity, setting.mechanism.batch_size
    require(k <= steps, f"`periodicity={k}` inserts nothing in {steps} steps: lower it or add steps")
    place, insert = setting.schedule.place, setting.schedule.insert
    require(place <= k, f"`insert={insert}`: choose last, first, or one of 1 to {k}, the steps of a period")
    draws = f"`steps={steps}` of `batch_size={batch_size}`"
    require(steps * batch_size <= MOST_DRAWS, f"{draws}: their product is to be at most {MOST_DRAWS:,}")
    if repetitions := setting.repetitions:
        said = f"`repetitions={repetitions}`"
        require(repetitions <= steps, f"{said}: give 0 to {steps}, the steps")
        alone = k == 1 and setting.sampling_rate == 1
        require(alone, f"{said}: `periodicity` and `sampling_rate` choose steps too: drop them")
        require(setting.canaries > 1, f"{said} is for many canaries: raise `canaries`")
        most, both = 10**9, f"`canaries={setting.canaries}` times `steps={steps}`"
        require(setting.canaries * steps <= most, f"{both}: with `repetitions`, at most {most:,}")
    require_runs(runs, setting.adversary.least_runs)


def require_noise(sigma: float) -> None:
    """Raises InputError for a noise multiplier that float32 or a conversion to epsilon can't take."""
    declared(DpSgdFields)["noise_multiplier"].require(sigma)


def require_runs(runs: int, least: int = 2) -> None:
    """Raises InputError unless there are runs for both worlds, and not more than any audit can train."""
    worlds = ", half of them in each world" if least > 1 else ""
    require(runs >= least, f"`runs={runs}`: give at least {least}{worlds}")
    require(runs <= MOST_RUNS, f"`runs={runs}`: give at most {MOST_RUNS:,}")
