"""An audit's setting: all that decides a run's scores, but for the data. Importing it starts no JAX.

A setting is made of small parts: the model's name, the mechanism's own fields, the adversary and *its* own
fields, the schedule and the seed. `identity` is how the store knows it: a field that equals its default is
left out, so that a further field changes no stored name.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

from audit.errors import require

MOST_RUNS, MOST_STEPS, MOST_DRAWS = 10**8, 10**7, 10**9  # draws: indices of all mini-batches, 4 GB
LEAST_NOISE, MOST_NOISE = 1e-6, 1e9
MOST_CANARIES = 100_000
OPTIMIZERS = ("sgd", "momentum", "adam")
PRECISIONS = ("float32", "tf32", "bf16")


def described(help_text: str, flag: str | None = None, default: Any = dataclasses.MISSING) -> Any:
    """A field with its help text, and the name of its flag where that is another than its own. `default` is
    left out of identities, so that it can never change."""
    return dataclasses.field(default=default, metadata={"help": help_text, "flag": flag})


@dataclasses.dataclass(frozen=True)
class DpSgdFields:
    """The mechanism's own fields; the noise has standard deviation noise_multiplier * clipping_norm."""

    name: ClassVar[str] = "dp_sgd"
    learning_rate: float = described("Learning rate; by default the model's.")
    clipping_norm: float = described("Clipping norm C.")
    noise_multiplier: float = described("Noise multiplier sigma: noise has deviation sigma * C.")
    batch_size: int = described("Examples a mini-batch; by default the model's.")
    clipping: str = described("book_keeping, unfolded or per_example; by default the fastest.")
    optimizer: str = described("sgd, momentum or adam, on the privatised mean gradient.", default="sgd")
    precision: str = described(
        "Operands of the training's products: float32, tf32 or bf16.", default="float32"
    )


@dataclasses.dataclass(frozen=True)
class ScheduleFields:
    """The training's steps, and the periodicity k: the canary is inserted at steps k, 2k, ..."""

    steps: int = described("Training steps, instead of --insertions.")
    periodicity: int = described("Periodicity: the canary is inserted every k steps.", flag="k")


@dataclasses.dataclass(frozen=True)
class AdversaryFields:
    """An adversary's own fields; `name` is a key of `audit.settings.adversaries.ADVERSARIES`."""

    name: ClassVar[str]

    def deciding(self) -> dict[str, Any]:
        """The fields that decide scores, but for those at their defaults."""
        return dict(not_default(self))


@dataclasses.dataclass(frozen=True)
class Setting:
    """One audit: a model (a task's name, or any name of a caller's own), who trains it, who attacks it."""

    model: str
    adversary: AdversaryFields
    mechanism: DpSgdFields
    schedule: ScheduleFields
    seed: int = described("Seed of all randomness.")
    unknown_initialisation: bool = described("Draw theta_0 afresh for each run.", default=False)
    canaries: int = described("Canaries a run, each with a coin of its own; auto: the model's.", default=1)
    sampling_rate: float = described(
        "Probability with which an insertion takes a canary that is in (Poisson).", default=1.0
    )
    repetitions: int = described(
        "Steps in which each canary takes part, at random; 0: all steps that insert.", default=0
    )

    @property
    def insertions(self) -> int:
        """Steps at which a canary is inserted."""
        return self.repetitions or self.schedule.steps // self.schedule.periodicity

    @property
    def composition(self) -> tuple[float, int, float]:
        """The steps that count, as fields of `audit.statistics.accounting.Composition`."""
        return self.mechanism.noise_multiplier, self.insertions, self.sampling_rate


WHOLE = (
    "unknown_initialisation",
    "canaries",
    "sampling_rate",
    "repetitions",
)  # of the setting itself, with defaults
DEFAULTS: dict[str, Any] = {  # of fields that every identity holds
    "clipping_norm": 1.0,
    "noise_multiplier": 4.0,
    "steps": 250,
    "periodicity": 1,
    "seed": 0,
}


def not_default(part: Any) -> Iterator[tuple[str, Any]]:
    """A part's fields, but for those that equal their default."""
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if value != field.default:
            yield field.name, value


def identity(setting: Setting, experiment: str = "audit") -> dict[str, Any]:
    """A setting's name in the store, beside the data: {experiment, model, the mechanism's own fields,
    the adversary and its own fields, schedule, seed}, without fields at their defaults."""
    whole = {name: value for name, value in not_default(setting) if name in WHOLE}
    return {
        "experiment": experiment,
        "model": setting.model,
        "mechanism": {"name": setting.mechanism.name, **dict(not_default(setting.mechanism))},
        "adversary": {"name": setting.adversary.name, **setting.adversary.deciding()},
        "schedule": dict(not_default(setting.schedule)),
        "seed": setting.seed,
        **whole,
    }


def flat(setting: Setting) -> dict[str, Any]:
    """All fields by name, as flags and callers name them."""
    return {
        "model": setting.model,
        "adversary": setting.adversary.name,
        **dataclasses.asdict(setting.adversary),
        **dataclasses.asdict(setting.mechanism),
        **dataclasses.asdict(setting.schedule),
        "seed": setting.seed,
        "unknown_initialisation": setting.unknown_initialisation,
        "canaries": setting.canaries,
        "sampling_rate": setting.sampling_rate,
        "repetitions": setting.repetitions,
    }


