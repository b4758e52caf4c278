"""Each method on the mechanism: trained or measured once, kept, and read into rows.

Bounds are those that the method's own command prints. CANIFE's values are composed without amplification,
since the mini-batches are known: as published through Renyi DP, and the exact laws of its canaries' scores as
Gaussian curves.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit import progress, training
from audit.report import methods, over_runs
from audit.settings import build, stored
from audit.settings.make import setting_of
from audit.settings.setting import Setting
from audit.statistics import conversions, names, rounds
from audit.statistics.accounting import Composition, epsilon_upper_bound
from audit.statistics.conclusion import conclude_design
from audit.statistics.estimate import ASSUMPTION_FREE, IF_GAUSSIAN
from audit.statistics.rounds import Charge
from audit.storage.scores import Scores
from audit.task import Dataset
from experiments.canife import curves as canife_curves
from experiments.canife import training as canife_training
from experiments.canife.attacked import Attacked
from experiments.compare.compared import Compared

COORDINATES, DIRECTIONS = 64, 32  # canaries a run
FINAL, ALL = "final model", "every iterate"
ESTIMATE = "(no bound)"


class Compare(NamedTuple):
    """What is compared, on which data, and where results are kept."""

    compared: Compared
    dataset: Dataset
    out: Path


class ComparedRow(NamedTuple):
    """A method's value: what it sees, models trained, seconds spent on them (None: they were kept), epsilon
    at delta, and what a bound assumes, or that it is none."""

    method: str
    value: str
    sees: str
    runs: int
    seconds: float | None
    epsilon: float
    assumes: str

    @property
    def is_bound(self) -> bool:
        """Whether it is a lower bound at the confidence."""
        return self.assumes != ESTIMATE


class _Trained(NamedTuple):
    """All scores of an audit and the seconds that they took now, None where they were kept."""

    scores: Scores
    seconds: float | None


Method = Callable[[Compare], Iterator[ComparedRow]]


def upper_bound(compared: Compared) -> float:
    """The accountant's epsilon."""
    return epsilon_upper_bound(compared.noise_multiplier, compared.steps, compared.delta)


def hidden_state_single(asked: Compare) -> Iterator[ComparedRow]:
    """GC-S, one canary a run."""
    setting, runs = _setting(asked.compared, "gc_s"), asked.compared.single_runs
    yield from _bounds(asked, "hidden state", setting, runs, (IF_GAUSSIAN, ASSUMPTION_FREE))


def hidden_state_many(asked: Compare) -> Iterator[ComparedRow]:
    """GC-R, many canaries a run."""
    setting = _setting(asked.compared, "gc_r", canaries=COORDINATES)
    wanted = names.LIFTED_GAUSSIAN, names.CLUSTERED, names.LIFTED
    yield from _bounds(asked, f"hidden state, K = {COORDINATES}", setting, asked.compared.many_runs, wanted)


def lidp(asked: Compare) -> Iterator[ComparedRow]:
    """Random directions, by the LiDP paper's intervals of order 2."""
    setting = _setting(asked.compared, "cots", canaries=DIRECTIONS)
    wanted = "lidp_wilson_2", "lidp_bernstein_2"
    yield from _bounds(asked, f"LiDP, K = {DIRECTIONS}", setting, asked.compared.lidp_runs, wanted)


def one_shot_final(asked: Compare) -> Iterator[ComparedRow]:
    """One run, its final model's cosines."""
    yield from _one_run(asked, "one-shot, final", "final", FINAL)


def one_shot_all(asked: Compare) -> Iterator[ComparedRow]:
    """One run, the largest cosine over its steps."""
    yield from _one_run(asked, "one-shot, all", "all", ALL)


