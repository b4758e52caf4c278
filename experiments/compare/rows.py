"""Each method's scores as rows; they are trained or measured once and stored.

Bounds are those that the method's own command prints. CANIFE's values are composed without amplification,
since the mini-batches are known: as published through Renyi DP, and the exact laws of its canaries' scores as
Gaussian curves.
"""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from audit.conclusions.concluded import conclude_each_run, conclude_setting
from audit.conclusions.conclusion import assumption_of
from audit.laws import conversions
from audit.methods import one_shot
from audit.methods.level import Level
from audit.runtime import progress
from audit.settings import build
from audit.storage.store import Scores
from audit.training import training
from experiments.canife import curves as canife_curves
from experiments.canife import measured as canife_measured
from experiments.canife import rounds
from experiments.canife import training as canife_training
from experiments.canife.attacked import Attacked
from experiments.canife.curves import RoundValues
from experiments.canife.rounds import Charge
from experiments.cells import work
from experiments.cells.work import Workplace
from experiments.compare.compared import ALL, FINAL, Compared, TrainedMethod, list_methods

ESTIMATE = "(no bound)"
REFUTED = "REFUTED"
_ATTACKED_FIELDS = (  # of the setting, which CANIFE's has too
    "model",
    "learning_rate",
    "clipping_norm",
    "noise_multiplier",
    "design_steps",
    "delta",
    "seed",
)


class ComparedRow(NamedTuple):
    """A method's value.

    Attributes:
      method: The method.
      value: The estimator, or what else the value is.
      sees: What the method sees of the training.
      runs: Models trained.
      seconds: Seconds spent on them; None where they were in the store.
      epsilon: The value, at delta.
      assumes: What a bound assumes; REFUTED where its scores refute that, ESTIMATE where it is no bound.
    """

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


def find_rows(compared: Compared, place: Workplace) -> list[ComparedRow]:
    """Returns all methods' rows, those that see the final model alone first; names each method on stderr.

    Args:
      compared: What is compared.
      place: The folder of the store, and the data.
    """
    rows: list[ComparedRow] = []
    for method in list_methods(compared):
        print(f"{method.method} ...", file=sys.stderr)
        if method.shown:
            rows += _many_run_rows(compared, method, place)
        else:
            rows += _one_run_rows(compared, method, place)
    print("CANIFE ...", file=sys.stderr)
    rows += _canife_rows(compared, place)
    return sorted(rows, key=lambda row: row.sees != FINAL)


def _train(method: TrainedMethod, place: Workplace) -> tuple[Scores, float | None]:
    """Returns a method's scores, and the seconds that training took; None where the store had them all.

    Args:
      method: What is trained.
      place: The folder of the store, and the data.
    """
    begin = time.perf_counter()
    cell = method.cell()
    store = cell.open(place.out, place.data)
    missing = 0
    if not work.is_done(cell, place):
        missing = training.count_missing(store, method.runs)
    if missing:
        with progress.bar(missing) as bar:
            cell.do(store, place.data, bar)
    scores = store.load(method.runs)
    if not missing:
        return scores, None
    return scores, time.perf_counter() - begin


def _many_run_rows(
    compared: Compared, method: TrainedMethod, place: Workplace
) -> list[ComparedRow]:
    """Returns the rows of the bounds that many runs prove; those that the scores refute come last.

    Args:
      compared: What is compared.
      method: What is trained, and the bounds that are shown.
      place: The folder of the store, and the data.
    """
    scores, seconds = _train(method, place)
    conclusion = conclude_setting(
        scores, method.setting, Level(compared.delta, compared.confidence)
    )
    rows = []
    for name in method.shown:
        bound = conclusion.bound(name)
        assumption = assumption_of(bound)
        assumes = assumption.word
        if assumption.gaussian and conclusion.refutes_gaussian:
            assumes = REFUTED
        row = ComparedRow(
            method=method.method,
            value=bound.method,
            sees=method.sees,
            runs=method.runs,
            seconds=seconds,
            epsilon=bound.epsilon,
            assumes=assumes,
        )
        rows.append(row)
    return sorted(rows, key=lambda row: row.assumes == REFUTED)


