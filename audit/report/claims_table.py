"""The table of the epsilon that may be claimed for a sampler, as text for a terminal."""

import textwrap
from functools import partial

from audit.claims.brackets import ZERO_OUT
from audit.claims.sampler_claims import SamplerClaim, SamplerClaims
from audit.report.table import Column, Table, at_least, at_most

_DECIMALS = 2
_COLUMNS = 80
_show_upper = partial(at_most, decimals=_DECIMALS)


def show_claims(claims: SamplerClaims) -> str:
    """Returns the table of the claims for a sampler with its notes, at most 80 columns wide."""
    columns = [
        Column("sampler", _show_sampler, "sampler", left=True),
        Column("every_model", _show_bracket, "every model\nseen"),
        Column("last", lambda row: row.last_model.upper, "last model\nalone", _show_upper),
    ]
    if claims.tail:  # training ends with noise-only steps
        head = f"and {claims.tail} noise-\nonly steps"
        columns.append(Column("tail", lambda row: row.last_model.tail, head, _show_upper))
    lines = [f"epsilon at delta {claims.delta:g}", "", Table(columns, claims.rows).text(), ""]
    notes = [f"{row.sampler}: {row.every_model.accountant}. {row.advice}" for row in claims.rows]
    assumes = claims.rows[0].last_model.assumes
    notes.append(f"last model alone: {assumes}. Neighbours: {ZERO_OUT}.")
    if claims.order:
        notes.append(f"order: {claims.order}.")
    for note in notes:
        lines.extend(textwrap.wrap(note, _COLUMNS, subsequent_indent="  "))
    return "\n".join(lines)


def _show_sampler(row: SamplerClaim) -> str:
    """Returns a sampler's name, marked if it is the caller's."""
    if row.yours:
        return f"{row.sampler} (yours)"
    return row.sampler


def _show_bracket(row: SamplerClaim) -> str:
    """Formats a row's bounds on epsilon for every model: "lower to upper", or only the upper bound.

    The lower bound is left out if it is missing, or if both round to the same text.
    """
    lower, upper, _ = row.every_model
    shown_upper = _show_upper(upper)
    if lower is None or _show_upper(lower) == shown_upper:
        return shown_upper
    return f"{at_least(lower, _DECIMALS)} to {shown_upper}"
