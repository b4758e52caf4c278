"""The epsilon that ways of auditing prove of the same mechanism, against the seconds that they take."""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from audit.claims import accounting
from audit.conclusions.concluded import conclude_each_run, conclude_setting
from audit.conclusions.conclusion import assumption_of
from audit.errors import InputError
from audit.evidence.canaries import Coins
from audit.methods.estimate import ASSUMPTION_FREE, IF_GAUSSIAN
from audit.methods.exact_null import EXACT_NULL
from audit.methods.level import Level
from audit.methods.lifted import LIFTED
from audit.report.style import BLUE, FADED, FREE, GREEN, ORANGE, PURPLE, STYLE, UPPER, VERMILION
from audit.report.table import Column, Table, at_least, at_most, number
from audit.runtime import processes
from audit.runtime.machine import cores, prepare_jax
from audit.settings import stored
from audit.settings.make import setting_of
from audit.settings.setting import MOST_RUNS, Setting
from audit.storage.store import Scores
from audit.tasks.task import Sources
from experiments.benchmark import peers
from experiments.benchmark.contract import ONE_RUN, Estimator
from experiments.engine.engines import TIMED
from experiments.engine.measurement import Measurement, measure
from models.catalogue import task

PEERS = ("jax_privacy", "opacus")  # engines whose users' minutes are shown
_POINTS = 12  # of a curve, at times of a constant ratio
_COORDINATES = 64  # canaries of a run along coordinates
_ONE_RUN_CANARIES = 2000
_STAGE_SECONDS = 5.0  # of training between two looks at the clock
_PUBLISHED = (
    "jax-privacy: clopper_pearson, MultiSplit",
    "jax-privacy: one_run, Split",
    "opake: eps_delta",
)
_REFUTED = "REFUTED"  # in place of an assumption that the scores refute


class How(NamedTuple):
    """What is audited, and how.

    Attributes:
      model: The model's name.
      limit: Seconds for each of our ways.
      peers: Engines of `PEERS` that are timed beside ours.
      rounds: In which engines are timed.
      seconds: Of a measurement of an engine, at least.
      seed: Of all training runs.
      delta: At which epsilon is proven.
      confidence: Of the lower bounds.
      sources: Where the model's data come from.
    """

    model: str
    limit: float
    peers: tuple[str, ...]
    rounds: int
    seconds: float
    seed: int
    delta: float
    confidence: float
    sources: Sources

    def setting(self, way: "Way") -> Setting:
        """Returns DP-SGD with the way's canaries in every step."""
        return setting_of(
            self.model, adversary=way.adversary, canaries=way.canaries, k=1, seed=self.seed
        )

    def upper_bound(self) -> float:
        """Returns the accountant's epsilon."""
        setting = self.setting(SINGLE)
        insertions = setting.schedule.steps
        return accounting.epsilon_upper_bound(
            setting.mechanism.noise_multiplier, insertions, self.delta
        )


class Way(NamedTuple):
    """How we audit.

    Attributes:
      name: In tables.
      adversary: That makes the canaries.
      canaries: Of a run.
      shown: Methods whose bounds are shown; empty for a single run of many canaries.
    """

    name: str
    adversary: str
    canaries: int | str
    shown: tuple[str, ...]


FRESH = Way("fresh directions", "sphere", "auto", (EXACT_NULL,))
SINGLE = Way("one canary a run", "gc_r", 1, (IF_GAUSSIAN, ASSUMPTION_FREE))
MANY = Way(f"{_COORDINATES} canaries a run", "gc_r", _COORDINATES, (LIFTED,))
ONCE = Way("one run alone", "one_shot", _ONE_RUN_CANARIES, ())


class Reading(NamedTuple):
    """A look at the clock: seconds since the process started, and how many runs there were."""

    seconds: float
    runs: int


