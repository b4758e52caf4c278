"""List the audits in a folder, newest first, or write a page about them.

    ./run.sh list                                         the audits in results/
    ./run.sh list --out=other --json                      another folder, as one JSON list
    ./run.sh list --report=page.html                      a page on the newest audit
    ./run.sh list --report=page.html --setting=1f3a,77c0  on settings by hash, or --setting=all

A row has the setting's hash, the number of stored runs, the last audit's proven epsilon and upper bound, and
the fields that differ from their defaults. A page is one HTML file that opens offline.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from absl import flags

from audit.commands import cli
from audit.errors import InputError, require
from audit.report import listing
from audit.settings import make
from audit.storage import files
from audit.storage.store import hash_of
from audit.written import printable, write_json

if TYPE_CHECKING:
    from audit.report.subjects import Subject

FLAGS = flags.FLAGS
cli.define_out("Folder of the audits.")
flags.DEFINE_bool("json", False, "Print one JSON list on stdout instead of a table.")
cli.define_optional(
    str,
    report="Write a page with figures to this HTML file instead.",
    setting="With --report: hashes of settings, or prefixes of them, or all.",
)

Content = TypeVar("Content")


def main() -> None:
    """Prints a row for each audit, or writes a page."""
    cli.require_output("report", "an HTML file")
    if FLAGS.report is not None:
        _write_page()
        return
    cli.refuse(("setting",), "requires --report: give both")
    rows = _read_audits(make.audits(cli.folder()), read=listing.make_record)
    if FLAGS.json:
        print(write_json(rows))
    elif rows:
        print(printable(listing.as_table(rows)))
    else:
        print(cli.one_line(f"no audits in {FLAGS.out}: run an audit, or name another with `out`"))


def _write_page() -> None:
    """Writes the page that --report names, and prints its path."""
    from audit.report import audit_page

    content = audit_page.make_audits_page(_describe_audits(cli.folder()))
    written = files.write_whole(Path(FLAGS.report), content, "name another file with --report")
    print(f"report: {written}")


def _describe_audits(root: Path) -> "list[Subject]":
    """Returns the page's facts about the audits in --setting, by default the newest.

    Raises InputError if there are no audits, or if a named audit is missing or cannot be read. With
    --setting=all, unreadable audits are skipped.
    """
    from audit.report.subjects import describe_setting

    folders = make.audits(root)
    require(folders, f"--out={root} has no audits: run an audit, or name another folder")
    if FLAGS.setting == "all":
        return _read_audits(folders, read=describe_setting)
    chosen = folders[:1]
    if FLAGS.setting is not None:
        chosen = [_find_named(folders, name) for name in FLAGS.setting.split(",")]
    return [*map(describe_setting, dict.fromkeys(chosen))]  # without repeats


def _read_audits(folders: Sequence[Path], read: Callable[[Path], Content]) -> list[Content]:
    """Returns read(folder) for each audit's folder.

    If `read` raises InputError, prints the error on stderr and skips the folder.
    """
    contents = []
    for folder in folders:
        try:
            contents.append(read(folder))
        except InputError as error:
            print(cli.one_line(f"left out: {error}"), file=sys.stderr)
    return contents


def _find_named(folders: Sequence[Path], name: str) -> Path:
    """Returns the folder whose name is `name` or whose hash begins with it.

    Raises InputError unless there is exactly one.
    """
    found = []
    for folder in folders:
        if name and (hash_of(folder).startswith(name) or folder.name == name):
            found.append(folder)
    count = len(found)
    require(
        count == 1,
        f"--setting={name} matches {count} audits in {FLAGS.out}: give the hash of one, see list",
    )
    return found[0]


if __name__ == "__main__":
    cli.run(main)
