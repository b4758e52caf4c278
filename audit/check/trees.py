"""Anyone's arrays as NumPy's and back: parameters as one float64 vector, batches row by row. JAX and torch
are used where the caller's arrays are theirs, and never imported."""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.values import shown

Vector = NDArray[np.float64]
Columns = list[NDArray[Any]]  # a batch's arrays, each (examples, ...)
WHOLE = "parameters"  # the name of a tree that is one array
_SPACING = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}  # of numbers from 1 to 2


def leaves(name: str, tree: Any, path: str = "") -> dict[str, Any]:
    """The arrays of a tree of dicts, lists, tuples and, where JAX is loaded, of its other trees, by path."""
    if tree is None:
        return {}
    if hasattr(tree, "dtype") and hasattr(tree, "shape"):
        return {path or WHOLE: tree}
    if isinstance(tree, Mapping):
        parts: Iterable[tuple[Any, Any]] = tree.items()
    elif isinstance(tree, list | tuple):
        parts = zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True)
    else:
        known: Any = sys.modules.get("jax")
        found = known.tree_util.tree_flatten_with_path(tree)[0] if known else [((), tree)]
        unknown = f"`{name}` holds {shown(tree)}: give arrays or tensors in dicts, lists or tuples"
        require(all(way and hasattr(leaf, "dtype") for way, leaf in found), unknown)
        parts = ((known.tree_util.keystr(way).strip(".[]'"), leaf) for way, leaf in found)
    merged: dict[str, Any] = {}
    for key, part in parts:
        merged |= leaves(name, part, f"{path}.{key}" if path else str(key))
    return merged


