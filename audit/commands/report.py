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
    """Finds the audits or federated runs that the flags name, and writes a page on them."""
    from audit.report import audit_page, subjects

    levels = checked_levels()
    root = cli.folder()
    federated = _find_federated(root)
    if federated:
        audits = [subjects.describe_federated_folder(folder, levels) for folder in federated]
        place = _choose_place(federated, root)
    else:
        audits, place = _read_audits(root, levels)
    write(audit_page.make_audits_page(audits), place)


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


def _choose_place(folders: Sequence[Path], root: Path) -> Path:
    """Returns the default file of a page: in the folder that it is about, or in the root for several."""
    if len(folders) == 1:
        return folders[0] / "report.html"
    return root / "report.html"


def _find_federated(root: Path) -> list[Path]:
    """Returns the folders of federated runs that the page is about; [] where it is about other audits.

    They are the runs that --setting names. Without the flag it is the newest run, unless an audit is as new.

    Args:
      root: the folder of all stores.

    Raises:
      InputError: --setting names audits of both kinds, or has a name that is no audit's, or with which
        hashes of several audits begin, whatever their kinds.
    """
    if FLAGS.setting == "all":
        return []
    federated = stored.federated(root)
    if FLAGS.setting is None:
        return _find_newest_federated(root, federated)
    names = FLAGS.setting.split(",")
    if not any(_select_named(federated, name) for name in names):
        return []
    audits = stored.audits(root)
    chosen = []
    for name in names:
        # A name counts among audits of all kinds, also those that can't be read.
        folders = _select_named([*federated, *audits.folders, *audits.refused], name)
        require(folders, f"--setting={name} is no audit in {FLAGS.out}")
        _require_unique(name, folders)
        chosen.append(folders[0])
    message = f"--setting={FLAGS.setting} names audits of both kinds: give federated runs a page"
    require(set(chosen) <= set(federated), message)
    return list(dict.fromkeys(chosen))  # two names may have the same folder


def _find_newest_federated(root: Path, federated: Sequence[Path]) -> list[Path]:
    """Returns [folder of the newest federated run]; [] if there is none, or an audit is as new or newer.

    Args:
      root: the folder of all stores.
      federated: folders of federated runs, the newest first.
    """
    if not federated:
        return []
    newest = federated[0]
    newest_audit_time = 0  # in nanoseconds since 1970; 0 where there are no scores
    for folder in stored.audits(root).folders[:1]:  # the newest audit, if there is any
        newest_audit_time = newest_scores(folder) or 0
    is_newer = (newest_scores(newest) or 0) > newest_audit_time
    return [newest] if is_newer else []


def _read_audits(root: Path, levels: "RequestedLevels") -> "tuple[list[Subject], Path]":
    """Returns what the page says of the audits that --setting names, and the page's default file.

    `all` names all audits. Without the flag the page is about the newest audit. Unless the flag names single
    audits, lines on stderr say which folders are left out.

    Args:
      root: the folder of all stores.
      levels: the levels of the bounds.

    Raises:
      InputError: there are no such audits, or they can't be read.
    """
    from audit.report import subjects

    audits = stored.audits(root)
    are_named = FLAGS.setting not in (None, "all")

    # There must be an audit that can be read. Where the user names single audits, an unreadable audit is
    # enough here: `_find_named` gives the reason if it is among those named.
    others = f" ({audits.others} with other results)" if audits.others else ""
    default_fix = f"{started.training_hint()}, or name another folder"
    # If all audits that are there are unreadable, the message gives the reason of the first.
    fix = next(iter(audits.refused.values()), default_fix)
    require(
        audits.folders or (are_named and audits.refused),
        f"--out={root} holds no audits{others}: {fix}",
    )

    # The folders of the page's audits, newest first unless the user names them.
    if are_named:
        folders = _find_named(audits)
    else:
        for line in audits.left_out():
            print(cli.one_line(line), file=sys.stderr)
        folders = audits.folders if FLAGS.setting == "all" else audits.folders[:1]

    place = _choose_place(folders, root)
    if FLAGS.setting == "all":  # an audit that can't be read is left out, rather than refused
        return _read_all(folders, levels), place
    return [subjects.describe_setting(folder, levels) for folder in folders], place


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


def _find_named(audits: Audits) -> list[Path]:
    """Returns the folders of the audits that --setting names, each once.

    Raises:
      InputError: a name is no audit's or several audits', or its folder can't be read.
    """
    chosen = []
    for name in FLAGS.setting.split(","):
        # Folders that can't be read are searched too: for such a name the message below gives the reason.
        folders = _select_named([*audits.folders, *audits.refused], name)
        hashes = ", ".join(map(hash_of, audits.folders[:_MOST_LISTED])) or "none"
        require(folders, f"--setting={name} is no audit in {FLAGS.out}: there are {hashes}")
        _require_unique(name, folders)
        folder = folders[0]
        why_unreadable = audits.refused.get(folder, "")
        require(folder not in audits.refused, why_unreadable)
        chosen.append(folder)
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
