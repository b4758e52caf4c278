"""A store's audits as rows, for a terminal and for programs, with their last conclusions."""

from collections.abc import Sequence
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from audit.report.table import Column, Table, at_least, at_most
from audit.settings import make
from audit.settings.adversaries import ADVERSARIES
from audit.settings.make import fields, setting_of
from audit.settings.setting import Setting, flat
from audit.storage.store import hash_of, newest_scores
from audit.tasks import task
from audit.written import Level, finite, show_level


def listed(folder: Path) -> dict[str, Any]:
    """Returns the record of the audit in a folder; raises InputError if the folder can't be read.

    `differs` has the fields that differ from the defaults, by their flags. `time` is that of the newest
    scores, in seconds since 1970. Fields of the last conclusion are None without one.
    """
    store, audited = make.open_audit(folder)
    last = store.result()
    return {
        "setting": hash_of(folder),
        "folder": str(folder),
        "model": audited.setting.model,
        "adversary": audited.setting.adversary.name,
        "differs": find_differences(audited.setting),
        "runs": store.runs_held(),
        "audited_runs": last.runs,
        "delta": last.delta,
        "confidence": last.confidence,
        "epsilon": finite(last.epsilon),
        "upper_bound": last.upper_bound,
        "time": newest_scores(folder) / 1e9,
    }


def find_differences(setting: Setting) -> dict[str, Any]:
    """Returns the values of a setting that differ from its model's and adversary's defaults, by flag or name.

    For a whole number of periods, `insertions` replaces `steps`, as on the command line. For a custom model,
    fields with defaults from the model always differ.
    """
    known = fields()
    adversary = setting.adversary.name
    defaults = {name: field.default for name, field in known.items()}
    if task.find_task(setting.model) is not None:
        chosen = {"adversary": adversary} if adversary in ADVERSARIES else {}  # or a custom one
        defaults |= flat(setting_of(setting.model, **chosen))
    defaults |= {"model": setting.model, "adversary": adversary, "steps": None}
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
    """Returns the command line that repeats an audit; empty if a field does not have a flag."""
    differences = find_differences(setting)
    flags = {field.flag for field in fields().values() if field.has_flag}
    if not flags.issuperset(differences):
        return ""
    command = f"./run.sh audit --model={setting.model} --adversary={setting.adversary.name}"
    for flag, value in differences.items():
        command += f" --{flag}={value}"
    command += f" --runs={runs} --delta={show_level(level.delta)}"
    return f"{command} --confidence={show_level(level.confidence)}"


def as_table(records: Sequence[dict[str, Any]]) -> str:
    """Returns records of audits (`listed`) as a text table."""
    columns = (
        Column(head="setting", value=lambda record: record["setting"][:8], left=True),
        Column(head="model", value=itemgetter("model"), left=True),
        Column(head="adversary", value=itemgetter("adversary"), left=True),
        Column(head="runs", value=itemgetter("runs")),
        Column(head="proven", value=itemgetter("epsilon"), show=at_least, none="-"),
        Column(head="upper", value=itemgetter("upper_bound"), show=at_most, none="-"),
        Column(head="written", value=itemgetter("time"), show=_show_date),
        Column(head="differs", value=itemgetter("differs"), show=_show_differences, left=True),
    )
    return Table(columns, records, rule=80).text()


def _show_differences(differences: dict[str, Any]) -> str:
    """Returns fields with their values: "k=5, seed=1"."""
    texts = []
    for flag, value in differences.items():
        texts.append(f"{flag}={value:g}" if isinstance(value, float) else f"{flag}={value}")
    return ", ".join(texts)


def _show_date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"
