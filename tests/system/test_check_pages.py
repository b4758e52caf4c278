"""A check's page has the command, and the checksum of the file that was checked."""

import hashlib
import html
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_has_the_command_and_the_checksum_of_the_file(forked, tmp_path):
    text = (ROOT / "experiments/examples/check_numpy.py").read_bytes()
    (tmp_path / "mine.py").write_bytes(text)
    argv = ("check", "--step", "mine.py:step", "--seeds=64", "--report=a page.html", "--json")
    ended = forked(*argv, folder=tmp_path)
    assert ended.status == 0, ended.stderr
    page = (tmp_path / "a page.html").read_text()
    rows = dict(re.findall(r"<tr><th[^>]*>([^<]*)</th><td[^>]*>([^<]*)</td></tr>", page))
    assert shlex.split(html.unescape(rows["command"])) == ["./run.sh", *argv]
    assert rows["SHA-256 of mine.py"] == hashlib.sha256(text).hexdigest()
