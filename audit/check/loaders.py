"""Reads batches from any loader as indices into the data set."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from audit.check.trees import Array, Integers
from audit.errors import InputError, describe_error, require, shown, whole_number

MAX_BATCHES = 100_000  # in a pass that `claim` reads to the end

Draw = Callable[[int], Any]
Indices = range  # each example is its index; for torch and Opacus loaders
_NO_INDICES = (
    "`draw` gave batches that are not vectors of indices, such as columns, masks, dictionaries or ragged "
    "rows: build the loader on range(n) instead of the data to get indices"
)


class DrawnPass(NamedTuple):
    """The batches of one pass over a loader.

    Attributes:
      batches: the example indices of each batch that was read.
      is_whole: True if the pass has no further batches.
    """

    batches: list[Integers]
    is_whole: bool


def make_draw(loader: Any) -> Draw:
    """Returns a function from a seed to the batches of one pass over a loader.

    Args:
      loader: a function, which is returned unchanged; or a loader or an iterable as in `check_batches`.

    Raises:
      InputError: the loader is neither callable nor iterable, or can be iterated only once.
    """
    if not isinstance(loader, Iterable):
        require(
            callable(loader),
            f"`draw={shown(loader)}`: give seed -> batches of indices, or a loader",
        )
        return loader
    # A batch sampler yields the indices without reading the examples.
    batch_sampler = getattr(loader, "batch_sampler", None)
    # torch's loaders without a batch size may have a batch sampler as their sampler.
    own_sampler = getattr(loader, "sampler", None)
    if batch_sampler is None and hasattr(own_sampler, "batch_size"):
        batch_sampler = own_sampler
    sampler = batch_sampler if isinstance(batch_sampler, Iterable) else loader
    require(
        not isinstance(sampler, Iterator),
        f"`draw={shown(loader)}` can be iterated only once: give a function that creates it",
    )
    return functools.partial(_iterate, loader, sampler)


def _iterate(loader: Any, sampler: Iterable[Any], seed: int) -> Iterator[Any]:
    """Returns an iterator over a pass of the loader's sampler.

    Sets the epoch to the seed, because torch's DistributedSampler would otherwise repeat its order.
    """
    # A torch batch sampler wraps the sampler of single examples, which may have `set_epoch`.
    for part in (loader, sampler, getattr(sampler, "sampler", loader)):
        if hasattr(part, "set_epoch"):
            part.set_epoch(seed)
    return iter(sampler)


def join_batches(draw: Draw, count: int) -> Draw:
    """Returns a function that draws a pass: `draw`, or `count` calls to `draw` if it returns a single batch.

    Each call has a different seed. Raises InputError if `draw` fails.
    """
    if not _is_single(call_user(lambda: draw(0), " with seed 0")):
        return draw
    return lambda seed: [draw(count * seed + place) for place in range(count)]


def split_epochs(draw: Draw, examples: int, most: int) -> Draw:
    """Returns a function that draws single epochs if the passes of `draw` have several; otherwise `draw`.

    Also returns `draw` if the first epoch uses an example twice, or if a pass has more than `most` batches.

    Raises InputError if `draw` fails.
    """
    first_pass = draw_pass(draw, 0, examples, most)
    length = count_epoch(first_pass, examples)
    count = len(first_pass.batches) // length
    first_epoch = np.concatenate(first_pass.batches[:length])
    if count < 2 or not first_pass.is_whole or has_repeats(first_epoch):
        return draw

    @functools.lru_cache(1)  # the epochs of a pass are drawn one after another
    def read_pass(seed: int) -> list[Integers]:
        return draw_pass(draw, seed, examples, most).batches

    def draw_epoch(seed: int) -> list[Integers]:
        batches = read_pass(seed // count)
        start = seed % count * length
        # A shorter pass has fewer epochs.
        return batches[start : start + length] or batches[:length]

    return draw_epoch


def has_repeats(indices: Integers) -> bool:
    """Returns True if any index occurs twice."""
    return len(np.unique(indices)) < len(indices)


def count_epoch(drawn_pass: DrawnPass, examples: int) -> int:
    """Returns the number of batches in the first epoch of a pass, at least 1.

    Splits a whole pass into equal parts of about `examples` indices, if possible. Otherwise, an epoch has at
    most as many indices as examples.
    """
    totals = np.cumsum(list(map(len, drawn_pass.batches)))
    count = max(1, round(totals[-1] / examples))
    length = len(totals) // count
    is_split = length * count == len(totals) and totals[length - 1] <= examples
    if drawn_pass.is_whole and (count == 1 or is_split):
        return length
    return max(1, int(np.sum(totals <= examples)))


def _is_single(given: Any) -> bool:
    """Returns True if `draw` gave a single batch of indices instead of a pass."""
    if not hasattr(given, "__getitem__"):  # an iterator over batches
        return False
    if not len(given):
        return hasattr(given, "dtype")  # an empty array is a batch, but an empty list is a pass
    is_column = getattr(given, "shape", ())[1:] == (1,)  # as returned by np.argwhere
    # An index is an int or an array without axes, and a batch is an array or a list.
    return is_column or isinstance(given[0], int) or getattr(given[0], "ndim", 1) == 0


def count_examples(loader: Any, examples: int | None) -> int:
    """Returns the number of examples: `examples` or, if it is None, the length of `loader.dataset`.

    Raises InputError if the number is unknown or out of range.
    """
    if examples is None:
        dataset = getattr(loader, "dataset", None)
        require(hasattr(dataset, "__len__"), "`examples` is missing: give the size of the data set")
        examples = len(dataset)  # type: ignore[arg-type]
    return whole_number("examples", examples, 2, 10**9)


def call_user(call: Callable[[], Any], where: str = "") -> Any:
    """Returns the result of `call`, which calls the user's function `draw`.

    If `draw` fails or exits, raises InputError with `where` in the message, such as " with seed 0".
    """
    try:
        return call()
    except InputError:  # its message is already meant for the user
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"`draw` failed{where}: {describe_error(error)}") from error


def draw_pass(draw: Draw, seed: int, examples: int, most: int) -> DrawnPass:
    """Draws a pass with `seed`, and returns up to `most` of its batches.

    Raises InputError if `draw` fails, or does not return indices from 0 to `examples` - 1.
    """
    drawn = call_user(lambda: _read_batches(draw(seed), most), f" with seed {seed}")
    require(drawn.batches, f"`draw` gave no batches with seed {seed}: return batches of indices")
    indices = np.concatenate(drawn.batches)
    is_inside = (indices >= 0) & (indices < examples)
    require(
        is_inside.all(),
        f"`draw` gave indices outside the data set: give 0 to {examples - 1}, without padding",
    )
    return drawn


def _read_batches(given: Any, most: int) -> DrawnPass:
    """Reads up to `most` batches from the pass `given`; raises InputError unless batches contain indices."""
    if not isinstance(given, Iterable):  # `require` would call `shown`, which is slow for a pass
        raise InputError(f"`draw` gave {shown(given)}: return batches of indices")
    remaining = iter(given)
    batches = list(map(_to_array, itertools.islice(remaining, most)))
    for batch in batches:
        # A batch without examples may be an empty list, which NumPy converts to floats.
        is_index = batch.dtype.kind in "iu" or not batch.size
        require(is_index and batch.ndim < 2, _NO_INDICES)
        require(batch.ndim, "`draw` gave a single batch: return the batches of a whole pass")
    is_whole = next(remaining, None) is None
    return DrawnPass([batch.astype(np.int64) for batch in batches], is_whole)


def _to_array(batch: Any) -> Array:
    """Returns a batch from any library as a NumPy array; a column or a row becomes a vector.

    Raises InputError if parts of the batch have different shapes.
    """
    if hasattr(batch, "cpu"):  # a torch tensor, which may be on a GPU
        batch = batch.cpu()
    try:
        indices = np.asarray(batch)
    except ValueError as error:  # columns of different shapes, or rows of unequal length
        raise InputError(_NO_INDICES) from error
    # np.argwhere and tf.where return a column of indices, and torch's TensorDataset returns a row.
    if indices.ndim == 2 and 1 in indices.shape:
        return indices.ravel()
    return indices