class ClockedScores(NamedTuple):
    """Scores, and when there were how many.

    Attributes:
      scores: Of all runs.
      clock: Readings, the first to the last.
      ready: Seconds till data were read and the game was built.
      training: Seconds of steps, with what is drawn for them and the scores, but without compilation.
      model_steps: How many steps these were.
      parameters: Of the model.
    """

    scores: Scores
    clock: tuple[Reading, ...]
    ready: float
    training: float
    model_steps: int
    parameters: int


class Curve(NamedTuple):
    """What a method proves over time.

    Attributes:
      way: Name of the way of auditing.
      engine: Which engine trains.
      method: Of which the bound is.
      assumes: What it assumes, in a word, or that these scores refute it.
      seconds, trainings, epsilons: After so many seconds there were so many training runs, which prove this.
    """

    way: str
    engine: str
    method: str
    assumes: str
    seconds: tuple[float, ...]
    trainings: tuple[int, ...]
    epsilons: tuple[float, ...]


class Proofs(NamedTuple):
    """All curves, the engines' speed, and the clock of fresh directions."""

    curves: list[Curve]
    engines: list[Measurement]
    fresh: ClockedScores


def measured(how: How) -> Proofs:
    """Times the engines, trains by each of our ways in a process of its own, and concludes.

    Says on stderr what it is doing. Raises InputError where the data can't be had, or an engine fails.
    """
    kinds = []
    for kind in TIMED[how.model].work.kinds:
        if kind.name in ("ours", *how.peers) and kind.is_installed():
            kinds.append(kind)
    engines = measure(how.model, kinds, how.rounds, how.seconds, how.sources)
    rate = _find_our_rate(engines)

    clocked = {}
    for way in (FRESH, SINGLE, MANY, ONCE):
        print(f"{way.name} ...", file=sys.stderr)
        clocked[way] = processes.run_in_own_process(
            partial(_train_on_clock, how, way, rate, time.monotonic())
        )

    curves: list[Curve] = []
    for way in (FRESH, SINGLE, MANY):
        curves.extend(make_our_curves(how, way, clocked[way]))
    curves.extend(make_one_run_curves(how, clocked[ONCE]))
    for engine in engines:
        if engine.engine in how.peers:
            curves.extend(make_peer_curves(how, engine, clocked[SINGLE], clocked[ONCE]))
    return Proofs(curves, engines, clocked[FRESH])


def _find_our_rate(engines: Sequence[Measurement]) -> float:
    """Returns the model-steps a second of our engine."""
    (rate,) = [engine.rate() for engine in engines if engine.engine == "ours"]
    return rate


def _train_on_clock(how: How, way: Way, rate: float, start: float) -> ClockedScores:
    """Trains stage by stage until time is up.

    Args:
      how: What is audited.
      way: By which canaries.
      rate: Model-steps a second that are expected.
      start: time.monotonic() when this process was started.
    """
    prepare_jax()
    from audit.settings import build
    from experiments.cells.audits import recipe
    from experiments.cells.work import LocalTrainer, RunsRequest

    setting = how.setting(way)
    dataset = task(how.model).data.load(how.sources)
    # MOST_RUNS, since nobody knows how many there will be: the number is checked, and decides nothing else.
    trainer = LocalTrainer(recipe(setting, MOST_RUNS, dataset), dataset)
    stage_size = 1
    if way.shown:
        runs = int(_STAGE_SECONDS * rate / setting.schedule.steps)
        # A multiple of the cores, so that none of them waits.
        whole_rounds = runs // cores() * cores()
        stage_size = trainer.stage(max(whole_rounds, cores()))
    parameters = build.trainee(how.model, dataset).model.n_parameters
    ready = time.monotonic() - start

    clock: list[Reading] = []
    stages = []
    with tempfile.TemporaryDirectory() as folder, tqdm(unit=" runs", leave=False) as bar:
        store = stored.open_store(Path(folder), setting, dataset)
        while not clock or (way.shown and clock[-1].seconds < how.limit):
            runs = stage_size * (len(clock) + 1)
            stage = trainer.train(
                RunsRequest(store, runs, stage_size, stage_size, lambda runs: None)
            )
            stages.append(stage)
            clock.append(Reading(time.monotonic() - start, runs))
            bar.update(stage_size)

    return ClockedScores(
        scores=stages[-1].scores,
        clock=tuple(clock),
        ready=ready,
        training=sum(stage.seconds for stage in stages),
        model_steps=sum(stage.model_steps for stage in stages),
        parameters=parameters,
    )


