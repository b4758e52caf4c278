"""An audit's conclusion, kept beside its scores: audit.json for programs, audit.png for people."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from audit.statistics import curves
from audit.statistics.conclusion import Conclusion, method_of
from audit.statistics.estimate import Bound, Finding
from audit.storage.store import Store

_LOW_RATES = (0.1, 0.01, 0.001)  # of false positives


def keep(store: Store, conclusion: Conclusion, figure: bytes, **more: object) -> tuple[str, Path]:
    """Writes audit.json, with what else is given, and audit.png, the figure's bytes.

    Returns the JSON on one line and the figure's path; raises InputError where they can't be written.
    """
    result = keep_result(store, conclusion, **more)
    return result, store.write_figure(figure)


def keep_result(store: Store, conclusion: Conclusion, **more: object) -> str:
    """Writes audit.json alone; returns the JSON on one line."""
    result = result_json(conclusion, **more)
    store.write_result(json.dumps(json.loads(result), indent=2) + "\n")
    return result


def result_json(conclusion: Conclusion, **more: object) -> str:
    """The content of audit.json on one line."""
    return bounds_json(conclusion, mu_upper_bound=_finite(conclusion.mu_upper_bound), **more)


def bounds_json(conclusion: Conclusion, **more: object) -> str:
    """One JSON object on one line: `bounds`, estimates with their noise floor among them, `upper_bound`,
    null where it is infinite or unknown, the test of the Gaussian curve where it was made, the looks where
    some were declared, and what else is given."""
    rows = [finding_fields(row) | _noise_floor(row) for row in conclusion.rows()]
    upper = _finite(conclusion.upper_bound)
    found = {"bounds": rows, "upper_bound": upper, **_curve(conclusion), **_looks(conclusion)}
    return json.dumps({**found, **more})


def attack_fields(conclusion: Conclusion) -> dict[str, Any]:
    """The attack's `auc` and its true-positive rates by false-positive rate, none of them a bound."""
    scores = conclusion.scores_in, conclusion.scores_out
    rates = {f"{rate:g}": curves.true_positive_rate(*scores, rate) for rate in _LOW_RATES}
    return {"auc": curves.auc(*scores).value, "true_positive_rates": rates}


def _curve(conclusion: Conclusion) -> dict[str, Any]:
    """The test of the Gaussian curve; nothing where it was not made."""
    if conclusion.curve is None:
        return {}
    verdict = {"refuted": conclusion.refutes_gaussian, "doubtful": conclusion.doubts_gaussian}
    power = conclusion.curve_power
    return {"gaussian_curve": {"p_value": conclusion.curve.p_value, "power": power, **verdict}}


def _looks(conclusion: Conclusion) -> dict[str, Any]:
    """The declared looks, and the bounds of those taken; nothing where none was declared."""
    looks = conclusion.looks
    if looks is None:
        return {}
    taken = [{"runs": look.runs, "bounds": list(map(finding_fields, look.bounds))} for look in looks.taken]
    return {"looks": {"schedule": looks.schedule, "confidence_of_each": looks.confidence, "taken": taken}}


def finding_fields(finding: Finding) -> dict[str, Any]:
    """A finding's fields under one set of keys: an estimate's caveat stands where a bound says what it
    assumes."""
    fields = dataclasses.asdict(finding)
    assumes = fields.pop("assumes" if isinstance(finding, Bound) else "caveat")
    return {"method": fields.pop("method"), "assumes": assumes, **fields}


def _noise_floor(finding: Finding) -> dict[str, Any]:
    """An estimate's noise floor; nothing where a method has none."""
    floor = method_of(finding).noise_floor
    if floor is None:
        return {}
    return {"noise_floor": floor(finding.n_in, finding.n_out, finding.delta, finding.confidence)._asdict()}


def _finite(value: float | None) -> float | None:
    """The value, None where it is infinite."""
    return value if value is not None and math.isfinite(value) else None
