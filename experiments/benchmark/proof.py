"""The epsilon that ways of auditing prove of one mechanism, against the seconds that they take."""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tqdm import tqdm

from audit import processes
from audit.concluded import of_each_run, of_setting
from audit.errors import InputError
from audit.machine import cores, prepare_jax
from audit.report.style import BLUE, FADED, FREE, GREEN, ORANGE, PURPLE, STYLE, UPPER, VERMILION
from audit.report.table import Column, Table, at_least, at_most, number
from audit.settings import stored
from audit.settings.make import setting_of
from audit.settings.setting import MOST_RUNS, Setting
from audit.statistics import accounting
from audit.statistics.conclusion import assumption_of
from audit.statistics.estimate import ASSUMPTION_FREE, IF_GAUSSIAN
from audit.statistics.exact_null import EXACT_NULL
from audit.statistics.lifted import LIFTED
from audit.storage.store import Scores
from audit.task import Sources
from experiments.benchmark import peers
from experiments.benchmark.contract import ONE_RUN, AuditScores
from experiments.engine.engines import TIMED
from experiments.engine.measurement import Measurement, measure
from models.catalogue import task

_POINTS = 12  # of a curve, at times of a constant ratio
_COORDINATES, _ONE_RUN_CANARIES = 64, 2000
_STAGE_SECONDS = 5.0  # of training between two looks at the clock
PEERS = ("jax_privacy", "opacus")  # engines whose users' minutes are shown
_PUBLISHED = ("jax-privacy: clopper_pearson, MultiSplit", "jax-privacy: one_run, Split", "opake: eps_delta")


class How(NamedTuple):
    """What is audited, and how. limit: seconds for each of our ways; peers: of PEERS; rounds, seconds: in
    which engines are timed."""

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
        """DP-SGD with the way's canaries in every step."""
        return setting_of(self.model, adversary=way.adversary, canaries=way.canaries, k=1, seed=self.seed)

    def upper_bound(self) -> float:
        """The accountant's epsilon."""
        setting = self.setting(SINGLE)
        insertions = setting.schedule.steps
        return accounting.epsilon_upper_bound(setting.mechanism.noise_multiplier, insertions, self.delta)


class Way(NamedTuple):
    """How we audit: by which canaries, and the bounds that are shown; () of a single run of many canaries."""

    name: str
    adversary: str
    canaries: int | str
    shown: tuple[str, ...]


FRESH = Way("fresh directions", "sphere", "auto", (EXACT_NULL,))
SINGLE = Way("one canary a run", "gc_r", 1, (IF_GAUSSIAN, ASSUMPTION_FREE))
MANY = Way(f"{_COORDINATES} canaries a run", "gc_r", _COORDINATES, (LIFTED,))
ONCE = Way("one run alone", "one_shot", _ONE_RUN_CANARIES, ())


class Clocked(NamedTuple):
    """Scores, and how many runs there were after how many seconds from the process's start.

    ready: seconds till data were read and the game was built. training: seconds of steps, with what is drawn
    for them and the scores, but without compilation; model_steps: how many. parameters: of the model.
    """

    scores: Scores
    clock: tuple[tuple[float, int], ...]
    ready: float
    training: float
    model_steps: int
    parameters: int


class Curve(NamedTuple):
    """What a method proves: epsilons after so many seconds and trainings. assumes: in a word, or that these
    scores refute it."""

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
    fresh: Clocked


def measured(how: How) -> Proofs:
    """Times the engines, trains by each of our ways in a process of its own, and concludes; says on stderr
    what it is at. Raises InputError where the data can't be had, or an engine fails."""
    kinds = [k for k in TIMED[how.model].work.kinds if k.name in ("ours", *how.peers) and k.is_installed()]
    engines = measure(how.model, kinds, how.rounds, how.seconds, how.sources)
    rate, clocked = _our_rate(engines), {}
    for way in (FRESH, SINGLE, MANY, ONCE):
        print(f"{way.name} ...", file=sys.stderr)
        clocked[way] = processes.apart(partial(_train_on_clock, how, way, rate, time.monotonic()))
    curves = [curve for way in (FRESH, SINGLE, MANY) for curve in _ours(how, way, clocked[way])]
    curves += _of_one_run(how, clocked[ONCE])
    for engine in engines:
        if engine.engine in how.peers:
            curves += _theirs(how, engine, clocked[SINGLE], clocked[ONCE])
    return Proofs(curves, engines, clocked[FRESH])


def _our_rate(engines: Sequence[Measurement]) -> float:
    (rate,) = (engine.rate() for engine in engines if engine.engine == "ours")
    return rate


