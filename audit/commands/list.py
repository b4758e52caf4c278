"""List the audits that a folder holds, the newest first.

    ./run.sh list                       what is in results/
    ./run.sh list --out=other --json    another folder, as one JSON list
    ./run.sh list --csv > audits.csv    a column for every setting, as pandas reads them

A row has the setting's hash (for ./run.sh report --setting=...), the runs that are held, the epsilon that the
last audit proved whatever the curve, its upper bound, both at its own delta and confidence, and what differs
from the defaults.
"""

import sys
import time

from absl import flags

from audit.commands import cli
from audit.errors import InputError, require
from audit.json_text import write_json
from audit.report import listing
from audit.runtime import started
from audit.settings import stored

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "results", "Folder that holds the audits.")
flags.DEFINE_bool("json", False, "Print one JSON list on stdout instead of a table.")
flags.DEFINE_bool("csv", False, "Print CSV on stdout, with a column for every setting.")


def main() -> None:
    """Finds the audits, reads them, and prints a row for each."""
    require(not (FLAGS.json and FLAGS.csv), "--json and --csv: give one of them")
    audits = stored.audits(cli.folder())
    rows = []
    messages = audits.left_out()
    for folder in audits.folders:
        try:
            rows.append(listing.listed(folder))
        except InputError as error:
            messages.append(f"left out: {error}")
    for message in messages:
        print(cli.one_line(message), file=sys.stderr)

    if FLAGS.json:
        print(write_json(listing.as_json(rows)))
    elif FLAGS.csv:
        print(listing.as_csv(rows), end="")
    elif rows:
        print(cli.printable(listing.as_table(rows, time.time())))
    else:
        fix = f"{started.training_hint()}, or name another with `out`"
        print(cli.one_line(f"no audits in {FLAGS.out}: {fix}"))


if __name__ == "__main__":
    cli.run(main)
