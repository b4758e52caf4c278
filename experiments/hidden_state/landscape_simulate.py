"""The crafted loss landscape, simulated: the adversary crafts all gradients, the first and every later one.

Hidden-state paper, Section 6 and Appendix F, with the sign that separates the two worlds (Errata
H5). It controls the whole process, so it is no `Adversary` that is inserted into training:
it is a process of its own, one parameter wide, whose exact law is in `landscape_law`.
Lengths are in units of C; the score is theta_t.
"""

import jax
import jax.numpy as jnp
from jax import Array


def simulate(
    key: Array,
    runs: Array,
    presence: Array,
    noise_multiplier: Array,
    batch_size: Array,
    thresholds: Array,
) -> Array:
    """Simulates runs of one process.

    theta_1 is presence + sigma Z. Each later step adds 1 above its threshold, -1 below, and sigma / B Z.

    Args:
      key: a run's noise Z at step t is drawn by fold_in(fold_in(key, run), t).
      runs: (R,) numbers of the runs.
      presence: (R,) 1 for in, 0 for out.
      noise_multiplier: sigma.
      batch_size: B.
      thresholds: (T - 1,) h_t.

    Returns:
      theta_1 .. theta_T, (T, R).
    """
    run_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, runs)

    def draw_noise(step: Array) -> Array:
        """Draws a step's standard normal noise for each run, (R,)."""
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(run_keys, step)
        return jax.vmap(jax.random.normal)(step_keys)

    first = jnp.float32(presence) + noise_multiplier * draw_noise(jnp.int32(0))

    def advance(theta: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        """Takes one step: up by 1 above the threshold, down by 1 below, plus noise of deviation sigma / B."""
        step, threshold = now
        move = jnp.where(theta > threshold, 1.0, -1.0)
        after = theta + move + noise_multiplier / batch_size * draw_noise(step)
        return after, after

    steps = jnp.arange(1, len(thresholds) + 1)
    _, later = jax.lax.scan(advance, first, (steps, thresholds))
    return jnp.concatenate([first[None], later])


# The same runs of several processes, in one compiled call: keys (c,), sigma (c,), B (c,) and thresholds
# (c, T - 1) give (c, T, R).
simulate_cells = jax.jit(jax.vmap(simulate, (0, None, None, 0, 0, 0)))
