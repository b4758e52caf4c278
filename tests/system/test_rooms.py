"""Tests which rooms import which (WORKSPACE.md)."""

import ast
import functools
import inspect
from pathlib import Path

import pytest

import audit

ROOT = Path(__file__).resolve().parents[2]
DEVICE_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax", "tensorflow")
LATER = ("audit.training.game", "audit.storage.store")
STATISTICS = ("audit.laws", "audit.evidence", "audit.methods", "audit.claims", "audit.calibration")
TRAINS = ("audit.mechanism", "audit.adversaries", "audit.training", "audit.tasks", "audit.settings")
ROOMS = [  # (files, what none of them imports)
    *((room.replace(".", "/"), (*DEVICE_LIBRARIES, *TRAINS)) for room in STATISTICS),
    ("audit/mechanism", ("audit.adversaries", *STATISTICS, *LATER, "absl")),
    ("audit/adversaries", (*STATISTICS, *LATER)),
    ("audit", ("experiments", "models")),
    (
        "models",
        ("absl", "matplotlib", "experiments", *STATISTICS, "audit.adversaries", "audit.training"),
    ),
]
ALONE = {
    "matplotlib": ("audit/report",),
    "jinja2": ("audit/report",),
    "absl": ("audit/commands",),
}  # of audit, who may import it
FLOORS = [  # from the ground up: nobody imports from a higher floor
    [
        *("audit.errors", "audit.version", "audit.written"),
        "audit.runtime",
    ],
    ["audit.laws"],
    ["audit.evidence"],
    ["audit.methods"],
    ["audit.claims"],
    [
        "audit.mechanism",
        "audit.tasks.task",
        "audit.tasks.model",
        "audit.calibration",
        "audit.settings.fields",
    ],
    ["audit.adversaries", "audit.storage", "audit.tasks"],
    ["audit.training.game", "audit.directions", "audit.opacus_canary"],
    ["audit.training", "audit.settings"],
    ["audit.conclusions"],
    ["audit.report"],
    ["audit.own", "audit.check", "audit.training.driver"],
    ["audit.api", "audit.result", "audit.commands"],
    ["audit"],  # __init__ and __main__
    ["models"],
    ["experiments.cells"],
    ["experiments.sweeps"],
    ["experiments.hidden_state", "experiments.lidp", "experiments.one_shot", "experiments.canife"],
    [
        "experiments.benchmark",
        "experiments.compare",
        "experiments.sweeps.registry",
    ],
    ["experiments"],  # the commands
]
RAISED = ("InputError", "CannotWriteError", "require", "UnknownLayer")
PAPERS = ("hidden_state", "one_shot", "lidp", "canife")


def modules():
    """{module: path} of the product."""
    found = {}
    for path in [
        path for room in ("audit", "models", "experiments") for path in (ROOT / room).rglob("*.py")
    ]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def arrows(known):
    """{module: the product's modules that it imports, wherever in it}."""
    found = {module: set(imported_names(path.read_text(), known)) for module, path in known.items()}
    return {module: (names & set(known)) - {module} for module, names in found.items()}


def circles(graph):
    """Groups of modules that import each other, directly or not."""

    def reached(start):
        found, waiting = set(), [start]
        while waiting:
            waiting += (new := graph[waiting.pop()] - found)
            found |= new
        return found

    reach = {module: reached(module) for module in graph}
    return {
        frozenset(other for other in reach[m] if m in reach[other]) for m in graph if m in reach[m]
    }


def floor(module):
    """The floor of the longest name that a module's begins with."""
    named = ((name, i) for i, names in enumerate(FLOORS) for name in names)
    return max(
        [(len(name), i) for name, i in named if module == name or module.startswith(name + ".")]
    )[1]


def messages(source):
    """The texts inside calls of InputError and require."""
    for node in ast.walk(ast.parse(source)):
        called = getattr(node, "func", None)
        name = getattr(called, "id", None) or getattr(called, "attr", "")
        if isinstance(node, ast.Call) and name in RAISED:
            constants = (part for part in ast.walk(node) if isinstance(part, ast.Constant))
            yield from (part.value for part in constants if isinstance(part.value, str))


@functools.cache
def _find_imports(source):
    """Returns the imports of a source, which several tests read."""
    kinds = (ast.Import, ast.ImportFrom)
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


def imported_names(source, known=()):
    """Every module or name that a file imports, wherever in it; `from a import b` gives a.b, and a, but where
    all that it takes from it are known modules."""
    for node in _find_imports(source):
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


@pytest.mark.parametrize("room, forbidden", ROOMS, ids=[room for room, _ in ROOMS])
def test_no_layer_imports_what_it_must_not_know(room, forbidden):
    assert list((ROOT / room).rglob("*.py")) and not trespasses(ROOT / room, forbidden)


def test_there_is_no_import_circle():
    assert not circles(arrows(modules()))


def test_no_arrow_runs_back_up():
    for module, names in arrows(modules()).items():
        assert not [name for name in names if floor(name) > floor(module) and "." in name], module


def test_only_reports_draw_and_only_commands_know_flags():
    for path in sorted((ROOT / "audit").rglob("*.py")):
        names = {name.split(".")[0] for name in imported_names(path.read_text())}
        for library, rooms in ALONE.items():
            inside = any(path.is_relative_to(ROOT / room) for room in rooms)
            typed = (
                path.name == "result.py" and library == "matplotlib"
            )  # the type of what it returns
            assert inside or typed or library not in names, path


def test_the_door_is_an_explicit_list_that_can_be_read():
    assert dir(audit) == sorted(audit.__all__)
    for name in {*audit.__all__} - {
        "InputError",
        "Result",
        "Grid",
        "Indices",
        "__version__",
        "directions",
    }:
        text = inspect.getdoc(getattr(audit, name))
        raises = "Raises InputError" in text or ("Raises:" in text and "InputError:" in text)
        assert "Args:" in text and raises and ">>> " in text, name


def test_no_papers_folder_imports_another_papers():
    for paper in PAPERS:
        others = tuple(f"experiments.{other}" for other in PAPERS if other != paper)
        assert not trespasses(ROOT / "experiments" / paper, others)


def test_messages_of_the_libraries_name_fields_not_flags():
    for module, path in modules().items():
        if module.startswith(("audit", "models")) and not module.startswith("audit.commands"):
            assert not [text for text in messages(path.read_text()) if "--" in text], module
