"""Measures the epsilon that several ways of auditing prove of the same mechanism, and how long they take.

A way is a kind of canary and how many of them a run has. Beside our ways stand published estimators, at the
speed of the engines (libraries) that their users train with.
"""

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
from audit.claims.claim import DpSgd
from audit.conclusions.concluded import conclude, conclude_each_run, conclude_setting
from audit.conclusions.conclusion import assumption_of
from audit.errors import InputError
from audit.evidence.canaries import Coins
from audit.json_text import write_json
from audit.methods.estimate import ASSUMPTION_FREE, IF_GAUSSIAN
from audit.methods.exact_null import EXACT_NULL, EXACT_NULL_GDP
from audit.methods.level import Level, show_level
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

PEERS = ("jax_privacy", "opacus")  # engines for whose users the minutes are shown
_POINTS = 12  # of a curve, about evenly spaced on a logarithmic axis of time
_COORDINATES = 64  # canaries of a run, each along a coordinate
_ONE_RUN_CANARIES = 2000
_STAGE_SECONDS = 5.0  # of training between two looks at the clock
_PUBLISHED = (
    "jax-privacy: clopper_pearson, MultiSplit",
    "jax-privacy: one_run, Split",
    "opake: eps_delta",
)
# The training's noise over that of a claim about it: the claims whose refutation is timed.
_NOISE_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)
_REFUTED = "REFUTED"  # in place of an assumption that the scores refute


class How(NamedTuple):
    """The choices of a user: what is audited, and how long.

    Attributes:
      model: The model's name.
      limit: The seconds after which each of our ways stops training.
      peers: The engines of `PEERS` that are timed beside ours.
      rounds: The number of rounds in which engines are timed.
      seconds: The least time for which an engine is timed in a round.
      seed: The seed of all training runs.
      delta: The delta at which epsilon is proven.
      confidence: The confidence of the lower bounds.
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
        """Returns the accountant's epsilon for a canary in every step."""
        setting = self.setting(SINGLE)
        insertions = setting.schedule.steps
        return accounting.epsilon_upper_bound(
            setting.mechanism.noise_multiplier, insertions, self.delta
        )


class Way(NamedTuple):
    """One of our ways of auditing.

    Attributes:
      name: The name in tables.
      adversary: The name of the adversary that makes the canaries.
      canaries: The number of canaries in a run; "auto" for the number that the adversary chooses.
      shown: The methods whose bounds are shown; empty where a single run of many canaries is audited.
    """

    name: str
    adversary: str
    canaries: int | str
    shown: tuple[str, ...]


FRESH = Way("fresh directions", "sphere", "auto", (EXACT_NULL_GDP, EXACT_NULL))
SINGLE = Way("one canary a run", "gc_r", 1, (IF_GAUSSIAN, ASSUMPTION_FREE))
MANY = Way(f"{_COORDINATES} canaries a run", "gc_r", _COORDINATES, (LIFTED,))
ONCE = Way("one run alone", "one_shot", _ONE_RUN_CANARIES, ())


class Reading(NamedTuple):
    """A reading of the clock.

    Attributes:
      seconds: The time since the start.
      runs: The number of runs that were trained by then.
    """

    seconds: float
    runs: int


class ClockedScores(NamedTuple):
    """The scores of training runs, and the times by which they were there.

    Attributes:
      scores: The scores of all runs.
      clock: The readings of the clock after each stage of training, in order.
      ready: The seconds from the start until the data were read and the game was built.
      training: The seconds of training, with what is drawn for the steps and with scoring, without
        compilation.
      model_steps: The number of model-steps in these seconds.
      parameters: The number of the model's parameters.
    """

    scores: Scores
    clock: tuple[Reading, ...]
    ready: float
    training: float
    model_steps: int
    parameters: int


