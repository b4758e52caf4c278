"""Crafts convex losses on which momentum greatly increases the last model's leak.

The heavy-ball method with momentum beta, on a one-dimensional quadratic with curvature h_t at step t, is

    theta_(t+1) = theta_t + beta (theta_t - theta_(t-1)) - a_t theta_t + s_t b + sigma z_t,   a_t = eta h_t,

where z_t ~ N(0, 1), b is 1 with the canary and 0 without, and s_t is the canary's sign, or 0 if step t does
not insert it. The last model is the sum of w_t (s_t b + sigma z_t), with the weights

    w_(t-1) = (1 + beta - a_t) w_t - beta w_(t+1),   w_T = 1, w_(T+1) = 0.

With s_t = sign(w_t) at insertions, the mu of the last model is exactly

    (sum of |w_t| over insertions) / (sigma * sqrt(sum of w_t^2 over all steps)).

In this module, curvatures are the a_t, which include the learning rate eta. They repeat with a period of k
steps, except in the last steps. They are between 0 and `most`, so the losses are convex and smooth with the
constant most / eta. Local searches found the periods for beta = 0.9, and `optimize` improves them for each
beta. For k of at least 3, momentum leaks more on these losses than the upper bound for plain SGD
(`audit.hidden_state_epsilon`).
"""

from functools import partial
from operator import attrgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array

from audit.errors import LAST
from audit.laws import conversions
from audit.laws.intervals import Array as Floats
from audit.methods import estimate
from audit.methods.estimate import IF_GAUSSIAN
from audit.report.table import Table, at_least, at_most
from audit.written import Level, show_level
from experiments.hidden_state.crafted import INSERTIONS, NOISE_MULTIPLIER, make_convex_row
from experiments.sweeps.records import Record, field


class Landscape(NamedTuple):
    """A convex loss, as curvatures times the learning rate.

    Attributes:
      most: The largest allowed curvature, eta L for L-smooth losses.
      period: The k curvatures of a period. The canary is inserted in the last step of each period.
      end: Curvatures that replace those of the last periods; () to replace none.
    """

    most: float
    period: tuple[float, ...]
    end: tuple[float, ...] = ()

    @property
    def k(self) -> int:
        """The number of steps in a period."""
        return len(self.period)