def _choose_readings(clock: Sequence[Reading]) -> list[Reading]:
    """Returns the first and the last reading, and some between them at times of a constant ratio."""
    if not clock:
        return []
    places = np.geomspace(1, len(clock), _POINTS).round().astype(int) - 1
    return [clock[place] for place in np.unique(places)]


def make_our_curves(how: How, way: Way, clocked: ClockedScores) -> Iterator[Curve]:
    """Yields a curve for each method that is shown of a way; none where there are too few runs for it."""
    setting = how.setting(way)
    conclusions = {}
    for reading in _choose_readings(clocked.clock):
        first = clocked.scores.of_first(reading.runs)
        try:
            conclusions[reading] = conclude_setting(
                first, setting, Level(how.delta, how.confidence)
            )
        except InputError:  # too few runs for the methods
            continue
    if not conclusions:
        return

    for method in way.shown:
        bounds = [conclusion.bound(method) for conclusion in conclusions.values()]
        last = bounds[-1]
        yield Curve(
            way=way.name,
            engine="ours",
            method=method,
            assumes=assumption_of(last).word if last.holds else _REFUTED,
            seconds=tuple(reading.seconds for reading in conclusions),
            trainings=tuple(reading.runs for reading in conclusions),
            epsilons=tuple(bound.epsilon for bound in bounds),
        )


def make_one_run_curves(how: How, clocked: ClockedScores) -> Iterator[Curve]:
    """Yields a curve of one point for each of our bounds of a single run."""
    # False: the null is fitted to the canaries that are out, so that bounds are of the coins alone.
    (conclusion,) = conclude_each_run(
        clocked.scores, clocked.parameters, False, Level(how.delta, how.confidence)
    )
    for bound in conclusion.bounds:
        seconds = clocked.clock[0].seconds
        yield Curve(
            ONCE.name, "ours", bound.method, bound.assumes.word, (seconds,), (1,), (bound.epsilon,)
        )


