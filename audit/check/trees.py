"""Converts arrays of any library to NumPy and back, without importing JAX or torch."""

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
      tree: an array, None, or a tree of dicts, lists, tuples and, if JAX is loaded, its other trees.
      function: a function of the path of an array and the array.
      name: the name of the tree in error messages.
      path: the path of this tree within the whole tree.

    Raises:
      InputError: the tree has other leaves.
    """

    def map_child(key: Any, child: Any) -> Any:
        return map_tree(child, function, name, f"{path}.{key}".removeprefix("."))

    if tree is None:
        return None
    if hasattr(tree, "dtype") and hasattr(tree, "shape"):
        # An array that is the whole tree has no path, but errors and reports need a name for it.
        return function(path or "parameters", tree)
    if isinstance(tree, dict):
        # A copy, since some kinds of dict are made of more than their items, like defaultdict.
        mapped = copy.copy(tree)
        for key, child in tree.items():
            mapped[key] = map_child(key, child)
        return mapped
    kind: Any = type(tree)
    if hasattr(tree, "_fields"):  # a NamedTuple
        return kind(*map(map_child, tree._fields, tree))
    if isinstance(tree, list | tuple):
        return kind(map(map_child, range(len(tree)), tree))

    # Other trees of JAX, such as a State of Flax or a Module of Equinox. JAX is loaded if there are any.
    advice = f"`{name}` has {shown(tree)}: give arrays or tensors in dicts, lists or tuples"
    require("jax" in sys.modules, advice)
    tree_util = sys.modules["jax"].tree_util
    require(not tree_util.all_leaves([tree]), advice)

    def map_jax_leaf(jax_path: Any, leaf: Any) -> Any:
        return map_child(tree_util.keystr(jax_path, simple=True, separator="."), leaf)

    return tree_util.tree_map_with_path(map_jax_leaf, tree)


def collect_leaves(name: str, tree: Any) -> dict[str, Any]:
    """Returns the arrays of a tree by path; error messages call the tree `name`."""
    leaves: dict[str, Any] = {}
    map_tree(tree, leaves.setdefault, name)
    return leaves


def to_numpy(leaf: Any) -> Array:
    """Returns a NumPy copy of an array or tensor; floating-point numbers become float64."""
    is_float = "float" in str(leaf.dtype)  # "float32", "torch.float32" and "bfloat16" alike
    if hasattr(leaf, "detach"):  # a tensor of torch
        if is_float:
            leaf = leaf.double()  # NumPy has no bfloat16
        leaf = leaf.detach().cpu().numpy()
    return np.array(leaf, np.float64 if is_float else None)


def restore(values: Array, leaf: Any) -> Any:
    """Returns values as an array or tensor of the same library, type and device as `leaf`."""
    if hasattr(leaf, "new_tensor"):  # a tensor of torch
        return leaf.new_tensor(values).requires_grad_(leaf.requires_grad)
    # NumPy and JAX follow the array API standard.
    return leaf.__array_namespace__().asarray(values, dtype=leaf.dtype, copy=True)


def get_spacing(leaf: Any) -> float:
    """Returns the distance from 1 to the next larger number in the floating-point type of an array."""
    bits = {"bfloat16": 7, "float16": 10, "float32": 23}  # of the fraction
    return 2.0 ** -bits.get(str(leaf.dtype).split(".")[-1], 52)  # "float32" of "torch.float32"


def compute_ulp(values: Vector, spacings: Vector) -> Vector:
    """Returns the distance from each number to the next one of its floating-point type.

    For 0 it is half of `spacings`, as if it were just below 1. The true distance is much smaller.

    Args:
      values: the numbers.
      spacings: the distance from 1 to the next larger number in the type of each number.
    """
    # A number is m 2^e with m from 0.5 to below 1: it is in [2^(e-1), 2^e). Numbers there are 2^(e-1) times
    # farther from each other than from 1 to 2.
    exponents = np.frexp(values)[1]
    return np.asarray(np.ldexp(spacings, exponents - 1))
