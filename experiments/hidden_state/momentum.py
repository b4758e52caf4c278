"""Crafted convex losses that leak more with momentum than any convex loss can with plain SGD.

Heavy ball with momentum beta on a one-dimensional quadratic, with the curvature h_t at step t, is

    theta_(t+1) = theta_t + beta (theta_t - theta_(t-1)) - a_t theta_t + s_t b + sigma z_t,   a_t = eta h_t,

with z_t ~ N(0, 1), b = 1 with the canary and 0 without, and the canary's sign s_t at insertions. The last
model is the sum of w_t (s_t b + sigma z_t), with the weights

    w_(t-1) = (1 + beta - a_t) w_t - beta w_(t+1),   w_T = 1, w_(T+1) = 0.

If s_t = sign(w_t), its mu is exactly sum(|w_t| over insertions) / (sigma |w|). Curvatures repeat every k
steps, except in the last steps. They are between 0 and L, so the losses are convex and L-smooth. We
searched for periods at beta = 0.9 and optimize them again for each beta, so the worst convex loss may leak
more. Plain SGD has an upper bound (`audit.hidden_state_epsilon`), which momentum exceeds from k = 3 on.
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
from audit.report.table import Table, at_most
from audit.written import show_level
from experiments.hidden_state.crafted import INSERTIONS, NOISE_MULTIPLIER, make_convex_row
from experiments.sweeps.records import Record, field

Floats = NDArray[np.float64]


class Landscape(NamedTuple):
    """The curvatures h_t of a quadratic loss, each times the learning rate eta.

    Attributes:
      most: The largest allowed value, eta L.
      period: The values (k,) of one period, whose last step inserts the canary.
      end: The values of the last steps, which replace those of the last periods.
    """

    most: float
    period: tuple[float, ...]
    end: tuple[float, ...]

    @property
    def k(self) -> int:
        """The number of steps in a period."""
        return len(self.period)


# `most`; `period`; `end`. Without an end, there are two more periods. Local searches from random periods
# found these values at beta = 0.9.
_STARTS = """\
1; 0 0; 0 0 0 0.9
2; 0 1.905; 0 1.915 0 1.941
1; 0.664 0.99 1; 0 0.122 0.85 0 0 0.941
2; 0 0 1.276; 0 0 1.304 0 0 1.601
1; 0 0 0.272 0 0.767; 0 0 0 0 0.828 0 0 0 0.531 1
2; 0 2 1.695 0 1.29; 0 2 1.719 0 1.279 0 2 2 0 1.59
1; 0 0 1 0.771 0 0.14 1 0 0 0.752;
2; 0 2 0.386 0 2 1.972 0.813 2 0 1.31;
1; 0 0 1 1 0 0 1 0.999 0 0 1 0.785 0.647 0 0 0.78 0.141 0 0 0 0.924 1 0 0 0.7;
2; 0 2 0.059 0.521 2 0.288 2 0.025 1.133 1.164 0.157 1.789 \
0.011 0.388 1.999 1.087 0.35 1.536 1.288 2 0 0.522 2 0 1.314;
"""


def list_starts() -> list[Landscape]:
    """Returns the landscapes at which the optimization starts, in order of k and then of eta L."""
    starts = []
    for line in _STARTS.splitlines():
        most, period, end = (tuple(map(float, part.split())) for part in line.split(";"))
        starts.append(Landscape(most[0], period, end or 2 * period))
    return starts


def compute_weights(curvatures: Array, beta: float) -> Array:
    """Returns the weights (T,) of all steps in the last model, from curvatures (T,) times eta."""

    def step_back(
        later: tuple[Array, Array], curvature: Array
    ) -> tuple[tuple[Array, Array], Array]:
        """Returns the weights of the previous step and of this step, and again that of this step."""
        weight, next_weight = later
        previous = (1 + beta - curvature) * weight - beta * next_weight
        return (previous, weight), weight

    last = (jnp.ones(()), jnp.zeros(()))
    _, weights = jax.lax.scan(step_back, last, curvatures, reverse=True)
    return weights


def _list_curvatures(values: Array, k: int) -> Array:
    """Returns the curvatures (T,) of INSERTIONS periods of k steps.

    `values` has the k curvatures of one period, then those of the last steps of the training.
    """
    period, end = values[:k], values[k:]
    return jnp.append(jnp.tile(period, INSERTIONS)[: -len(end)], end)


def compute_mu(values: Array, k: int, beta: float) -> Array:
    """Returns mu of the last model; see `_list_curvatures` for `values`."""
    weights = compute_weights(_list_curvatures(values, k), beta)
    weights /= jnp.max(jnp.abs(weights))  # a common factor cancels
    mu = jnp.sum(jnp.abs(weights[k - 1 :: k])) / (NOISE_MULTIPLIER * jnp.linalg.norm(weights))
    return jnp.asarray(mu)


_differentiate = jax.jit(jax.value_and_grad(compute_mu), static_argnames="k")


def optimize(start: Landscape, beta: float) -> tuple[Landscape, float]:
    """Returns the landscape with the largest mu that a local search finds, and this mu.

    The search begins at `start`, and also at curvatures that are 0 except the last, which is beta. With these
    all weights are 1, as in SGD on linear losses.
    """
    k = start.k
    given = np.array(start.period + start.end)
    flat = np.zeros_like(given)
    flat[-1] = min(beta, start.most)

    def compute_loss(values: Floats) -> tuple[float, Floats]:
        """Returns -mu and its gradient, or zeros if the weights overflow."""
        value, gradient = _differentiate(values, k, beta)
        return -float(np.nan_to_num(value)), -np.nan_to_num(np.asarray(gradient, np.float64))

    results = []
    for values in (flat, given):
        with jax.enable_x64(True):
            result = scipy.optimize.minimize(
                compute_loss,
                values,
                jac=True,
                method="L-BFGS-B",
                bounds=[(0, start.most)] * len(values),
            )
        results.append(result)
    best = min(results, key=lambda result: float(result.fun))
    curvatures = best.x.tolist()
    landscape = Landscape(start.most, tuple(curvatures[:k]), tuple(curvatures[k:]))
    return landscape, float(-best.fun)


def make_rows(beta: float, delta: float) -> list[Record]:
    """Returns a row for each of `list_starts`, with epsilons of the last model at delta.

    `beta` is the momentum, at least 0 and below 1.

    Returns:
      Rows with `k`, `most`, the optimized `period` and `end`, their exact `mu`, and epsilons: `epsilon` is
      exact with momentum, `linear` is that of SGD on linear losses, `sgd_bound` is the bound for SGD on any
      convex loss, and `composition` is the accountant's for all models.
    """
    composed_mu = np.sqrt(INSERTIONS) / NOISE_MULTIPLIER
    composition = conversions.epsilon_from_mu(composed_mu, delta)
    rows = []
    for start in list_starts():
        landscape, mu = optimize(start, beta)
        sgd = make_convex_row(start.k, "last", 1.0, delta)
        linear = conversions.epsilon_from_mu(sgd["mu_constant_direction"], delta)
        row = {
            "k": start.k,
            "most": start.most,
            "linear": linear,
            "sgd_bound": sgd["epsilon_bound"],
            "mu": mu,
            "epsilon": conversions.epsilon_from_mu(mu, delta),
            "composition": composition,
            "period": " ".join(map("{:.6g}".format, landscape.period)),
            "end": " ".join(map("{:.6g}".format, landscape.end)),
        }
        rows.append(row)
    return rows


def make_table(beta: float, delta: float) -> Table[Record]:
    """Returns the table of crafted losses with momentum; see `make_rows` for the arguments."""
    upper = partial(at_most, decimals=2)
    columns = [
        field("k", "k"),
        field("most", "eta L\nup to", "g"),
        field("linear", "SGD, linear\nlosses", ".2f"),
        field("sgd_bound", "SGD, any\nconvex loss", upper),
        field("epsilon", f"momentum {beta:g},\nthis loss", ".2f"),
        field("composition", "all\nmodels", upper),
        field("mu"),
        field("period"),
        field("end"),
    ]
    before = [
        f"last models of heavy ball on crafted convex losses: sigma = {NOISE_MULTIPLIER:g}, "
        f"{INSERTIONS} insertions,",
        f"canary in the last step of each period of k steps; epsilon at delta {show_level(delta)}",
    ]
    return Table(columns, make_rows(beta, delta), before=before)