def _train_on_clock(how: How, way: Way, rate: float, begun: float) -> Clocked:
    """Trains stage by stage until time is up, in a process that was begun at that moment."""
    prepare_jax()
    from audit.settings import build
    from experiments.cells.audits import recipe
    from experiments.cells.work import LocalTrainer, Wanted

    setting = how.setting(way)
    dataset = task(how.model).data.load(how.sources)
    trainer = LocalTrainer(recipe(setting, MOST_RUNS, dataset), dataset)
    wanted = int(_STAGE_SECONDS * rate / setting.schedule.steps) // cores() * cores()
    stage = trainer.stage(max(wanted, cores())) if way.shown else 1
    parameters, ready = build.trainee(how.model, dataset).model.n_parameters, time.monotonic() - begun
    clock, done = list[tuple[float, int]](), []
    with tempfile.TemporaryDirectory() as folder, tqdm(unit=" runs", leave=False) as bar:
        store = stored.open_store(Path(folder), setting, dataset)
        while not clock or (way.shown and clock[-1][0] < how.limit):
            runs = stage * (len(clock) + 1)
            done.append(trainer.train(Wanted(store, runs, stage, stage, lambda runs: None)))
            clock.append((time.monotonic() - begun, runs))
            bar.update(stage)
    training = sum(one.seconds for one in done), sum(one.model_steps for one in done)
    return Clocked(done[-1].scores, tuple(clock), ready, *training, parameters)


