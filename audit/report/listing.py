"""A store's audits as rows, for a terminal and for programs: what each is, and what was concluded last."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError
from audit.report import table
from audit.report.table import Column, Table
from audit.runtime.progress import shortened
from audit.settings import stored
from audit.settings.make import fields, setting_of
from audit.settings.setting import Setting, flat
from audit.storage.store import Kept, Store, finite, hash_of, newest_scores
from audit.tasks import zoo

_COLUMNS, _INDENT, _NAME = 80, 10, 34
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


class Listed(NamedTuple):
    """An audit in a store: `differs` has the fields that differ from the defaults, by their flags; runs those
    that are held; kept the last conclusion, empty where there is none; time that of the newest scores, in
    seconds since 1970."""

    folder: Path
    setting: Setting
    differs: dict[str, Any]
    runs: int
    kept: Kept
    time: float


def listed(folder: Path) -> Listed:
    """The row of an audit's folder; raises InputError where it can't be read."""
    store = Store.at(folder)
    known = stored.known(store.config())
    if known is None:
        raise InputError(f"{folder} is no audit of trained models")
    newest = newest_scores(folder) or 0
    kept = store.result() or Kept()
    return Listed(folder, known.setting, differs(known.setting), store.runs_held(), kept, newest / 1e9)


def differs(setting: Setting) -> dict[str, Any]:
    """The fields of a setting, by their flags, that differ from those of an audit with its model and
    adversary; `insertions` stands for the steps where these hold a whole number of them."""
    if setting.model in zoo.tasks():
        usual = flat(setting_of(setting.model, adversary=setting.adversary.name))
    else:  # fields that no model of a caller's own has are not among the defaults
        known = {name: field.default for name, field in fields().items() if field.default is not None}
        usual = {**known, "model": setting.model, "adversary": setting.adversary.name}
    usual["insertions"] = fields()["insertions"].default
    values = flat(setting)
    steps, k = values.pop("steps"), setting.schedule.periodicity
    length = {"insertions": steps // k} if steps % k == 0 else {"steps": steps}
    found = {**values, **length}
    flags = {name: field.flag for name, field in fields().items()}
    unusual = {name: value for name, value in found.items() if value != usual.get(name)}
    return {flags.get(name, name): value for name, value in sorted(unusual.items())}


def as_table(rows: Sequence[Listed], now: float) -> str:
    """The rows in 80 columns, each with its differences on lines below it."""
    header, rule, *found = _table(rows, now).text().split("\n")
    lines = [header, rule]
    for one, line in zip(rows, found, strict=True):
        shown = {n: f"{value:g}" if isinstance(value, float) else value for n, value in one.differs.items()}
        texts = ", ".join(f"{name}={value}" for name, value in shown.items())
        indent = " " * _INDENT
        lines += [line, *textwrap.wrap(texts, _COLUMNS, initial_indent=indent, subsequent_indent=indent)]
    return "\n".join(lines)


def as_json(rows: Sequence[Listed]) -> list[dict[str, Any]]:
    """The rows for json.dumps; what is infinite or unknown is None."""
    return _table(rows, 0.0).json()


def _table(rows: Sequence[Listed], now: float) -> Table[Listed]:
    columns = (
        Column("setting", lambda one: hash_of(one.folder), "setting", lambda name: name[:8], 10, left=True),
        Column(None, lambda one: _name(one.setting), "model, adversary", width=_NAME, left=True),
        Column("folder", lambda one: str(one.folder)),
        Column("model", lambda one: one.setting.model),
        Column("adversary", lambda one: one.setting.adversary.name),
        Column("differs", lambda one: one.differs),
        Column("runs", lambda one: one.runs, "runs", width=9),
        Column("audited_runs", lambda one: one.kept.runs),
        Column("delta", lambda one: one.kept.delta),
        Column("confidence", lambda one: one.kept.confidence),
        Column("epsilon", lambda one: finite(one.kept.epsilon)),
        Column(None, lambda one: finite(one.kept.epsilon), "proven", _lower, 10, none="-"),
        Column("upper_bound", lambda one: finite(one.kept.upper_bound)),
        Column(None, lambda one: one.kept.upper_bound, "upper", _upper, 10, none="-"),
        Column("time", lambda one: one.time),
        Column(None, lambda one: _age(now - one.time), "age", width=7),
    )
    return Table(columns, rows, gap="", rule=_COLUMNS)


def _name(setting: Setting) -> str:
    """Model and adversary; of a long model's name the beginning."""
    adversary = f", {setting.adversary.name}"
    return shortened(setting.model, _NAME - 1 - len(adversary)) + adversary


def _lower(epsilon: float) -> str:
    return table.short(table.at_least(epsilon))


def _upper(epsilon: float) -> str:
    return table.short(table.at_most(epsilon)) if math.isfinite(epsilon) else "infinite"


def _age(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0) // 1:.0f} s"
