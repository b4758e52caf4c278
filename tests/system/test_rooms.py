"""Which room may import which (WORKSPACE.md: one way, no back and forth)."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import audit

ROOT = Path(__file__).resolve().parents[2]
DEVICE_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax", "tensorflow")
ROOMS = [  # (files, what none of them imports)
    ("audit/statistics", (*DEVICE_LIBRARIES, "audit.mechanism", "audit.adversaries", "audit.game")),
    (
        "audit/mechanism",
        ("audit.adversaries", "audit.statistics", "audit.game", "audit.storage.store", "absl"),
    ),
    ("audit/adversaries", ("audit.statistics", "audit.game", "audit.storage.store")),
    ("audit", ("experiments", "models")),
    ("models", ("absl", "matplotlib", "experiments", "audit.statistics", "audit.adversaries", "audit.game")),
]
ALONE = {"matplotlib": ("audit/report",), "absl": ("audit/commands",)}  # of audit, who may import it
FLOORS = [  # from the ground up: nobody imports from a higher floor
    ["audit.errors", "audit.version", "audit.machine", "audit.progress"],
    ["audit.mechanism", "audit.statistics", "audit.task", "audit.model"],
    ["audit.adversaries", "audit.landscape", "audit.storage", "audit.zoo"],
    ["audit.game", "audit.round_game", "audit.one_run"],
    ["audit.training", "audit.settings"],
    ["audit.concluded"],
    ["audit.report"],
    ["audit.own"],
    ["audit.api", "audit.commands"],
    ["audit"],  # __init__ and __main__
    ["models"],
    ["experiments.cells"],
    ["experiments.sweeps"],
    ["experiments.engine"],
    ["experiments.hidden_state", "experiments.lidp", "experiments.one_shot", "experiments.canife"],
    ["experiments.compare", "experiments.sweeps.registry", "experiments.sweeps.page"],
    ["experiments"],  # the commands, a paper's __main__ among them
]
PAPERS = ("hidden_state", "one_shot", "lidp", "canife")
LIBRARIES = [
    path
    for path in sorted((ROOT / "experiments").rglob("*.py"))
    if path.parent.name != "experiments" and path.name != "__main__.py"
]


def modules():
    """{module: path} of the product."""
    found = {}
    for path in sorted(
        path for room in ("audit", "models", "experiments") for path in (ROOT / room).rglob("*.py")
    ):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def arrows(known):
    """{module: the product's modules that it imports, wherever in it}."""
    return {
        module: {n for n in imported_names(path.read_text(), known) if n in known and n != module}
        for module, path in known.items()
    }


def circles(graph):
    """Groups of modules that import each other, directly or not."""

    def reached(start):
        found, waiting = set(), [start]
        while waiting:
            waiting += (new := graph[waiting.pop()] - found)
            found |= new
        return found

    reach = {module: reached(module) for module in graph}
    return {frozenset(other for other in reach[m] if m in reach[other]) for m in graph if m in reach[m]}


def floor(module):
    """The floor of the longest name that a module's begins with; a paper's __main__ is a command."""
    if module.startswith("experiments.") and module.endswith(".__main__"):
        return len(FLOORS) - 1
    named = ((name, i) for i, names in enumerate(FLOORS) for name in names)
    own = [(len(name), i) for name, i in named if module == name or module.startswith(name + ".")]
    return max(own)[1]


def messages(source):
    """The texts inside calls of InputError and require."""
    for node in ast.walk(ast.parse(source)):
        name = getattr(getattr(node, "func", None), "id", None) or getattr(
            getattr(node, "func", None), "attr", ""
        )
        if isinstance(node, ast.Call) and name in (
            "InputError",
            "CannotWriteError",
            "require",
            "UnknownLayer",
        ):
            constants = (part for part in ast.walk(node) if isinstance(part, ast.Constant))
            yield from (part.value for part in constants if isinstance(part.value, str))


def imported_names(source, known=()):
    """Every module or name that a file imports, wherever in it; `from a import b` gives a.b, and a, but where
    all that it takes from it are known modules."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import, which this test does not follow"
            taken = [f"{node.module}.{alias.name}" for alias in node.names]
            if not set(taken) <= set(known):
                yield node.module
            yield from taken


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
def test_no_layer_imports_what_it_must_not_know(room, forbidden):
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


def test_there_is_no_import_circle():
    assert not circles(arrows(modules()))


def test_a_circle_is_seen():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert circles(graph) == {frozenset({"b", "c"})}


def test_no_arrow_runs_back_up():
    up = [
        (module, name)
        for module, names in arrows(modules()).items()
        for name in names
        if floor(name) > floor(module) and "." in name
    ]
    assert not up


def test_only_reports_draw_and_only_commands_know_flags():
    for path in sorted((ROOT / "audit").rglob("*.py")):
        names = {name.split(".")[0] for name in imported_names(path.read_text())}
        for library, rooms in ALONE.items():
            inside = any(path.is_relative_to(ROOT / room) for room in rooms)
            typed = path.name == "api.py" and library == "matplotlib"  # the type of what it returns
            assert inside or typed or library not in names, path


def test_the_door_is_an_explicit_list_that_can_be_read():
    assert dir(audit) == sorted(audit.__all__)
    for name in ("bounds", "audit", "audit_model", "audit_loss"):
        text = inspect.getdoc(getattr(audit, name))
        assert "Args:" in text and "Raises InputError" in text and ">>> " in text, name


def test_experiments_are_commands():
    for path in sorted((ROOT / "experiments").glob("[!_]*.py")):
        is_command = '\nif __name__ == "__main__":' in path.read_text()
        assert is_command != (path.stem == "engine_flags"), path


def test_libraries_define_no_flag():
    assert LIBRARIES
    for path in [*LIBRARIES, *(ROOT / "models").rglob("*.py")]:
        assert "absl" not in " ".join(imported_names(path.read_text())), path


def test_no_papers_folder_imports_another_papers():
    for paper in PAPERS:
        others = tuple(f"experiments.{other}" for other in PAPERS if other != paper)
        assert not trespasses(ROOT / "experiments" / paper, others)


def test_messages_of_the_libraries_name_fields_not_flags():
    for module, path in modules().items():
        if module.startswith(("audit", "models")) and not module.startswith("audit.commands"):
            assert not [text for text in messages(path.read_text()) if "--" in text], module


def test_a_flag_in_a_message_is_seen():
    assert "--" in " ".join(messages('require(x, f"--k={k}: no")'))
    assert not list(messages('COMMANDS = ["--quiet"]'))


def functions(source):
    """(name, lines) of every function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            yield node.name, node.end_lineno - node.lineno + 1


def test_functions_fit_a_screen():
    lengths = {
        (module, name): lines
        for module, path in modules().items()
        for name, lines in functions(path.read_text())
    }
    assert not {name: lines for name, lines in lengths.items() if lines >= 60}


def public_types():
    """(name, module) of every public class."""
    for module, path in modules().items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, module


def test_no_two_public_types_share_a_name():
    homes = {}
    for name, module in public_types():
        homes.setdefault(name, []).append(module)
    shared = {name: modules for name, modules in homes.items() if len(modules) > 1}
    assert not shared


TRAINING = [
    "audit.training",
    "experiments.cells.work",
    "experiments.cells.audits",
    "audit.settings.build",
]
TRAINING += [
    "experiments.hidden_state.sweep",
    "experiments.hidden_state.landscape_solve",
    "experiments.lidp.sweep",
    "experiments.one_shot.sweep",
]


def test_training_draws_nothing():
    """Work on cells, the landscape's among them, loads no drawing library."""
    code = "import importlib, sys; [*map(importlib.import_module, sys.argv[1:])]; print(*sys.modules)"
    argv = [sys.executable, "-c", code, *TRAINING]
    loaded = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert "audit.training" in loaded and "matplotlib" not in loaded