def make_peer_curves(
    how: How, engine: Measurement, single: ClockedScores, once: ClockedScores
) -> Iterator[Curve]:
    """Yields what published estimators prove of the models that an engine trains in the same time.

    Args:
      how: What is audited, and for how long.
      engine: Its speed gives the seconds.
      single: Scores of one canary a run.
      once: Scores of one run with many canaries.
    """
    models_at_once = engine.about.models * engine.processes
    steps = how.setting(SINGLE).schedule.steps
    batch_seconds = models_at_once * steps / engine.rate()
    batches_in_time = int(how.limit // batch_seconds)
    most_runs = min(batches_in_time * models_at_once, len(single.scores.scores))
    ends = []
    for batch in range(1, most_runs // models_at_once + 1):
        ends.append(Reading(batch_seconds * batch, models_at_once * batch))
    run_counts = [reading.runs for reading in _choose_readings(ends)]

    for estimator in _list_published():
        if estimator.design == ONE_RUN:
            yield _make_peer_curve(how, engine, estimator, ONCE, once.scores, [1], batch_seconds)
        elif run_counts:
            yield _make_peer_curve(
                how, engine, estimator, SINGLE, single.scores, run_counts, batch_seconds
            )


def _list_published() -> list[Estimator]:
    """Returns the packages' estimators that are shown and installed."""
    estimators = []
    for estimator in peers.ESTIMATORS:
        if estimator.name in _PUBLISHED and find_spec(estimator.module):
            estimators.append(estimator)
    return estimators


def _make_peer_curve(
    how: How,
    engine: Measurement,
    estimator: Estimator,
    way: Way,
    scores: Scores,
    run_counts: list[int],
    batch_seconds: float,
) -> Curve:
    """Returns an estimator's curve over so many of the runs.

    An engine trains models in batches, each of which takes `batch_seconds`.
    """
    models_at_once = engine.about.models * engine.processes
    seconds = []
    epsilons = []
    for runs in run_counts:
        batches = -(-runs // models_at_once)  # rounded up
        seconds.append(batches * batch_seconds)
        first = scores.of_first(runs)
        coins = Coins(first.scores, first.presence)
        epsilon, _ = estimator.estimate(coins, how.delta, how.confidence)
        epsilons.append(epsilon)
    return Curve(
        way=way.name,
        engine=engine.engine,
        method=estimator.name,
        assumes="fair coins" if estimator.design == ONE_RUN else "nothing",
        seconds=tuple(seconds),
        trainings=tuple(run_counts),
        epsilons=tuple(epsilons),
    )


def proof_table(how: How, proofs: Proofs) -> Table[Curve]:
    """Returns a table of the methods at their end, and where the time of fresh directions goes."""
    columns = (
        Column(None, attrgetter("way"), "canaries", width=17, left=True),
        Column(None, _shorten_method, "estimator", width=27, left=True),
        Column(None, _last_trainings, "runs", number(","), 5),
        Column(None, lambda curve: _last_seconds(curve) / 60, "minutes", number(".2f"), 7),
        Column(None, lambda curve: at_least(_last_epsilon(curve)), "epsilon", width=7),
        Column(None, attrgetter("assumes"), "assumes", left=True),
        Column("engine", attrgetter("engine")),
        Column("way", attrgetter("way")),
        Column("method", attrgetter("method")),
        Column("seconds", _last_seconds),
        Column("trainings", _last_trainings),
        Column("epsilon", _last_epsilon),
        Column("assumes", attrgetter("assumes")),
    )
    title = f"{how.model}: epsilon proven at delta {how.delta:g}, confidence {how.confidence:g}"
    upper_bound = f"{'upper bound':<17} {'accounting':<41} {at_most(how.upper_bound()):>7}"
    after = ("-" * 80, upper_bound, "", *_describe_time(proofs), _describe_machine(proofs))
    return Table(
        columns,
        proofs.curves,
        section=_name_trainer,
        before=(title,),
        after=after,
        gap=" ",
        rule=80,
    )


def _last_seconds(curve: Curve) -> float:
    return curve.seconds[-1]


def _last_trainings(curve: Curve) -> int:
    return curve.trainings[-1]


def _last_epsilon(curve: Curve) -> float:
    return curve.epsilons[-1]


def _shorten_method(curve: Curve) -> str:
    """Returns the method's name without its package."""
    return curve.method.split(": ")[-1]


def _name_trainer(curve: Curve) -> str:
    """Returns the heading above a curve's row: by whose speed it is."""
    if curve.engine == "ours":
        return "this tool"
    return f"at {curve.engine}'s speed, without its start-up"


def _split_time(proofs: Proofs) -> dict[str, float]:
    """Returns the seconds of fresh directions by what they went into."""
    fresh = proofs.fresh
    total = fresh.clock[-1].seconds
    own_steps = fresh.model_steps / _find_our_rate(proofs.engines)
    return {
        "start-up": fresh.ready,
        "compilation and rehearsal": total - fresh.ready - fresh.training,
        "DP-SGD's own steps": own_steps,
        "directions and scores": fresh.training - own_steps,
    }


def _describe_time(proofs: Proofs) -> list[str]:
    """Returns lines on where the seconds of fresh directions went."""
    total = proofs.fresh.clock[-1]
    lines = [
        f"Where the {total.seconds:.0f} seconds of fresh directions went, {total.runs:,} trainings:"
    ]
    for name, seconds in _split_time(proofs).items():
        lines.append(f"  {name:<26} {seconds:6.1f} s {seconds / total.seconds:5.0%}")
    return lines


def _describe_machine(proofs: Proofs) -> str:
    """Returns a line on the product of matrices, and the share of its speed that each engine reaches."""
    shares = ", ".join(f"{engine.engine} {engine.gemm_share():.0%}" for engine in proofs.engines)
    gemm = _find_gemm_rate(proofs) / 1e9
    return f"GEMM: {gemm:,.0f} GFLOP/s on {cores()} cores, of which training takes: {shares}"


def _find_gemm_rate(proofs: Proofs) -> float:
    """Returns the median of the products' floating-point operations a second."""
    rates: list[float] = []
    for engine in proofs.engines:
        rates.extend(engine.gemm)
    return float(np.median(rates))


def as_json(how: How, proofs: Proofs) -> str:
    """Returns a JSON object: what was audited, curves, engines, and the parts of fresh directions' time."""
    content: dict[str, Any] = {
        "model": how.model,
        "seed": how.seed,
        "delta": how.delta,
        "confidence": how.confidence,
        "upper_bound": how.upper_bound(),
        "curves": [curve._asdict() for curve in proofs.curves],
        "engines": [engine.fields() for engine in proofs.engines],
        "parts": _split_time(proofs),
    }
    return json.dumps(content, indent=1)


_LINES = {  # colour and line of our methods, and of the peers' engines
    EXACT_NULL: (FREE, "-"),
    ASSUMPTION_FREE: (BLUE, "-"),
    IF_GAUSSIAN: (BLUE, "--"),
    LIFTED: (GREEN, "-"),
    "jax_privacy": (VERMILION, "-"),
    "opacus": (PURPLE, "-"),
}
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)  # minutes


def proof_figure(how: How, proofs: Proofs) -> Figure:
    """Draws epsilon over minutes, a line for each method; a lone run's as a mark."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7, 4.6))
        for curve in proofs.curves:
            _draw_curve(axis, curve)
        axis.axhline(how.upper_bound(), color=UPPER, ls=":", label="upper bound (accounting)")
        axis.set(xscale="log", xlabel="minutes from the start", ylim=(0, None))
        axis.set_ylabel(f"epsilon proven at delta {how.delta:g}")

        least, most = axis.get_xlim()
        ticks = [tick for tick in _TICKS if least <= tick <= most]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()

        gemm = _find_gemm_rate(proofs) / 1e9
        machine = f"{cores()} cores, a product of matrices at {gemm:,.0f} GFLOP/s"
        figure.suptitle(
            f"Time to proof: {how.model}, a canary in every step; {machine}", fontsize=10
        )
        figure.legend(loc="outside lower center", ncols=1, fontsize=8)
        return figure


def _draw_curve(axis: Axes, curve: Curve) -> None:
    """Draws a curve; hollow marks say that it assumes a Gaussian trade-off curve or is refuted."""
    is_ours = curve.engine == "ours"
    is_lone_run = curve.way == ONCE.name
    method = _shorten_method(curve)
    label = f"{curve.way}: {method} (assumes {curve.assumes})"
    if is_ours:
        color, line = _LINES.get(curve.method, (ORANGE, ""))
    else:
        color, line = _LINES.get(curve.engine, (ORANGE, ""))
        label = f"{curve.engine}, {label}"
    if curve.assumes == _REFUTED:
        color = FADED

    marker = "o"
    if is_lone_run:
        line = ""
        marker = "s" if is_ours else "D"
    is_hollow = curve.assumes not in ("nothing", "fair coins")
    axis.plot(
        [seconds / 60 for seconds in curve.seconds],
        curve.epsilons,
        color=color,
        ls=line,
        marker=marker,
        mfc="white" if is_hollow else None,
        ms=4,
        label=label,
    )
