"""Finds rows of scores that look like pasted copies of other rows.

Bounds assume that rows are independent training runs. In simulations, bounds are wrong in 8% of audits
instead of 5% if a file contains each run twice, and in 28% if it contains each run five times. But different
runs can have equal scores, for example if scores are votes. So we read a suspicious file in two ways: with
all rows, which is valid if they are independent runs, and with each repeated row counted once, which is valid
if they are copies. The smaller bound is always valid, so a false suspicion only costs power. Rows are
suspicious

- if they occur as often as pasted rows do (`_look_pasted`);
- if they repeat several different scores, or scores that independent runs never share, such as cosines.

We miss copies whose scores differ in the last digit, and copies of rounded scores if there are only a few.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from audit.errors import InputError
from audit.evidence.arrays import Bits, Integers
from audit.evidence.canaries import FAILED, Coins, Fresh, Rows, Sets
from audit.evidence.one_run import OneRun
from audit.written import counted

Evidence = Sets | Coins | Fresh | OneRun


class CountedOnce(NamedTuple):
    """Evidence that counts each repeated row once.

    Attributes:
      evidence: the rows that do not repeat earlier rows.
      remark: the number of repeated rows, in words.
    """

    evidence: Evidence
    remark: str


def count_once(evidence: Evidence) -> CountedOnce | None:
    """Returns evidence that counts copied rows once; None if no row looks like a copy.

    A `OneRun` has a single row.
    """
    if isinstance(evidence, OneRun):
        return None
    repeats = [_find_repeats(table) for table in evidence.rows()]
    number = int(np.concatenate(repeats).sum())
    if not number:
        return None
    remark = counted(number, "row repeats an earlier row", "rows repeat earlier rows")
    chosen = [~repeated for repeated in repeats]  # a mask for each table
    return CountedOnce(evidence.select(*chosen), remark)


def check_with_or_without_copies(check: Callable[[Any], None], evidence: Evidence) -> None:
    """Runs `check` on evidence; if it fails, tries again with copied rows counted once.

    Checks reject unlikely values, and copies of a valid run look unlikely. Bounds count copies once anyway.
    Raises the InputError from `check` if both calls fail.
    """
    try:
        check(evidence)
    except InputError:
        once = count_once(evidence)
        if once is None:
            raise
        check(once.evidence)


def _find_repeats(table: Rows) -> Bits:
    """Returns a mask (n,), True for rows that repeat earlier rows and look like copies.

    A row looks like a copy if independent runs would rarely repeat it, or if the table's rows repeat too
    regularly (`_look_pasted`).
    """
    values = table.scores
    if table.presence is not None:  # rows are equal only if the same canaries are in
        values = np.concatenate([values, table.presence], axis=1)
    if values.shape[1] == 1:  # much faster than comparing rows
        values = values[:, 0]
    # Equal rows form a group: `groups` (n,) gives each row's group, and `counts` (m,) each group's size.
    _, groups, counts = np.unique(values, axis=0, return_inverse=True, return_counts=True)
    num_before = _count_before(groups, counts)
    is_repeated = num_before > 0
    if not is_repeated.any():
        return is_repeated
    if not _look_pasted(counts):  # repeats may be due to chance
        return is_repeated & _are_distinctive(table)
    # If a whole file was pasted `copies` times, all counts are multiples of `copies`. We keep one copy of
    # the file.
    copies = int(np.gcd.reduce(counts))
    if copies > 1:
        return num_before >= counts[groups] // copies
    return is_repeated


def _count_before(groups: Integers, counts: Integers) -> Integers:
    """Returns how many earlier rows share each row's group, (n,).

    `groups` (n,) gives each row's group, and `counts` (m,) each group's size.
    """
    order = np.argsort(groups, kind="stable")  # group by group, the earliest row first
    group_starts = np.cumsum(counts) - counts  # the place of each group's first row in this order
    before = np.empty(len(groups), np.int64)
    before[order] = np.arange(len(groups)) - np.repeat(group_starts, counts)
    return before


def _look_pasted(counts: Integers) -> bool:
    """Returns True if rows repeat too regularly to be independent, as in a table pasted k times.

    `counts` (m,) contains the number of times that each distinct row occurs. Let f_k be the number of
    distinct rows that occur k times. If all rows were pasted k times, f_(k - 1) and f_(k + 1) would be 0.
    This violates

        k E[f_k]^2 <= (k + 1) E[f_(k - 1)] E[f_(k + 1)]    for k >= 2,

    which independent rows satisfy. If their number is Poisson, a row with l expected occurrences occurs k
    times with probability e^-l l^k / k!, and the Cauchy-Schwarz inequality applies to the sum over rows. We
    allow each f_k to differ from its mean by up to two standard deviations.
    """
    f = np.append(np.bincount(counts, minlength=2), 0)  # f_0, f_1, ...; f_0 is unknown and set to 0
    slack = 2 * np.sqrt(f)  # f_k is nearly Poisson, so its standard deviation is about sqrt(f_k)
    least = f - slack
    most = f + slack + 1  # f_k may be 0 although its mean is not
    k = np.arange(2, len(f) - 1)
    squares = (k + 1) / k * most[k - 1] * most[k + 1]
    return bool((least[k] > np.sqrt(squares)).any())


def _are_distinctive(table: Rows) -> Bits:
    """Returns a mask (n,) of the rows that an independent run would rarely repeat.

    Such rows have at least 3 different scores, unlike rows of yes-or-no votes. If independent scores are
    never equal (`Rows.has_no_ties`), all rows qualify except those of failed runs.
    """
    if table.has_no_ties:
        return (table.scores != FAILED).any(axis=1)
    steps = np.diff(np.sort(table.scores, axis=1), axis=1)
    different_scores = 1 + np.count_nonzero(steps, axis=1)
    return different_scores >= 3
