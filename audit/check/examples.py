"""Batches by row, and the examples that test a step's clipping."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from audit.check import trees
from audit.check.trees import Array, Columns
from audit.errors import require, shown

_SCALES = (1, 1e3, -1e3, 100, 30, 10, 3, 0.1, 1e-3, 0)  # of features
_IGNORED = -100  # a token that losses ignore, in torch and most libraries for language


class Example(NamedTuple):
    """An example that is tried in a step.

    Attributes:
      columns: the example as a batch of a single row: arrays (1, ...).
      is_short: whether all tokens of its label except the first are padding.
    """

    columns: Columns
    is_short: bool = False


def read_columns(name: str, batch: Any) -> Columns:
    """Returns a copy of a caller's batch as its arrays in NumPy, each (examples, ...).

    Args:
      name: the batch's name in error messages.
      batch: the tree of the batch's arrays.

    Raises:
      InputError: the batch has no array, no example, or arrays of different lengths.
    """
    columns = list(map(trees.to_numpy, trees.collect_leaves(name, batch).values()))
    advice = "give features, and labels where there are any"
    require(columns, f"`{name}={shown(batch)}` has no array: {advice}")
    rows = columns[0].shape[:1]  # (rows,), or () for an array without axes
    for column in columns:
        is_number = column.dtype.kind in "biuf"  # booleans, signed and unsigned integers, floats
        require(is_number, f"`{name}` has values of type {column.dtype}: give numbers")
        sizes = f"{rows} and {column.shape[:1]}"
        same_size = column.shape[:1] == rows != ()
        require(same_size, f"`{name}`: give arrays of as many rows, one an example, not {sizes}")
    require(len(columns[0]), f"`{name}` has no example: give at least one")
    return columns


def read_extreme_examples(batch: Any, rows: Columns) -> dict[str, Example]:
    """Returns the rows of the caller's extreme examples, by their names in the report.

    Args:
      batch: the caller's arrays or tensors in dicts, lists or tuples.
      rows: the columns of the batch as given.

    Raises:
      InputError: the number of arrays or the shape of a row differs from the batch's.
    """
    columns = read_columns("extreme_examples", batch)
    shapes = [column.shape[1:] for column in columns]
    is_alike = shapes == [column.shape[1:] for column in rows]
    require(is_alike, "`extreme_examples`: give arrays like the batch's, rows of the same shapes")
    return {f"your example {i}": Example(take(columns, [i])) for i in range(len(columns[0]))}


def join(*batches: Columns) -> Columns:
    """Returns the rows of several batches as a single batch, in their order."""
    return list(map(np.concatenate, zip(*batches, strict=True)))


def take(columns: Columns, rows: Any) -> Columns:
    """Returns the rows of a batch that an index, a list of indices or a slice chooses."""
    return [column[rows] for column in columns]


def replace_rows(rows: Columns, examples: Mapping[int, Columns]) -> Columns:
    """Returns a copy of a batch with some rows replaced by examples, each the columns of one row."""
    replaced = list(map(np.copy, rows))
    for row, example in examples.items():
        for column, values in zip(replaced, example, strict=True):
            column[row] = values[0]
    return replaced


def scale_features(examples: Columns, scale: float, batch: Columns) -> Columns:
    """Returns examples with their features multiplied by a scale.

    The features are all arrays except the last, or the only array. Whole numbers, such as pixels, are clipped
    to their range in `batch`.
    """
    result = list(examples)
    for i in range(max(len(batch) - 1, 1)):
        column = batch[i]
        scaled = examples[i] * scale
        if column.dtype.kind != "f" and column.size:  # an empty array has no range
            scaled = np.clip(scaled, column.min(), column.max())
        result[i] = scaled.astype(column.dtype)
    return result


def make_extreme_examples(batch: Columns) -> dict[str, Example]:
    """Returns examples that test a step's clipping, by a description of each.

    They are the first and the last example of the batch: unchanged, with scaled features, and with changed
    labels (the last of several arrays). Labels of tokens are also padded after their first token.
    """
    # Whole numbers are clipped to their range, so several scales may give the same example.
    distinct: dict[tuple[bytes, ...], tuple[str, Example]] = {}
    for name, example in _yield_extreme_examples(batch):
        key = tuple(column.tobytes() for column in example.columns)
        distinct.setdefault(key, (name, example))
    return dict(distinct.values())


def _yield_extreme_examples(batch: Columns) -> Iterator[tuple[str, Example]]:
    """Yields the examples of `make_extreme_examples`, some of them several times."""
    labels = batch[-1]
    for place, row in (("the first example", 0), ("the last example", len(labels) - 1)):
        original = take(batch, [row])
        variants = {"": original}
        if len(batch) > 1:
            label = original[-1]
            others = _list_other_labels(labels, label)
            if len(others):
                variants[", label changed"] = [*original[:-1], others[:1]]
            if labels.dtype.kind == "f":
                yield f"{place}, label times 1000", Example([*original[:-1], 1e3 * label])
            padding = find_padding(labels)
            if padding is not None:
                padded = np.where(np.arange(label.shape[1]) > 0, padding, label)
                short = Example([*original[:-1], padded], is_short=True)
                yield f"{place}, all tokens but one ignored", short
        for change, variant in variants.items():
            for scale in _SCALES:
                scaled = "" if scale == 1 else f", features times {scale:g}"
                yield f"{place}{scaled}{change}", Example(scale_features(variant, scale, batch))


def are_tokens(labels: Array) -> bool:
    """Returns whether labels are sequences of whole numbers, (examples, tokens)."""
    return labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "iu"


def find_padding(labels: Array) -> int | None:
    """Returns the token with which shorter labels are padded; None if no label seems to be padded.

    It is -100 if that occurs. Otherwise it is a token that some label ends with twice, and that no other
    token follows in any label.
    """
    if not are_tokens(labels):
        return None
    if np.any(labels == _IGNORED):
        return _IGNORED
    for token in np.unique(labels[labels[:, -1] == labels[:, -2], -1]):
        is_token = labels == token
        if not np.any(is_token[:, :-1] & ~is_token[:, 1:]):
            return int(token)
    return None


def _list_other_labels(labels: Array, label: Array) -> Array:
    """Returns the labels that differ from `label` (1, ...); of a single class, the class before it."""
    differs = np.any(labels != label, axis=tuple(range(1, labels.ndim)))
    is_class = labels.dtype.kind in "iu" and labels.ndim == 1 and label[0] > 0
    if not np.any(differs) and is_class:
        return label - 1
    return labels[differs]
