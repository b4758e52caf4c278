"""Lists the audits in a store with their last conclusions, as text or records."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from audit.report.table import at_least, at_most, format_table
from audit.settings.make import fields, open_audit
from audit.settings.setting import Setting, flat
from audit.storage.store import hash_of, newest_scores
from audit.tasks import task
from audit.written import Level, show_level


def make_record(folder: Path) -> dict[str, Any]:
    """Returns the record of the audit in a folder; raises InputError if the folder cannot be read.

    `setting` is the hash in the folder's name. `differs` maps flags to the values that differ from the
    defaults. `time` is when the newest scores were written, in seconds since 1970. `audited_runs`,
    `delta`, `confidence`, `epsilon` and `upper_bound` come from `Store.result`; without a conclusion, they
    are None.
    """
    store, audited = open_audit(folder)
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
        "epsilon": last.epsilon,
        "upper_bound": last.upper_bound,
        "time": newest_scores(folder) / 1e9,  # from nanoseconds
    }


def find_differences(setting: Setting) -> dict[str, Any]:
    """Returns the values that differ from the model's defaults, keyed by flag or name.

    The model and the adversary are omitted. For a custom model, fields whose defaults depend on the model are
    always included.
    """
    known = fields()
    defaults = {name: field.default for name, field in known.items()}
    row = task.find_task(setting.model)
    if row is not None:  # one of the repository's models
        # None: a default that all models share.
        defaults |= {name: value for name, value in row.usual().items() if value is not None}
    defaults["model"] = setting.model
    defaults["adversary"] = setting.adversary.name
    # Each period has one insertion.
    defaults["steps"] = defaults["insertions"] * setting.schedule.periodicity
    differences = {}
    for name, value in sorted(flat(setting).items()):
        if value != defaults.get(name):
            flag = known[name].flag if name in known else name
            differences[flag] = value
    return differences


def make_command(setting: Setting, runs: int, level: Level) -> str:
    """Returns the command line that repeats an audit; empty if one of its values has no flag."""
    differences = find_differences(setting)
    flags = {field.flag for field in fields().values() if field.has_flag}
    if differences.keys() - flags:
        return ""
    command = f"./run.sh audit --model={setting.model} --adversary={setting.adversary.name}"
    for flag, value in differences.items():
        command += f" --{flag}={value}"
    command += f" --runs={runs} --delta={show_level(level.delta)}"
    return f"{command} --confidence={show_level(level.confidence)}"


def as_table(records: Sequence[dict[str, Any]]) -> str:
    """Returns records from `make_record` as a text table."""
    rows = [
        {
            "setting": record["setting"][:8],  # these digits identify the folder
            "model": record["model"],
            "adversary": record["adversary"],
            "runs": str(record["runs"]),
            "proven": _show_number(record["epsilon"], at_least),
            "upper": _show_number(record["upper_bound"], at_most),
            "written": f"{datetime.fromtimestamp(record['time'], UTC):%Y-%m-%d}",
            "differs": _show_differences(record["differs"]),
        }
        for record in records
    ]
    # Rows may be much longer than the 80 columns of a terminal.
    return format_table(rows, right=("runs", "proven", "upper", "written"), rule=80)


def _show_number(value: float | None, show: Callable[[float], str]) -> str:
    """Returns a number as text, or "-" for None."""
    return "-" if value is None else show(value)


def _show_differences(differences: dict[str, Any]) -> str:
    """Returns flags and their values as text: "k=5, seed=1"."""
    texts = [
        f"{flag}={value:g}" if isinstance(value, float) else f"{flag}={value}"
        for flag, value in differences.items()
    ]
    return ", ".join(texts)
