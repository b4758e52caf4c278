"""Crafted convex landscapes against momentum: what the last model leaks at least.

Heavy ball with momentum beta on a one-dimensional quadratic, with curvature h_t at step t, is

    theta_(t+1) = theta_t + beta (theta_t - theta_(t-1)) - a_t theta_t + s_t b + sigma z_t,   a_t = eta h_t,

with z_t ~ N(0, 1), b = 1 with the canary and 0 without, and the canary's sign s_t at insertions. The last
model is the sum of w_t (s_t b + sigma z_t), with the weights

    w_(t-1) = (1 + beta - a_t) w_t - beta w_(t+1),   w_T = 1, w_(T+1) = 0.

With s_t = sign(w_t) its mu is exactly sum of |w_t| over insertions / (sigma |w|). The curvature repeats with
period k, except in the last steps. All curvatures are in [0, most], so the losses are convex, and
most-smooth in units of 1 / eta. The periods were searched for beta = 0.9 and are optimized for each beta, so
the leak is a lower bound on that of the worst convex loss. Plain SGD has an upper bound
(`audit.hidden_state_epsilon`), which momentum exceeds from k = 3 on.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array
from numpy.typing import NDArray

from audit.laws import conversions
from audit.methods import estimate
from audit.methods.estimate import IF_GAUSSIAN
from audit.report.table import Table, at_least, at_most
from audit.written import Level, show_level
from experiments.hidden_state.crafted import INSERTIONS, NOISE_MULTIPLIER, make_convex_row
from experiments.sweeps.records import Record, field

Floats = NDArray[np.float64]


class Landscape(NamedTuple):
    """Curvatures times the learning rate.

    Attributes:
      most: the largest curvature, eta L.
      period: (k,) the curvatures of a period, whose last step inserts.
      end: the curvatures of the last steps; () for two more periods.
    """

    most: float
    period: tuple[float, ...]
    end: tuple[float, ...] = ()

    @property
    def k(self) -> int:
        """The period in steps."""
        return len(self.period)


# Found by local searches from random periods, at beta = 0.9.
STARTS = (
    Landscape(1, (0, 0), (0, 0, 0, 0.9)),
    Landscape(2, (0, 1.905), (0, 1.915, 0, 1.941)),
    Landscape(1, (0.664, 0.99, 1), (0, 0.122, 0.85, 0, 0, 0.941)),
    Landscape(2, (0, 0, 1.276), (0, 0, 1.304, 0, 0, 1.601)),
    Landscape(1, (0, 0, 0.272, 0, 0.767), (0, 0, 0, 0, 0.828, 0, 0, 0, 0.531, 1)),
    Landscape(2, (0, 2, 1.695, 0, 1.29), (0, 2, 1.719, 0, 1.279, 0, 2, 2, 0, 1.59)),
    Landscape(1, (0, 0, 1, 0.771, 0, 0.14, 1, 0, 0, 0.752)),
    Landscape(2, (0, 2, 0.386, 0, 2, 1.972, 0.813, 2, 0, 1.31)),
    Landscape(
        1,
        (
            0,
            0,
            1,
            1,
            0,
            0,
            1,
            0.999,
            0,
            0,
            1,
            0.785,
            0.647,
            0,
            0,
            0.78,
            0.141,
            0,
            0,
            0,
            0.924,
            1,
            0,
            0,
            0.7,
        ),
    ),
    Landscape(
        2,
        (
            0,
            2,
            0.059,
            0.521,
            2,
            0.288,
            2,
            0.025,
            1.133,
            1.164,
            0.157,
            1.789,
            0.011,
            0.388,
            1.999,
            1.087,
            0.35,
            1.536,
            1.288,
            2,
            0,
            0.522,
            2,
            0,
            1.314,
        ),
    ),
)


def compute_weights(curvatures: Array, beta: float) -> Array:
    """Returns the weights (T,) of all steps in the last model, from curvatures (T,) times eta."""

    def step_back(
        later: tuple[Array, Array], curvature: Array
    ) -> tuple[tuple[Array, Array], Array]:
        """Returns the two weights before a step, and the step's own weight."""
        weight, next_weight = later
        before = (1 + beta - curvature) * weight - beta * next_weight
        return (before, weight), weight

    last = (jnp.ones(()), jnp.zeros(()))
    _, weights = jax.lax.scan(step_back, last, curvatures, reverse=True)
    return weights


def _list_curvatures(values: Array, k: int) -> Array:
    """Returns the curvatures (T,) of INSERTIONS periods, from those of a period and of the last steps."""
    period, end = values[:k], values[k:]
    return jnp.append(jnp.tile(period, INSERTIONS)[: -len(end)], end)


def compute_mu(values: Array, k: int, beta: float) -> Array:
    """Returns mu of the last model, from the curvatures of a period and of the last steps."""
    weights = compute_weights(_list_curvatures(values, k), beta)
    weights /= jnp.max(jnp.abs(weights))  # a common factor cancels
    mu = jnp.sum(jnp.abs(weights[k - 1 :: k])) / (NOISE_MULTIPLIER * jnp.linalg.norm(weights))
    return jnp.asarray(mu)