class Curve(NamedTuple):
    """The epsilon that a method proves as time goes by.

    Attributes:
      way: The name of the way of auditing.
      engine: The name of the engine that trains, or whose speed is assumed.
      method: The name of the method, or of the published estimator.
      assumes: What the method assumes, in a few words; "REFUTED" where the scores refute the assumption.
      seconds: The time of each point, in seconds from the start.
      trainings: The number of runs that were trained by then.
      epsilons: The lower bound on epsilon that these runs prove.
    """

    way: str
    engine: str
    method: str
    assumes: str
    seconds: tuple[float, ...]
    trainings: tuple[int, ...]
    epsilons: tuple[float, ...]


class TimedRefutation(NamedTuple):
    """When fresh directions refute the claim of a training with more noise than it has.

    Attributes:
      noise_share: The training's noise multiplier over the claimed one.
      reading: The first reading of the clock at which the claim is refuted; None if it never is.
    """

    noise_share: float
    reading: Reading | None


class Proofs(NamedTuple):
    """All results.

    Attributes:
      curves: The curves of our methods and of published estimators.
      engines: The measurements of the engines' speed.
      fresh: The scores of fresh directions, and their clock.
      refutations: When these scores refute claims of more noise.
    """

    curves: list[Curve]
    engines: list[Measurement]
    fresh: ClockedScores
    refutations: list[TimedRefutation]


def measured(how: How) -> Proofs:
    """Times the engines, trains by each of our ways of auditing, and computes all curves of proven epsilon.

    An engine is a library that trains by DP-SGD: ours, or a peer's. A way is a kind of canary, and how many
    of them a run has. Each way trains in a process of its own, after its name is printed on stderr.

    Raises:
      InputError: The data can't be loaded, or an engine fails.
    """
    # Speeds of our engine and of the chosen peers' engines, as far as these are installed.
    kinds = []
    for kind in TIMED[how.model].work.kinds:
        if kind.name in ("ours", *how.peers) and kind.is_installed():
            kinds.append(kind)
    engines = measure(how.model, kinds, how.rounds, how.seconds, how.sources)
    rate = _find_our_rate(engines)  # model-steps a second

    # Scores of each way's runs, and when they were there.
    clocked = {}
    for way in (FRESH, SINGLE, MANY, ONCE):
        print(f"{way.name} ...", file=sys.stderr)
        clocked[way] = processes.run_in_own_process(
            partial(_train_on_clock, how, way, rate, time.monotonic())
        )

    # What these scores prove, by our methods and by published estimators.
    curves: list[Curve] = []
    for way in (FRESH, SINGLE, MANY):
        curves.extend(make_our_curves(how, way, clocked[way]))
    curves.extend(make_one_run_curves(how, clocked[ONCE]))
    for engine in engines:
        if engine.engine in how.peers:
            curves.extend(make_peer_curves(how, engine, clocked[SINGLE], clocked[ONCE]))
    return Proofs(curves, engines, clocked[FRESH], find_refutations(how, clocked[FRESH]))


def _find_our_rate(engines: Sequence[Measurement]) -> float:
    """Returns the speed of our engine, in model-steps a second."""
    (rate,) = [engine.rate() for engine in engines if engine.engine == "ours"]
    return rate