# One landscape per line, as "most; period; end", from local searches at beta = 0.9.
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
2; 0 2 0.059 0.521 2 0.288 2 0.025 1.133 1.164 0.157 1.789 0.011 0.388 1.999 1.087 0.35 1.536 1.288 2 0 \
0.522 2 0 1.314;
"""


def _read_landscape(line: str) -> Landscape:
    """Returns the landscape in a line of _STARTS."""
    most, *curvatures = line.split(";")
    period, end = (tuple(map(float, text.split())) for text in curvatures)
    return Landscape(float(most), period, end)


STARTS = [_read_landscape(line) for line in _STARTS.splitlines()]


def compute_weights(curvatures: Array, beta: float) -> Array:
    """Returns the weights w_t (T,) of steps in the last model, for curvatures a_t (T,) and momentum beta."""

    def step_back(
        later: tuple[Array, Array], curvature: Array
    ) -> tuple[tuple[Array, Array], Array]:
        """Returns (w_(t-1), w_t) and w_t, from `later` = (w_t, w_(t+1)) and the curvature a_t."""
        weight, next_weight = later
        previous_weight = (1 + beta - curvature) * weight - beta * next_weight
        return (previous_weight, weight), weight

    last = (jnp.ones(()), jnp.zeros(()))  # w_T and w_(T+1)
    _, weights = jax.lax.scan(step_back, last, curvatures, reverse=True)
    return weights


def _list_curvatures(values: Array, k: int) -> Array:
    """Returns the curvatures of all steps, of shape (T,), for INSERTIONS periods of k steps each.

    `values` has the k curvatures of a period, followed by those of at least one last step.
    """
    period, end = values[:k], values[k:]
    return jnp.append(jnp.tile(period, INSERTIONS)[: -len(end)], end)


def compute_mu(values: Array, k: int, beta: float) -> Array:
    """Returns mu of the last model, for the `values` of `_list_curvatures` and momentum beta.

    The last step of each period inserts the canary.
    """
    weights = compute_weights(_list_curvatures(values, k), beta)
    weights /= jnp.max(jnp.abs(weights))  # keeps squares finite, and does not change mu
    signal = jnp.sum(jnp.abs(weights[k - 1 :: k]))  # over steps that insert
    noise = NOISE_MULTIPLIER * jnp.linalg.norm(weights)
    return jnp.asarray(signal / noise)


_differentiate = jax.jit(jax.value_and_grad(compute_mu), static_argnames="k")


def optimize(start: Landscape, beta: float) -> tuple[Landscape, float]:
    """Searches for curvatures with a large mu by L-BFGS-B, and returns the best landscape and its mu.

    A first search begins with a last curvature of beta, the momentum, and all others 0. Then all weights are
    1, as in SGD on linear losses. A second search begins at `start`. If `start` has no end, its last two
    periods become the end, so the search can change them separately.
    """
    k = start.k
    end = start.end or 2 * start.period
    given = np.array(start.period + end)
    as_sgd = np.zeros(len(given))
    as_sgd[-1] = beta

    def compute_loss(values: Floats) -> tuple[float, Floats]:
        """Returns -mu and its gradient, with 0 instead of NaN if weights overflow."""
        mu, gradient = _differentiate(values, k, beta)
        return -float(np.nan_to_num(mu)), -np.nan_to_num(np.asarray(gradient, np.float64))

    searches = []
    with jax.enable_x64(True):
        for first in (as_sgd, given):
            search = scipy.optimize.minimize(
                compute_loss,
                first,
                jac=True,
                method="L-BFGS-B",
                bounds=[(0, start.most)] * len(first),
            )
            searches.append(search)
    best = min(searches, key=attrgetter("fun"))
    curvatures = best.x.tolist()
    landscape = Landscape(start.most, tuple(curvatures[:k]), tuple(curvatures[k:]))
    return landscape, float(-best.fun)


def simulate(landscape: Landscape, beta: float, runs: int, seed: int) -> tuple[Floats, Floats]:
    """Trains runs by the heavy-ball method with momentum beta, half of them with the canary.

    The landscape must have an end, and `seed` determines the noise. Returns the last models of runs with the
    canary and of runs without it, of shape (runs / 2,) each.
    """
    with jax.enable_x64(True):
        values = jnp.array(landscape.period + landscape.end)
        curvatures = _list_curvatures(values, landscape.k)
        # With these signs, the canary increases the value of the last model.
        signs = np.sign(compute_weights(curvatures, beta))
    rng = np.random.default_rng([seed, landscape.k])
    is_in = np.arange(runs) % 2 == 0
    theta = np.zeros(runs)
    before = theta  # the models one step earlier
    for step, curvature in enumerate(np.asarray(curvatures)):
        push = NOISE_MULTIPLIER * rng.normal(size=runs)
        if (step + 1) % landscape.k == 0:  # the last step of a period inserts
            push += signs[step] * is_in
        after = theta + beta * (theta - before) - curvature * theta + push
        before = theta
        theta = after
    return theta[is_in], theta[~is_in]


def make_rows(beta: float, level: Level, runs: int, seed: int) -> list[Record]:
    """Returns a record for each of STARTS, with mu and epsilons of the last model at the level's delta.

    `beta` is the momentum, in [0, 1). Half of the `runs` simulated runs have the canary.

    Returns:
      Records with the period's number of steps `k` and the largest curvature `most`. The optimized landscape
      has `mu`, `epsilon`, the curvatures `period` and `end`, and `simulated`, a lower bound on its epsilon
      from simulated runs with the level's confidence. For SGD with the same k, `linear` is the epsilon on
      linear losses, and `sgd_bound` is an upper bound for any convex loss. `composition` is the accountant's
      epsilon for all models together.
    """
    composed_mu = np.sqrt(INSERTIONS) / NOISE_MULTIPLIER  # of INSERTIONS Gaussian releases
    composition = conversions.epsilon_from_mu(composed_mu, level.delta)
    rows = []
    for start in STARTS:
        landscape, mu = optimize(start, beta)
        # Steps of SGD on smooth convex losses have the Lipschitz constant 1.
        sgd = make_convex_row(start.k, insert=LAST, lipschitz=1.0, delta=level.delta)
        scores = simulate(landscape, beta, runs, seed)
        # The last model is normal, so the trade-off curve is Gaussian as the bound assumes.
        bound = estimate.METHODS[IF_GAUSSIAN].compute(*scores, *level)
        # On linear losses, SGD's steps preserve distances, as along a constant direction.
        linear = conversions.epsilon_from_mu(sgd["mu_constant_direction"], level.delta)
        row = {
            "k": start.k,
            "most": start.most,
            "linear": linear,
            "sgd_bound": sgd["epsilon_bound"],
            "mu": mu,
            "epsilon": conversions.epsilon_from_mu(mu, level.delta),
            "simulated": bound.epsilon,
            "composition": composition,
            "period": _show_numbers(landscape.period),
            "end": _show_numbers(landscape.end),
        }
        rows.append(row)
    return rows


def _show_numbers(numbers: tuple[float, ...]) -> str:
    """Formats numbers as text, separated by spaces."""
    return " ".join(map("{:.6g}".format, numbers))


def make_table(beta: float, level: Level, runs: int, seed: int) -> Table[Record]:
    """Returns the table of the landscapes crafted for momentum beta; see `make_rows`."""
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
        f"epsilon at delta {show_level(level.delta)}",
    ]
    after = ["simulated: lower bound if the curve is Gaussian"]
    return Table(columns, make_rows(beta, level, runs, seed), before=before, after=after)
