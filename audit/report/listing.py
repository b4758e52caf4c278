"""A store's audits as rows, for a terminal and for programs: what each is, and what was concluded last."""

import math
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError
from audit.json_text import finite
from audit.report import table
from audit.report.table import Column, Table
from audit.runtime.progress import shortened
from audit.settings import stored
from audit.settings.make import fields, setting_of
from audit.settings.setting import Setting, flat
from audit.storage.store import Kept, Store, hash_of, newest_scores
from audit.tasks import zoo

_LINE_WIDTH = 80  # of a terminal
_INDENT = 10  # blanks before the lines below a row
_NAME_WIDTH = 34  # of the column with model and adversary
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))  # units of ages, with their length in seconds


class Listed(NamedTuple):
    """An audit in a store.

    Attributes:
      folder: the audit's folder.
      setting: the audited setting.
      differs: the setting's fields that differ from the defaults, by their flags.
      runs: how many runs the store has.
      last_result: the last conclusion; all its fields are None without one.
      time: when the newest scores were written, in seconds since 1970.
    """

    folder: Path
    setting: Setting
    differs: dict[str, Any]
    runs: int
    last_result: Kept
    time: float


def listed(folder: Path) -> Listed:
    """Returns the audit in a folder as `list` shows it; raises InputError if the folder can't be read."""
    store = Store.at(folder)
    audited = stored.parse_config(store.config())
    if audited is None:
        raise InputError(f"{folder} is no audit of trained models")
    nanoseconds = newest_scores(folder) or 0  # 0 if there are no scores yet
    last_result = store.result() or Kept()  # an empty result if nothing was concluded yet
    return Listed(
        folder=folder,
        setting=audited.setting,
        differs=find_differences(audited.setting),
        runs=store.runs_held(),
        last_result=last_result,
        time=nanoseconds / 1e9,
    )


def find_differences(setting: Setting) -> dict[str, Any]:
    """Returns by flag the values in which a setting differs from its model's and adversary's defaults.

    A field without a flag, such as those of a caller's own adversary, is there under its own name. If the
    steps are a whole number of periods, `insertions` takes their place, as on the command line: there the
    default is a number of insertions, and the number of steps follows from it and the period.
    """
    defaults = _find_defaults(setting)
    values = flat(setting)
    steps = values.pop("steps")
    period = setting.schedule.periodicity
    if steps % period == 0:
        values["insertions"] = steps // period
    else:
        values["steps"] = steps

    flag_by_name = {name: field.flag for name, field in fields().items()}
    differences = {}
    for name, value in sorted(values.items()):
        if value != defaults.get(name):
            differences[flag_by_name.get(name, name)] = value
    return differences


def _find_defaults(setting: Setting) -> dict[str, Any]:
    """Returns the values of the fields, by name, if only the setting's model and adversary are given.

    The field `insertions` is among them in place of `steps`, which a setting stores: `steps` has no default
    but what follows from insertions and period. For a caller's own model, fields whose defaults depend on the
    model, such as the learning rate, are missing.
    """
    if setting.model in zoo.tasks():
        defaults = flat(setting_of(setting.model, adversary=setting.adversary.name))
    else:  # a caller's own model
        defaults = {
            name: field.default for name, field in fields().items() if field.default is not None
        }
        defaults["model"] = setting.model
        defaults["adversary"] = setting.adversary.name
    defaults.pop("steps", None)
    defaults["insertions"] = fields()["insertions"].default
    return defaults


def as_table(rows: Sequence[Listed], now: float) -> str:
    """Returns audits as a text table of 80 columns; differences from the defaults stand below each row.

    Args:
      rows: the audits.
      now: the time in seconds since 1970, for the audits' ages.
    """
    header, rule, *row_lines = _make_table(rows, now).text().split("\n")
    indent = " " * _INDENT
    lines = [header, rule]
    for row, line in zip(rows, row_lines, strict=True):
        lines.append(line)
        differences = _show_differences(row.differs)
        lines += textwrap.wrap(
            differences, _LINE_WIDTH, initial_indent=indent, subsequent_indent=indent
        )
    return "\n".join(lines)