def summary(setting: Setting, runs: int) -> str:
    """What is audited, in a line: the model, the adversary, and what decides the upper bound."""
    steps, (sigma, insertions, _) = setting.schedule.steps, setting.composition
    canaries = f" of {setting.canaries} canaries" if setting.canaries > 1 else ""
    return (
        f"{setting.model}, {setting.adversary.name}, {runs:,} runs{canaries}, {insertions:,} insertions in "
        f"{steps:,} steps, sigma = {sigma:g}, C = {setting.mechanism.clipping_norm:g}, seed {setting.seed}"
    )


def require_types(setting: Setting) -> None:
    """Raises InputError for a field whose value is of another type than the field, as a foreign file can have
    it."""
    for part in (setting, setting.mechanism, setting.schedule, setting.adversary):
        for field in dataclasses.fields(part):
            assert isinstance(field.type, type)
            require_type(field.name, getattr(part, field.name), field.type)


def require_type(name: str, value: object, kind: type) -> None:
    """Raises InputError for a value of another type; a float may be an int, an int is no bool."""
    whole = kind is float and type(value) is int
    fits = isinstance(value, kind) and (kind is bool or type(value) is not bool)
    require(whole or fits, f"`{name}={value!r}` is no {kind.__name__}: give one")


def validate(setting: Setting, runs: int, strategies: tuple[str, ...]) -> None:
    """Raises InputError for a value out of range, or a clipping strategy that the model can't take; what
    needs the data is checked when the game is built."""
    mechanism, schedule = setting.mechanism, setting.schedule
    for name, value, choices in (
        ("optimizer", mechanism.optimizer, OPTIMIZERS),
        ("clipping", mechanism.clipping, strategies),
        ("precision", mechanism.precision, PRECISIONS),
    ):
        known = f"choose one of {', '.join(choices)}"
        require(value in choices, f"`{name}={value}` is none that {setting.model} can take: {known}")
    rate, norm, sigma = mechanism.learning_rate, mechanism.clipping_norm, mechanism.noise_multiplier
    require(1e-37 <= rate <= 1e38, f"`learning_rate={rate}`: give 1e-37 to 1e38")
    require(1e-6 <= norm <= 1e6, f"`clipping_norm={norm}`: give 1e-6 to 1e6")
    require_noise(sigma)
    most = f"`canaries={setting.canaries}`: give 1 to {MOST_CANARIES:,}"
    require(1 <= setting.canaries <= MOST_CANARIES, most)
    share = f"`sampling_rate={setting.sampling_rate}`: give a number above 0, at most 1"
    require(0 < setting.sampling_rate <= 1, share)
    _require_schedule(schedule, mechanism.batch_size)
    _require_repetitions(setting)
    require(0 <= setting.seed < 2**32, f"`seed={setting.seed}`: give 0 to 2^32 - 1")
    require_runs(runs)


def _require_repetitions(setting: Setting) -> None:
    """Raises InputError for repetitions beyond the steps, or beside another choice of steps."""
    repetitions, steps = setting.repetitions, setting.schedule.steps
    require(0 <= repetitions <= steps, f"`repetitions={repetitions}`: give 0 to {steps}, the steps")
    alone = not repetitions or (setting.schedule.periodicity == 1 and setting.sampling_rate == 1)
    others = "`periodicity` and `sampling_rate` choose steps too: drop them"
    require(alone, f"`repetitions={repetitions}`: {others}")
    several = not repetitions or setting.canaries > 1
    require(several, f"`repetitions={repetitions}` is for many canaries: raise `canaries`")
    insertions = f"`canaries={setting.canaries}` times `steps={steps}`: with `repetitions`, at most {10**9:,}"
    require(not repetitions or setting.canaries * steps <= 10**9, insertions)


def require_noise(sigma: float) -> None:
    """Raises InputError for a noise multiplier that float32 or a conversion to epsilon can't take."""
    limits = f"0, or {LEAST_NOISE:g} to {MOST_NOISE:g}"
    require(sigma == 0 or LEAST_NOISE <= sigma <= MOST_NOISE, f"`noise_multiplier={sigma}`: give {limits}")


def require_runs(runs: int, least: int = 2) -> None:
    """Raises InputError unless there are runs for both worlds, and not more than any audit can train."""
    require(runs >= least, f"`runs={runs}`: give at least {least}, half of them in each world")
    require(runs <= MOST_RUNS, f"`runs={runs}`: give at most {MOST_RUNS:,}")


def _require_schedule(schedule: ScheduleFields, batch_size: int) -> None:
    """Raises InputError for a schedule that inserts nothing, or whose mini-batches no memory holds."""
    steps, k = schedule.steps, schedule.periodicity
    require(batch_size >= 1, f"`batch_size={batch_size}`: give at least 1")
    require(steps >= 1, f"`steps={steps}`: give at least 1 step")
    require(k >= 1, f"`periodicity={k}`: give a periodicity of at least 1")
    require(
        steps <= MOST_STEPS,
        f"`steps={steps}` (insertions times periodicity, if not given): give at most {MOST_STEPS:,}",
    )
    require(k <= steps, f"`periodicity={k}` inserts nothing in {steps} steps: lower it or add steps")
    require(
        steps * batch_size <= MOST_DRAWS,
        f"`steps={steps}` of `batch_size={batch_size}`: their product is to be at most {MOST_DRAWS:,}",
    )
