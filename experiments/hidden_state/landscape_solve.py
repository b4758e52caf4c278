"""Solves crafted landscapes by quadrature, simulates them, and audits the simulated runs.

The adversary controls the whole process, so that it is no `Adversary` that is inserted into training: it is a
process of its own, one parameter wide. Lengths are in units of C; the score is theta_t.
"""

import dataclasses
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from audit.conclusions.results import finding_fields
from audit.laws import conversions, densities
from audit.methods import estimate
from audit.training import game
from experiments.hidden_state import landscape_law as law
from experiments.hidden_state.landscape import (
    AuditResult,
    Exact,
    Landscape,
    LandscapeAudit,
    SearchResult,
    Simulation,
    ThresholdSearch,
)

Array = NDArray[np.float64]


def audit(request: LandscapeAudit) -> dict[str, Any]:
    """Solves a landscape under each adversary, and audits simulated runs; returns `AuditResult` as a dict."""
    landscape = request.landscape
    process = _make_process(landscape)
    exact = {}
    for name, adversary in law.ADVERSARIES.items():
        exact[name] = solve(landscape, adversary(process, landscape.delta).values)
    by_step = _simulate(landscape, request.threshold, request.simulation)
    present = _compute_presence(request.simulation)
    level = (landscape.delta, request.simulation.confidence)

    def find_bounds(scores: Array) -> list[dict[str, Any]]:
        """Returns all bounds from the scores of a step."""
        findings = estimate.findings(scores[present], scores[~present], *level)
        return [finding_fields(finding) for finding in findings]

    result = AuditResult(
        upper=law.upper_bound(process, landscape.delta),
        exact=exact,
        at_threshold=solve(landscape, law.constant(process, request.threshold)),
        in_sample=_estimate_in_sample(by_step, request.simulation, landscape.delta),
        first=find_bounds(by_step[0]),
        last=find_bounds(by_step[-1]),
    )
    return dataclasses.asdict(result)


def search(request: ThresholdSearch) -> dict[str, Any]:
    """Runs Algorithm 6, all thresholds on the same random draws; returns `SearchResult` as a dict."""
    landscape = request.landscape
    process = _make_process(landscape)
    thresholds = request.thresholds()
    epsilons = []
    last = []
    for threshold in thresholds:
        epsilons.append(law.evaluate_constant(process, threshold, landscape.delta).epsilon)
        last.append(_simulate(landscape, threshold, request.simulation)[-1])
    result = SearchResult(
        upper=law.upper_bound(process, landscape.delta),
        thresholds=thresholds,
        epsilon=epsilons,
        claimed=_estimate_in_sample(np.stack(last), request.simulation, landscape.delta),
    )
    return dataclasses.asdict(result)


def solve(landscape: Landscape, thresholds: Array) -> Exact:
    """Returns the epsilon after each step under thresholds (T - 1,): exact, and by the Gaussian conversion.

    The conversion takes mu at one threshold of theta_t and treats the whole trade-off curve as Gaussian with
    that mu. For t < T the threshold is the one at which the next step splits the landscape, for T the last.
    """
    process = _make_process(landscape)
    # theta_1 is that of a single Gaussian step, whose epsilon is the accountant's.
    exact = [law.upper_bound(process, landscape.delta)]
    claimed = exact.copy()
    pairs = law.laws(process, thresholds)
    next(pairs)
    for pair, threshold in zip(pairs, [*thresholds[1:], *thresholds[-1:]], strict=True):
        exact.append(densities.epsilon_at(pair, landscape.delta))
        # The canary only raises theta: mu is at least 0, and quadrature may give slightly less.
        mu = max(float(densities.mu_at(pair, threshold)), 0.0)
        claimed.append(conversions.epsilon_from_mu(mu, landscape.delta))
    return Exact(exact, claimed)


@jax.jit
def simulate(
    key: jax.Array,
    presence: jax.Array,
    noise_multiplier: jax.Array,
    batch_size: jax.Array,
    thresholds: jax.Array,
) -> jax.Array:
    """Returns theta_1, ..., theta_T of simulated runs of a crafted landscape, (T, R), in units of C.

    Args:
      key: the random key; theta_(t + 1) of a run has the noise of the key fold_in(fold_in(key, run), t).
      presence: (R,) 1 for runs with the canary, 0 for runs without it.
      noise_multiplier: sigma, the standard deviation of the first step's noise.
      batch_size: B, by which the noise of every later step is divided.
      thresholds: (T - 1,) h_1, ..., h_(T-1), the thresholds of steps 2 to T.
    """
    runs = jnp.arange(len(presence), dtype=jnp.uint32)
    run_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, runs)

    def draw_noise(step: jax.Array) -> jax.Array:
        """Draws each run's standard normal noise (R,) at a step; steps count from 0."""
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(run_keys, step)
        return jax.vmap(jax.random.normal)(step_keys)

    first = jnp.float32(presence) + noise_multiplier * draw_noise(jnp.int32(0))

    def advance(theta: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Takes one step: up by 1 above the threshold, down by 1 below, plus noise of deviation sigma / B."""
        step, threshold = now
        move = jnp.where(theta > threshold, 1.0, -1.0)
        after = theta + move + noise_multiplier / batch_size * draw_noise(step)
        return after, after

    steps = jnp.arange(1, len(thresholds) + 1)
    _, later = jax.lax.scan(advance, first, (steps, thresholds))
    return jnp.concatenate([first[None], later])


def _simulate(landscape: Landscape, threshold: float, simulation: Simulation) -> Array:
    """Returns the simulated iterates (T, R); all thresholds share the draws."""
    sigma = landscape.noise_multiplier
    name = f"landscape {sigma} {landscape.batch_size}"
    # `root` takes a checksum of its text itself, but the draws depend on this first checksum too.
    key = game.root(simulation.seed, f"{zlib.crc32(name.encode())}")
    thresholds = jnp.full(landscape.steps - 1, threshold, jnp.float32)
    presence = jnp.asarray(_compute_presence(simulation))
    size = jnp.float32(landscape.batch_size)
    return np.asarray(simulate(key, presence, jnp.float32(sigma), size, thresholds), np.float64)


def _compute_presence(simulation: Simulation) -> NDArray[np.bool_]:
    """Returns, for each run (R,), whether it inserts the canary."""
    return game.presence(np.arange(simulation.runs))[:, 0]


def _estimate_in_sample(scores: Array, simulation: Simulation, delta: float) -> list[float]:
    """Returns the paper's in-sample estimate of epsilon from each row of scores (n, R)."""
    present = _compute_presence(simulation)
    level = (delta, simulation.confidence)
    return [estimate.in_sample(row[present], row[~present], *level).epsilon for row in scores]


def _make_process(landscape: Landscape) -> law.Process:
    """Returns a landscape's process."""
    return law.Process(landscape.noise_multiplier, landscape.batch_size, landscape.steps)
