"""Runs that stand in a file twice: a block of rows that was pasted again, or a whole file.

Bounds take runs for independent training runs, which a run that is counted twice is not: the bound then
exceeds the truth more often than it says, 8% for pairs, 28% for fives. Yet equal scores are no
sign of it. Rounded scores, shares of votes and scores of runs that failed are equal by nature, and a rule
that drops a score because of its value conditions the bound on what is left. So nothing is dropped. A file is
refused where independent runs would look like it with a probability below REFUSED_BELOW, whatever the law of
their scores and however the file was sorted:

    a block    rows i, i + 1, ... are equal to rows j, j + 1, ... . With p_v the share of value v in the file,
               independent rows repeat given rows with probability prod p_v. A file may be sorted, which makes
               long stretches of a value, so that only the first row of each stretch counts. By Ville's
               inequality, along each of the n^2 / 2 pairs (i, j), the probability that any block reaches a
               product of q is at most n^2 q / 2.
    copies     every value comes an even number of times, or a multiple of 3, 5, ... times. For J different
               values and n independent rows the probability is at most 3 sqrt(n) 2^-J: for a Poisson number
               of rows the counts are independent, and E[2^J 1{all even}] = prod (e^-l + (1 - e^-l)^2) <= 1.
    a row      of several scores a run, a row comes again whole. Canaries of a run may be tied, so that each
               different value of a row counts once: n^2 / 2 times the product of their shares.

What is less than that is described beneath the table and changes no digit. Scores of few values that were
sorted and then dealt out in turns look like pasted scores too.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError
from audit.evidence.canaries import Design, Fresh

Array = NDArray[np.float64]
Places = NDArray[np.int64]
REFUSED_BELOW = 1e-9
_LEAST_SHOWN = 10  # repeated rows that are worth a line
_SHARE_SHOWN = 0.05  # of the rows, likewise
_MOST_SHIFTS = 20  # distances between a window and its copy that are tried, the most frequent ones
_LEAST_DIFFERENT = 0.25  # share of different rows: fewer repeat by nature


class RowTable(NamedTuple):
    """The rows of scores of a world, or of both.

    Attributes:
      name: of all rows together, as in messages: "the scores in".
      row: the word for a row, "row" or "canary".
      scores: (n, K).
      rows: (n,) a number for each row, equal for rows that are equal, their canaries' bits included.
    """

    name: str
    row: str
    scores: Array
    rows: Places


class RepeatedBlock(NamedTuple):
    """Rows first .. first + length - 1, which come again from `again` on (counted from 0)."""

    first: int
    again: int
    length: int


def require_no_copies(design: Design | Fresh) -> None:
    """Raises InputError, which names the rows, for a file that holds runs twice."""
    for table in tables_of(design):
        if len(table.rows) < 2:
            continue
        block = _find_row(table) or find_block(table.rows)
        if block is not None:
            raise InputError(_describe_block(table, block))
        times = count_copies(table.rows)
        if times > 1:
            raise InputError(
                f"every {table.row} of {table.name} comes {times} times, or a multiple of that: "
                "give each run once"
            )


def describe_repeats(design: Design | Fresh) -> list[str]:
    """Returns a sentence for each world in which many rows repeat each other, as rounded scores do.

    Those are at least 10 rows and a twentieth of all. Worlds with few different rows, less than a quarter,
    are left out: their rows repeat by nature. Mostly the list is empty.
    """
    lines = []
    for table in tables_of(design):
        total = len(table.rows)
        different = len(np.unique(table.rows))
        repeated = total - different
        if (
            repeated < max(_LEAST_SHOWN, _SHARE_SHOWN * total)
            or different < _LEAST_DIFFERENT * total
        ):
            continue
        lines.append(
            f"{repeated:,} of {total:,} {_plural(table.row)} of {table.name} equal an earlier {table.row}, "
            "as rounded scores do; each counts, and bounds would be too high if a run stood there twice"
        )
    return lines


def tables_of(design: Design | Fresh) -> list[RowTable]:
    """Returns the numbered rows of an audit's scores, a table for each world if they are different runs."""
    tables = []
    for rows in design.rows():
        scores = rows.scores
        if rows.presence is None:
            numbers = _row_numbers(scores)
        else:
            numbers = _row_numbers(np.concatenate([scores, rows.presence], axis=1))
        tables.append(RowTable(rows.name, rows.row, scores, numbers))
    return tables


