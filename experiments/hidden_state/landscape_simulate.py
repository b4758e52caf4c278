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
    """Returns the iterates of simulated runs of a crafted landscape, in units of the clipping norm C.

    theta_1 is presence + sigma Z. Each later step moves theta by +1 where theta is above the step's threshold
    and by -1 elsewhere, and adds (sigma / B) Z. Every Z is a standard normal draw of its own.

    Args:
      key: the random key; theta_(t + 1) of a run has the noise of the key fold_in(fold_in(key, run), t).
      runs: (R,) the runs' numbers, which decide their draws.
      presence: (R,) 1 for runs with the canary, 0 for runs without it.
      noise_multiplier: sigma, the standard deviation of the first step's noise.
      batch_size: B, by which the noise of every later step is divided.
      thresholds: (T - 1,) h_1, ..., h_(T-1), the thresholds of steps 2 to T.

    Returns:
      theta_1, ..., theta_T of each run, (T, R).
    """
    run_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, runs)

    def draw_noise(step: Array) -> Array:
        """Draws each run's standard normal noise (R,) at a step; steps count from 0."""
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
