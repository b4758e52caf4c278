"""Anyone's arrays as NumPy's and back, and batches row by row.

Neither JAX nor torch is ever imported: each is used where the caller's arrays come from it.
"""

import copy
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import require, require_no_cycle, shown

Vector = NDArray[np.float64]
Columns = list[NDArray[Any]]  # a batch's arrays, each (examples, ...)
SCALES = (1e3, -1e3, 100, 30, 10, 3, 0.1, 1e-3, 0)  # of features, which try a step's clipping
LARGEST_SCALE = SCALES[0]
LEAST_SCALE = 1e-6  # of features whose movement is followed until clipping stops it
_FURTHER_ROWS = 6  # rows of the batch from which further examples are made
_FURTHER_LABELS = 6  # different labels that each of them takes
_IGNORED = -100  # a token that losses leave out, in torch and most libraries for language
SPACING = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}  # between 1 and 2


class Example(NamedTuple):
    """An example that is tried in a step.

    Attributes:
      columns: the example as a batch of a single row: arrays (1, ...).
      scale: the factor by which its features or its label were multiplied; 1 where neither was.
      is_short: whether all tokens of its label except the first were replaced by padding.
    """

    columns: Columns
    scale: float = 1
    is_short: bool = False

    @property
    def is_scaled(self) -> bool:
        """Whether features or the label were multiplied by a factor other than 1."""
        return self.scale != 1

    @property
    def is_largest(self) -> bool:
        """Whether they were multiplied by the largest scale, of either sign."""
        return abs(self.scale) == LARGEST_SCALE


def map_tree(
    tree: Any,
    function: Callable[[str, Any], Any],
    name: str = "tree",
    path: str = "",
) -> Any:
    """Returns a tree with function(path, array) in place of each array.

    Args:
      tree: an array, None, or a tree of dicts, lists, tuples and, where JAX is loaded, its other trees.
      function: the function of an array's path and the array.
      name: the tree's name in error messages.
      path: the path of this tree within the whole.

    Raises:
      InputError: the tree holds anything else.
    """

    def map_child(key: Any, child: Any) -> Any:
        """Returns the mapped tree of a child, whose path ends in `key`."""
        child_path = f"{path}.{key}" if path else str(key)
        return map_tree(child, function, name, child_path)

    if tree is None:
        return None
    if hasattr(tree, "dtype") and hasattr(tree, "shape"):
        # An array that is the whole tree has no path, but errors and reports need a name for it.
        return function(path or "parameters", tree)

    kind: Any = type(tree)
    if isinstance(tree, Mapping):
        children = {key: map_child(key, child) for key, child in tree.items()}
        if not isinstance(tree, dict):  # which may be read-only
            return kind(children)
        # A copy, since some kinds of dict are made of more than their items, as defaultdict is.
        mapped = copy.copy(tree)
        for key, child in children.items():
            mapped[key] = child
        return mapped
    if hasattr(tree, "_fields"):  # a NamedTuple
        fields = zip(tree._fields, tree, strict=True)
        return kind(*(map_child(key, child) for key, child in fields))
    if isinstance(tree, list | tuple):
        return kind(map_child(i, child) for i, child in enumerate(tree))

    tree_util: Any = None
    if "jax" in sys.modules:
        tree_util = sys.modules["jax"].tree_util
    is_jax_tree = tree_util is not None and not tree_util.all_leaves([tree])
    require(
        is_jax_tree,
        f"`{name}` holds {shown(tree)}: give arrays or tensors in dicts, lists or tuples",
    )

    def map_jax_leaf(jax_path: Any, leaf: Any) -> Any:
        """Returns the mapped leaf of a tree that only JAX knows, by its path within this tree."""
        key = tree_util.keystr(jax_path).strip(".[]'")  # "w", where JAX writes ".w" or "['w']"
        return map_child(key, leaf)

    return tree_util.tree_map_with_path(map_jax_leaf, tree)


def collect_leaves(name: str, tree: Any) -> dict[str, Any]:
    """Returns the arrays of a tree by their paths; an error calls the tree `name`."""
    leaves: dict[str, Any] = {}
    require_no_cycle(name, tree)
    map_tree(tree, leaves.setdefault, name)
    return leaves


def to_numpy(leaf: Any) -> NDArray[Any]:
    """Returns a copy of an array or tensor as an array of NumPy: float64 for floats, else of its own type."""
    is_float = "float" in str(leaf.dtype)  # "float32", "torch.float32" and "bfloat16" alike
    if hasattr(leaf, "detach"):  # a tensor of torch
        if is_float:
            leaf = leaf.double()  # NumPy has no bfloat16
        leaf = leaf.detach().cpu().numpy()
    if is_float:
        return np.array(leaf, np.float64)
    return np.array(leaf)