def _train_on_clock(how: How, way: Way, rate: float, start: float) -> ClockedScores:
    """Trains runs by one of our ways of auditing until the time is up, and reads the clock after each stage.

    A stage is a number of runs that takes about _STAGE_SECONDS seconds. A way that audits a single run (its
    `shown` is empty) trains that run alone.

    Args:
      how: The user's choices, with the time limit in seconds.
      way: The way of auditing.
      rate: Our engine's speed in model-steps a second, from which the size of stages is computed.
      start: The value of time.monotonic() when this process was started.

    Returns:
      The scores of all runs, and the times by which they were there, in seconds from `start`. Beside them
      what a table of spent time needs: when the game was built (`ready`), and what training took.
    """
    prepare_jax()  # before JAX touches a device; the imports below load JAX
    from audit.settings import build
    from experiments.cells.audits import recipe
    from experiments.cells.work import LocalTrainer, RunsRequest

    setting = how.setting(way)
    dataset = task(how.model).data.load(how.sources)
    # The number of runs is not known yet, and is only checked here: MOST_RUNS passes the check.
    trainer = LocalTrainer(recipe(setting, MOST_RUNS, dataset), dataset)
    stage_size = 1  # runs
    if way.shown:
        runs = int(_STAGE_SECONDS * rate / setting.schedule.steps)
        # A multiple of the number of cores, so that no core waits for the others.
        whole_rounds = runs // cores() * cores()
        # As many of these as fit into memory at once.
        stage_size = trainer.stage(max(whole_rounds, cores()))
    parameters = build.trainee(how.model, dataset).model.n_parameters
    ready = time.monotonic() - start  # data and game are there; no run is trained yet

    clock: list[Reading] = []
    stages = []
    with tempfile.TemporaryDirectory() as folder, tqdm(unit=" runs", leave=False) as bar:
        store = stored.open_store(Path(folder), setting, dataset)
        # At least one stage; for a single run no other.
        while not clock or (way.shown and clock[-1].seconds < how.limit):
            # The number of runs that the store is to have, of which only this stage's are missing.
            runs = stage_size * (len(clock) + 1)
            request = RunsRequest(
                store, runs, most_trained=stage_size, chunk=stage_size, progress=lambda runs: None
            )
            stage = trainer.train(request)
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
    """Returns at most _POINTS of the readings, among them the first and the last.

    Their places in the list, from 1, grow by about a constant ratio, so that a logarithmic axis of time shows
    them evenly spaced.
    """
    if not clock:
        return []
    # `unique` drops places that rounding made equal.
    places = np.geomspace(1, len(clock), _POINTS).round().astype(int) - 1
    return [clock[place] for place in np.unique(places)]


def make_our_curves(how: How, way: Way, clocked: ClockedScores) -> Iterator[Curve]:
    """Yields a curve of proven epsilon over time for each method that a way shows.

    A point of a curve belongs to a reading of the clock, and is the bound that the runs prove that were
    trained by then. Where all runs are too few for the methods, no curve is yielded.

    Args:
      how: The user's choices.
      way: The way of auditing.
      clocked: The scores of its runs, and the readings of the clock.
    """
    setting = how.setting(way)
    conclusions = {}  # by reading; a conclusion has the bounds of all methods
    for reading in _choose_readings(clocked.clock):
        first = clocked.scores.of_first(reading.runs)
        try:
            conclusions[reading] = conclude_setting(
                first, setting, Level(how.delta, how.confidence)
            )
        except InputError:  # raised where there are too few runs for the methods
            continue
    if not conclusions:
        return

    for method in way.shown:
        bounds = [conclusion.bound(method) for conclusion in conclusions.values()]
        # From all runs: it shows best whether the scores refute what the method assumes.
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


def find_refutations(how: How, fresh: ClockedScores) -> list[TimedRefutation]:
    """Returns when fresh directions refute claims of more noise than the training has.

    There is a claim for each share in _NOISE_SHARES: its noise multiplier is the training's over the share.
    The test of a claim bets on the runs in their order, so that it may be looked at after each of them.

    Args:
      how: The user's choices.
      fresh: The scores of runs with fresh directions, and the readings of the clock.
    """
    setting = how.setting(FRESH)
    level = Level(how.delta, how.confidence)
    refutations = []
    for share in _NOISE_SHARES:
        claimed_noise = setting.mechanism.noise_multiplier / share
        claim = DpSgd(claimed_noise, setting.schedule.steps)
        test = conclude(fresh.scores.directions(), claim, level).claim_test
        # There is no test where the scores contradict what it assumes of canaries that are out.
        reading = None
        if test is not None and test.refuted:
            # `test.runs` is the number of runs after which the claim was refuted. The clock was read only at
            # the end of stages, so that the time is that of the first reading with as many runs.
            reading = next(reading for reading in fresh.clock if reading.runs >= test.runs)
        refutations.append(TimedRefutation(share, reading))
    return refutations


