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
    a row      of several scores a run, a row comes again whole: n^2 / 2 times the probability of the row.
               Canaries of a run may be tied, so that each different value counts once, by its share in its
               own column. Scores of a run may move together, so that a value counts by its share among the
               rows that agree in another value, where that is larger. Shares are those among different
               rows: a row that was pasted many times would make itself probable.

What is less than that is described beneath the table and changes no digit. Two kinds of files look like
pasted scores though nothing was pasted: scores of few values that were sorted and then dealt out in turns,
and rows of many canaries that agree as a whole or nowhere, as where a run's scores are levels plus one coarse
number.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError
from audit.evidence.canaries import Design, Fresh

Array = NDArray[np.float64]
Places = NDArray[np.int64]
REFUSED_BELOW = 1e-9  # a file is refused if independent runs look like it with less probability
_LEAST_SHOWN = 10  # repeated rows that are worth a line
_SHARE_SHOWN = 0.05  # share of repeated rows that is worth a line
_MOST_SHIFTS = 20  # the most frequent distances between a window and its copy: these are tried
_MOST_COLUMNS = 100  # of a row that are compared; so many prove a copy
_COMPARED_ROWS = 50  # all others are compared to these, to see whether a run's scores move together
_MOST_CANDIDATES = 100  # rows that are compared to all others, to see whether they are copies
_LEAST_DIFFERENT = 0.25  # share of different rows; with fewer, rows repeat by nature


class RowTable(NamedTuple):
    """The rows of scores of a single world, or of both.

    Attributes:
      name: the words for all rows in messages: "the scores in".
      row: the word for a row, "row" or "canary".
      scores: (n, K), K scores in each of n rows.
      rows: (n,), a number for each row. Rows have the same number if their scores, and bits of presence if
        there are any, are equal.
    """

    name: str
    row: str
    scores: Array
    rows: Places


class RepeatedBlock(NamedTuple):
    """A block of rows that comes again later.

    Attributes:
      first: the first row of the block, counted from 0.
      again: the first row of its copy.
      length: the number of rows in the block.
    """

    first: int
    again: int
    length: int


def require_no_copies(design: Design | Fresh) -> None:
    """Raises InputError if rows of scores repeat more than chance explains, as rows pasted twice do.

    The message names the rows that repeat, or says how often every row of the file occurs.
    """
    for table in tables_of(design):
        if len(table.rows) < 2:  # nothing can repeat
            continue
        # A repeated row of several scores may prove a copy by itself; else only a block of rows can.
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
    """Returns a sentence for each world in which many rows repeat an earlier row, as rounded scores do.

    Many are at least 10 rows and at least a twentieth of all. A world whose distinct rows are less than a
    quarter of all rows gets no sentence, since its rows repeat by nature.
    """
    lines = []
    for table in tables_of(design):
        total = len(table.rows)
        distinct = len(np.unique(table.rows))
        repeated = total - distinct
        has_few_repeats = repeated < max(_LEAST_SHOWN, _SHARE_SHOWN * total)
        repeats_by_nature = distinct < _LEAST_DIFFERENT * total
        if has_few_repeats or repeats_by_nature:
            continue
        lines.append(
            f"{repeated:,} of {total:,} {_plural(table.row)} of {table.name} equal an earlier {table.row}, "
            "as rounded scores do; each counts, and bounds would be too high if a run stood there twice"
        )
    return lines


def tables_of(design: Design | Fresh) -> list[RowTable]:
    """Returns the rows of an audit's scores, numbered so that equal rows have the same number.

    There is a single table, or one for each world if the worlds are different runs.
    """
    tables = []
    for rows in design.rows():
        scores = rows.scores
        if rows.presence is None:
            numbers = _row_numbers(scores)
        else:
            # Rows are equal only if they also agree in which of their canaries are in.
            numbers = _row_numbers(np.concatenate([scores, rows.presence], axis=1))
        tables.append(RowTable(rows.name, rows.row, scores, numbers))
    return tables


def find_block(rows: Places) -> RepeatedBlock | None:
    """Returns a block of rows that comes again later; None where repetition may be chance.

    A block's evidence is -log of the probability that independent rows equal the block's rows. A row adds
    -log of the share of all rows that equal it. Of a stretch of equal rows only the first counts, since
    sorting makes long stretches. A block is returned only if it has so much evidence that independent rows
    would repeat such a block anywhere with a probability below REFUSED_BELOW.

    Args:
      rows: (n,), a number for each row, the same for equal rows.
    """
    stretches = _find_stretches(rows)
    shares = np.bincount(rows) / len(rows)  # of each number among the rows
    evidence = -np.log(shares[rows[stretches.starts]])  # of each stretch
    least = _compute_least_evidence(len(rows))
    if evidence.sum() < least:  # no block has more evidence than all stretches together
        return None
    return _find_repeated_window(stretches, evidence, least)


