"""Convex losses for which momentum greatly increases the last model's leakage.

The losses are one-dimensional quadratics, with a different curvature at each step. In this module, curvatures
include the learning rate eta. The pattern repeats every k steps, except at the end. Curvatures between 0 and
eta L make the losses convex and L-smooth. A local search (L-BFGS-B) found the curvatures for momentum 0.9.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from audit.errors import LAST
from audit.laws import conversions
from audit.laws.intervals import Array
from audit.methods import estimate
from audit.methods.estimate import IF_GAUSSIAN
from audit.report.table import Table, at_least, at_most
from audit.written import show_level
from experiments.hidden_state.crafted import INSERTIONS, NOISE_MULTIPLIER, make_convex_row
from experiments.hidden_state.landscape import Study
from experiments.sweeps.records import Record, field

BETA = 0.9


class Landscape(NamedTuple):
    """A convex loss, given by its curvatures. These are strings, as in the CSV.

    Attributes:
      most: The largest allowed curvature, eta L.
      period: The k curvatures of a period.
      end: Curvatures that replace those of the last steps; not empty.
    """

    most: str
    period: str
    end: str

    @property
    def k(self) -> int:
        """The number of steps in a period."""
        return len(self.period.split())

    def list_curvatures(self) -> Array:
        """Returns the curvatures of all steps, of shape (T,). A run has INSERTIONS periods."""
        end = self.end.split()
        repeated = INSERTIONS * self.period.split()
        before_end = repeated[: -len(end)]
        return np.array(before_end + end, np.float64)


_LANDSCAPES = """\
1; 0 0; 0.002 0.002 0.002 0.902
2; 0 1.905263; 0 1.915 0 1.941
1; 0.6644 0.9896 1; 0 0.122 0.85 0 0 0.941
2; 1e-05 1e-05 1.27601; 0 0 1.304 0 0 1.601
1; 0.00013 0 0.2721 0.00013 0.76704; 0 0 0 0 0.828 0 0 0 0.531 1
2; 0 2 1.69496 0 1.28992; 0 2 1.719 0 1.279 0 2 2 0 1.59
1; 0 0 1 0.764017 0 0.140599 1 0 0 0.752363; 0.017 0.003 1 0.777 0.006 0.145 1 0 0.009 0.785 0.01 0.001 1 \
0.777 0.002 0.14 0.999 0.001 0.003 0.756
2; 0 2 0.38611 0 1.999999 1.971905 0.81309 2 4.6e-05 1.310388; 0 2 0.386 0 2 1.972 0.813 2 0 1.31 0 2 0.386 \
0 2 1.972 0.813 2 0 1.31
1; 0 0 0.999962 0.999962 0 0 1 0.998962 0 0 0.999962 0.785008 0.646975 0 0 0.77997 0.141033 0 0 0 0.923965 \
0.999962 0 0 0.699973; 0 0 1 1 0 0 1 0.999 0 0 1 0.785 0.647 0 0 0.78 0.141 0 0 0 0.924 1 0 0 0.7 0 0 1 1 0 \
0 1 0.999 0 0 1 0.785 0.647 0 0 0.78 0.141 0 0 0 0.924 1 0 0 0.7
2; 0 1.9998083 0.05899434 0.52095006 1.9998083 0.2879724 1.9998083 0.0249976 1.1330831 1.16388843 \
0.15698495 1.78902022 0.01099895 0.38796281 1.9988084 1.08689581 0.34996645 1.53585277 1.28787655 1.9998083 \
0 0.52194997 1.9998083 0 1.31387405; 0 1.99981 0.05899 0.52098 1.99986 0.28799 1.99996 0.025 1.133 1.16399 \
0.157 1.789 0.011 0.38799 1.99899 1.08699 0.34997 1.53597 1.28799 1.99995 0 0.52195 1.99981 0 1.31387 0 \
1.99981 0.05899 0.52099 1.99993 0.288 1.99998 0.025 1.133 1.16399 0.157 1.789 0.011 0.388 1.999 1.087 0.35 \
1.536 1.288 2 0 0.522 2 0 1.314
"""
LANDSCAPES = [Landscape(*line.split("; ")) for line in _LANDSCAPES.splitlines()]


def compute_weights(curvatures: Array) -> Array:
    """Returns each step's weight w_t (T,) in the last model, given the curvatures a_t (T,).

    Step t of the heavy-ball method adds BETA (theta_t - theta_(t-1)) - a_t theta_t, noise and any canary. w_t
    is the last model's derivative with respect to this noise. By the chain rule,

        w_(t-1) = (1 + BETA - a_t) w_t - BETA w_(t+1),   w_T = 1, w_(T+1) = 0.
    """
    weight = 1.0  # w_T
    following = 0.0  # w_(T+1)
    weights = [weight]
    for curvature in reversed(curvatures[1:]):  # a_T, ..., a_2
        previous = (1 + BETA - curvature) * weight - BETA * following
        following = weight
        weight = previous
        weights.append(weight)
    return np.array(weights[::-1])


def compute_mu(landscape: Landscape) -> float:
    """Returns the last model's mu on a crafted loss when the last step of each period inserts the canary.

    The last model is Gaussian: a weighted sum of the steps' noise and canaries, with weights w_t. The canary
    has the sign of w_t, so each insertion moves the last model in the same direction. So mu is

        (sum of |w_t| over insertions) / (sigma * sqrt(sum of w_t^2 over all steps)).
    """
    weights = compute_weights(landscape.list_curvatures())
    inserting = weights[landscape.k - 1 :: landscape.k]
    signal = np.abs(inserting).sum()
    return float(signal / (NOISE_MULTIPLIER * np.linalg.norm(weights)))


def simulate(landscape: Landscape, runs: int, seed: int) -> tuple[Array, Array]:
    """Trains runs with the heavy-ball method, half of them with the canary.

    Returns two arrays (runs / 2,): the last models with and without the canary.
    """
    curvatures = landscape.list_curvatures()
    # With these signs, the canary increases the value of the last model.
    signs = np.sign(compute_weights(curvatures))
    rng = np.random.default_rng([seed, landscape.k])
    is_in = np.arange(runs) % 2 == 0
    theta = np.zeros(runs)
    before = theta  # the models one step earlier
    for step, curvature in enumerate(curvatures):
        push = NOISE_MULTIPLIER * rng.normal(size=runs)
        if (step + 1) % landscape.k == 0:  # the last step of a period inserts the canary
            push += signs[step] * is_in
        after = theta + BETA * (theta - before) - curvature * theta + push
        before = theta
        theta = after
    return theta[is_in], theta[~is_in]


def make_rows(study: Study) -> list[Record]:
    """Returns a record for each of LANDSCAPES, convex losses that leak more with momentum.

    Training has INSERTIONS periods of k steps, and each period's last step inserts the canary.

    Returns:
      Records with the landscape's fields and `k`, as well as
      mu, epsilon: How much the last model leaks with momentum.
      simulated: A lower bound on this epsilon from simulated runs.
      linear: The epsilon of SGD without momentum on linear losses.
      sgd_bound: An upper bound on the epsilon of SGD for any convex loss.
      composition: The accountant's epsilon for all models together.
    """
    composed_mu = np.sqrt(INSERTIONS) / NOISE_MULTIPLIER
    composition = conversions.epsilon_from_mu(composed_mu, study.delta)
    rows = []
    for landscape in LANDSCAPES:
        mu = compute_mu(landscape)
        # SGD steps on smooth convex losses are 1-Lipschitz.
        sgd = make_convex_row(landscape.k, insert=LAST, lipschitz=1.0, delta=study.delta)
        scores = simulate(landscape, study.runs, study.seed)
        # The last model is normally distributed, so the trade-off curve is Gaussian, as the bound assumes.
        bound = estimate.METHODS[IF_GAUSSIAN].compute(*scores, study.delta, study.confidence)
        rows.append(
            {
                **landscape._asdict(),
                "k": landscape.k,
                # Steps on linear losses preserve distances: all have the same slope, `lipschitz` = 1.
                "linear": conversions.epsilon_from_mu(sgd["mu_same_slopes"], study.delta),
                "sgd_bound": sgd["epsilon_bound"],
                "mu": mu,
                "epsilon": conversions.epsilon_from_mu(mu, study.delta),
                "simulated": bound.epsilon,
                "composition": composition,
            }
        )
    return rows


def make_table(study: Study) -> Table[Record]:
    """Returns a table that compares momentum with plain SGD on LANDSCAPES; see `make_rows`."""
    upper = partial(at_most, decimals=2)
    columns = [
        field("k", "k"),
        field("most", "eta L\nup to"),  # largest learning rate * curvature
        field("linear", "SGD, linear\nlosses", ".2f"),
        field("sgd_bound", "SGD, any\nconvex loss", upper),
        field("epsilon", f"momentum {BETA:g},\nthis loss", ".2f"),
        field("simulated", f"simulated,\n{study.runs:,} scores", partial(at_least, decimals=2)),
        field("composition", "all\nmodels", upper),
        # Only in the CSV.
        field("mu"),
        field("period"),
        field("end"),
    ]
    before = [
        f"last models of heavy ball on crafted convex losses: sigma = {NOISE_MULTIPLIER:g}, "
        f"{INSERTIONS} insertions,",
        "canary in the last step of each period of k steps; "
        f"epsilon at delta {show_level(study.delta)}",
    ]
    # The curve is Gaussian here.
    after = ["simulated: lower bound if the curve is Gaussian"]
    return Table(columns, make_rows(study), before=before, after=after)
