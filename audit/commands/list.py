"""List the audits in a folder, newest first, or write a page on some.

    ./run.sh list                                         the audits in results/
    ./run.sh list --out=other --json                      another folder, as one JSON list
    ./run.sh list --report=page.html                      a page on the newest audit
    ./run.sh list --report=page.html --setting=1f3a,77c0  on settings by hash, or --setting=all

A row has the setting's hash, the number of stored runs, the last audit's proven epsilon and upper bound, and
the changed fields. A page is one HTML file that opens offline. The command trains no models.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from absl import flags

from audit.commands import cli
from audit.errors import InputError, require
from audit.report import listing
from audit.settings import make
from audit.storage import files, index
from audit.storage.store import hash_of
from audit.written import write_json

if TYPE_CHECKING:
    from audit.report.subjects import Subject

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "results", "Folder of the audits.")
flags.DEFINE_bool("json", False, "Print one JSON list on stdout instead of a table.")
flags.DEFINE_string("report", None, "Write a page with figures into this HTML file instead.")
flags.DEFINE_string("setting", None, "--report: hashes, or their beginnings, or all.")
flags.DEFINE_float("delta", None, "--report: delta of the bounds; by default as audited.")
flags.DEFINE_float("confidence", None, "--report: their confidence; by default as audited.")

T = TypeVar("T")
_MAX_LISTED = 8  # hashes in a message


def main() -> None:
    """Prints a row for each audit, or writes a page."""
    if FLAGS.report is not None:
        _write_page()
        return
    cli.refuse(("setting", "delta", "confidence"), "requires --report: give both")
    rows = _read_audits(*make.audits(cli.folder()), listing.listed)
    if FLAGS.json:
        print(write_json(rows))
    elif rows:
        print(cli.printable(listing.as_table(rows)))
    else:
        print(cli.one_line(f"no audits in {FLAGS.out}: run an audit, or name another with `out`"))


def _write_page() -> None:
    """Writes the page that --report names, and prints its path."""
    from audit.laws import conversions
    from audit.report import audit_page

    if FLAGS.delta is not None:
        conversions.require_delta(FLAGS.delta)
    if FLAGS.confidence is not None:
        conversions.require_confidence(FLAGS.confidence)
    cli.require_output("report", "an HTML file")
    content = audit_page.make_audits_page(_describe_audits(cli.folder()))
    written = files.write_whole(Path(FLAGS.report), content, "name another file with --report")
    print(f"report: {written}")


def _describe_audits(root: Path) -> "list[Subject]":
    """Returns the page's subjects, the audits in --setting, by default the newest.

    Raises InputError if a named audit is missing or can't be read, and without audits. --setting=all leaves
    out unreadable audits.
    """
    from audit.report import subjects

    describe = functools.partial(
        subjects.describe_setting, delta=FLAGS.delta, confidence=FLAGS.confidence
    )
    if FLAGS.setting not in (None, "all"):
        folders = index.list_stores(root)
        chosen = [_find_named(folders, name) for name in FLAGS.setting.split(",")]
        return [*map(describe, dict.fromkeys(chosen))]
    folders, messages = make.audits(root)
    if FLAGS.setting is None:
        del folders[1:]
    described = _read_audits(folders, messages, describe)
    require(described, f"--out={root} has no audits: run an audit, or name another folder")
    return described


def _read_audits(
    folders: Sequence[Path], messages: list[str], read: Callable[[Path], T]
) -> list[T]:
    """Returns what `read` returns for each audit; prints messages on what is left out on stderr."""
    found = []
    for folder in folders:
        try:
            found.append(read(folder))
        except InputError as error:
            messages.append(f"left out: {error}")
    for message in messages:
        print(cli.one_line(message), file=sys.stderr)
    return found


def _find_named(folders: Sequence[Path], name: str) -> Path:
    """Returns the only folder with this name or beginning of a hash."""
    found = []
    for folder in folders:
        if name and (hash_of(folder).startswith(name) or folder.name == name):
            found.append(folder)
    hashes = ", ".join(map(hash_of, (found or folders)[:_MAX_LISTED])) or "none"
    require(found, f"--setting={name} is not an audit in {FLAGS.out}: there are {hashes}")
    require(len(found) == 1, f"--setting={name} matches several hashes, {hashes}: give more digits")
    return found[0]


if __name__ == "__main__":
    cli.run(main)