def count_copies(rows: Places) -> int:
    """Returns how many copies of a file were pasted together: every row occurs a multiple of that many times.

    It is the greatest common divisor of how often each distinct row occurs. Among n independent rows with J
    distinct values, this divisor exceeds 1 by chance with a probability of at most 3 sqrt(n) 2^-J (derived in
    the module docstring). Where that is not below REFUSED_BELOW, the result is 1: nothing is proven.

    Args:
      rows: (n,), a number for each row, the same for equal rows.
    """
    counts = np.unique(rows, return_counts=True)[1]
    log_probability = np.log(3) + np.log(len(rows)) / 2 - len(counts) * np.log(2)
    if log_probability >= np.log(REFUSED_BELOW):
        return 1
    return int(np.gcd.reduce(counts))


class _Stretches(NamedTuple):
    """The stretches of equal rows in a table, in order.

    Attributes:
      starts: (s,), the first row of each stretch.
      lengths: (s,), the number of rows of each stretch.
      symbols: (s,), a number for each stretch's value and length, the same for equal stretches.
    """

    starts: Places
    lengths: Places
    symbols: Places


def _find_stretches(rows: Places) -> _Stretches:
    """Returns the stretches of equal rows: where each starts, its length, and a symbol.

    Stretches have the same symbol if they have the same row and the same length.

    Args:
      rows: (n,), a number for each row, the same for equal rows.
    """
    # Every stretch but the first starts at a row that differs from the row before it.
    changes = np.flatnonzero(np.diff(rows)) + 1
    starts = np.concatenate([[0], changes]).astype(np.int64)
    lengths = np.diff(np.append(starts, len(rows)))
    # A number for each pair of row and length, then the same numbers counted from 0 without gaps.
    pairs = rows[starts] * (int(lengths.max()) + 1) + lengths
    symbols = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return _Stretches(starts, lengths, symbols)


def _find_repeated_window(
    stretches: _Stretches, evidence: Array, least: float
) -> RepeatedBlock | None:
    """Returns the repeated block with the most evidence that a search meets; None if that is below `least`.

    The search has two parts. First, it looks for long windows of stretches that occur more than once. Windows
    of 1, 2, 4, ... stretches are numbered such that equal windows have the same number (Karp, Miller and
    Rosenberg, 1972), and windows that occur once are dropped. The distances between equal windows of the
    greatest length show by how many stretches copies are shifted. Second, for each of the most frequent
    shifts, it takes the sequence of stretches with the most evidence that comes again so many later.

    Args:
      stretches: the stretches of equal rows, in order.
      evidence: (s,), -log of the probability that a row has the stretch's value, for each stretch.
      least: the evidence below which a repetition may be chance.
    """
    total = np.concatenate([[0.0], np.cumsum(evidence)])  # total[i]: of the first i stretches
    symbols = stretches.symbols
    size = len(symbols)  # the number of stretches

    # First part: the shifts between equal windows of the greatest length. Places are indices of stretches.
    # Invariant: numbers[i] is the number of the window of `length` stretches that starts at places[i].
    numbers = symbols
    places = np.arange(size)
    length = 1
    shifts = np.zeros(0, np.int64)  # at the end, those of the longest repeated windows
    while True:
        places, numbers = _keep_repeated(places, numbers)
        if not len(places):
            break
        shifts = _find_shifts(places, numbers)
        # A repeated window of twice the length consists of two windows that are both repeated. `by_place` has
        # the number of the window that starts at each stretch, -1 if that window is not repeated.
        by_place = np.full(size, -1, np.int64)
        by_place[places] = numbers
        fits = places + 2 * length <= size  # not beyond the last stretch
        second = by_place[places[fits] + length]
        is_second_repeated = second >= 0
        places = places[fits][is_second_repeated]
        # All numbers are below `size`, so that each pair of them gets a number of its own.
        numbers = by_place[places] * size + second[is_second_repeated]
        length *= 2

    # Second part: the block with the most evidence at any of the shifts, at least `least`.
    best = None
    most = least
    for shift in _find_common_shifts(shifts):
        low, high = _find_best_match(symbols, total, shift)
        reached = total[high] - total[low]
        if reached < most:
            continue
        most = reached
        # A file that was pasted three times matches beyond its first copy: the block ends there.
        end = min(high, low + shift)
        n_rows = int(stretches.lengths[low:end].sum())
        best = RepeatedBlock(int(stretches.starts[low]), int(stretches.starts[low + shift]), n_rows)
    return best


