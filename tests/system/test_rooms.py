"""Which room may import which (WORKSPACE.md: one way, no back and forth)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEVICE_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax", "tensorflow")
ROOMS = [  # (files, what none of them imports)
    ("audit/statistics", (*DEVICE_LIBRARIES, "audit.mechanism", "audit.adversaries", "audit.game")),
    (
        "audit/mechanism",
        ("audit.adversaries", "audit.statistics", "audit.game", "audit.storage.store", "absl"),
    ),
    ("audit/adversaries", ("audit.statistics", "audit.game", "audit.storage.store")),
    ("audit", ("absl", "matplotlib", "experiments", "models")),
    ("models", ("absl", "matplotlib", "experiments", "audit.statistics", "audit.adversaries", "audit.game")),
]


def imported_names(source):
    """Every module or name that a file imports, wherever in it; `from a import b` gives a and a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import, which this test does not follow"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def trespasses(folder, forbidden):
    """(file, import) for what the files under a folder import of what is forbidden there."""
    return [
        (path.name, name)
        for path in sorted(Path(folder).rglob("*.py"))
        for name in imported_names(path.read_text())
        if any(name == module or name.startswith(module + ".") for module in forbidden)
    ]


def loaded_by(room):
    """The modules in sys.modules after importing every file of a room, in a fresh interpreter."""
    names = [f"{room.replace('/', '.')}.{path.stem}" for path in sorted((ROOT / room).glob("[!_]*.py"))]
    assert names
    code = "import importlib, sys; [*map(importlib.import_module, sys.argv[1:])]; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


@pytest.mark.parametrize("room, forbidden", ROOMS, ids=[room for room, _ in ROOMS])
def test_no_room_imports_what_it_must_not_know(room, forbidden):
    assert list((ROOT / room).rglob("*.py"))
    assert not trespasses(ROOT / room, forbidden)


def test_importing_statistics_loads_no_jax():
    loaded = loaded_by("audit/statistics")
    assert "audit.statistics.estimate" in loaded and "dp_accounting" in loaded
    assert loaded.isdisjoint(DEVICE_LIBRARIES)


def test_importing_the_mechanism_loads_no_adversary_and_no_statistics():
    loaded = loaded_by("audit/mechanism")
    assert "audit.mechanism.dpsgd" in loaded
    assert not [name for name in loaded if name.startswith(("audit.adversaries", "audit.statistics"))]


def test_importing_the_adversaries_loads_no_statistics():
    assert not [name for name in loaded_by("audit/adversaries") if name.startswith("audit.statistics")]


TRESPASSES = [
    "import absl",
    "import absl.flags",
    "from absl import flags",
    "def f():\n    from audit import statistics",
]


@pytest.mark.parametrize("line", TRESPASSES)
def test_a_trespass_is_seen(tmp_path, line):
    (tmp_path / "innocent.py").write_text("import absolutely\nfrom audit import errors\n")
    assert not trespasses(tmp_path, ("absl", "audit.statistics"))
    (tmp_path / "guilty.py").write_text(line + "\n")
    assert {file for file, _ in trespasses(tmp_path, ("absl", "audit.statistics"))} == {"guilty.py"}
