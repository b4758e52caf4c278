"""What is kept beside a setting's scores.

audit.json, audit.png   an audit's conclusion, for programs and for people
made.json               what figures and pages were made from, and the SHA-256 of each: whether they would be
                        made alike now. It is written after them: what a kill cut off is made again, and so
                        is what anyone changed
looks.json              the looks that were declared, from the first look on. A schedule that is chosen after
                        a look proves nothing, so that the one under which the first was taken stays
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from audit.conclusions.conclusion import Conclusion, method_of, require_schedule
from audit.errors import InputError, require
from audit.methods import curves
from audit.methods.estimate import Bound, Estimate, Finding
from audit.storage import files
from audit.storage.store import FIGURE, RESULT, Store, finite
from audit.version import __version__

_MADE, _LOOKS = "made.json", "looks.json"


def keep(store: Store, conclusion: Conclusion, figure: bytes, **more: object) -> tuple[str, Path]:
    """Writes audit.json, with what else is given, and audit.png, the figure's bytes. Returns the JSON on one
    line and the figure's path; raises InputError where they can't be written."""
    return keep_result(store, conclusion, **more), store.write_bytes(FIGURE, figure)


def keep_result(store: Store, conclusion: Conclusion, **more: object) -> str:
    """Writes audit.json alone; returns the JSON on one line."""
    result = result_json(conclusion, **more)
    store.write_text(RESULT, json.dumps(json.loads(result), indent=2) + "\n")
    return result


def result_json(conclusion: Conclusion, **more: object) -> str:
    """The content of audit.json on one line."""
    return bounds_json(conclusion, mu_upper_bound=finite(conclusion.mu_upper_bound), **more)


def bounds_json(conclusion: Conclusion, **more: object) -> str:
    """One JSON object on one line: `bounds`, with estimates and noise floors, `upper_bound`, null if infinite
    or unknown, `hidden_state` and `expected` where there are such, `epsilon`, that is proven without an
    assumption on the curve, the most that so many runs can prove so, the Gaussian curve's test and the looks
    where there are any, and what else is given."""
    rows = [finding_fields(row) | _noise_floor(row) for row in conclusion.rows()]
    upper = finite(conclusion.upper_bound)
    proven = {"epsilon": conclusion.epsilon, "most_provable": conclusion.most_provable}
    uppers = {"upper_bound": upper, **_hidden_state(conclusion)}
    uppers |= {} if conclusion.expected is None else {"expected": conclusion.expected}
    notes = {"notes": conclusion.notes} if conclusion.notes else {}
    found = {"bounds": rows, **notes, **uppers, **proven, **_curve(conclusion), **_looks(conclusion)}
    return json.dumps({**found, **more})


def attack_fields(conclusion: Conclusion) -> dict[str, Any]:
    """The attack's `auc`, `accuracy` and true-positive rates by false-positive rate, none of them a bound."""
    scores = conclusion.scores_in, conclusion.scores_out
    rates = {f"{rate:g}": curves.true_positive_rate(*scores, rate) for rate in (0.1, 0.01, 0.001)}
    attack = {name: rate and rate._asdict() for name, rate in curves.attack(*scores)._asdict().items()}
    return {"auc": curves.auc(*scores).value, "true_positive_rates": rates, "attack": attack}


def _hidden_state(conclusion: Conclusion) -> dict[str, Any]:
    found = conclusion.hidden_state
    if found is None:
        return {}
    bound, periods = found.bound, found.periods
    levels = {"epsilon": finite(bound.epsilon), "mu": finite(bound.mu), "assumes": str(found.assumes)}
    return {"hidden_state": {**levels, "lipschitz": found.range, "k": periods.k, "insert": periods.insert}}


def _curve(conclusion: Conclusion) -> dict[str, Any]:
    if conclusion.curve is None:
        return {}
    tested = {"p_value": conclusion.curve.p_value, "power": conclusion.curve_power}
    decides = conclusion.deciding() if conclusion.doubts_gaussian else None
    return {"gaussian_curve": {**tested, "status": conclusion.curve_status, "deciding_runs": decides}}


def _looks(conclusion: Conclusion) -> dict[str, Any]:
    looks = conclusion.looks
    if looks is None:
        return {}
    taken = [{"runs": look.runs, "bounds": list(map(finding_fields, look.bounds))} for look in looks.taken]
    return {"looks": {"schedule": looks.schedule, "confidence_of_each": looks.confidence, "taken": taken}}