def mapped(tree: Any, function: Callable[[str, Any], Any], path: str = "") -> Any:
    """The tree with function(path, array) in place of its arrays, paths as `leaves` gives them."""
    if tree is None or hasattr(tree, "dtype"):
        return tree if tree is None else function(path, tree)
    if isinstance(tree, Mapping):
        of = {
            key: mapped(part, function, f"{path}.{key}" if path else str(key)) for key, part in tree.items()
        }
        return of if type(tree) is dict else type(tree)(of)  # type: ignore[call-arg]
    if isinstance(tree, list | tuple):
        names = getattr(tree, "_fields", range(len(tree)))
        ways = [f"{path}.{key}" if path else str(key) for key in names]
        parts = [mapped(part, function, way) for way, part in zip(ways, tree, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    util = sys.modules["jax"].tree_util
    return util.tree_map_with_path(
        lambda way, leaf: function(".".join(filter(None, (path, util.keystr(way).strip(".[]'")))), leaf), tree
    )


def numpy_of(leaf: Any) -> NDArray[Any]:
    """An array of its own with the leaf's numbers, float64 where these are floats."""
    if hasattr(leaf, "detach"):  # torch's
        leaf = leaf.detach().cpu()
        leaf = (leaf.double() if leaf.is_floating_point() else leaf).numpy()
    array = np.array(leaf)
    return array.astype(np.float64) if is_float(leaf) else array


def is_float(leaf: Any) -> bool:
    """Whether it holds floating-point numbers, bfloat16 among them."""
    return "float" in str(leaf.dtype)


def spacing(leaf: Any) -> float:
    """The distance of its numbers from 1 to 2."""
    return next((found for kind, found in _SPACING.items() if str(leaf.dtype).endswith(kind)), 2.0**-52)


def ulp(values: Vector, spacings: Vector) -> Vector:
    """The distance of each number from its next."""
    return np.asarray(np.ldexp(spacings, np.frexp(values)[1] - 1))


def like(array: NDArray[Any], leaf: Any) -> Any:
    """The numbers in the library, of the type and on the device of a leaf."""
    if hasattr(leaf, "new_tensor"):  # torch's
        return leaf.new_tensor(array)
    if isinstance(leaf, np.ndarray | np.generic):
        return array.astype(leaf.dtype)
    return sys.modules["jax"].numpy.asarray(array, dtype=leaf.dtype)


def copied(leaf: Any) -> Any:
    """A copy that a step may change in place or donate."""
    if hasattr(leaf, "detach"):
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    return leaf.copy()


class GivenBatch(NamedTuple):
    """A caller's batch, whose arrays' rows are examples: the arrays, and how to put others in their place."""

    columns: Columns
    tree: Any
    names: list[str]

    def as_given(self, columns: Columns) -> Any:
        """A batch of the caller's kind with these columns."""
        of = dict(zip(self.names, columns, strict=True))
        return mapped(self.tree, lambda name, leaf: like(of[name or WHOLE], leaf))


def examples_of(name: str, batch: Any) -> GivenBatch:
    """The examples of a batch; raises InputError for what has none."""
    found = leaves(name, batch)
    require(found, f"`{name}={shown(batch)}` holds no array: give features, and labels where there are any")
    columns = [numpy_of(leaf) for leaf in found.values()]
    sizes = {column.shape[:1] for column in columns}
    together = f"`{name}`: give arrays of as many rows, one an example, not {sorted(map(str, sizes))}"
    require(len(sizes) == 1 and () not in sizes, together)
    require(len(columns[0]), f"`{name}` has no example: give at least one")
    return GivenBatch(columns, batch, list(found))


def joined(*parts: Columns) -> Columns:
    """Batches one after the other."""
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def taken(columns: Columns, rows: Any) -> Columns:
    """Some rows of a batch, in this order."""
    return [column[rows] for column in columns]


def extremes(columns: Columns) -> dict[str, Columns]:
    """Examples that try a step's clipping, by what was done to one of the batch: repeated, features scaled,
    its label changed; the last array holds labels where there are several."""
    features, found = range(max(len(columns) - 1, 1)), {}
    for row in sorted({0, len(columns[0]) - 1}):
        one = taken(columns, [row])
        of = "the first example" if row == 0 else "the last example"
        turned = [*one[:-1], _other_label(one[-1], columns[-1])] if len(columns) > 1 else one
        for labels, kind in ((one, ""), (turned, ", label changed"))[: 1 + (len(columns) > 1)]:
            for scale in (1, 1e3, -1e3, 30, 3, 0.1, 1e-3, 0):
                changed = [
                    _scaled(c, columns[i], scale) if i in features else c for i, c in enumerate(labels)
                ]
                found[f"{of}{'' if scale == 1 else f', features times {scale:g}'}{kind}"] = changed
        if len(columns) > 1 and columns[-1].dtype.kind == "f":
            found[f"{of}, label times 1000"] = [*one[:-1], 1e3 * one[-1]]
    return found


def _scaled(one: NDArray[Any], all_rows: NDArray[Any], scale: float) -> NDArray[Any]:
    """Floats scaled; whole numbers, as pixels or tokens, mirrored in their range, or all equal."""
    if one.dtype.kind == "f" or scale == 1:
        return one * scale if scale != 1 else one
    if one.dtype.kind not in "iu":
        return one
    least, most = all_rows.min(), all_rows.max()
    if abs(scale) < 1:
        return np.full_like(one, least if scale else most)
    return np.asarray(most - (one - least)) if scale < 0 else np.sort(one, axis=None).reshape(one.shape)


def _other_label(one: NDArray[Any], all_rows: NDArray[Any]) -> NDArray[Any]:
    known = np.unique(all_rows)
    if one.dtype.kind == "b" or set(known.tolist()) <= {0, 1}:
        return (
            np.roll(one, 1, axis=-1) if one.ndim > 1 and one.shape[-1] > 1 else np.asarray(1 - one, one.dtype)
        )
    if one.dtype.kind == "f":
        return -one
    others = known[~np.isin(known, one)]
    return np.full_like(one, others[0] if len(others) else 0)
