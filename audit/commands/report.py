"""Write a self-contained HTML page on audits that are done.

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
    from audit.report.subjects import RequestedLevels, Subject

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "results", "Folder that holds the audits.")
flags.DEFINE_string("setting", None, "Hashes, or their beginnings, or all; by default the newest.")
flags.DEFINE_float("delta", None, "delta of the bounds; by default as audited.")
flags.DEFINE_float("confidence", None, "Confidence of the lower bounds; by default as audited.")
flags.DEFINE_string("report", None, "The page's file; by default beside what it is about.")

_MOST_LISTED = 8  # hashes in a message: there may be thousands


def main() -> None:
    """Finds the audits and federated runs that the flags name, and writes a page on them."""
    from audit.report import audit_page

    levels = checked_levels()
    root = cli.folder()
    federated = stored.federated(root)
    audits = stored.audits(root)
    folders = _choose_folders(root, audits, federated)
    if FLAGS.setting == "all":  # an audit that can't be read is left out, rather than refused
        about = _read_all(folders, levels)
    else:
        about = [_read(folder, folder in federated, levels) for folder in folders]
    place = root if len(folders) > 1 else folders[0]
    write(audit_page.make_audits_page(about), place / "report.html")


def checked_levels() -> "RequestedLevels":
    """Returns the delta and confidence that --delta and --confidence request; None for a flag not given.

    Raises InputError for levels out of range, and for a --report that names no file.
    """
    from audit.laws import conversions
    from audit.report.subjects import RequestedLevels

    if FLAGS.delta is not None:
        conversions.require_delta(FLAGS.delta)
    if FLAGS.confidence is not None:
        conversions.require_confidence(FLAGS.confidence)
    cli.require_output("report", "an HTML file")
    return RequestedLevels(FLAGS.delta, FLAGS.confidence)


def write(content: bytes, place: Path) -> None:
    """Writes a page to the file that --report names, or else to `place`, and prints the path."""
    if FLAGS.report is None:
        written = files.write_whole(place, content)
    else:
        written = files.write_whole(Path(FLAGS.report), content, "name another file with --report")
    print(f"report: {written}")


def _choose_folders(root: Path, audits: Audits, federated: list[Path]) -> list[Path]:
    """Returns the folders of the page's audits: those that --setting names, all audits, or the newest.

    Unless the flag names single audits, lines on stderr report which folders are left out.

    Args:
      root: the folder of all stores.
      audits: what the store holds of audits, the newest first.
      federated: the folders of federated runs, the newest first.

    Raises:
      InputError: there are no such audits, or they can't be read.
    """
    if FLAGS.setting is None and _is_newest(federated, audits.folders):
        return federated[:1]
    are_named = FLAGS.setting not in (None, "all")
    # If all audits that are there are unreadable, the message gives the reason of the first.
    default_fix = f"{started.training_hint()}, or name another folder"
    fix = next(iter(audits.refused.values()), default_fix)
    others = f" ({audits.others} with other results)" if audits.others else ""
    has_some = audits.folders or (are_named and (audits.refused or federated))
    require(has_some, f"--out={root} holds no audits{others}: {fix}")
    if are_named:
        return _find_named([*federated, *audits.folders], audits.refused)
    for line in audits.left_out():
        print(cli.one_line(line), file=sys.stderr)
    return audits.folders if FLAGS.setting == "all" else audits.folders[:1]


def _is_newest(federated: list[Path], audits: Sequence[Path]) -> bool:
    """Returns whether the newest federated run is newer than every audit."""
    times = [newest_scores(folder) or 0 for folder in (*federated[:1], *audits[:1])]
    return bool(federated) and times[0] > max(times[1:], default=0)


def _read(folder: Path, is_federated: bool, levels: "RequestedLevels") -> "Subject":
    """Returns what the page shows of an audit or of federated runs."""
    from audit.report import subjects

    if is_federated:
        return subjects.describe_federated_folder(folder, levels)
    return subjects.describe_setting(folder, levels)


def _read_all(folders: list[Path], levels: "RequestedLevels") -> "list[Subject]":
    """Returns what the page says of each audit that can be read; prints on stderr which can't.

    Args:
      folders: the audits' folders.
      levels: the levels of the bounds.

    Raises:
      InputError: none of them can be read.
    """
    from audit.report import subjects

    described = []
    messages = []
    for folder in folders:
        try:
            described.append(subjects.describe_setting(folder, levels))
        except InputError as error:
            messages.append(str(error))
    others = f" (and {len(messages) - 1} others)" if len(messages) > 1 else ""
    first = messages[0] if messages else ""
    require(described, f"--out={FLAGS.out} holds no audit that can be read{others}: {first}")
    say_left_out(messages)
    return described


def say_left_out(messages: Sequence[str]) -> None:
    """Prints on stderr a line for each audit that is left out; `messages` say why."""
    for message in messages:
        print(f"left out: {cli.one_line(message)}", file=sys.stderr)


def _find_named(folders: list[Path], refused: dict[Path, str]) -> list[Path]:
    """Returns the folders of the audits that --setting names, each once.

    Args:
      folders: the folders that can be read.
      refused: why other folders can't be read.

    Raises:
      InputError: a name is no audit's or several audits', or its folder can't be read.
    """
    chosen = []
    for name in FLAGS.setting.split(","):
        found = _select_named([*folders, *refused], name)
        hashes = ", ".join(map(hash_of, folders[:_MOST_LISTED])) or "none"
        require(found, f"--setting={name} is no audit in {FLAGS.out}: there are {hashes}")
        _require_unique(name, found)
        require(found[0] not in refused, refused.get(found[0], ""))
        chosen.append(found[0])
    return list(dict.fromkeys(chosen))  # two names may have the same folder


def _require_unique(name: str, folders: Sequence[Path]) -> None:
    """Raises InputError unless a name has matched a single folder; `folders` are its matches."""
    hashes = ", ".join(map(hash_of, folders[:_MOST_LISTED]))
    begun = f"--setting={name} begins {len(folders)} hashes, {hashes}"
    if len(folders) > _MOST_LISTED:
        begun = f"{begun} and others"
    require(len(folders) == 1, f"{begun}: write more of it")


def _select_named(folders: Sequence[Path], name: str) -> list[Path]:
    """Returns the folders that a user's name for an audit means: its folder's name, or a hash's beginning."""
    if not name:
        return []
    return [folder for folder in folders if hash_of(folder).startswith(name) or folder.name == name]


if __name__ == "__main__":
    cli.run(main)
