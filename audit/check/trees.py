"""Converts arrays from any library to NumPy and back, without importing JAX or torch."""

import copy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.errors import require, shown

Array = NDArray[Any]
Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.integer]
Columns = list[Array]  # the arrays of a batch, each (rows, ...)


def map_tree(tree: Any, function: Callable[[str, Any], Any], name: str, path: str = "") -> Any:
    """Returns a tree with each array replaced by function(path, array).

    Args:
      tree: an array, None, or a tree of dicts, lists, tuples and, if JAX is loaded, other JAX pytrees.
      name: the name of the whole tree in error messages.
      path: the path of this tree within the whole tree.

    Raises:
      InputError: the tree has any other leaves.
    """

    def map_child(key: Any, child: Any) -> Any:
        return map_tree(child, function, name, f"{path}.{key}".removeprefix("."))

    if tree is None:
        return None
    if hasattr(tree, "dtype") and hasattr(tree, "shape"):
        # A single array has no path, but needs a name.
        return function(path or "parameters", tree)
    if isinstance(tree, dict):
        mapped = copy.copy(tree)  # keeps the default of a defaultdict
        for key, child in tree.items():
            mapped[key] = map_child(key, child)
        return mapped
    kind: Any = type(tree)
    if hasattr(tree, "_fields"):  # a NamedTuple
        return kind(*map(map_child, tree._fields, tree))
    if isinstance(tree, list | tuple):
        return kind(map(map_child, range(len(tree)), tree))

    # Other JAX pytrees, such as a Flax State or an Equinox Module, can occur only if JAX is loaded.
    jax: Any = sys.modules.get("jax")
    require(
        jax and not jax.tree_util.all_leaves([tree]),
        f"`{name}` has {shown(tree)}: give arrays or tensors in dicts, lists or tuples",
    )

    def map_jax_leaf(jax_path: Any, leaf: Any) -> Any:
        return map_child(jax.tree_util.keystr(jax_path, simple=True, separator="."), leaf)

    return jax.tree_util.tree_map_with_path(map_jax_leaf, tree)


def collect_leaves(name: str, tree: Any) -> dict[str, Any]:
    """Returns the arrays of a tree, keyed by path; error messages call the tree `name`."""
    leaves: dict[str, Any] = {}
    map_tree(tree, leaves.setdefault, name)
    return leaves


def to_numpy(leaf: Any) -> Array:
    """Returns a NumPy copy of an array or tensor; floating-point numbers become float64."""
    is_float = "float" in str(leaf.dtype)  # such as "float32", "torch.float32" or "bfloat16"
    if hasattr(leaf, "detach"):  # a torch tensor
        if is_float:
            leaf = leaf.double()  # NumPy has no bfloat16
        leaf = leaf.detach().cpu().numpy()
    return np.array(leaf, np.float64 if is_float else None)


def restore(values: Array, leaf: Any) -> Any:
    """Returns values as an array or tensor with the library, type and device of `leaf`."""
    if hasattr(leaf, "new_tensor"):  # a torch tensor
        return leaf.new_tensor(values).requires_grad_(leaf.requires_grad)
    # NumPy and JAX follow the array API standard.
    return leaf.__array_namespace__().asarray(values, dtype=leaf.dtype, copy=True)


def get_spacing(leaf: Any) -> float:
    """Returns the machine epsilon of an array's floating-point type: the gap from 1 to the next number."""
    bits = {"bfloat16": 7, "float16": 10, "float32": 23}  # of the fraction; float64 has 52
    return 2.0 ** -bits.get(str(leaf.dtype).split(".")[-1], 52)  # removes "torch."


def compute_ulp(values: Vector, spacings: Vector) -> Vector:
    """Returns the distance from each number to the next number of its floating-point type.

    `spacings` are machine epsilons, one per number. For 0, the result is half the machine epsilon, as for a
    number just below 1.
    """
    # frexp writes a number as m 2^e with 0.5 <= m < 1. The spacing in [2^(e-1), 2^e) is 2^(e-1) times the
    # machine epsilon, which is the spacing in [1, 2).
    exponents = np.frexp(values)[1]
    return np.ldexp(spacings, exponents - 1)