def _keep_repeated(places: Places, numbers: Places) -> tuple[Places, Places]:
    """Returns the places whose numbers occur more than once, and their numbers, renumbered from 0."""
    _, renumbered, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    repeated = counts[renumbered] > 1
    return places[repeated], renumbered[repeated].astype(np.int64)


def _find_shifts(places: Places, numbers: Places) -> Places:
    """Returns the distances from each place to the next place with the same number.

    Args:
      places: (n,), where windows start.
      numbers: (n,), a number for each of these windows, the same for equal windows.
    """
    # By number and then by place, so that equal windows follow each other in the order of their places.
    order = np.lexsort((places, numbers))
    is_equal = np.diff(numbers[order]) == 0
    distances = np.diff(places[order])
    return np.asarray(distances[is_equal])


def _find_common_shifts(shifts: Places) -> list[int]:
    """Returns the most frequent shifts, at most 20, the most frequent first."""
    different, counts = np.unique(shifts, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MOST_SHIFTS]
    return [int(shift) for shift in different[order]]


def _find_best_match(symbols: Places, total: Array, shift: int) -> tuple[int, int]:
    """Returns the sequence of stretches with the most evidence that comes again `shift` stretches later.

    Args:
      symbols: (s,), a number for each stretch, the same for equal stretches.
      total: (s + 1,), cumulative evidence: total[i] is that of the first i stretches.
      shift: distance in stretches at which at least one stretch comes again.

    Returns:
      (low, high): the sequence is symbols[low:high].
    """
    # Maximal sequences of matches begin at `lows` and end before `highs`. Those at either end of `symbols`
    # get their edge from the False that is added there.
    equal = np.concatenate([[False], symbols[:-shift] == symbols[shift:], [False]])
    edges = np.flatnonzero(np.diff(equal.astype(np.int8)))
    lows = edges[0::2]
    highs = edges[1::2]
    best = int(np.argmax(total[highs] - total[lows]))
    return int(lows[best]), int(highs[best])


