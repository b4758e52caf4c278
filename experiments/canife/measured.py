"""One measured round: a canary is designed against the frozen model, mock rounds are played, and what their
scores say stands beside what is exact."""

import io
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from audit import round_game
from audit.adversaries import designed
from audit.adversaries.designed import Designed, SampleDesign
from audit.game import root
from audit.statistics import cohort_law, estimate
from audit.statistics.cohort_law import Cohort
from experiments.canife import clients
from experiments.canife.attacked import Attacked
from experiments.canife.clients import Indices, Population
from experiments.canife.samples import Canary, Sample

Floats = NDArray[np.float64]
Designer = Callable[..., Designed]
CONFIDENCE = 0.95
_BLOCK = 256
_DESCENT = 200
_SETTLE = zlib.crc32(b"settle")


class Measured(NamedTuple):
    """What is kept of a measured round.

    number: of the round, from 1. accuracy: of the frozen model on the test set. health: of the canary, over
    the whole pool. norm: of its gradient. own: its dot product with its own direction, over C. known (M,):
    the clients'. scores_in, scores_out: mock rounds as published. exact, exact_then: epsilon of the score's
    law at the training's delta and at 1/n. proven: a bound from mock rounds that assumes nothing. canary: its
    pixels, normalised, or its text; label: its probabilities.
    """

    number: int
    accuracy: float
    health: float
    norm: float
    own: float
    known: Floats
    scores_in: Floats
    scores_out: Floats
    exact: float
    exact_then: float
    proven: float
    proven_if_gaussian: float
    canary: Canary
    label: NDArray[np.float32]
    descent: NDArray[np.float32]


class Measuring(NamedTuple):
    """A training under measurement: its clients, and compiled: a design, its penalty, and the gradient (p,)
    of a sample."""

    attacked: Attacked
    known: Population
    design: Designer
    penalty: Callable[[Array, Array], Array]
    gradient: Callable[[Array, Sample], Array]


def measuring(attacked: Attacked, known: Population) -> Measuring:
    """A training under measurement."""
    penalty, loss = _penalty(attacked), known.samples.loss
    choices = SampleDesign(
        loss,
        penalty,
        optax.adam(attacked.design_rate),
        attacked.design_batch or attacked.cohort,
        known.samples.project,
    )

    def gradient(theta: Array, sample: Sample) -> Array:
        found: Array = jax.grad(loss)(theta, sample, jax.random.key(0))
        return found

    return Measuring(attacked, known, designed.designer(choices), jax.jit(penalty), jax.jit(gradient))