def finding_fields(finding: Finding) -> dict[str, Any]:
    """A finding's fields: an estimate's caveat stands where a bound says what it assumes."""
    fields = dataclasses.asdict(finding)
    if not fields.get("counted"):
        fields.pop("counted", None)
    if isinstance(finding, Estimate) and not finding.noise_floor.audits:
        del fields["noise_floor"]
        del fields["standard_error"]
    del fields["assumes" if isinstance(finding, Bound) else "caveat"]
    assumes = str(finding.assumes if isinstance(finding, Bound) else finding.caveat)
    return {"method": fields.pop("method"), "assumes": assumes, **fields}


def _noise_floor(finding: Finding) -> dict[str, Any]:
    floor = method_of(finding).noise_floor
    if floor is None:
        return {}
    return {"noise_floor": floor(finding.n_in, finding.n_out, finding.delta, finding.confidence)._asdict()}


def source(store: Store, conclusion: Conclusion) -> str:
    """SHA-256 of what decides a conclusion's files: this version, the setting, levels and scores."""
    said: list[object] = [__version__, store.text, conclusion.delta, conclusion.confidence]
    if conclusion.hidden_state is not None:
        said += [conclusion.hidden_state.bound.mu, conclusion.hidden_state.reason]
    if conclusion.looks is not None:
        said += [conclusion.looks.schedule, [look.runs for look in conclusion.looks.taken]]
    digest = hashlib.sha256(json.dumps(said).encode())
    for scores in (conclusion.scores_in, conclusion.scores_out):
        digest.update(f"{scores.shape}".encode() + scores.astype("<f8").tobytes())
    return digest.hexdigest()


def stands(store: Store, made_from: str, names: Iterable[str]) -> bool:
    """Whether files of these names were made from that source, and nobody touched them since."""
    try:
        return bool(json.loads(files.read(store.path / _MADE) or b"{}") == _record(store, made_from, names))
    except (ValueError, RecursionError):  # InputError too, of what can't be read
        return False


def mark(store: Store, made_from: str, names: Iterable[str]) -> None:
    """Keeps that files were made from a source; raises InputError where that can't be written."""
    store.write_text(_MADE, json.dumps(_record(store, made_from, names), indent=2) + "\n")


def _record(store: Store, made_from: str, names: Iterable[str]) -> dict[str, object]:
    """The content of made.json for the files as they are, null for one that is missing."""
    contents = {name: files.read(store.path / name) for name in names}
    sums = {name: c if c is None else hashlib.sha256(c).hexdigest() for name, c in contents.items()}
    return {"from": made_from, "files": sums}


class Declared(NamedTuple):
    """The declared numbers of runs, and how many of these looks were taken, at least one."""

    schedule: tuple[int, ...]
    taken: int

    def looks(self) -> tuple[int, ...]:
        """The numbers of runs at which a look was taken."""
        return self.schedule[: self.taken]


def declared_looks(store: Store) -> Declared | None:
    """The looks of a store; None where none was declared. Raises InputError where they can't be read."""
    path = store.path / _LOOKS
    content = files.read(path)
    try:
        return None if content is None else _parsed_looks(content)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(f"{path} is damaged: move {store.path} away, or take another `seed`") from None


def require_declared(store: Store, schedule: Sequence[int]) -> None:
    """Raises InputError where a look was taken under another schedule, or under none; () is none."""
    found, said = declared_looks(store), ",".join(map(str, schedule))
    if found is None:
        seen = schedule and (store.path / RESULT).exists()
        why = "looks that are declared after one was taken prove nothing: take another `seed`"
        require(not seen, f"`looks={said}`: {store.path} has been looked at already, and {why}")
        return
    kept, given = ",".join(map(str, found.schedule)), f"`looks={said}`" if schedule else "no `looks`"
    why = f"{store.path} has {found.taken} of the looks {kept} behind it, and another schedule proves nothing"
    same = tuple(schedule) == found.schedule
    require(same, f"{given}: {why}: give `looks={kept}`, or take another `seed`")


def take_looks(store: Store, schedule: Sequence[int], taken: int) -> bool:
    """Keeps, before anyone sees them, that looks were taken; whether they were new. Raises InputError."""
    with store.turn("looks"):
        found = declared_looks(store)
        if found is not None and found.taken >= taken:
            return False
        store.write_text(_LOOKS, json.dumps({"schedule": list(schedule), "taken": taken}) + "\n")
    return True


def _parsed_looks(content: bytes) -> Declared:
    """The looks that a file holds; raises ValueError, TypeError, KeyError or RecursionError for none."""
    values = json.loads(content)
    schedule, taken = tuple(values["schedule"]), values["taken"]
    require(all(type(value) is int for value in (*schedule, taken)), "whole numbers")
    require_schedule(schedule)
    require(1 <= taken <= len(schedule), "a number of looks")
    return Declared(schedule, taken)