def compute_ulp(values: Vector, spacings: Vector | float) -> Vector:
    """Returns the distance from each number to the next that its floating-point type can hold.

    0, next to which numbers are much closer, is given half of `spacings`, as if it were just below 1.

    Args:
      values: the numbers.
      spacings: the distance between neighbouring numbers from 1 to 2 in each number's type.
    """
    # A number is m 2^e with m from 0.5 to below 1: it lies in [2^(e-1), 2^e), where numbers are 2^(e-1)
    # times as far apart as from 1 to 2.
    exponents = np.frexp(values)[1]
    return np.asarray(np.ldexp(spacings, exponents - 1))


def restore_batch(columns: Columns, batch: Any) -> Any:
    """Returns columns as a batch like the caller's: the same tree, array types and devices.

    Args:
      columns: the arrays of the batch to return, in the order of the tree's arrays.
      batch: the caller's batch.
    """
    remaining = iter(columns)

    def restore(_: str, leaf: Any) -> Any:
        """Returns the next of the columns to restore as an array or tensor of the same kind as `leaf`.

        The first argument, the path of the leaf in its tree, is not used.
        """
        column = next(remaining)
        if hasattr(leaf, "new_tensor"):  # a tensor of torch, which keeps type and device
            return leaf.new_tensor(column)
        if isinstance(leaf, np.ndarray | np.generic):
            return np.array(column, dtype=leaf.dtype)
        # What remains is an array of JAX, which is then loaded.
        return sys.modules["jax"].numpy.array(column, dtype=leaf.dtype)

    return map_tree(batch, restore)


def read_columns(name: str, batch: Any) -> Columns:
    """Returns a copy of a caller's batch as its arrays in NumPy, each (examples, ...).

    Args:
      name: the batch's name in error messages.
      batch: the tree of the batch's arrays.

    Raises:
      InputError: the batch has no array, no example, or arrays of different lengths.
    """
    columns = [to_numpy(leaf) for leaf in collect_leaves(name, batch).values()]
    require(
        columns,
        f"`{name}={shown(batch)}` holds no array: give features, and labels where there are any",
    )
    for column in columns:
        dtype = column.dtype
        is_number = dtype.kind in "biuf"  # booleans, signed and unsigned integers, floats
        require(is_number, f"`{name}` holds values of type {dtype}: give numbers")
    sizes = {column.shape[:1] for column in columns}  # (rows,), or () for an array without axes
    same_size = len(sizes) == 1 and () not in sizes
    shown_sizes = sorted(str(size) for size in sizes)
    require(same_size, f"`{name}`: give arrays of as many rows, one an example, not {shown_sizes}")
    require(len(columns[0]), f"`{name}` has no example: give at least one")
    return columns


def join(*batches: Columns) -> Columns:
    """Returns the rows of several batches as a single batch, in their order."""
    return [np.concatenate(columns) for columns in zip(*batches, strict=True)]


def take(columns: Columns, rows: Any) -> Columns:
    """Returns the rows of a batch that an index, a list of indices or a slice chooses."""
    return [column[rows] for column in columns]


def scale_features(examples: Columns, scale: float, batch: Columns) -> Columns:
    """Returns examples with their features multiplied by a scale.

    The features are all arrays but the last, or the only array. Whole numbers, such as pixels, are clipped to
    the range that they have in `batch`.

    Args:
      examples: the arrays of the examples, each (examples, ...).
      scale: the factor of all features.
      batch: the arrays of the batch as given, in the same order.
    """
    result = list(examples)
    feature_count = max(len(batch) - 1, 1)
    for i in range(feature_count):
        column = batch[i]
        if column.dtype.kind == "f" or not column.size:  # an empty array has no range
            least, most = -np.inf, np.inf
        else:
            least, most = column.min(), column.max()
        scaled = np.clip(examples[i] * scale, least, most)
        result[i] = scaled.astype(column.dtype)
    return result


def make_extreme_examples(batch: Columns) -> dict[str, Example]:
    """Returns examples that try a step's clipping, by a description of each.

    They are the first and the last example of the batch: as they are, with scaled features, and with changed
    labels (the last of several arrays). Whole-number features are also increased by 1, so that other tokens
    than in the batch occur. Labels of tokens are also padded after their first token.

    Args:
      batch: the batch's arrays, each (examples, ...).
    """
    examples: dict[str, Example] = {}
    # A batch of a single row has only a last example.
    places = {0: "the first example", len(batch[0]) - 1: "the last example"}
    for row, place in places.items():
        original = take(batch, [row])
        examples |= _scale_example(original, place, "", batch)
        if len(batch) == 1:  # no labels
            continue

        labels = batch[-1]
        own_label = original[-1]
        other_label = _find_other_label(labels, own_label)
        if len(other_label):
            relabelled = [*original[:-1], other_label]
            examples |= _scale_example(relabelled, place, ", label changed", batch)
        if labels.dtype.kind == "f":
            rescaled = [*original[:-1], LARGEST_SCALE * own_label]
            name = f"{place}, label times {LARGEST_SCALE:g}"
            examples[name] = Example(rescaled, LARGEST_SCALE)
        padding = find_padding(labels)
        if padding is not None:
            padded_label = np.full_like(own_label, padding)
            padded_label[:, 0] = own_label[:, 0]
            name = f"{place}, all tokens but one ignored"
            examples[name] = Example([*original[:-1], padded_label], is_short=True)

    # Whole numbers are clipped to their range, so that several scales may give the same example: the first
    # description is kept.
    distinct: dict[tuple[bytes, ...], str] = {}
    for name, example in examples.items():
        distinct.setdefault(tuple(column.tobytes() for column in example.columns), name)
    return {name: examples[name] for name in distinct.values()}


