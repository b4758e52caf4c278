"""Converts batches to arrays, and makes extreme examples that test a step's clipping."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from audit.check import trees
from audit.check.trees import Array, Columns
from audit.errors import require, shown

_SCALES = (1, 1e3, -1e3, 100, 30, 10, 3, 0.1, 1e-3, 0)  # factors for the features
_MAX_ROWS = 16  # the number of examples to try
_IGNORED = -100  # the label that losses ignore in torch and most language model libraries


def read_columns(batch: Any) -> Columns:
    """Returns NumPy copies of the arrays in a batch, each of shape (rows, ...).

    Raises InputError if there are no rows, if arrays have different numbers of rows, or if values are not
    numbers.
    """
    columns = list(map(trees.to_numpy, trees.collect_leaves("batch", batch).values()))
    require(
        columns, f"`batch={shown(batch)}` has no arrays: give features, and labels if there are any"
    )
    shape = columns[0].shape
    for column in columns:
        is_number = column.dtype.kind in "biuf"  # booleans, signed and unsigned integers, floats
        require(is_number, f"`batch` has values of type {column.dtype}: give numbers")
        require(
            column.shape[:1] == shape[:1] != (),  # () for an array without axes
            f"`batch` has arrays of shapes {shape} and {column.shape}: give one row per example",
        )
    require(len(columns[0]), "`batch` has no examples: give at least one")
    return columns


def join(*batches: Columns) -> Columns:
    """Concatenates batches."""
    return list(map(np.concatenate, zip(*batches, strict=True)))


def take(columns: Columns, rows: Any) -> Columns:
    """Returns the given rows of a batch; `rows` is a list of indices or a slice."""
    return [column[rows] for column in columns]


def replace_rows(rows: Columns, examples: Mapping[int, Columns]) -> Columns:
    """Returns a copy of `rows` with some rows replaced by `examples`, one-row batches keyed by row index."""
    replaced = list(map(np.copy, rows))
    for row, example in examples.items():
        for column, values in zip(replaced, example, strict=True):
            column[row] = values[0]
    return replaced


def scale_features(examples: Columns, scale: float, batch: Columns) -> Columns:
    """Returns examples with their features multiplied by a factor.

    If there are several arrays, the last one contains the labels, which are not scaled. Masks and integers,
    such as pixels, are clipped to their range in `batch`.
    """
    result = list(examples)
    for i in range(max(len(batch) - 1, 1)):
        column = batch[i]
        scaled = examples[i] * scale
        is_limited = column.dtype.kind != "f" or _is_mask(column, batch)
        if is_limited and column.size:  # an empty array has no range
            scaled = np.clip(scaled, column.min(), column.max())
        result[i] = scaled.astype(column.dtype)
    return result


def mix(first: Columns, second: Columns, share: float) -> Columns:
    """Returns share * first + (1 - share) * second, with integers (such as labels) from `first`."""
    mixed = []
    for own, other in zip(first, second, strict=True):
        column = share * own + (1 - share) * other
        mixed.append(column if own.dtype.kind == "f" else own)
    return mixed


def make_extreme_examples(batch: Columns) -> dict[str, Columns]:
    """Returns examples that test a step's clipping, each as a batch of one row, keyed by description.

    Scales the features of the first and last examples, and varies their labels. Also returns the next
    examples unchanged, because clipping may depend on an example's values.
    """
    # The keys are contents, to omit duplicates that arise when integers are clipped.
    described: dict[Any, tuple[str, Columns]] = {}
    for place, row in (("the first example", 0), ("the last example", -1)):
        original = take(batch, [row])
        variants = {"": original}
        if len(batch) > 1:
            for change, label in _list_other_labels(batch, original[-1]).items():
                variants[change] = [*original[:-1], label]
        for change, variant in variants.items():
            for scale in _SCALES:
                example = scale_features(variant, scale, batch)
                content = tuple(column.tobytes() for column in example)
                scaled = "" if scale == 1 else f", features times {scale:g}"
                described.setdefault(content, (f"{place}{scaled}{change}", example))
    examples = dict(described.values())
    last_row = len(batch[0]) - 1
    for row in range(1, min(last_row, _MAX_ROWS)):
        examples[f"example {row}"] = take(batch, [row])
    return examples


def _is_mask(column: Array, batch: Columns) -> bool:
    """Returns True if a column of a batch seems to mark padding: it has only zeros and ones.

    A batch of two columns has features and labels, but no mask.
    """
    return len(batch) > 2 and column[0].size == 1 and bool(np.isin(column, (0, 1)).all())


def _list_other_labels(batch: Columns, label: Array) -> dict[str, Array]:
    """Returns labels to try instead of `label`, all of shape (1, ...), keyed by a description of the change.

    Tries another example's label, 1,000 times a float label, and only the first token of a sequence.
    """
    labels = batch[-1]
    others = {}
    differs = np.any(labels != label, axis=tuple(range(1, labels.ndim)))  # for each example
    if differs.any():
        others[", label changed"] = labels[differs][:1]
    if labels.dtype.kind == "f" and not _is_mask(labels, batch):
        others[", label times 1000"] = 1e3 * label
    if labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "iu":  # tokens
        # Most libraries pad with -100. Otherwise, the padding is the most frequent last token.
        padding = _IGNORED if _IGNORED in labels else stats.mode(labels[:, -1]).mode
        is_first = np.arange(label.shape[1]) == 0
        others[", all tokens but one ignored"] = np.where(is_first, label, padding)
    return others
