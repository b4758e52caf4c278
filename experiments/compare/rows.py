"""Each method's values as rows of the comparison; scores are trained or measured once, and stored.

Bounds are those that the method's own command prints. CANIFE's values are composed without amplification by
sampling, since the mini-batches are known. There are two: its published estimates, composed through Renyi DP,
and the exact laws of its canaries' scores, composed as Gaussian curves.
"""

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
from audit.storage.store import Scores
from audit.training import build, training
from experiments.canife import measured as canife_measured
from experiments.canife import rounds
from experiments.canife import training as canife_training
from experiments.canife.attacked import Attacked
from experiments.canife.measured import Measured
from experiments.canife.rounds import Charge
from experiments.cells import work
from experiments.cells.work import Workplace
from experiments.compare.compared import (
    ALL,
    FINAL,
    Compared,
    TrainedMethod,
    list_methods,
    make_attacked,
)

ESTIMATE = "(no bound)"
REFUTED = "REFUTED"


class ComparedRow(NamedTuple):
    """A method's value.

    Attributes:
      method: The method's name.
      value: The name of the bound or estimate.
      sees: What the method sees of the training, FINAL or ALL.
      runs: The number of models that were trained for the value.
      seconds: The seconds spent on training them; None where the store had them all.
      epsilon: The value, at the comparison's delta.
      assumes: The assumption of a bound; REFUTED where its scores refute that assumption, ESTIMATE where the
        value is no bound.
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
        """Whether the value is a lower bound on epsilon whose assumption the scores do not refute."""
        return self.assumes not in (ESTIMATE, REFUTED)


def find_rows(compared: Compared, place: Workplace) -> list[ComparedRow]:
    """Trains what the store lacks, and returns the rows of all methods.

    Methods that see the final model alone come first. Each method's name is printed on stderr when it begins.

    Args:
      compared: The mechanism, and how much each method may spend.
      place: The folder of the store, and the data.
    """
    # What CANIFE refuses of the setting ends the command before any method trains.
    canife_training.prepare(make_attacked(compared), place.out, place.data)
    rows: list[ComparedRow] = []
    for method in list_methods(compared):
        print(f"{method.method} ...", file=sys.stderr)
        if method.shown:  # empty for the methods of a single run
            rows += _many_run_rows(compared, method, place)
        else:
            rows += _one_run_rows(compared, method, place)
    print("CANIFE ...", file=sys.stderr)
    rows += _canife_rows(compared, place)
    # False sorts before True, and rows that compare equal stay in their order.
    return sorted(rows, key=lambda row: row.sees != FINAL)


def _train(method: TrainedMethod, place: Workplace) -> tuple[Scores, float | None]:
    """Returns a method's scores, after training the runs that the store lacks.

    Args:
      method: The method, with its setting and number of runs.
      place: The folder of the store, and the data.

    Returns:
      (scores, seconds): the seconds that training took, None where the store had all runs.
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
    """Returns a row for each shown bound of a method of many runs.

    A bound that assumes a Gaussian trade-off curve is marked as refuted where the scores refute this. Such
    rows come last.

    Args:
      compared: Gives delta and confidence.
      method: The method, whose `shown` names the bounds.
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
    """Yields the rows of a single run of many canaries: the one-shot paper's two estimates, then bounds.

    Args:
      compared: Gives the model, delta and confidence.
      method: The method, of a single run.
      place: The folder of the store, and the data.
    """
    scores, seconds = _train(method, place)
    dimension = build.trainee(compared.model, place.data.load(compared.model)).model.n_parameters
    sees_final_model = method.sees == FINAL
    level = Level(compared.delta, compared.confidence)
    (conclusion,) = conclude_each_run(scores, dimension, sees_final_model, level)

    def make_row(value: str, epsilon: float, assumes: str) -> ComparedRow:
        """Returns a row of this method, whose scores are of 1 run."""
        return ComparedRow(
            method.method,
            value,
            sees=method.sees,
            runs=1,
            seconds=seconds,
            epsilon=epsilon,
            assumes=assumes,
        )

    for estimate in conclusion.estimates:
        if estimate.method in (one_shot.ONE_SHOT_FITTED, one_shot.ONE_SHOT_EQUAL_VARIANCE):
            yield make_row(estimate.method, estimate.epsilon, ESTIMATE)
    for bound in conclusion.bounds:
        yield make_row(bound.method, bound.epsilon, bound.assumes.word)


def _canife_rows(compared: Compared, place: Workplace) -> Iterator[ComparedRow]:
    """Yields CANIFE's two rows: epsilon by its published estimates, and by its canaries' exact laws.

    A step of the mechanism is a round for CANIFE, and a mini-batch is a round's cohort. Rounds that the store
    lacks are measured first.

    Args:
      compared: The mechanism, and how many rounds are measured.
      place: The folder of the store, and the data.
    """
    begin = time.perf_counter()
    attacked, split, store = canife_training.prepare(make_attacked(compared), place.out, place.data)
    numbers = attacked.measured()
    seconds = None  # where the store has all rounds
    # Making the list measures the rounds that the store lacks; it is empty where there are none.
    if list(canife_training.measure_missing(attacked, split, store, numbers)):
        seconds = time.perf_counter() - begin

    stored = canife_measured.read_rounds(store, numbers)
    # How many rounds each measured round stands for.
    counts = rounds.forward(numbers, attacked.rounds)
    published = _compose_published(attacked, stored, counts)
    exact = _compose_exact(attacked, stored, counts)
    # Both are of a single training run, and neither is a bound.
    yield ComparedRow("CANIFE", "as published", ALL, 1, seconds, published, ESTIMATE)
    yield ComparedRow("CANIFE", "exact laws", ALL, 1, seconds, exact, ESTIMATE)


def _compose_published(
    attacked: Attacked, measured: Sequence[Measured], counts: Sequence[int]
) -> float:
    """Returns epsilon of all rounds by the CANIFE paper's estimates, composed by Renyi DP.

    Each measured round's estimate is converted to the noise multiplier of a Gaussian release that leaks as
    much, by the paper's public code. All rounds that it represents are composed as releases with this noise.
    The adversary knows the mini-batches, so that sampling amplifies no privacy: the sampling rate is 1.

    Args:
      attacked: CANIFE's setting; the result is at its delta.
      measured: The measured rounds.
      counts: The numbers of rounds that each measured round represents.
    """
    estimate_delta = 1 / attacked.scores  # the paper's estimates are at this delta
    charges = []  # a charge is a number of rounds that are composed with the same noise
    for one, count in zip(measured, counts, strict=True):
        epsilon = rounds.best_epsilon(one.scores_in, one.scores_out, estimate_delta).epsilon
        noise = rounds.renyi_charge(epsilon, estimate_delta, attacked.noise_multiplier)
        charges.append(Charge(noise, sampling_rate=1.0, rounds=count))
    return rounds.composed(charges, attacked.delta)


def _compose_exact(
    attacked: Attacked, measured: Sequence[Measured], counts: Sequence[int]
) -> float:
    """Returns epsilon of all rounds by the exact laws of their scores, composed as Gaussian curves.

    The exact epsilon of each measured round becomes the mu of a Gaussian curve with this epsilon. A round
    that is not measured has the mu of the measured round that represents it. The composition's mu is the root
    of the sum of the squares of all rounds' mu.

    Args:
      attacked: CANIFE's setting; the result is at its delta.
      measured: The measured rounds.
      counts: The numbers of rounds that each measured round represents.
    """
    mus = []
    for one in measured:
        mus.append(conversions.mu_from_epsilon(one.exact, attacked.delta))
    mu = float(np.sqrt(np.dot(counts, np.square(mus))))
    return conversions.epsilon_from_mu(mu, attacked.delta)
