"""Solves crafted landscapes by quadrature, simulates them, and audits the simulated runs.

The adversary controls the whole process, so that it is no `Adversary` that is inserted into training: it is a
process of its own, one parameter wide. Lengths are in units of C; the score is theta_t.
"""

import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from audit.laws import conversions, densities
from audit.methods import estimate
from audit.storage.store import Store
from audit.training import game
from experiments.cells.cell import write_answer
from experiments.hidden_state import landscape_law as law
from experiments.hidden_state.landscape_law import HALF, Process

Array = NDArray[np.float64]
AUDIT = "landscape_audit"
SEARCH = "landscape_thresholds"
_SEARCHED = (Process(4.0, 4, 2), Process(1.0, 1, 2))  # by Algorithm 6 (Errata H13)
_NUM_SEARCHED = 49  # thresholds that Algorithm 6 tries


class Study(NamedTuple):
    """A study of a landscape, which names its answer in the store.

    Attributes:
      kind: AUDIT for exact laws of all adversaries and a simulated audit, SEARCH for the paper's Algorithm 6.
      process: The landscape.
      delta: The delta of every epsilon.
      runs: The number of simulated runs, half of which insert the canary.
      seed: The seed of the noise.
      confidence: The confidence of the estimates from the runs' scores.
    """

    kind: str
    process: Process
    delta: float
    runs: int
    seed: int
    confidence: float

    def setting(self) -> dict[str, Any]:
        """Returns the setting that names the answer in the store."""
        values = {**self._asdict(), **self.process._asdict()}
        del values["process"]
        if self.kind == AUDIT:
            values["threshold"] = HALF
        return values


Result = tuple[Study, dict[str, Any]]


def list_studies(processes: list[Process], **simulation: Any) -> list[Study]:
    """Returns an audit of each landscape, then searches of two more; `simulation` has their other fields."""
    studies = [Study(AUDIT, process, **simulation) for process in processes]
    return studies + [Study(SEARCH, process, **simulation) for process in _SEARCHED]


def keep(out: Path, study: Study) -> None:
    """Computes a study's answer and stores it below the folder `out`."""
    answer = audit(study) if study.kind == AUDIT else search(study)
    write_answer(Store(out, study.setting()), answer)


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
    return {
        "upper": law.upper_bound(process, study.delta),
        "exact": exact,
        "in_sample": _estimate_in_sample(study, HALF),
    }


def search(study: Study) -> dict[str, Any]:
    """Runs Algorithm 6 (Errata H7), all thresholds on the same random draws.

    The thresholds are constant, and symmetric about 1/2. The largest is 15% above the place where the
    likelihood ratio of theta_1 is e^epsilon, for the accountant's epsilon: no threshold beyond leaks more.

    Returns:
      upper: The accountant's epsilon.
      thresholds: The thresholds in units of C.
      epsilon: The exact epsilon at step T of each threshold.
      claimed: The in-sample estimate of each threshold.
    """
    process = study.process
    upper = law.upper_bound(process, study.delta)
    top = 1.15 * law.cross_at_first_step(process, upper)
    thresholds = np.linspace(1 - top, top, _NUM_SEARCHED).tolist()
    return {
        "upper": upper,
        "thresholds": thresholds,
        "epsilon": [law.constant(process, each, study.delta).epsilon for each in thresholds],
        "claimed": [_estimate_in_sample(study, each)[-1] for each in thresholds],
    }


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

    def advance(theta: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Takes one step: up by 1 above the threshold, down by 1 below, plus noise of deviation sigma / B."""
        step, threshold = now
        move = jnp.where(theta > threshold, 1.0, -1.0)
        after = theta + move + noise_multiplier / batch_size * draw_noise(step)
        return after, after

    first = jnp.float32(presence) + noise_multiplier * draw_noise(jnp.int32(0))
    steps = jnp.arange(1, len(thresholds) + 1)
    _, later = jax.lax.scan(advance, first, (steps, thresholds))
    return jnp.concatenate([first[None], later])


def _estimate_in_sample(study: Study, threshold: float) -> list[float]:
    """Returns the paper's in-sample estimate of epsilon after each step; all thresholds share the draws."""
    sigma, size, steps = study.process
    # `root` takes a checksum of its text itself, but the draws depend on this first checksum too.
    name = zlib.crc32(f"landscape {sigma} {size}".encode())
    key = game.root(study.seed, f"{name}")
    present = game.presence(np.arange(study.runs))[:, 0]
    thresholds = jnp.full(steps - 1, threshold, jnp.float32)
    noise = (jnp.float32(sigma), jnp.float32(size))
    theta = np.asarray(simulate(key, jnp.asarray(present), *noise, thresholds), np.float64)
    estimates = []
    for scores in theta:
        worlds = (scores[present], scores[~present])
        estimates.append(estimate.in_sample(*worlds, study.delta, study.confidence).epsilon)
    return estimates
