"""List the audits in a folder, newest first, or write a page about one.

    ./run.sh list                                         the audits in results/
    ./run.sh list --out=other --json                      a different folder, as one JSON list
    ./run.sh list --report=page.html                      a page about the newest audit
    ./run.sh list --report=page.html --setting=1f3a       about a setting, by its hash

Each row shows the setting's hash, the number of stored runs, the last audit's proven epsilon and upper bound,
and the fields that differ from their defaults. A page is one HTML file that works offline.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from audit.commands import cli
from audit.errors import InputError, require
from audit.report import listing
from audit.settings import make
from audit.storage import files
from audit.storage.store import hash_of
from audit.written import printable, write_json

FLAGS = flags.FLAGS
cli.define_out("Folder of the audits.")
flags.DEFINE_bool("json", False, "Print one JSON list instead of a table.")
cli.define_optional(
    str,
    report="Write a page with figures to this HTML file instead.",
    setting="With --report: the hash of a setting, or a prefix of it.",
)


def main() -> None:
    """Prints a row for each audit or writes a page."""
    if FLAGS.report is not None:
        _write_page()
        return
    cli.refuse(("setting",), "requires --report: give both")
    rows = _read_audits(make.audits(cli.folder()))
    if FLAGS.json:
        print(write_json(rows))
    elif rows:
        print(printable(listing.as_table(rows)))
    else:
        print(cli.one_line(f"no audits in {FLAGS.out}: run an audit, or name another with `out`"))


def _write_page() -> None:
    """Writes the page to the path in --report, and prints the path."""
    from audit.report import audit_page
    from audit.report.subjects import describe_setting

    content = audit_page.make_page(describe_setting(_find_audit(cli.folder())))
    written = files.write_whole(Path(FLAGS.report), content, "name another file with --report")
    print(f"report: {written}")


def _read_audits(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Returns the records of audits. Skips unreadable folders, and prints the errors to stderr."""
    records = []
    for folder in folders:
        try:
            records.append(listing.make_record(folder))
        except InputError as error:
            print(cli.one_line(f"left out: {error}"), file=sys.stderr)
    return records


def _find_audit(root: Path) -> Path:
    """Returns the folder of the audit that --setting selects, by default the newest.

    --setting is the folder's name or the beginning of its hash.
    """
    folders = make.audits(root)
    require(folders, f"--out={root} has no audits: run an audit, or name another folder")
    name = FLAGS.setting
    if name is None:
        return folders[0]
    found = []
    for folder in folders:
        if name and (hash_of(folder).startswith(name) or folder.name == name):
            found.append(folder)
    require(
        len(found) == 1,
        f"--setting={name} matches {len(found)} audits in {FLAGS.out}: give the hash of one, see list",
    )
    return found[0]


if __name__ == "__main__":
    cli.run(main)
