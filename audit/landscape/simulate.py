"""The crafted loss landscape, simulated: the adversary crafts the first gradient and all later ones.

Hidden-state paper, Section 6 and Appendix F, with the sign that pushes the two worlds apart (Errata
H5). It controls the whole process, so it is no `Adversary` that is inserted into training:
it is a process of its own, one parameter wide, whose exact law is in `audit.landscape.law`.
Lengths are in units of C; the score is theta_t.
"""

import jax
import jax.numpy as jnp
from jax import Array


def simulate(
    key: Array, runs: Array, presence: Array, noise_multiplier: Array, batch_size: Array, thresholds: Array
) -> Array:
    """theta_1 .. theta_T of runs (R,), shape (T, R), for thresholds (T - 1,). presence (R,): 1 for in, 0 for
    out. Step t's noise of a run comes from fold_in(fold_in(key, run), t)."""
    run_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, runs)

    def noise(step: Array) -> Array:
        return jax.vmap(lambda k: jax.random.normal(jax.random.fold_in(k, step)))(run_keys)

    first = jnp.float32(presence) + noise_multiplier * noise(jnp.int32(0))

    def advance(theta: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        step, threshold = now
        move = jnp.where(theta > threshold, 1.0, -1.0)
        after = theta + move + noise_multiplier / batch_size * noise(step)
        return after, after

    _, later = jax.lax.scan(advance, first, (jnp.arange(1, len(thresholds) + 1), thresholds))
    return jnp.concatenate([first[None], later])


@jax.jit
def simulate_cells(
    keys: Array, runs: Array, presence: Array, noise_multipliers: Array, batch_sizes: Array, thresholds: Array
) -> Array:
    """theta (c, T, R) of c cells, each simulated with runs (R,) and presence (R,), in one compiled call.
    keys, noise_multipliers and batch_sizes are (c,), thresholds (c, T - 1)."""
    over_cells = jax.vmap(simulate, (0, None, None, 0, 0, 0))
    return over_cells(keys, runs, presence, noise_multipliers, batch_sizes, thresholds)