def measure(task: Measuring, theta: Array, number: int) -> Measured:
    """Measures the round that a frozen model theta (p,) is about to play."""
    attacked, known = task.attacked, task.known
    canary, health, losses = _canary(task, theta, number)
    gradient = task.gradient(theta, canary)
    sent = None if attacked.as_published else known.rate
    inserted = round_game.inserted(gradient, sent, attacked.clipping_norm)
    chosen = clients.drawn(attacked, "population", known.train_clients, attacked.population)

    def projected(members: Indices, direction: Array) -> Array:
        return known.train_dots(theta, chosen[members], direction)

    dots = round_game.dots(projected, attacked.population, inserted, attacked.clipping_norm, _BLOCK)
    own = round_game.own_dot(inserted, attacked.clipping_norm)
    return Measured(
        number,
        known.accuracy(theta),
        health,
        float(jnp.linalg.norm(gradient)),
        own,
        dots,
        *_scored(attacked, dots, own, number),
        known.samples.shown(canary),
        np.asarray(jax.nn.softmax(canary.label)),
        losses[:: -(-len(losses) // _DESCENT)],
    )


def as_bytes(measured: Measured) -> bytes:
    """An .npz file of these fields, the same bytes for the same values."""
    buffer = io.BytesIO()
    fields: dict[str, Any] = {name: np.asarray(value) for name, value in measured._asdict().items()}
    np.savez(buffer, **fields)
    return buffer.getvalue()


def from_bytes(content: bytes) -> Measured:
    """The round in a file's bytes; raises one of `files.NOT_AN_ARCHIVE` for others."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        fields = {name: archive[name] for name in Measured._fields}
    return Measured(**{name: v.item() if v.ndim == 0 else v for name, v in fields.items()})


def _canary(task: Measuring, theta: Array, number: int) -> tuple[Sample, float, NDArray[np.float32]]:
    """A designed sample, as its client has it, its health, of two settled samples, and the design's
    penalties."""
    attacked, known = task.attacked, task.known
    mock = clients.drawn(attacked, "pool", known.mock_clients, attacked.pool)
    first, mock = clients.first_sample(attacked, known, number, mock)
    parts = designed.in_blocks(len(mock), theta.size, attacked.memory)

    def block(part: range) -> Array:
        members = mock[part.start : part.stop]
        starts = range(0, len(members), _BLOCK)
        pieces = [known.mock_updates(theta, members[start : start + _BLOCK]) for start in starts]
        return jnp.concatenate(pieces)

    blocks = [partial(block, part) for part in parts]
    key = jax.random.fold_in(root(attacked.seed, "design"), number)
    found = task.design(theta, first, blocks, attacked.design_steps, key)
    chosen: Sample = found.best if attacked.keep_best else found.last
    draws = jax.random.split(jax.random.fold_in(key, _SETTLE))
    first, canary = (known.samples.settled(*pair) for pair in zip((first, chosen), draws, strict=True))
    before, after = (_over_pool(task, theta, sample, blocks) for sample in (first, canary))
    return canary, designed.health(before, after), np.asarray(found.losses)


def _penalty(attacked: Attacked) -> designed.Penalty:
    """What the design minimises, by its name."""
    made: dict[str, designed.Penalty] = {
        "as_run": designed.as_run(attacked.norm_constant, attacked.clipping_norm),
        "as_printed": designed.as_printed(attacked.clipping_norm),
        "of_the_mean": designed.of_the_mean(attacked.clipping_norm),
    }
    return made[attacked.penalty]


def _over_pool(task: Measuring, theta: Array, sample: Sample, blocks: Sequence[Callable[[], Array]]) -> float:
    """The design's penalty over the whole pool."""
    gradient = task.gradient(theta, sample)
    return float(np.mean([float(task.penalty(gradient, block())) for block in blocks]))


def _scored(
    attacked: Attacked, dots: Floats, own: float, number: int
) -> tuple[Floats, Floats, float, float, float, float]:
    """Mock rounds as published and what is exact or proven of the score."""
    cohort, sigma = Cohort(attacked.cohort), attacked.noise_multiplier
    rng = clients.generator(attacked, f"mock {number}")
    if attacked.as_published:
        s_in, s_out = round_game.published_scores(rng, dots, cohort, own, sigma, attacked.scores)
    else:
        s_in, s_out = round_game.mock_scores(rng, dots, cohort, own, sigma, attacked.scores // 2)
    many = round_game.mock_scores(rng, dots, cohort, own, sigma, attacked.mock_rounds)
    free = estimate.assumption_free(*many, attacked.delta, CONFIDENCE)
    gaussian = estimate.if_gaussian(*many, attacked.delta, CONFIDENCE)
    exact, then = _exact(attacked, dots, own)
    return s_in, s_out, exact, then, free.epsilon, gaussian.epsilon


def _exact(attacked: Attacked, dots: Floats, own: float) -> tuple[float, float]:
    """epsilon of the score's law at the training's delta and at 1/n; infinite without noise."""
    if attacked.noise_multiplier == 0:
        return np.inf, np.inf
    worlds = cohort_law.replacing if attacked.as_published else cohort_law.added
    pair = worlds(dots, Cohort(attacked.cohort), attacked.noise_multiplier, own)
    deltas = attacked.delta, 1 / attacked.scores
    exact, then = (cohort_law.epsilon_at(pair, delta) for delta in deltas)
    return exact, then
