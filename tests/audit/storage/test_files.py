"""Files are written whole or not at all, and damaged files are renamed, never lost."""

import errno
import os
from pathlib import Path

import pytest

from audit.storage import files
from tests.forks import python


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_what_fails_beside_leaves_nothing_and_what_was_there(tmp_path, error):
    (tmp_path / "path").write_text("before")
    with pytest.raises(type(error)), files.replacing(tmp_path / "path") as place:
        place.write_text("whole")
        raise error
    assert [path.name for path in tmp_path.iterdir()] == ["path"]
    assert (tmp_path / "path").read_text() == "before"


def test_what_is_set_aside_is_reported_and_stays_each_time(tmp_path, capsys):
    path = tmp_path / "scores.npz"
    for content in ("first", "second"):
        path.write_text(content)
        files.set_aside(path, "its runs are trained again")
    message = f"{path} is damaged: set aside, its runs are trained again\n"
    assert capsys.readouterr().err == 2 * message
    contents = {aside.read_text() for aside in tmp_path.glob("scores.npz.damaged-*")}
    assert contents == {"first", "second"} and len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("name", ["/", "folder", "loop", "file/below", "n" * 300])
def test_what_can_not_be_written_is_one_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(files.CannotWriteError) as caught:
        files.write_whole(Path(name), b"whole", "fix it")
    assert "\n" not in str(caught.value) and str(caught.value).endswith(": fix it")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "loop"] and not os.listdir("folder")


KILLED = """
import os, signal, sys
from pathlib import Path
from audit.storage import files

for name in sys.argv[1:]:
    temporary = files.replacing(Path(name)).__enter__()
    temporary.write_text("half")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_and_what_others_write_stays(tmp_path):
    name = "scores_0000000_0000040.npz"
    python("-c", KILLED, name, cwd=tmp_path)
    (left,) = os.listdir(tmp_path)
    assert left.startswith(f".{name}.")
    others = {name, f".{name}", f".{name}.{'0' * 8}", ".lock", f"{name}.damaged-123456"}
    for other in others:
        (tmp_path / other).touch()
    with files.replacing(tmp_path / name) as temporary:
        temporary.touch()
        files.remove_abandoned(tmp_path)
        assert set(os.listdir(tmp_path)) == others | {temporary.name}