_differentiate = jax.jit(jax.value_and_grad(compute_mu), static_argnames="k")


def optimize(start: Landscape, beta: float) -> tuple[Landscape, float]:
    """Returns the landscape of the largest mu that a local search finds from a start, and this mu.

    It also starts at curvatures that are 0 except the last, beta. All weights are then 1, as in SGD on linear
    losses.
    """
    k = start.k
    end = start.end or 2 * start.period
    flat = np.zeros(k + len(end))
    flat[-1] = min(beta, start.most)
    best = start
    mu = -np.inf

    def compute_loss(values: Floats) -> tuple[float, Floats]:
        """Returns -mu and its gradient; 0 if weights overflow."""
        value, gradient = _differentiate(values, k, beta)
        return -float(np.nan_to_num(value)), -np.nan_to_num(np.asarray(gradient, np.float64))

    for values in (flat, np.array(start.period + end)):
        with jax.enable_x64(True):
            found = scipy.optimize.minimize(
                compute_loss,
                values,
                jac=True,
                method="L-BFGS-B",
                bounds=[(0, start.most)] * len(values),
            )
        if -found.fun > mu:
            mu = float(-found.fun)
            numbers = found.x.tolist()
            best = Landscape(start.most, tuple(numbers[:k]), tuple(numbers[k:]))
    return best, mu


def simulate(landscape: Landscape, beta: float, runs: int, seed: int) -> tuple[Floats, Floats]:
    """Trains runs by heavy ball. Returns the last models (runs / 2,) with and without the canary."""
    with jax.enable_x64(True):
        values = jnp.array(landscape.period + landscape.end)
        curvatures = _list_curvatures(values, landscape.k)
        signs = np.sign(compute_weights(curvatures, beta))
    rng = np.random.default_rng([seed, landscape.k])
    is_in = np.arange(runs) % 2 == 0
    theta = np.zeros(runs)
    before = theta
    for step, curvature in enumerate(np.asarray(curvatures)):
        noisy = NOISE_MULTIPLIER * rng.normal(size=runs)
        if (step + 1) % landscape.k == 0:
            noisy += signs[step] * is_in
        theta, before = theta + beta * (theta - before) - curvature * theta + noisy, theta
    return theta[is_in], theta[~is_in]


def make_rows(beta: float, levels: Level, runs: int, seed: int) -> list[Record]:
    """Returns a row for each start: the optimized landscape's leak, exact and simulated, and SGD's.

    `beta` is at least 0 and below 1. Half of the simulated runs have the canary.
    """
    composed_mu = np.sqrt(INSERTIONS) / NOISE_MULTIPLIER
    composition = conversions.epsilon_from_mu(composed_mu, levels.delta)
    rows = []
    for start in STARTS:
        landscape, mu = optimize(start, beta)
        sgd = make_convex_row(start.k, "last", 1.0, levels.delta)
        scores = simulate(landscape, beta, runs, seed)
        bound = estimate.METHODS[IF_GAUSSIAN].compute(*scores, *levels).epsilon
        linear = conversions.epsilon_from_mu(sgd["mu_constant_direction"], levels.delta)
        row = {
            "k": start.k,
            "most": start.most,
            "linear": linear,
            "sgd_bound": sgd["epsilon_bound"],
            "mu": mu,
            "epsilon": conversions.epsilon_from_mu(mu, levels.delta),
            "simulated": bound,
            "composition": composition,
            "period": " ".join(map("{:.6g}".format, landscape.period)),
            "end": " ".join(map("{:.6g}".format, landscape.end)),
        }
        rows.append(row)
    return rows


def make_table(beta: float, levels: Level, runs: int, seed: int) -> Table[Record]:
    """Returns the table of crafted landscapes against momentum; see `make_rows`."""
    upper = partial(at_most, decimals=2)
    columns = [
        field("k", "k"),
        field("most", "eta L\nup to", "g"),
        field("linear", "SGD, linear\nlosses", ".2f"),
        field("sgd_bound", "SGD, any\nconvex loss", upper),
        field("epsilon", f"momentum {beta:g},\nthis loss", ".2f"),
        field("simulated", f"simulated,\n{runs:,} scores", partial(at_least, decimals=2)),
        field("composition", "all\nmodels", upper),
        field("mu"),
        field("period"),
        field("end"),
    ]
    before = [
        f"last models of heavy ball on crafted convex losses: sigma = {NOISE_MULTIPLIER:g}, "
        f"{INSERTIONS} insertions,",
        "canary in the last step of each period of k steps; "
        f"epsilon at delta {show_level(levels.delta)}",
    ]
    after = ["simulated: lower bound if the curve is Gaussian"]
    return Table(columns, make_rows(beta, levels, runs, seed), before=before, after=after)