def _show_differences(differences: dict[str, Any]) -> str:
    """Returns flags with their values as text, "k=5, seed=1"; of a fingerprint, its first 8 digits."""
    texts = []
    for flag, value in differences.items():
        text = f"{value:g}" if isinstance(value, float) else str(value)
        if flag == "computes":  # the fingerprint of a caller's own adversary
            text = text[:8]
        texts.append(f"{flag}={text}")
    return ", ".join(texts)


def as_json(rows: Sequence[Listed]) -> list[dict[str, Any]]:
    """Returns audits as dictionaries for json.dumps; infinite and unknown values are None."""
    return _make_table(rows, 0.0).json()  # ages are for people alone


def as_csv(rows: Sequence[Listed]) -> bytes:
    """Returns audits as CSV, with a column for every field of a setting; unknown values are empty."""
    names: dict[str, None] = {}  # the keys are the fields of all settings, in order
    for row in rows:
        names |= dict.fromkeys(flat(row.setting))
    facts = _make_table(rows, now=0.0).columns  # any time will do: CSV leaves ages out
    settings = [
        Column(name, partial(_find_value, name))
        for name in names
        if name not in ("model", "adversary")  # which have their columns among the facts
    ]
    # The fields' own columns show what "differs" would.
    columns = [column for column in facts if column.key != "differs"]
    # Ten digits write a time, in seconds since 1970, to the second.
    return Table([*columns, *settings], rows, digits=10).csv()


def _find_value(name: str, row: Listed) -> Any:
    """Returns the value of a setting's field; None where the setting has no such field."""
    return flat(row.setting).get(name)


def _make_table(rows: Sequence[Listed], now: float) -> Table[Listed]:
    """Returns the table of audits, for people and for programs.

    Columns without a head are only in JSON and CSV, columns without a key only in the text. Programs get no
    infinite numbers, which JSON does not have (`finite`). The text shows an infinite upper bound as such.
    Each column has its key, its value, its head and its format, `show`, which also rounds it for CSV.

    Args:
      rows: the audits.
      now: the time in seconds since 1970, for the audits' ages.
    """
    columns = (
        Column(
            "setting",
            lambda row: hash_of(row.folder),
            "setting",
            lambda name: name[:8],  # people see the first digits of the hash
            width=10,
            left=True,
        ),
        Column(
            None,
            lambda row: _show_name(row.setting),
            "model, adversary",
            width=_NAME_WIDTH,
            left=True,
        ),
        Column("folder", lambda row: str(row.folder)),
        Column("model", lambda row: row.setting.model),
        Column("adversary", lambda row: row.setting.adversary.name),
        Column("differs", lambda row: row.differs),
        Column("runs", lambda row: row.runs, "runs", width=9),
        Column("audited_runs", lambda row: row.last_result.runs),
        Column("delta", lambda row: row.last_result.delta),
        Column("confidence", lambda row: row.last_result.confidence),
        Column("epsilon", lambda row: finite(row.last_result.epsilon), show=table.at_least),
        Column(
            None,
            lambda row: finite(row.last_result.epsilon),  # infinity cannot be rounded
            "proven",
            _show_lower_bound,
            width=10,
            none="-",
        ),
        Column("upper_bound", lambda row: finite(row.last_result.upper_bound)),
        Column(
            None,
            lambda row: row.last_result.upper_bound,
            "upper",
            _show_upper_bound,
            width=10,
            none="-",
        ),
        Column("time", lambda row: row.time),
        Column(None, lambda row: _show_age(now - row.time), "age", width=7),
    )
    return Table(columns, rows, gap="", rule=_LINE_WIDTH)


def _show_name(setting: Setting) -> str:
    """Returns the names of model and adversary; a model's name that is too long is shortened."""
    adversary = f", {setting.adversary.name}"
    model = shortened(setting.model, _NAME_WIDTH - 1 - len(adversary))
    return model + adversary


def _show_lower_bound(epsilon: float) -> str:
    """Returns a lower bound rounded down to three decimals, without zeros at its end."""
    return table.short(table.at_least(epsilon))


def _show_upper_bound(epsilon: float) -> str:
    if not math.isfinite(epsilon):
        return "infinite"
    return table.short(table.at_most(epsilon))


def _show_age(seconds: float) -> str:
    """Returns an age in words, rounded down to the largest unit that it reaches: "3 h"."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0) // 1:.0f} s"  # an age is negative if a clock was set back
