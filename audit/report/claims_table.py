"""Tables of the epsilon that may be claimed for a sampler, and for correlated noise."""

import textwrap
from collections.abc import Sequence
from functools import partial

from audit.claims.brackets import ZERO_OUT
from audit.claims.matrix import MatrixMechanism
from audit.claims.sampler_claims import SamplerClaim, SamplerClaims
from audit.report.table import Column, Table, at_least, at_most, make_text_table, number

_COLUMNS = 80
_show_upper = partial(at_most, decimals=2)


def show_claims(claims: SamplerClaims) -> str:
    """Returns the table of the epsilons that may be claimed for a sampler, with notes, in 80 columns."""
    records = []
    for row in claims.rows:
        record = {
            "sampler": row.sampler,
            "every model\nseen": _show_bracket(row),
            "last model\nalone": _show_upper(row.last_model.upper),
        }
        if row.yours:  # the caller's sampler
            record["sampler"] += " (yours)"
        if row.last_model.tail is not None:  # training ends with noise-only steps
            record[f"and {claims.tail} noise-\nonly steps"] = _show_upper(row.last_model.tail)
        records.append(record)
    epsilons = [name for name in records[0] if name != "sampler"]
    title = f"epsilon at delta {claims.delta:g}, noise multiplier {claims.noise_multiplier:.4g}"
    lines = [title, "", make_text_table(records, right=epsilons).text(), ""]
    notes = [f"{row.sampler}: {row.every_model.accountant}. {row.advice}" for row in claims.rows]
    notes.append(f"last model alone: {claims.rows[0].last_model.assumes}. Neighbours: {ZERO_OUT}.")
    if claims.order:
        notes.append(f"order: {claims.order}.")
    for note in notes:
        lines.extend(textwrap.wrap(note, _COLUMNS, subsequent_indent="  "))
    return "\n".join(lines)


def _show_bracket(row: SamplerClaim) -> str:
    """Returns the bounds on the epsilon of every model: "lower to upper", or only the upper bound."""
    lower = row.every_model.lower
    shown_upper = _show_upper(row.every_model.upper)
    if lower is None or _show_upper(lower) == shown_upper:
        return shown_upper
    return f"{at_least(lower, decimals=2)} to {shown_upper}"


def make_noise_table(claims: Sequence[MatrixMechanism], delta: float) -> Table[MatrixMechanism]:
    """Returns a table with a row for each matrix mechanism.

    All of them have the same number of steps, and the canary takes part once in k steps.
    """
    columns = [
        Column("noise", lambda claim: str(claim.strategy), "noise", left=True),
        Column("noise_multiplier", lambda claim: claim.noise_multiplier, "sigma", number(".4g")),
        Column(
            "every_model",
            lambda claim: {"epsilon": claim.epsilon(delta), "mu": claim.gaussian_mu},
            "every model\nseen",
            lambda leak: _show_upper(leak["epsilon"]),
        ),
        Column(
            "last_model_if_linear",
            lambda claim: {"epsilon": claim.last_model_if_linear(delta), "mu": claim.linear_mu()},
            "last model, if\nlosses are linear",
            lambda leak: format(leak["epsilon"], ".2f"),  # a prediction, not rounded up
        ),
    ]
    steps = f"{claims[0].steps:,} steps, canary in 1 of {claims[0].k}"
    note = (
        "last model, if losses are linear: what an honest training run approximately leaks. It is not a "
        "bound: with other losses the last model may leak as much as every model."
    )
    before = [f"epsilon at delta {delta:g}, {steps}", ""]
    return Table(columns, claims, before=before, after=["", *textwrap.wrap(note, _COLUMNS)])
