"""Solves crafted landscapes by quadrature, simulates them, and audits the simulated runs.

The adversary controls the whole process, so that it is no `Adversary` that is inserted into training: it is a
process of its own, one parameter wide. Lengths are in units of C; the score is theta_t.
"""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from audit.laws import conversions, densities
from audit.methods import estimate
from audit.training import game
from experiments.hidden_state import landscape_law as law
from experiments.hidden_state.landscape import AUDIT, HALF, SEARCH, Process, Study

Array = NDArray[np.float64]
_NUM_SEARCHED = 49  # thresholds that Algorithm 6 tries


def audit(study: Study) -> dict[str, Any]:
    """Solves a landscape under each adversary, and audits simulated runs.

    Returns:
      upper: The accountant's epsilon.
      exact: What each adversary leaks (`solve`), by its name.
      in_sample: (T,) the paper's estimate of epsilon from the simulated runs. It is no bound, as its
        threshold is chosen on the scores that it counts.
    """
    process = study.process
    exact = {}
    for name, adversary in law.ADVERSARIES.items():
        exact[name] = solve(process, adversary(process, study.delta).values, study.delta)
    by_step = _simulate(study, HALF)
    return {
        "upper": law.upper_bound(process, study.delta),
        "exact": exact,
        "in_sample": [_estimate_in_sample(study, scores) for scores in by_step],
    }


def search(study: Study) -> dict[str, Any]:
    """Runs Algorithm 6, all thresholds on the same random draws.

    Returns:
      upper: The accountant's epsilon.
      thresholds: The thresholds in units of C.
      epsilon: The exact epsilon at step T of each threshold.
      claimed: The in-sample estimate of each threshold.
    """
    thresholds = list_thresholds(study)
    epsilons = []
    claimed = []
    for threshold in thresholds:
        adversary = law.evaluate_constant(study.process, threshold, study.delta)
        epsilons.append(adversary.epsilon)
        claimed.append(_estimate_in_sample(study, _simulate(study, threshold)[-1]))
    upper = law.upper_bound(study.process, study.delta)
    return {"upper": upper, "thresholds": thresholds, "epsilon": epsilons, "claimed": claimed}


SOLVERS = {AUDIT: audit, SEARCH: search}  # by the study's kind


def list_thresholds(study: Study) -> list[float]:
    """Returns the constant thresholds that Algorithm 6 tries (Errata H7), in units of C.

    They are symmetric about 1/2. The largest is 15% above the place where the likelihood ratio of theta_1 is
    e^epsilon, for the accountant's epsilon: no threshold beyond leaks more.
    """
    epsilon = law.upper_bound(study.process, study.delta)
    top = 1.15 * law.cross_at_first_step(study.process, epsilon)
    return [float(threshold) for threshold in np.linspace(1 - top, top, _NUM_SEARCHED)]


def solve(process: Process, thresholds: Array, delta: float) -> dict[str, list[float]]:
    """Returns the `epsilon` after each step, exact, and the one that is `claimed` by the Gaussian conversion.

    The conversion takes mu at one threshold of theta_t and treats the whole trade-off curve as Gaussian with
    that mu. For t < T the threshold is the one at which the next step splits the landscape, for T the last.

    Args:
      process: The landscape.
      thresholds: (T - 1,) the adversary's thresholds.
      delta: The delta of both.
    """
    # theta_1 is that of a single Gaussian step, whose epsilon is the accountant's.
    exact = [law.upper_bound(process, delta)]
    claimed = exact.copy()
    pairs = law.laws(process, thresholds)
    next(pairs)
    for pair, threshold in zip(pairs, [*thresholds[1:], *thresholds[-1:]], strict=True):
        exact.append(densities.epsilon_at(pair, delta))
        # The canary only raises theta: mu is at least 0, and quadrature may give slightly less.
        mu = max(float(densities.mu_at(pair, threshold)), 0.0)
        claimed.append(conversions.epsilon_from_mu(mu, delta))
    return {"epsilon": exact, "claimed": claimed}


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


def _simulate(study: Study, threshold: float) -> Array:
    """Returns the simulated iterates (T, R); all thresholds share the draws."""
    sigma, size, steps = study.process
    name = f"landscape {sigma} {size}"
    # `root` takes a checksum of its text itself, but the draws depend on this first checksum too.
    key = game.root(study.simulation.seed, f"{zlib.crc32(name.encode())}")
    thresholds = jnp.full(steps - 1, threshold, jnp.float32)
    presence = jnp.asarray(_compute_presence(study))
    theta = simulate(key, presence, jnp.float32(sigma), jnp.float32(size), thresholds)
    return np.asarray(theta, np.float64)


def _compute_presence(study: Study) -> NDArray[np.bool_]:
    """Returns, for each run (R,), whether it inserts the canary."""
    return game.presence(np.arange(study.simulation.runs))[:, 0]


def _estimate_in_sample(study: Study, scores: Array) -> float:
    """Returns the paper's in-sample estimate of epsilon from scores (R,)."""
    present = _compute_presence(study)
    level = (study.delta, study.simulation.confidence)
    return estimate.in_sample(scores[present], scores[~present], *level).epsilon
