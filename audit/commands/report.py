"""One self-contained HTML page on audits that are done.

    ./run.sh report                                    the newest audit in results/, or federated run
    ./run.sh report --setting=1f3a,77c0                settings by hash, or all of them: --setting=all

It reads the store alone, trains nothing and opens offline.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from audit.commands import cli
from audit.errors import InputError, require
from audit.runtime import started
from audit.settings import stored
from audit.settings.stored import Audits
from audit.storage import files
from audit.storage.store import hash_of, newest_scores

if TYPE_CHECKING:
    from audit.report.subjects import AskedLevels, Subject

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "results", "Folder that holds the audits.")
flags.DEFINE_string("setting", None, "Hashes, or their beginnings, or all; by default the newest.")
flags.DEFINE_float("delta", None, "delta of the bounds; by default as audited.")
flags.DEFINE_float("confidence", None, "Confidence of the lower bounds; by default as audited.")
flags.DEFINE_string("report", None, "The page's file; by default beside what it is about.")


def main() -> None:
    """Find, read, write."""
    from audit.report import audit_page, one_run_page, subjects

    levels, root = checked_levels(), cli.folder()
    if federated := _federated(root):
        one_run = [subjects.of_federated_folder(folder, levels) for folder in federated]
        title = f"Audit: {one_run[0].title}" if len(one_run) == 1 else f"{len(one_run)} federated audits"
        content = one_run_page.one_run_report(title, one_run)
        place = (federated[0] if len(federated) == 1 else root) / "report.html"
    else:
        about, place = _settings(root, levels)
        content = audit_page.of_audits(about)
    write(content, place)


def checked_levels() -> "AskedLevels":
    """The levels that the flags name; raises InputError for those out of range."""
    from audit.laws import conversions
    from audit.report.subjects import AskedLevels

    if FLAGS.delta is not None:
        conversions.require_delta(FLAGS.delta)
    if FLAGS.confidence is not None:
        conversions.require_confidence(FLAGS.confidence)
    require(FLAGS.report != "", "--report=: name an HTML file")
    return AskedLevels(FLAGS.delta, FLAGS.confidence)


def write(content: bytes, place: Path) -> None:
    """Writes a page where --report says, else to its place, and prints where."""
    if FLAGS.report is None:
        written = files.write_whole(place, content)
    else:
        written = files.write_whole(Path(FLAGS.report), content, "name another file with --report")
    print(f"report: {written}")


def _federated(root: Path) -> list[Path]:
    """The federated runs that --setting names, or the newest where no audit is newer; [] for audits."""
    if FLAGS.setting == "all":
        return []
    known = stored.federated(root)
    if FLAGS.setting is None:
        times = [newest_scores(folder) or 0 for folder in stored.audits(root).folders[:1]] if known else []
        return [folder for folder in known[:1] if (newest_scores(folder) or 0) > max(times, default=0)]
    names = FLAGS.setting.split(",")
    chosen = [[folder for folder in known if _is_named(folder, name)] for name in names]
    if not any(chosen):
        return []
    require(all(chosen), f"--setting={FLAGS.setting} names audits of both kinds: give federated runs a page")
    for name, there in zip(names, chosen, strict=True):
        require(len(there) == 1, f"--setting={name} begins {len(there)} hashes: write more of it")
    return list(dict.fromkeys(there[0] for there in chosen))


def _settings(root: Path, levels: "AskedLevels") -> "tuple[list[Subject], Path]":
    """The audits that --setting names, and the page's place; says on stderr what it leaves out."""
    from audit.report import subjects

    found = stored.audits(root)
    named = FLAGS.setting not in (None, "all")
    others = f" ({found.others} with other results)" if found.others else ""
    mend = next(iter(found.refused.values()), f"{started.training()}, or name another folder")
    require(found.folders or (named and found.refused), f"--out={root} holds no audits{others}: {mend}")
    if named:
        chosen = _chosen(found)
    else:
        print("".join(f"{cli.one_line(line)}\n" for line in found.left_out()), end="", file=sys.stderr)
        chosen = found.folders if FLAGS.setting else found.folders[:1]
    place = (chosen[0] if len(chosen) == 1 else root) / "report.html"
    if FLAGS.setting == "all":
        return _readable(chosen, levels), place
    return [subjects.of_setting(folder, levels) for folder in chosen], place


def _readable(folders: list[Path], levels: "AskedLevels") -> "list[Subject]":
    """The audits that can be read; says on stderr which can't. Raises InputError where none can."""
    from audit.report import subjects

    about, messages = [], []
    for folder in folders:
        try:
            about.append(subjects.of_setting(folder, levels))
        except InputError as error:
            messages.append(str(error))
    more = f" (and {len(messages) - 1} others)" if len(messages) > 1 else ""
    require(about, f"--out={FLAGS.out} holds no audit that can be read{more}: {' '.join(messages[:1])}")
    say_left_out(messages)
    return about


def say_left_out(messages: Sequence[str]) -> None:
    """A line on stderr for each audit that can't be read."""
    for message in messages:
        print(f"left out: {cli.one_line(message)}", file=sys.stderr)


def _chosen(found: Audits) -> list[Path]:
    """The folders that --setting names; raises InputError for one that is none, or can't be read."""
    chosen = []
    for name in FLAGS.setting.split(","):
        there = [folder for folder in [*found.folders, *found.refused] if _is_named(folder, name)]
        known = ", ".join(map(hash_of, found.folders[:8])) or "none"
        require(there, f"--setting={name} is no audit in {FLAGS.out}: there are {known}")
        require(len(there) == 1, f"--setting={name} begins {len(there)} hashes: write more of it")
        require(there[0] not in found.refused, found.refused.get(there[0], ""))
        chosen += there
    return list(dict.fromkeys(chosen))


def _is_named(folder: Path, name: str) -> bool:
    return bool(name) and (hash_of(folder).startswith(name) or folder.name == name)


if __name__ == "__main__":
    cli.run(main)