def make_one_run_curves(how: How, clocked: ClockedScores) -> Iterator[Curve]:
    """Yields a curve of a single point for each of our bounds on a single run.

    Args:
      how: The user's choices.
      clocked: The scores of a single run with many canaries.
    """
    # False: the exact law of a cosine without its canary is not used. All bounds then come from the coins.
    (conclusion,) = conclude_each_run(
        clocked.scores,
        clocked.parameters,  # the dimension of the canaries' directions
        law_holds=False,
        level=Level(how.delta, how.confidence),
    )
    seconds = clocked.clock[0].seconds  # the single reading
    for bound in conclusion.bounds:
        yield Curve(
            ONCE.name, "ours", bound.method, bound.assumes.word, (seconds,), (1,), (bound.epsilon,)
        )


def make_peer_curves(
    how: How, engine: Measurement, single: ClockedScores, once: ClockedScores
) -> Iterator[Curve]:
    """Yields a curve for each published estimator, for users who train with a peer's engine.

    The scores are ours; only the speed is the engine's. The engine trains several models at once, here called
    a batch. All models of a batch end together, so that runs come in multiples of a batch.

    Args:
      how: The user's choices.
      engine: The measurement of the engine's speed, in model-steps a second.
      single: The scores of runs with a single canary each.
      once: The scores of a single run with many canaries.
    """
    models_at_once = engine.about.models * engine.processes
    steps = how.setting(SINGLE).schedule.steps
    batch_seconds = models_at_once * steps / engine.rate()

    # Readings of a clock at the end of each batch, as far as the time limit and the runs that we trained go.
    batches_in_time = int(how.limit // batch_seconds)
    trained_runs = len(single.scores.scores)
    most_runs = min(batches_in_time * models_at_once, trained_runs)
    batch_ends = []
    for batch in range(1, most_runs // models_at_once + 1):
        batch_ends.append(Reading(batch_seconds * batch, models_at_once * batch))
    run_counts = [reading.runs for reading in _choose_readings(batch_ends)]

    for estimator in _list_published():
        if estimator.design == ONE_RUN:
            yield _make_peer_curve(how, engine, estimator, ONCE, once.scores, [1], batch_seconds)
        elif run_counts:  # there are none where a single batch takes too long, or has too many runs
            yield _make_peer_curve(
                how, engine, estimator, SINGLE, single.scores, run_counts, batch_seconds
            )


def _list_published() -> list[Estimator]:
    """Returns the estimators of _PUBLISHED whose packages are installed."""
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
    """Returns the curve of a published estimator, for users who train with a peer's engine.

    Args:
      how: The user's choices.
      engine: The measurement of the engine.
      estimator: The published estimator.
      way: The way of auditing that made the scores.
      scores: The scores; a point uses those of the first runs.
      run_counts: The number of runs at each point.
      batch_seconds: The seconds in which the engine trains a batch of models at once.
    """
    models_at_once = engine.about.models * engine.processes
    seconds = []
    epsilons = []
    for runs in run_counts:
        batches = -(-runs // models_at_once)  # rounded up: a lone run takes as long as a batch
        seconds.append(batches * batch_seconds)
        first = scores.of_first(runs)
        coins = Coins(first.scores, first.presence)
        # The reason of a refusal is dropped: its epsilon is 0.
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
    """Returns a table with the last point of each curve, and below it where fresh directions' time went.

    A column has a key (its name in CSV and JSON), a value, a heading, a format and a width. Columns without a
    key are in the text alone, columns without a heading in CSV and JSON alone.
    """
    columns = (
        # For people.
        Column(None, attrgetter("way"), "canaries", width=17, left=True),
        Column(None, _shorten_method, "estimator", width=27, left=True),
        Column(None, _last_trainings, "runs", number(","), 5),
        Column(None, lambda curve: _last_seconds(curve) / 60, "minutes", number(".2f"), 7),
        Column(None, lambda curve: at_least(_last_epsilon(curve)), "epsilon", width=7),
        Column(None, attrgetter("assumes"), "assumes", left=True),
        # For files.
        Column("engine", attrgetter("engine")),
        Column("way", attrgetter("way")),
        Column("method", attrgetter("method")),
        Column("seconds", _last_seconds),
        Column("trainings", _last_trainings),
        Column("epsilon", _last_epsilon),
        Column("assumes", attrgetter("assumes")),
    )
    title = f"{how.model}: epsilon proven at {Level(how.delta, how.confidence)}"
    # The widths put the bound below the column epsilon.
    upper_bound = f"{'upper bound':<17} {'accounting':<41} {at_most(how.upper_bound()):>7}"
    after = (
        *("-" * 80, upper_bound, ""),
        *(*_describe_refutations(proofs), ""),
        *(*_describe_time(proofs), _describe_machine(proofs)),
    )
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
    """Returns the time of a curve's last point, in seconds."""
    return curve.seconds[-1]


def _last_trainings(curve: Curve) -> int:
    """Returns the number of runs at a curve's last point."""
    return curve.trainings[-1]


def _last_epsilon(curve: Curve) -> float:
    """Returns the epsilon at a curve's last point."""
    return curve.epsilons[-1]


def _shorten_method(curve: Curve) -> str:
    """Returns the method's name without the package's, which stands before a colon."""
    return curve.method.split(": ")[-1]


def _name_trainer(curve: Curve) -> str:
    """Returns the heading above a curve's row, which says at whose speed the models are trained."""
    if curve.engine == "ours":
        return "this tool"
    return f"at {curve.engine}'s speed, without its start-up"


def _split_time(proofs: Proofs) -> dict[str, float]:
    """Returns the parts of the time that the audit by fresh directions took, in seconds, by name.

    They add up to the total. The time of DP-SGD's own steps is an estimate: the number of model-steps over
    the measured speed of our engine. The rest of the training time goes to directions and scores.
    """
    fresh = proofs.fresh
    total = fresh.clock[-1].seconds
    own_steps = fresh.model_steps / _find_our_rate(proofs.engines)
    return {
        "start-up": fresh.ready,
        "compilation and rehearsal": total - fresh.ready - fresh.training,
        "DP-SGD's own steps": own_steps,
        "directions and scores": fresh.training - own_steps,
    }


def _describe_refutations(proofs: Proofs) -> list[str]:
    """Returns lines that say after how long fresh directions refute claims of more noise."""
    lines = ["When fresh directions refute a claim of more noise than there is:"]
    for refutation in proofs.refutations:
        when = "not in this time"
        if refutation.reading is not None:
            seconds, runs = refutation.reading
            when = f"after {seconds / 60:.2f} minutes, {runs:,} trainings"
        lines.append(f"  {refutation.noise_share:g} of the stated noise: {when}")
    return lines


def _describe_time(proofs: Proofs) -> list[str]:
    """Returns lines that say what the audit by fresh directions spent its time on, in seconds and shares."""
    total = proofs.fresh.clock[-1]
    lines = [
        f"Where the {total.seconds:.0f} seconds of fresh directions went, {total.runs:,} trainings:"
    ]
    for name, seconds in _split_time(proofs).items():
        lines.append(f"  {name:<26} {seconds:6.1f} s {seconds / total.seconds:5.0%}")
    return lines


def _describe_machine(proofs: Proofs) -> str:
    """Returns a line on the speed of a product of matrices, and the share that each engine reaches of it."""
    shares = ", ".join(f"{engine.engine} {engine.gemm_share():.0%}" for engine in proofs.engines)
    gemm = _find_gemm_rate(proofs) / 1e9
    return f"GEMM: {gemm:,.0f} GFLOP/s on {cores()} cores, of which training takes: {shares}"


def _find_gemm_rate(proofs: Proofs) -> float:
    """Returns this machine's speed at multiplying matrices, in floating-point operations a second.

    It is the median over all engines and rounds: each round times a product of matrices beside an engine.
    """
    rates: list[float] = []
    for engine in proofs.engines:
        rates.extend(engine.gemm)
    return float(np.median(rates))


def as_json(how: How, proofs: Proofs) -> str:
    """Returns all results as the text of a JSON object.

    It holds the user's choices of model, seed, delta and confidence, and the accountant's upper bound on
    epsilon. The results are the methods' curves, the engines' speeds, when fresh directions refute claims of
    more noise, and the parts of the time that the audit by fresh directions took.
    """
    content: dict[str, Any] = {
        "model": how.model,
        "seed": how.seed,
        "delta": how.delta,
        "confidence": how.confidence,
        "upper_bound": how.upper_bound(),
        "curves": [curve._asdict() for curve in proofs.curves],
        "engines": [engine.fields() for engine in proofs.engines],
        "refutations": [_list_fields(refutation) for refutation in proofs.refutations],
        "parts": _split_time(proofs),
    }
    return write_json(content, indent=1)


def _list_fields(refutation: TimedRefutation) -> dict[str, Any]:
    """Returns a refutation's fields for JSON; seconds and trainings are null where there is none."""
    fields: dict[str, Any] = {
        "noise_share": refutation.noise_share,
        "seconds": None,
        "trainings": None,
    }
    if refutation.reading is not None:
        fields["seconds"], fields["trainings"] = refutation.reading
    return fields


_LINES = {  # the colour and the line style of our methods and of the peers' engines
    EXACT_NULL: (FREE, "-"),
    EXACT_NULL_GDP: (FREE, "--"),
    ASSUMPTION_FREE: (BLUE, "-"),
    IF_GAUSSIAN: (BLUE, "--"),
    LIFTED: (GREEN, "-"),
    "jax_privacy": (VERMILION, "-"),
    "opacus": (PURPLE, "-"),
}
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)  # minutes


def proof_figure(how: How, proofs: Proofs) -> Figure:
    """Draws the proven epsilon over minutes: a line for each method, or a mark for a single run."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7, 5.4))
        for curve in proofs.curves:
            _draw_curve(axis, curve)
        axis.axhline(how.upper_bound(), color=UPPER, ls=":", label="upper bound (accounting)")
        _draw_refutations(axis, proofs.refutations)
        axis.set(xscale="log", xlabel="minutes from the start", ylim=(0, None))
        axis.set_ylabel(f"epsilon proven at delta {show_level(how.delta)}")

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


def _draw_refutations(axis: Axes, refutations: Sequence[TimedRefutation]) -> None:
    """Draws a vertical line at each time at which a claim is refuted, labelled by the shares of its noise.

    Claims that are refuted at the same reading of the clock share a line.
    """
    shares: dict[float, list[str]] = {}  # by the minutes
    for refutation in refutations:
        if refutation.reading is not None:
            minutes = refutation.reading.seconds / 60
            shares.setdefault(minutes, []).append(f"{refutation.noise_share:g}")
    label = "refuted by fresh directions: noise is this share of the claimed"
    for minutes, texts in shares.items():
        axis.axvline(minutes, color=FREE, ls=(0, (1, 2)), lw=1, zorder=0, label=label)
        label = ""  # in the legend only once
        axis.annotate(
            ", ".join(texts),
            (minutes, 0),
            xytext=(2, 3),
            textcoords="offset points",
            fontsize=8,
            color=FREE,
            rotation=90,
        )


def _draw_curve(axis: Axes, curve: Curve) -> None:
    """Draws the curve of a method's proven epsilon over minutes; that of a single run is a mark alone.

    Marks are hollow where the method assumes more than fair coins, or where its assumption is refuted.
    """
    is_ours = curve.engine == "ours"
    is_lone_run = curve.way == ONCE.name
    method = _shorten_method(curve)
    label = f"{curve.way}: {method} (assumes {curve.assumes})"
    # Our curves differ in colour by method, those at a peer's speed by engine. A method or engine without an
    # entry has orange marks and no line ("").
    if is_ours:
        color, line = _LINES.get(curve.method, (ORANGE, ""))
    else:
        color, line = _LINES.get(curve.engine, (ORANGE, ""))
        label = f"{curve.engine}, {label}"
    if curve.assumes == _REFUTED:  # the curve proves nothing
        color = FADED

    marker = "o"
    if is_lone_run:  # a single point, which needs no line
        line = ""
        marker = "s" if is_ours else "D"
    is_hollow = curve.assumes not in ("nothing", "fair coins")
    axis.plot(
        [seconds / 60 for seconds in curve.seconds],
        curve.epsilons,
        color=color,
        ls=line,
        marker=marker,
        mfc="white" if is_hollow else None,  # the marker's face
        ms=4,
        label=label,
    )