def find_block(rows: Places) -> RepeatedBlock | None:
    """Returns a block of rows that comes again later, or None.

    A block counts only if independent rows would repeat it with a probability below REFUSED_BELOW. A
    stretch of equal rows, as sorting makes it, counts as its first row alone, whose evidence is -log of its
    value's share of all rows.

    Args:
      rows: (n,) a number for each row, equal for equal rows.
    """
    stretches = _find_stretches(rows)
    shares = np.bincount(rows) / len(rows)
    evidence = -np.log(shares[rows[stretches.starts]])  # of each stretch
    least = _least_evidence(len(rows))
    if evidence.sum() < least:
        return None
    return _find_repeated_window(stretches, evidence, least)


def count_copies(rows: Places) -> int:
    """Returns how many copies of a file were pasted together, if each row comes a multiple of so many times.

    It is 1 if that may be chance: if independent rows would come so with a probability above REFUSED_BELOW.
    The probability is at most 3 sqrt(n) 2^-J for J different rows among n (see the module).

    Args:
      rows: (n,) a number for each row, equal for equal rows.
    """
    counts = np.unique(rows, return_counts=True)[1]
    log_probability = np.log(3) + np.log(len(rows)) / 2 - len(counts) * np.log(2)
    if log_probability >= np.log(REFUSED_BELOW):
        return 1
    return int(np.gcd.reduce(counts))


class _Stretches(NamedTuple):
    """Stretches of equal rows, in order.

    Attributes:
      starts: (s,) the first row of each.
      lengths: (s,) how many rows each has.
      symbols: (s,) a number for its value and length together, equal for equal stretches.
    """

    starts: Places
    lengths: Places
    symbols: Places


def _find_stretches(rows: Places) -> _Stretches:
    """Returns the stretches of equal rows, of numbers (n,) that are equal for equal rows."""
    changes = np.flatnonzero(np.diff(rows)) + 1
    starts = np.concatenate([[0], changes]).astype(np.int64)
    lengths = np.diff(np.append(starts, len(rows)))
    # One number for each pair of value and length.
    pairs = rows[starts] * (int(lengths.max()) + 1) + lengths
    symbols = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return _Stretches(starts, lengths, symbols)


def _find_repeated_window(
    stretches: _Stretches, evidence: Array, least: float
) -> RepeatedBlock | None:
    """Returns a sequence of stretches that comes again with evidence of at least `least`, or None.

    Windows of 1, 2, 4, ... stretches are numbered by their content (Karp, Miller and Rosenberg, 1972); those
    that come once are dropped. The longest windows that are left tell by how many stretches copies are
    shifted; at each of the most frequent shifts the copied sequence with most evidence is taken.

    Args:
      stretches: of the rows, in order.
      evidence: (s,) of each stretch: -log of the probability that a row has its value.
      least: the evidence below which a repetition may be chance.
    """
    total = np.concatenate([[0.0], np.cumsum(evidence)])
    symbols = stretches.symbols
    size = len(symbols)

    # `numbers` are those of the windows of `length` stretches that start at `places`.
    numbers = symbols.copy()
    places = np.arange(size)
    length = 1
    shifts = np.zeros(0, np.int64)
    while True:
        places, numbers = _keep_repeated(places, numbers)
        if not len(places):
            break
        shifts = _find_shifts(places, numbers)
        # A window of twice the length is a pair of windows that are both repeated.
        by_place = np.full(size, -1, np.int64)
        by_place[places] = numbers
        fits = places + 2 * length <= size
        second = by_place[places[fits] + length]
        both = second >= 0
        places = places[fits][both]
        numbers = by_place[places] * size + second[both]
        length *= 2

    best = None
    most = least
    for shift in _common_shifts(shifts):
        low, high = _most_evidence(symbols, total, shift)
        reached = total[high] - total[low]
        if reached < most:
            continue
        most = reached
        # A file that was pasted three times matches beyond its first copy.
        end = min(high, low + shift)
        rows = int(stretches.lengths[low:end].sum())
        best = RepeatedBlock(int(stretches.starts[low]), int(stretches.starts[low + shift]), rows)
    return best


def _keep_repeated(places: Places, numbers: Places) -> tuple[Places, Places]:
    """Returns the places whose numbers come more than once, and these numbers, counted from 0."""
    _, renumbered, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    repeated = counts[renumbered] > 1
    return places[repeated], renumbered[repeated].astype(np.int64)