def make_further_examples(batch: Columns, most: int) -> dict[str, Example]:
    """Returns at most `most` more examples with scaled features, by a description of each.

    They are made of rows spread over the batch, each with several of the batch's labels in turn. Features are
    scaled far beyond their range, with both signs, and moderately.
    """
    examples: dict[str, Example] = {}
    labels = batch[-1]
    places = np.linspace(0, len(labels) - 1, _FURTHER_ROWS).astype(int)
    # For each different label, the first row that has it. Of a single array, which holds features and no
    # labels, these rows change nothing: the same name stands for the same example.
    _, label_rows = np.unique(labels, axis=0, return_index=True)
    for place in np.unique(places):
        for label_row in label_rows[:_FURTHER_LABELS]:
            for scale in (LARGEST_SCALE, -LARGEST_SCALE, 10.0):
                columns = scale_features(take(batch, [place]), scale, batch)
                name = f"example {place}, features times {scale:g}"
                if len(batch) > 1:  # the last of several arrays holds the labels
                    columns[-1] = labels[[label_row]]
                    name += f", label of example {label_row}"
                examples[name] = Example(columns, scale)
    return dict(list(examples.items())[:most])


def are_tokens(labels: NDArray[Any]) -> bool:
    """Returns whether labels are sequences of whole numbers, (examples, tokens)."""
    return labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "iu"


def find_padding(labels: NDArray[Any]) -> int | None:
    """Returns the token with which shorter labels are padded; None where no label seems to be padded.

    Where -100 occurs, it is that: most libraries leave it out of losses. Otherwise it is a token that some
    label ends with twice, and after which no label has another token.

    Args:
      labels: the labels of a batch; only those of shape (examples, tokens) can be padded.
    """
    if not are_tokens(labels):
        return None
    if np.any(labels == _IGNORED):
        return _IGNORED

    ends_in_repeat = labels[:, -1] == labels[:, -2]
    for token in np.unique(labels[ends_in_repeat, -1]):
        is_token = labels == token
        is_followed_by_other = is_token[:, :-1] & ~is_token[:, 1:]
        if not np.any(is_followed_by_other):
            return int(token)
    return None


def _find_other_label(labels: NDArray[Any], label: NDArray[Any]) -> NDArray[Any]:
    """Returns a label (1, ...) that differs from `label`, or an empty array (0, ...) where none is known.

    It is the first of `labels` that differs. If all are the same class, it is the number of that class minus
    1, unless the class is 0.
    """
    for i, candidate in enumerate(labels):
        if np.any(candidate != label[0]):
            return labels[[i]]  # keeps the first axis
    is_class = labels.dtype.kind in "iu" and labels.ndim == 1
    return label - 1 if is_class and label[0] > 0 else labels[:0]


def _scale_example(
    example: Columns,
    place: str,
    change: str,
    batch: Columns,
) -> dict[str, Example]:
    """Returns an example as it is, with scaled features, and with increased tokens, by descriptions.

    Args:
      example: the columns of the example, each (1, ...).
      place: the example's place in the batch, in words.
      change: what was changed of it before, in words; empty if nothing was.
      batch: the columns of the batch, whose ranges whole-number features keep.
    """
    examples = {f"{place}{change}": Example(example)}
    for scale in SCALES:
        name = f"{place}, features times {scale:g}{change}"
        examples[name] = Example(scale_features(example, scale, batch), scale)
    if batch[0].dtype.kind in "iu":
        examples[f"{place}, features plus 1{change}"] = Example(_shift_features(example, batch))
    return examples


def _shift_features(example: Columns, batch: Columns) -> Columns:
    """Returns an example whose whole-number features are increased by 1, but not above the batch's maximum.

    The features are all arrays but the last, or the only array.
    """
    result = list(example)
    feature_count = max(len(batch) - 1, 1)
    for i in range(feature_count):
        column = example[i]
        if column.dtype.kind in "iu" and column.size:
            result[i] = np.where(column < batch[i].max(), column + 1, column).astype(column.dtype)
    return result