def _find_row(table: RowTable) -> RepeatedBlock | None:
    """Returns a block that comes again, begun by the first row whose repetition is no chance.

    The block goes on with the rows after it, as long as they are repeated too. The repetition of a row may be
    chance if independent rows would repeat a row like it with a probability of REFUSED_BELOW or more. None
    where that holds for every repeated row, and where a row has a single score, which proves too little.
    """
    rows = table.rows
    columns = table.scores.shape[1]
    if columns == 1:
        return None
    _, first_places, counts = np.unique(rows, return_index=True, return_counts=True)
    # Different rows count once, however often they come: else a row that was pasted twice looks as if
    # independent rows agreed with it. Some of many columns are enough: all of a row is less probable than a
    # part of it.
    scores = table.scores[first_places, :: -(-columns // _MOST_COLUMNS)]
    shares = _compute_shares(scores)
    # A row has the most evidence if no score depends on another: a quick sieve.
    most_evidence = np.zeros(len(scores))
    for number in np.flatnonzero(counts > 1):
        places = _find_rarest_places(scores[number], shares[number])
        most_evidence[number] = -np.log(shares[number, places]).sum()
    least = _compute_least_evidence(len(rows))
    candidates = np.flatnonzero(most_evidence >= least)
    if not len(candidates):
        return None
    # Each takes a pass over the table, so that only those with the most evidence are looked at.
    by_evidence = np.lexsort((first_places[candidates], -most_evidence[candidates]))
    candidates = candidates[by_evidence[:_MOST_CANDIDATES]]
    in_order = np.argsort(first_places[candidates])

    dependence = _compute_dependence(scores)
    for number in candidates[in_order]:
        others = np.delete(scores, number, axis=0)
        if _compute_row_evidence(scores[number], shares[number], others, dependence) >= least:
            occurrences = np.flatnonzero(rows == rows[first_places[number]])
            return _extend_row(rows, int(occurrences[0]), int(occurrences[1]))
    return None


def _extend_row(rows: Places, first: int, again: int) -> RepeatedBlock:
    """Returns the block around a row that comes again: the rows before and after it that come again alike.

    Args:
      rows: (n,), a number for each row, the same for equal rows.
      first: the row.
      again: the row's copy, after it.
    """
    distance = again - first
    low = first
    while low > 0 and rows[low - 1] == rows[low - 1 + distance]:
        low -= 1
    high = first + 1
    while high + distance < len(rows) and rows[high] == rows[high + distance]:
        high += 1
    # The block must end before its copy begins.
    return RepeatedBlock(low, low + distance, min(high - low, distance))


def _compute_shares(scores: Array) -> Array:
    """Returns the share (n, K) of each score (n, K) in its own column."""
    shares = np.empty(scores.shape)
    for column in range(scores.shape[1]):
        _, numbers, counts = np.unique(scores[:, column], return_inverse=True, return_counts=True)
        shares[:, column] = counts[numbers] / len(scores)
    return shares


def _compute_row_evidence(row: Array, shares: Array, others: Array, dependence: Array) -> float:
    """Returns -log of the probability with which an independent row equals a given row.

    It is the sum over the row's different values: canaries of a run may be tied, so that equal values count
    once. A value's probability is its share in its own column, for canaries may have levels of their own. It
    is larger if the scores of a run move together: other rows that agree in an earlier value then agree in
    this one too. So it is the largest of that share and of (hits + prior) / (agreeing + 1) for each earlier
    value, where `agreeing` counts the other rows that have the earlier value, and `hits` those that have
    both. The prior is the table's dependence of the two columns, or the value's share if that is larger.

    Args:
      row: (K,), the scores of the row.
      shares: (K,), the share of each in its own column.
      others: (d - 1, K), the scores of all different rows but this one.
      dependence: (K, K), how often rows that agree in one column agree in another.
    """
    places = _find_rarest_places(row, shares)
    own_shares = shares[places]

    hits = _count_agreements(others[:, places] == row[places])  # (earlier value, value)
    prior = np.maximum(dependence[np.ix_(places, places)], own_shares)
    given_earlier = (hits + prior) / (np.diag(hits)[:, None] + 1)
    is_earlier = np.triu(np.ones(hits.shape, bool), 1)
    largest = np.max(np.where(is_earlier, given_earlier, 0.0), axis=0)
    return float(-np.log(np.maximum(largest, own_shares)).sum())


def _find_rarest_places(row: Array, shares: Array) -> Places:
    """Returns the place of each different value of a row where it is rarest, the rarest first.

    Args:
      row: (K,), the scores of the row.
      shares: (K,), the share of each in its own column.
    """
    by_share = np.argsort(shares, kind="stable")
    first_places = np.sort(np.unique(row[by_share], return_index=True)[1])
    return np.asarray(by_share[first_places])


def _compute_dependence(scores: Array) -> Array:
    """Returns how often rows that agree in one column agree in another, (K, K): [earlier, later].

    Some rows are compared to all others. It is 0 where no rows agree in the earlier column.

    Args:
      scores: (d, K), the scores of all different rows.
    """
    columns = scores.shape[1]
    both = np.zeros((columns, columns))
    for place in range(0, len(scores), -(-len(scores) // _COMPARED_ROWS)):
        agrees = scores == scores[place]
        agrees[place] = False  # a row agrees with itself
        both += _count_agreements(agrees)
    return np.asarray(both / np.maximum(np.diag(both), 1.0)[:, None])


def _count_agreements(agrees: NDArray[np.bool_]) -> Array:
    """Returns how many rows agree in both of two columns, (K, K).

    Args:
      agrees: (d, K), whether each row agrees with a given row in each column.
    """
    # Float32 is faster, and counts whole numbers exactly up to 2^24.
    agreeing = agrees[agrees.any(axis=1)].astype(np.float32)
    return np.asarray(agreeing.T @ agreeing, np.float64)


def _compute_least_evidence(rows: int) -> float:
    """Returns the least evidence, -log of a block's probability, at which its repetition is no chance.

    With n rows there are fewer than n^2 / 2 pairs of places for a block and its copy. So a block of
    probability q repeats somewhere with a probability below n^2 q / 2, which is to be REFUSED_BELOW at most.

    Args:
      rows: n, the number of rows.
    """
    return float(2 * np.log(rows) - np.log(2) - np.log(REFUSED_BELOW))


def _row_numbers(scores: Array) -> Places:
    """Returns a number (n,) for each row of scores (n, K), the same for equal rows."""
    if scores.shape[1] == 1:  # much faster than comparing rows
        return np.unique(scores[:, 0], return_inverse=True)[1].astype(np.int64)
    return np.unique(scores, axis=0, return_inverse=True)[1].ravel().astype(np.int64)


def _describe_block(table: RowTable, block: RepeatedBlock) -> str:
    """Returns the message on a block of rows that comes again, with rows counted from 1."""
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
