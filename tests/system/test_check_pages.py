"""A check's page says what was typed, and what was checked, to the byte of every local file."""

import hashlib
import html
import re
import shlex

FILES = {
    "check.py": "import sys\n"
    "sys.path.append('.venv/lib/site-packages')\n"
    "import installed\n"
    "import json\n"
    "from train import draw, params, batch, stated\n"
    "from parts.step import take\n\n"
    "def step(params, batch, seed):\n"
    "    import late\n"
    "    return take(params, batch, draw(seed))\n",
    "train.py": "import numpy as np\n"
    "params = np.zeros(4)\n"
    "batch = np.random.default_rng(0).normal(size=(8, 4))\n"
    "stated = {'clipping_norm': 1.0, 'noise_multiplier': 1.0, 'learning_rate': 0.1, 'batch_size': 8}\n\n"
    "def draw(seed):\n"
    "    return np.random.default_rng(seed).normal(size=4)\n",
    "parts/__init__.py": "",
    "parts/step.py": "import numpy as np\n\n"
    "def take(params, batch, noise):\n"
    "    clipped = batch / np.maximum(1, np.linalg.norm(batch, axis=1, keepdims=True))\n"
    "    return params - 0.1 * (clipped.sum(axis=0) + noise) / 8\n",
    "late.py": "",
    "unused.py": "",
    ".venv/lib/site-packages/installed.py": "",
}


def test_the_page_has_the_command_as_typed_and_the_checksum_of_every_local_file(forked, tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    argv = ("check", "--step", "check.py:step", "--seeds=64", "--report=a page.html", "--json")
    ended = forked(*argv, folder=tmp_path)
    assert ended.status == 0, ended.stderr
    page = (tmp_path / "a page.html").read_text()
    rows = dict(re.findall(r"<tr><th[^>]*>([^<]*)</th><td[^>]*>([^<]*)</td></tr>", page))
    program, *shown = shlex.split(html.unescape(rows["command"]))
    assert program == "./run.sh" and tuple(shown) == argv

    checksums = {}
    for what, value in rows.items():
        if what.startswith("SHA-256 of "):
            checksums[what.removeprefix("SHA-256 of ")] = value
    local = {"check.py", "train.py", "parts/__init__.py", "parts/step.py", "late.py"}
    assert set(checksums) == local
    for name, checksum in checksums.items():
        assert checksum == hashlib.sha256(FILES[name].encode()).hexdigest()
