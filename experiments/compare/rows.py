"""Each method's scores as rows, trained or measured once and kept.

Bounds are those that the method's own command prints. CANIFE's values are composed without amplification,
since the mini-batches are known: as published through Renyi DP, and the exact laws of its canaries' scores as
Gaussian curves.
"""

import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from audit import progress, training
from audit.concluded import of_each_run, of_setting
from audit.settings import build
from audit.statistics import conversions, one_shot, rounds
from audit.statistics.conclusion import assumption_of
from audit.statistics.rounds import Charge
from audit.storage.store import Scores
from experiments.canife import curves as canife_curves
from experiments.canife import training as canife_training
from experiments.canife.attacked import Attacked
from experiments.cells import work
from experiments.cells.work import Workplace
from experiments.compare.compared import ALL, FINAL, Compared, TrainedMethod, trained

ESTIMATE, REFUTED = "(no bound)", "REFUTED"


class ComparedRow(NamedTuple):
    """A method's value: what it sees, models trained, seconds spent on them (None: they were kept), epsilon
    at delta, and what a bound assumes, that its scores refute that, or that it is none."""

    method: str
    value: str
    sees: str
    runs: int
    seconds: float | None
    epsilon: float
    assumes: str

    @property
    def is_bound(self) -> bool:
        """Whether it is a lower bound at the confidence, as far as its scores tell."""
        return self.assumes not in (ESTIMATE, REFUTED)


def rows(compared: Compared, place: Workplace) -> list[ComparedRow]:
    """All methods' rows, those first that see the final model alone; says on stderr what it is at."""
    found: list[ComparedRow] = []
    for one in trained(compared):
        print(f"{one.method} ...", file=sys.stderr)
        found += (_many_runs if one.shown else _one_run)(compared, one, place)
    print("CANIFE ...", file=sys.stderr)
    found += _canife(compared, place)
    return sorted(found, key=lambda row: row.sees != FINAL)


def _trained(one: TrainedMethod, place: Workplace) -> tuple[Scores, float | None]:
    begin, cell = time.perf_counter(), one.cell()
    store = cell.open(place.out, place.data)
    missing = 0 if work.is_done(cell, place) else training.lacking(store, one.runs)
    if missing:
        with progress.bar(missing) as line:
            cell.do(store, place.data, line)
    return store.load(one.runs), time.perf_counter() - begin if missing else None


def _many_runs(compared: Compared, one: TrainedMethod, place: Workplace) -> Iterator[ComparedRow]:
    scores, seconds = _trained(one, place)
    conclusion = of_setting(scores, one.setting, compared.delta, compared.confidence)
    found = []
    for bound in map(conclusion.bound, one.shown):
        assumed = assumption_of(bound)
        word = REFUTED if assumed.gaussian and conclusion.refutes_gaussian else assumed.word
        found.append(ComparedRow(one.method, bound.method, one.sees, one.runs, seconds, bound.epsilon, word))
    yield from sorted(found, key=lambda row: row.assumes == REFUTED)


def _one_run(compared: Compared, one: TrainedMethod, place: Workplace) -> Iterator[ComparedRow]:
    scores, seconds = _trained(one, place)
    dimension = build.trainee(compared.model, place.data.load(compared.model)).model.n_parameters
    levels = compared.delta, compared.confidence
    (found,) = of_each_run(scores, dimension, one.sees == FINAL, *levels)
    for row in found.estimates:
        if row.method in (one_shot.ONE_SHOT_FITTED, one_shot.ONE_SHOT_EQUAL_VARIANCE):
            yield ComparedRow(one.method, row.method, one.sees, 1, seconds, row.epsilon, ESTIMATE)
    for bound in found.bounds:
        assumes = "Gaussian" if bound.gaussian else bound.canaries.word
        yield ComparedRow(one.method, bound.method, one.sees, 1, seconds, bound.epsilon, assumes)


def _canife(compared: Compared, place: Workplace) -> Iterator[ComparedRow]:
    begin = time.perf_counter()
    same = ("model", "learning_rate", "clipping_norm", "noise_multiplier", "design_steps", "delta", "seed")
    attacked = Attacked(
        rounds=compared.steps,
        every=-(-compared.steps // compared.measured_rounds),
        cohort=compared.batch_size,
        **{name: getattr(compared, name) for name in same},
    )
    attacked, population, store = canife_training.prepared(attacked, place.out)
    stored = canife_training.kept(attacked, store)
    missing = len(attacked.measured()) - len(stored)
    stored |= {one.number: one for one in canife_training.measure_missing(attacked, population, store)}
    seconds = time.perf_counter() - begin if missing else None
    measured = [canife_curves.row(attacked, stored[number]) for number in attacked.measured()]
    counts = rounds.forward(attacked.measured(), attacked.rounds)
    sigma, then = attacked.noise_multiplier, 1 / attacked.scores

    noises = [rounds.renyi_charge(one.published.estimate.epsilon, then, sigma) for one in measured]
    charges = [Charge(noise, 1.0, count) for noise, count in zip(noises, counts, strict=True)]
    published = rounds.composed(charges, compared.delta)
    mus = [conversions.mu_from_epsilon(one.measured.exact, compared.delta) for one in measured]
    exact = conversions.epsilon_from_mu(float(np.sqrt(np.dot(counts, np.square(mus)))), compared.delta)
    for value, epsilon in (("as published", published), ("exact laws", exact)):
        yield ComparedRow("CANIFE", value, ALL, 1, seconds, epsilon, ESTIMATE)
