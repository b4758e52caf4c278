"""Anyone's arrays as NumPy's and back, batches row by row. Neither JAX nor torch is ever
imported: they are used where arrays are theirs."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.values import shown

Vector = NDArray[np.float64]
Columns = list[NDArray[Any]]  # a batch's arrays, each (examples, ...)
SPACING = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}  # of numbers from 1 to 2


def mapped(tree: Any, function: Callable[[str, Any], Any], name: str = "tree", path: str = "") -> Any:
    """A tree of dicts, lists, tuples and, where JAX is loaded, of its other trees, with function(path, array)
    in place of its arrays; raises InputError, which calls it `name`, for anything else in it."""

    def part(key: Any, one: Any) -> Any:
        return mapped(one, function, name, f"{path}.{key}" if path else str(key))

    if tree is None or (hasattr(tree, "dtype") and hasattr(tree, "shape")):
        return None if tree is None else function(path or "parameters", tree)
    kind: Any = type(tree)
    if isinstance(tree, Mapping):
        of = {key: part(key, one) for key, one in tree.items()}
        return of if kind is dict else kind(of)
    if hasattr(tree, "_fields"):
        return kind(*map(part, tree._fields, tree))
    if isinstance(tree, list | tuple):
        return kind(part(i, one) for i, one in enumerate(tree))
    util: Any = sys.modules["jax"].tree_util if "jax" in sys.modules else None
    known = util is not None and not util.all_leaves([tree])
    require(known, f"`{name}` holds {shown(tree)}: give arrays or tensors in dicts, lists or tuples")
    return util.tree_map_with_path(lambda way, one: part(util.keystr(way).strip(".[]'"), one), tree)


def leaves(name: str, tree: Any) -> dict[str, Any]:
    """The arrays of a tree, by path."""
    found: dict[str, Any] = {}
    mapped(tree, found.setdefault, name)
    return found


def numpy_of(leaf: Any) -> NDArray[Any]:
    """An array of its own with the leaf's numbers, float64 where these are floats."""
    real = "float" in str(leaf.dtype)
    if hasattr(leaf, "detach"):  # torch's
        leaf = (leaf.double() if real else leaf).detach().cpu().numpy()
    return np.array(leaf, np.float64 if real else None)


def ulp(values: Vector, spacings: Vector | float) -> Vector:
    """The distance of each number from its next."""
    return np.asarray(np.ldexp(spacings, np.frexp(values)[1] - 1))


def as_given(columns: Columns, batch: Any) -> Any:
    """A batch of the caller's kind, of the types and on the devices of its arrays, with these columns."""
    each = iter(columns)

    def like(_: str, leaf: Any) -> Any:
        if hasattr(leaf, "new_tensor"):  # torch's
            return leaf.new_tensor(next(each))
        numpy: Any = np if isinstance(leaf, np.ndarray | np.generic) else sys.modules["jax"].numpy
        return numpy.array(next(each), dtype=leaf.dtype)

    return mapped(batch, like)


def columns_of(name: str, batch: Any) -> Columns:
    """The arrays of a batch, whose rows are examples; raises InputError for what has none."""
    found = [numpy_of(leaf) for leaf in leaves(name, batch).values()]
    require(found, f"`{name}={shown(batch)}` holds no array: give features, and labels where there are any")
    sizes = {column.shape[:1] for column in found}
    together = f"`{name}`: give arrays of as many rows, one an example, not {sorted(map(str, sizes))}"
    require(len(sizes) == 1 and () not in sizes, together)
    require(len(found[0]), f"`{name}` has no example: give at least one")
    return found


def joined(*parts: Columns) -> Columns:
    """Batches one after the other."""
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def taken(columns: Columns, rows: Any) -> Columns:
    """Some rows of a batch, in this order."""
    return [column[rows] for column in columns]


def scaled(one: Columns, scale: float, rows: Columns) -> Columns:
    """Examples with scaled features, all but the last of several arrays; whole ones stay in their range."""
    found = list(one)
    for i, every in enumerate(rows[: len(rows) - 1 or 1]):
        least, most = (-np.inf, np.inf) if every.dtype.kind == "f" else (every.min(), every.max())
        found[i] = np.clip(one[i] * scale, least, most).astype(every.dtype)
    return found


def extremes(rows: Columns) -> dict[str, Columns]:
    """Examples that try a step's clipping, by what was done to one of the batch: repeated, features scaled,
    its label, the last of several arrays, changed."""
    found = {}
    for row, of in {0: "the first example", len(rows[0]) - 1: "the last example"}.items():
        one = taken(rows, [row])
        kinds = {"": one}
        if len(rows) > 1:
            others = rows[-1][[i for i, label in enumerate(rows[-1]) if np.any(label != one[-1][0])][:1]]
            kinds |= {", label changed": [*one[:-1], others]} if len(others) else {}
        for kind, changed in kinds.items():
            found[f"{of}{kind}"] = changed
            for scale in (1e3, -1e3, 30, 3, 0.1, 1e-3, 0):
                found[f"{of}, features times {scale:g}{kind}"] = scaled(changed, scale, rows)
        if len(rows) > 1 and rows[-1].dtype.kind == "f":
            found[f"{of}, label times 1000"] = [*one[:-1], 1e3 * one[-1]]
    return found
