"""What an audit's scores prove: every lower bound beside the accountant's upper bound, computed and kept."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.statistics import accounting, estimate
from audit.statistics.estimate import Bound
from audit.storage.store import Store
from experiments.plots import bounds_table


class Conclusion(NamedTuple):
    """Scores (n_in,) and (n_out,), all lower bounds on them, and the upper bounds on epsilon and mu: infinite
    without noise, None where the mechanism is not known."""

    scores_in: NDArray[np.float64]
    scores_out: NDArray[np.float64]
    bounds: list[Bound]
    upper_bound: float | None = None
    mu_upper_bound: float | None = None

    def bound(self, method: str) -> Bound:
        """One method's bound."""
        return next(bound for bound in self.bounds if bound.method == method)

    def figure(self) -> bytes:
        """The audit's figure as PNG."""
        from experiments.plots import audit_panels

        return audit_panels.audit_figure(*self)


def conclude(
    worlds: tuple[NDArray[np.float64], NDArray[np.float64]],
    noise: tuple[float, int] | None,
    delta: float,
    confidence: float,
) -> Conclusion:
    """The conclusion from (scores in, scores out) and (noise multiplier, insertions), where these are known;
    raises InputError for scores or values that nothing can be concluded from."""
    bounds = estimate.all_bounds(*worlds, delta, confidence)
    if noise is None:
        return Conclusion(*worlds, bounds)
    upper = accounting.epsilon_upper_bound(*noise, delta)
    return Conclusion(*worlds, bounds, upper, accounting.mu_upper_bound(*noise))


def keep(store: Store, conclusion: Conclusion, **more: Any) -> tuple[str, Path]:
    """Writes audit.json, with what else is given, and audit.png; returns the JSON on one line and the
    figure's path."""
    result = keep_result(store, conclusion, **more)
    return result, store.write_bytes("audit.png", conclusion.figure())


def keep_result(store: Store, conclusion: Conclusion, **more: Any) -> str:
    """Writes audit.json alone; returns the JSON on one line."""
    mu = conclusion.mu_upper_bound
    known = mu if mu is not None and math.isfinite(mu) else None
    result = bounds_table.bounds_json(conclusion.bounds, conclusion.upper_bound, mu_upper_bound=known, **more)
    store.write_text("audit.json", json.dumps(json.loads(result), indent=2) + "\n")
    return result
