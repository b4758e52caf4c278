"""A store's audits as rows, for a terminal and for programs: what each is, and what was concluded last."""

import csv
import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError
from audit.json_text import finite
from audit.rounding import at_least, at_least_digits, at_most, short
from audit.runtime.progress import shortened
from audit.settings import stored
from audit.settings.make import fields, setting_of
from audit.settings.setting import Setting, flat
from audit.storage.store import Kept, Store, hash_of, newest_scores
from audit.tasks import zoo

_LINE_WIDTH = 80  # of a terminal
_CSV_DIGITS = 10
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
    last_result = store.result()
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
    header = _align("setting", "model, adversary", "runs", "proven", "upper", "age")
    indent = " " * _INDENT
    lines = [header, "-" * _LINE_WIDTH]
    for row in rows:
        last = row.last_result
        cells = (
            hash_of(row.folder)[:8],
            _show_name(row.setting),
            str(row.runs),
            _show_lower_bound(finite(last.epsilon)),
            _show_upper_bound(last.upper_bound),
            _show_age(now - row.time),
        )
        lines.append(_align(*cells))
        differences = _show_differences(row.differs)
        lines += textwrap.wrap(
            differences, _LINE_WIDTH, initial_indent=indent, subsequent_indent=indent
        )
    return "\n".join(lines)


def _align(setting: str, name: str, runs: str, proven: str, upper: str, age: str) -> str:
    """Returns a line of the text table."""
    return f"{setting:<10}{name:<{_NAME_WIDTH}}{runs:>9}{proven:>10}{upper:>10}{age:>7}"


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
    records = []
    for row in rows:
        last = row.last_result
        record = {
            "setting": hash_of(row.folder),
            "folder": str(row.folder),
            "model": row.setting.model,
            "adversary": row.setting.adversary.name,
            "differs": row.differs,
            "runs": row.runs,
            "audited_runs": last.runs,
            "delta": last.delta,
            "confidence": last.confidence,
            "epsilon": finite(last.epsilon),
            "upper_bound": finite(last.upper_bound),
            "time": row.time,
        }
        records.append(record)
    return records


def as_csv(rows: Sequence[Listed]) -> str:
    """Returns audits as CSV, with a column for every field of a setting; unknown values are empty.

    Floats have ten digits, which write a time in seconds since 1970 to the second; bounds are rounded down.
    """
    records = []
    for row, record in zip(rows, as_json(rows), strict=True):
        del record["differs"]  # the columns of fields show it
        cells = record | flat(row.setting) | record
        for name, value in cells.items():
            if isinstance(value, float):
                cells[name] = f"{value:.{_CSV_DIGITS}g}"
        if record["epsilon"] is not None:
            cells["epsilon"] = at_least_digits(record["epsilon"], _CSV_DIGITS)
        records.append(cells)
    names = dict.fromkeys(name for cells in records for name in cells)  # each once, in order
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _show_name(setting: Setting) -> str:
    """Returns the names of model and adversary; a model's name that is too long is shortened."""
    adversary = f", {setting.adversary.name}"
    model = shortened(setting.model, _NAME_WIDTH - 1 - len(adversary))
    return model + adversary


def _show_lower_bound(epsilon: float | None) -> str:
    """Returns a lower bound rounded down to three decimals, without zeros at its end."""
    if epsilon is None:
        return "-"
    return short(at_least(epsilon))


def _show_upper_bound(epsilon: float | None) -> str:
    """Returns an upper bound rounded up to three decimals, without zeros at its end."""
    if epsilon is None:
        return "-"
    if not math.isfinite(epsilon):
        return "infinite"
    return short(at_most(epsilon))


def _show_age(seconds: float) -> str:
    """Returns an age in words, rounded down to the largest unit that it reaches: "3 h"."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0) // 1:.0f} s"  # an age is negative if a clock was set back
