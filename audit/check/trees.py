"""Anyone's arrays as NumPy's and back: parameters as one float64 vector, batches row by row. JAX and torch
are used where the caller's arrays are theirs, and never imported."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.values import shown

Vector = NDArray[np.float64]
Columns = list[NDArray[Any]]  # a batch's arrays, each (examples, ...)
WHOLE = "parameters"  # the name of a tree that is one array
_SPACING = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}  # of numbers from 1 to 2


def mapped(tree: Any, function: Callable[[str, Any], Any], name: str = "tree", path: str = "") -> Any:
    """A tree of dicts, lists, tuples and, where JAX is loaded, of its other trees, with function(path, array)
    in place of its arrays; raises InputError, which calls it `name`, for anything else in it."""
    if tree is None:
        return None
    if hasattr(tree, "dtype") and hasattr(tree, "shape"):
        return function(path or WHOLE, tree)

    def part(key: Any, one: Any) -> Any:
        return mapped(one, function, name, f"{path}.{key}" if path else str(key))

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
    if hasattr(leaf, "detach"):  # torch's
        leaf = leaf.detach().cpu()
        leaf = (leaf.double() if leaf.is_floating_point() else leaf).numpy()
    return np.array(leaf, np.float64 if is_float(leaf) else None)


def is_float(leaf: Any) -> bool:
    """Whether it holds floating-point numbers, bfloat16 among them."""
    return "float" in str(leaf.dtype)


def spacing(leaf: Any) -> float:
    """The distance of its numbers from 1 to 2."""
    return next((found for kind, found in _SPACING.items() if str(leaf.dtype).endswith(kind)), 2.0**-52)


def ulp(values: Vector, spacings: Vector | float) -> Vector:
    """The distance of each number from its next."""
    return np.asarray(np.ldexp(spacings, np.frexp(values)[1] - 1))


def copied(leaf: Any) -> Any:
    """A copy that a step may change in place or donate."""
    if hasattr(leaf, "detach"):
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    return leaf.copy()


def like(array: NDArray[Any], leaf: Any) -> Any:
    """The numbers in the library, of the type and on the device of a leaf."""
    if hasattr(leaf, "new_tensor"):  # torch's
        return leaf.new_tensor(array)
    if isinstance(leaf, np.ndarray | np.generic):
        return array.astype(leaf.dtype)
    return sys.modules["jax"].numpy.asarray(array, dtype=leaf.dtype)


def columns_of(name: str, batch: Any) -> Columns:
    """The arrays of a batch, whose rows are examples; raises InputError for what has none."""
    found = [numpy_of(leaf) for leaf in leaves(name, batch).values()]
    require(found, f"`{name}={shown(batch)}` holds no array: give features, and labels where there are any")
    sizes = {column.shape[:1] for column in found}
    together = f"`{name}`: give arrays of as many rows, one an example, not {sorted(map(str, sizes))}"
    require(len(sizes) == 1 and () not in sizes, together)
    require(len(found[0]), f"`{name}` has no example: give at least one")
    return found


def as_given(columns: Columns, batch: Any) -> Any:
    """A batch of the caller's kind with these columns."""
    each = iter(columns)
    return mapped(batch, lambda _, leaf: like(next(each), leaf))


def joined(*parts: Columns) -> Columns:
    """Batches one after the other."""
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def taken(columns: Columns, rows: Any) -> Columns:
    """Some rows of a batch, in this order."""
    return [column[rows] for column in columns]


def scaled(one: Columns, scale: float, rows: Columns) -> Columns:
    """Examples whose features, all but the last array where there are several, are scaled: floats; whole
    numbers, as pixels or tokens, are mirrored in their range, sorted, or all equal."""
    found = list(one)
    for i, (column, every) in enumerate(zip(one[: len(one) - 1 or 1], rows, strict=False)):
        if column.dtype.kind == "f":
            found[i] = column * scale
        elif column.dtype.kind in "iu":
            least, most = every.min(), every.max()
            mirrored = most - (column - least) if scale < 0 else np.sort(column, None).reshape(column.shape)
            found[i] = np.full_like(column, least if scale else most) if abs(scale) < 1 else mirrored
    return found


def extremes(rows: Columns) -> dict[str, Columns]:
    """Examples that try a step's clipping, by what was done to one of the batch: repeated, features scaled,
    its label, the last of several arrays, changed."""
    found = {}
    for row, of in {0: "the first example", len(rows[0]) - 1: "the last example"}.items():
        one = taken(rows, [row])
        kinds = {"": one}
        if len(rows) > 1:
            kinds[", label changed"] = [*one[:-1], _other_label(one[-1], rows[-1])]
        for kind, changed in kinds.items():
            found[f"{of}{kind}"] = changed
            for scale in (1e3, -1e3, 30, 3, 0.1, 1e-3, 0):
                found[f"{of}, features times {scale:g}{kind}"] = scaled(changed, scale, rows)
        if len(rows) > 1 and rows[-1].dtype.kind == "f":
            found[f"{of}, label times 1000"] = [*one[:-1], 1e3 * one[-1]]
    return found


def _other_label(one: NDArray[Any], every: NDArray[Any]) -> NDArray[Any]:
    known = np.unique(every)
    if set(known.tolist()) <= {0, 1}:
        several = one.ndim > 1 and one.shape[-1] > 1  # one of them is 1
        return np.roll(one, 1, axis=-1) if several else np.asarray(1 - one, one.dtype)
    if one.dtype.kind == "f":
        return -one
    others = known[~np.isin(known, one)]
    return np.full_like(one, others[0] if len(others) else 0)