def _looks(clock: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """The first and the last of the clock, and some between them."""
    places = np.geomspace(1, max(len(clock), 1), _POINTS if clock else 0).round().astype(int) - 1
    return [clock[place] for place in np.unique(places)]


def _ours(how: How, way: Way, clocked: Clocked) -> Iterator[Curve]:
    setting, found = how.setting(way), {}
    for look in _looks(clocked.clock):
        try:
            found[look] = of_setting(clocked.scores.of_first(look[1]), setting, how.delta, how.confidence)
        except InputError:  # too few runs for the methods
            continue
    for name in way.shown if found else ():
        bounds = [conclusion.bound(name) for conclusion in found.values()]
        word = assumption_of(bounds[-1]).word if bounds[-1].holds else "REFUTED"
        seconds, trainings = zip(*found, strict=True)
        yield Curve(way.name, "ours", name, word, seconds, trainings, tuple(b.epsilon for b in bounds))


def _of_one_run(how: How, clocked: Clocked) -> Iterator[Curve]:
    (found,) = of_each_run(clocked.scores, clocked.parameters, False, how.delta, how.confidence)
    for bound in found.bounds:
        word = "Gaussian" if bound.gaussian else bound.canaries.word
        yield Curve(ONCE.name, "ours", bound.method, word, (clocked.clock[0][0],), (1,), (bound.epsilon,))


def _theirs(how: How, engine: Measurement, single: Clocked, once: Clocked) -> Iterator[Curve]:
    """What published estimators prove of the models that an engine trains in that time."""
    width = engine.about.models * engine.processes
    batch = width * how.setting(SINGLE).schedule.steps / engine.rate()  # seconds until `width` models end
    most = min(int(how.limit // batch) * width, len(single.scores.scores))
    counts = [count for _, count in _looks([(0.0, width * (i + 1)) for i in range(most // width)])]
    levels = how.delta, how.confidence
    for one in (one for one in peers.ESTIMATORS if one.name in _PUBLISHED and find_spec(one.module)):
        way, scores, at = (
            (ONCE, once.scores, [1]) if one.design == ONE_RUN else (SINGLE, single.scores, counts)
        )
        proven = {}
        for runs in at:
            first = scores.of_first(runs)
            proven[runs] = _epsilon(one.epsilon, AuditScores(first.scores, first.presence), *levels)
        seconds = tuple(-(-runs // width) * batch for runs in at)
        if at:
            word = "fair coins" if one.design == ONE_RUN else "nothing"
            yield Curve(way.name, engine.engine, one.name, word, seconds, tuple(at), tuple(proven.values()))


def _epsilon(estimator: Callable[..., float], *args: Any) -> float:
    """What it proves; 0 where it refuses, as of few scores or of one world."""
    try:
        return estimator(*args)
    except Exception:
        return 0.0


def proof_table(how: How, found: Proofs) -> Table[Curve]:
    """A row a method at its end; below, where the time of fresh directions goes."""
    shown = (
        Column(None, lambda c: c.way, "canaries", width=17, left=True),
        Column(None, _short, "estimator", width=27, left=True),
        Column(None, lambda c: c.trainings[-1], "runs", number(","), 5),
        Column(None, lambda c: c.seconds[-1] / 60, "minutes", number(".2f"), 7),
        Column(None, lambda c: at_least(c.epsilons[-1]), "epsilon", width=7),
        Column(None, lambda c: c.assumes, "assumes", left=True),
        *(Column(name, attrgetter(name)) for name in ("engine", "way", "method")),
        Column("seconds", lambda c: c.seconds[-1]),
        Column("trainings", lambda c: c.trainings[-1]),
        Column("epsilon", lambda c: c.epsilons[-1]),
        Column("assumes", lambda c: c.assumes),
    )
    title = f"{how.model}: epsilon proven at delta {how.delta:g}, confidence {how.confidence:g}"
    bound = f"{'upper bound':<17} {'accounting':<41} {at_most(how.upper_bound()):>7}"
    after = ("-" * 80, bound, "", *_profile(found), _machine(found))
    return Table(*(shown, found.curves), section=_trained_by, before=(title,), after=after, gap=" ", rule=80)


def _short(curve: Curve) -> str:
    return curve.method.split(": ")[-1]


def _trained_by(curve: Curve) -> str:
    return "this tool" if curve.engine == "ours" else f"at {curve.engine}'s speed, without its start-up"


def _parts(found: Proofs) -> dict[str, float]:
    """Seconds of fresh directions, by what they go into."""
    fresh = found.fresh
    steps = fresh.model_steps / _our_rate(found.engines)
    return {
        "start-up": fresh.ready,
        "compilation and rehearsal": fresh.clock[-1][0] - fresh.ready - fresh.training,
        "DP-SGD's own steps": steps,
        "directions and scores": fresh.training - steps,
    }


def _profile(found: Proofs) -> list[str]:
    seconds, runs = found.fresh.clock[-1]
    lines = [f"Where the {seconds:.0f} seconds of fresh directions went, {runs:,} trainings:"]
    return lines + [
        f"  {name:<26} {part:6.1f} s {part / seconds:5.0%}" for name, part in _parts(found).items()
    ]


def _machine(found: Proofs) -> str:
    shares = ", ".join(f"{e.engine} {e.gemm_share():.0%}" for e in found.engines)
    return f"GEMM: {_gemm(found) / 1e9:,.0f} GFLOP/s on {cores()} cores, of which training takes: {shares}"


def _gemm(found: Proofs) -> float:
    return float(np.median([value for engine in found.engines for value in engine.gemm]))


def as_json(how: How, found: Proofs) -> str:
    """One object: what was audited, the curves, the engines, the parts of fresh directions' seconds."""
    said = {name: getattr(how, name) for name in ("model", "seed", "delta", "confidence")}
    curves, engines = [curve._asdict() for curve in found.curves], [one.fields() for one in found.engines]
    more = {"upper_bound": how.upper_bound(), "curves": curves, "engines": engines, "parts": _parts(found)}
    return json.dumps({**said, **more}, indent=1)


_COLORS = {
    EXACT_NULL: (FREE, "-"),
    ASSUMPTION_FREE: (BLUE, "-"),
    IF_GAUSSIAN: (BLUE, "--"),
    LIFTED: (GREEN, "-"),
    "jax_privacy": (VERMILION, "-"),
    "opacus": (PURPLE, "-"),
}


def proof_figure(how: How, found: Proofs) -> Figure:
    """Epsilon over minutes, a line a method; a lone run's as a mark."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7, 4.6))
        for curve in found.curves:
            own = curve.engine == "ours"
            color, line = _COLORS.get(curve.method if own else curve.engine, (ORANGE, ""))
            once = curve.way == ONCE.name
            who = "" if own else f"{curve.engine}, "
            axis.plot(
                *([seconds / 60 for seconds in curve.seconds], curve.epsilons),
                color=FADED if curve.assumes == "REFUTED" else color,
                ls="" if once else line,
                marker=("s" if own else "D") if once else "o",
                mfc="white" if curve.assumes not in ("nothing", "fair coins") else None,
                ms=4,
                label=f"{who}{curve.way}: {_short(curve)} (assumes {curve.assumes})",
            )
        axis.axhline(how.upper_bound(), color=UPPER, ls=":", label="upper bound (accounting)")
        axis.set(xscale="log", xlabel="minutes from the start", ylim=(0, None))
        axis.set_ylabel(f"epsilon proven at delta {how.delta:g}")
        ticks = [
            t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60) if axis.get_xlim()[0] <= t <= axis.get_xlim()[1]
        ]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        machine = f"{cores()} cores, a product of matrices at {_gemm(found) / 1e9:,.0f} GFLOP/s"
        figure.suptitle(f"Time to proof: {how.model}, a canary in every step; {machine}", fontsize=10)
        figure.legend(loc="outside lower center", ncols=1, fontsize=8)
        return figure