def _find_shifts(places: Places, numbers: Places) -> Places:
    """Returns the distances from each place to the next place with the same number.

    Args:
      places: (n,) where windows start.
      numbers: (n,) of the windows there, equal for equal windows.
    """
    order = np.lexsort((places, numbers))
    equal = numbers[order[1:]] == numbers[order[:-1]]
    return np.asarray((places[order[1:]] - places[order[:-1]])[equal])


def _common_shifts(shifts: Places) -> list[int]:
    """Returns the most frequent shifts, _MOST_SHIFTS of them at most."""
    different, counts = np.unique(shifts, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MOST_SHIFTS]
    return [int(shift) for shift in different[order]]


def _most_evidence(symbols: Places, total: Array, shift: int) -> tuple[int, int]:
    """Returns (low, high) of the part symbols[low:high] with most evidence that comes again `shift` later.

    Args:
      symbols: (s,) of the stretches, equal for equal stretches.
      total: (s + 1,) the evidence of all stretches before each.
      shift: the distance between part and copy, in stretches, at which there is a copy or more.
    """
    # Where each maximal stretch of matches begins and ends.
    equal = np.concatenate([[False], symbols[:-shift] == symbols[shift:], [False]])
    edges = np.flatnonzero(np.diff(equal.astype(np.int8)))
    lows = edges[0::2]
    highs = edges[1::2]
    best = int(np.argmax(total[highs] - total[lows]))
    return int(lows[best]), int(highs[best])


def _find_row(table: RowTable) -> RepeatedBlock | None:
    """Returns the first row of several scores that comes again, with the rows after it that do so too.

    None where independent scores would repeat a row like it with a probability above REFUSED_BELOW, and where
    each row is a single score.
    """
    scores = table.scores
    rows = table.rows
    if scores.shape[1] == 1:
        return None

    # A value's evidence is -log of its share of all scores; a row's is the sum over its different
    # values, -log of a bound on the probability that an independent row equals it.
    first, counts = np.unique(rows, return_index=True, return_counts=True)[1:]
    values, times = np.unique(scores, return_counts=True)
    evidence_of_value = -np.log(times / scores.size)
    least = _least_evidence(len(rows))

    for row in np.sort(first[counts > 1]):
        different = np.searchsorted(values, np.unique(scores[row]))
        if evidence_of_value[different].sum() < least:
            continue
        # The block goes on while the rows after the first equal those after its copy.
        again = int(np.flatnonzero(rows == rows[row])[1])
        length = 1
        while again + length < len(rows) and rows[row + length] == rows[again + length]:
            length += 1
        # It ends before its copy begins: they must not overlap.
        return RepeatedBlock(int(row), again, min(length, again - int(row)))
    return None


def _least_evidence(rows: int) -> float:
    """Returns the evidence, -log of a probability, from which on a repeated block is no chance.

    With n rows there are fewer than n^2 / 2 pairs of places for a block and its copy, whose probabilities add
    up to REFUSED_BELOW at most.
    """
    return float(2 * np.log(rows) - np.log(2) - np.log(REFUSED_BELOW))


def _row_numbers(scores: Array) -> Places:
    """Returns a number (n,) for each row of scores (n, K), equal for equal rows."""
    if scores.shape[1] == 1:  # much faster than comparing rows
        return np.unique(scores[:, 0], return_inverse=True)[1].astype(np.int64)
    return np.unique(scores, axis=0, return_inverse=True)[1].ravel().astype(np.int64)


def _describe_block(table: RowTable, block: RepeatedBlock) -> str:
    """Returns the message on a block of rows that comes again; rows are counted from 1 in it."""
    where = f"of {table.name}, "
    if block.length == 1:
        rows = f"{where}{table.row} {block.first + 1:,} comes again as {block.again + 1:,}"
    else:
        copied = f"{block.first + 1:,} to {block.first + block.length:,}"
        copies = f"{block.again + 1:,} to {block.again + block.length:,}"
        rows = f"{where}{_plural(table.row)} {copied} come again as {copies}"
    return f"{rows}: leave one copy, and give NaN for a run that failed"


def _plural(row: str) -> str:
    """Returns the plural of the word for a row."""
    return {"row": "rows", "canary": "canaries"}[row]