def _one_run_rows(
    compared: Compared, method: TrainedMethod, place: Workplace
) -> Iterator[ComparedRow]:
    """Yields the rows of what one run of many canaries shows: two published estimates, then bounds.

    Args:
      compared: What is compared.
      method: What is trained, in a single run.
      place: The folder of the store, and the data.
    """
    scores, seconds = _train(method, place)
    dimension = build.trainee(compared.model, place.data.load(compared.model)).model.n_parameters
    sees_final_model = method.sees == FINAL
    level = Level(compared.delta, compared.confidence)
    (conclusion,) = conclude_each_run(scores, dimension, sees_final_model, level)

    def make_row(value: str, epsilon: float, assumes: str) -> ComparedRow:
        return ComparedRow(method.method, value, method.sees, 1, seconds, epsilon, assumes)

    for estimate in conclusion.estimates:
        if estimate.method in (one_shot.ONE_SHOT_FITTED, one_shot.ONE_SHOT_EQUAL_VARIANCE):
            yield make_row(estimate.method, estimate.epsilon, ESTIMATE)
    for bound in conclusion.bounds:
        yield make_row(bound.method, bound.epsilon, bound.assumes.word)


def _canife_rows(compared: Compared, place: Workplace) -> Iterator[ComparedRow]:
    """Yields CANIFE's rows: its value as published, and that of the exact laws of its canaries' scores.

    Rounds are measured first where the store does not have them.

    Args:
      compared: What is compared: CANIFE attacks as many rounds as others take steps, with the mini-batch as
        the cohort.
      place: The folder of the store, and the data.
    """
    begin = time.perf_counter()
    shared = {name: getattr(compared, name) for name in _ATTACKED_FIELDS}
    attacked = Attacked(
        rounds=compared.steps,
        every=math.ceil(compared.steps / compared.measured_rounds),
        cohort=compared.batch_size,
        **shared,
    )
    attacked, split, store = canife_training.prepare(attacked, place.out, place.data)
    numbers = attacked.measured()
    seconds = None
    if list(canife_training.measure_missing(attacked, split, store, numbers)):
        seconds = time.perf_counter() - begin

    values = []
    for measured in canife_measured.read_rounds(store, numbers):
        values.append(canife_curves.row(attacked, measured))
    counts = rounds.forward(numbers, attacked.rounds)
    published = _compose_published(attacked, values, counts)
    exact = _compose_exact(attacked, values, counts)
    yield ComparedRow("CANIFE", "as published", ALL, 1, seconds, published, ESTIMATE)
    yield ComparedRow("CANIFE", "exact laws", ALL, 1, seconds, exact, ESTIMATE)


def _compose_published(
    attacked: Attacked, values: Sequence[RoundValues], counts: Sequence[int]
) -> float:
    """Returns epsilon of all rounds by the paper's estimates, composed by Renyi DP without amplification.

    Args:
      attacked: The setting.
      values: What was measured, a round each.
      counts: How many rounds each of them represents.
    """
    estimate_delta = 1 / attacked.scores  # at which the paper's estimates are
    charges = []
    for value, count in zip(values, counts, strict=True):
        epsilon = value.published.estimate.epsilon
        noise = rounds.renyi_charge(epsilon, estimate_delta, attacked.noise_multiplier)
        charges.append(Charge(noise, sampling_rate=1.0, rounds=count))
    return rounds.composed(charges, attacked.delta)


def _compose_exact(
    attacked: Attacked, values: Sequence[RoundValues], counts: Sequence[int]
) -> float:
    """Returns epsilon of all rounds by the exact laws of their scores, composed as Gaussian curves.

    Args:
      attacked: The setting.
      values: What was measured, a round each; its exact epsilon becomes the mu of a Gaussian curve.
      counts: How many rounds each of them represents; their mu^2 add up.
    """
    mus = []
    for value in values:
        mus.append(conversions.mu_from_epsilon(value.measured.exact, attacked.delta))
    mu = float(np.sqrt(np.dot(counts, np.square(mus))))
    return conversions.epsilon_from_mu(mu, attacked.delta)