def canife(asked: Compare) -> Iterator[ComparedRow]:
    """Designed canaries in some frozen steps, composed over all."""
    compared, begin = asked.compared, time.perf_counter()
    attacked = Attacked(
        model=compared.model,
        rounds=compared.steps,
        every=-(-compared.steps // compared.measured_rounds),
        cohort=compared.batch_size,
        learning_rate=compared.learning_rate,
        clipping_norm=compared.clipping_norm,
        noise_multiplier=compared.noise_multiplier,
        design_steps=compared.design_steps,
        delta=compared.delta,
        seed=compared.seed,
    )
    attacked, known, folder = canife_training.prepared(attacked, asked.out)
    kept = canife_training.kept(attacked, folder)
    missing = len(attacked.measured()) - len(kept)
    kept |= {one.number: one for one in canife_training.measure_missing(attacked, known, folder)}
    seconds = time.perf_counter() - begin if missing else None
    rows = [canife_curves.row(attacked, kept[number]) for number in attacked.measured()]
    counts = rounds.forward(attacked.measured(), attacked.rounds)
    sigma, then = attacked.noise_multiplier, 1 / attacked.scores

    noises = [rounds.renyi_charge(one.published.estimate.epsilon, then, sigma) for one in rows]
    charges = [Charge(noise, 1.0, count) for noise, count in zip(noises, counts, strict=True)]
    published = rounds.composed(charges, compared.delta)
    yield ComparedRow("CANIFE", "as published", ALL, 1, seconds, published, ESTIMATE)
    mus = [conversions.mu_from_epsilon(one.measured.exact, compared.delta) for one in rows]
    mu = float(np.sqrt(np.dot(counts, np.square(mus))))
    exact = conversions.epsilon_from_mu(mu, compared.delta)
    yield ComparedRow("CANIFE", "exact laws", ALL, 1, seconds, exact, ESTIMATE)


METHODS: tuple[Method, ...] = (
    hidden_state_single,
    hidden_state_many,
    lidp,
    one_shot_final,
    one_shot_all,
    canife,
)


def _setting(compared: Compared, adversary: str, **fields: Any) -> Setting:
    """The mechanism's setting under one adversary."""
    return setting_of(
        compared.model,
        adversary=adversary,
        steps=compared.steps,
        batch_size=compared.batch_size,
        learning_rate=compared.learning_rate,
        clipping_norm=compared.clipping_norm,
        noise_multiplier=compared.noise_multiplier,
        seed=compared.seed,
        **fields,
    )


def _train(asked: Compare, setting: Setting, runs: int) -> _Trained:
    """Trains what is missing and reads all."""
    begin = time.perf_counter()
    build.validate(setting, max(runs, 2))  # one run of many canaries has both worlds
    played = build.build(setting, asked.dataset)
    store = stored.open_store(asked.out, setting, asked.dataset)
    missing = training.lacking(store, runs)
    with progress.bar(missing) as line:
        trained = training.train(played, store, runs, progress=line)
    return _Trained(trained.scores, time.perf_counter() - begin if missing else None)


def _bounds(
    asked: Compare, method: str, setting: Setting, runs: int, wanted: tuple[str, ...]
) -> Iterator[ComparedRow]:
    """Rows of bounds from many runs."""
    compared, trained = asked.compared, _train(asked, setting, runs)
    composition = Composition(*setting.composition)
    found = conclude_design(trained.scores.design(), composition, compared.delta, compared.confidence)
    for name in wanted:
        bound = found.bound(name)
        yield ComparedRow(method, name, FINAL, runs, trained.seconds, bound.epsilon, methods.assumes(bound))


def _one_run(asked: Compare, method: str, observe: str, sees: str) -> Iterator[ComparedRow]:
    """Rows of one run with many canaries."""
    compared = asked.compared
    setting = _setting(compared, "one_shot", canaries=compared.one_run_canaries, observe=observe)
    trained = _train(asked, setting, 1)
    dimension = build.trainee(compared.model, asked.dataset).model.n_parameters
    known = observe == "final"
    (found,) = over_runs.conclusions(trained.scores, dimension, known, compared.delta, compared.confidence)
    for estimate in found.estimates:
        if estimate.method in (names.ONE_SHOT_FITTED, names.ONE_SHOT_EQUAL_VARIANCE):
            yield ComparedRow(method, estimate.method, sees, 1, trained.seconds, estimate.epsilon, ESTIMATE)
    for bound in found.bounds:
        assumes = "Gaussian" if bound.mu is not None else bound.assumes
        yield ComparedRow(method, bound.method, sees, 1, trained.seconds, bound.epsilon, assumes)
