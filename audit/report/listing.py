"""A store's audits as rows, for a terminal and for programs: what each is, and what was concluded last."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError
from audit.settings import make
from audit.settings.make import fields, setting_of
from audit.settings.setting import Setting, flat
from audit.storage.store import Kept, Store, hash_of, newest_scores
from audit.tasks import task
from audit.written import Level, at_least, at_most, finite, short, shortened, show_level

_LINE_WIDTH = 80  # of a terminal
_INDENT = " " * 10  # before the lines below a row
_NAME_WIDTH = 34  # of the column with model and adversary
_LINE = f"{{:<10}}{{:<{_NAME_WIDTH}}}{{:>9}}{{:>10}}{{:>10}}{{:>7}}"
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
    audited = make.parse_config(store.config())
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

    A field without a flag is there under its own name. If the steps are a whole number of periods,
    `insertions` takes their place, as on the command line: there the default is a number of insertions, and
    the number of steps follows from it and the period. For a caller's own model, fields whose defaults depend
    on the model, such as the learning rate, always differ.
    """
    known = fields()
    adversary = setting.adversary.name
    defaults = {"model": setting.model, "adversary": adversary}
    if setting.model in task.tasks():
        defaults |= flat(setting_of(setting.model, adversary=adversary))
        del defaults["steps"]
    else:
        defaults = {name: field.default for name, field in known.items()} | defaults
    defaults["insertions"] = known["insertions"].default
    values = flat(setting)
    insertions, cut_short = divmod(values["steps"], setting.schedule.periodicity)
    if not cut_short:
        del values["steps"]
        values["insertions"] = insertions
    differences = {}
    for name, value in sorted(values.items()):
        if value != defaults.get(name):
            differences[known[name].flag if name in known else name] = value
    return differences


def make_command(setting: Setting, runs: int, level: Level) -> str:
    """Returns the command line that repeats an audit; empty if only Python can give one of its fields."""
    differences = find_differences(setting)
    flags = {field.flag for field in fields().values() if field.has_flag}
    if not flags.issuperset(differences):
        return ""
    named = {"model": setting.model, "adversary": setting.adversary.name, **differences}
    named |= {"runs": runs, "delta": show_level(level.delta)}
    named["confidence"] = show_level(level.confidence)
    return " ".join(["./run.sh audit", *(f"--{flag}={value}" for flag, value in named.items())])


def as_table(rows: Sequence[Listed], now: float) -> str:
    """Returns audits as a text table of 80 columns; differences from the defaults stand below each row.

    Args:
      rows: the audits.
      now: the time in seconds since 1970, for the audits' ages.
    """
    header = _LINE.format("setting", "model, adversary", "runs", "proven", "upper", "age")
    lines = [header, "-" * _LINE_WIDTH]
    for row in rows:
        last = row.last_result
        adversary = f", {row.setting.adversary.name}"
        name = shortened(row.setting.model, _NAME_WIDTH - 1 - len(adversary)) + adversary
        epsilon = finite(last.epsilon)
        proven = "-"
        if epsilon is not None:
            proven = short(at_least(epsilon))
        upper = "-"
        if last.upper_bound is not None:
            upper = short(at_most(last.upper_bound))
        upper = upper.replace("inf", "infinite")
        age = _show_age(now - row.time)
        lines.append(_LINE.format(hash_of(row.folder)[:8], name, row.runs, proven, upper, age))
        differences = ", ".join(_show_difference(*item) for item in row.differs.items())
        lines += textwrap.wrap(
            differences, _LINE_WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT
        )
    return "\n".join(lines)


def _show_difference(flag: str, value: Any) -> str:
    """Returns a flag with its value, "k=5"; a fingerprint is cut to its first 8 digits."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{flag}={text[:8] if flag == 'computes' else text}"


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


def _show_age(seconds: float) -> str:
    """Returns an age in words, rounded down to the largest unit that it reaches: "3 h"."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0) // 1:.0f} s"  # an age is negative if a clock was set back
