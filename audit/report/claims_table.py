"""Tables of the epsilons that you may claim for samplers or for correlated noise."""

import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

from audit.claims.brackets import ZERO_OUT
from audit.claims.matrix import MatrixMechanism
from audit.claims.sampler_claims import SamplerClaim, SamplerClaims
from audit.report.table import at_least, at_most, format_table

_WIDTH = 80
_IF_LINEAR = """\
last model, if losses are linear: roughly what an honest training run leaks. It is not a bound: with \
other losses, the last model may leak as much as all models together."""
_show_upper = partial(at_most, decimals=2)


def show_claims(claims: SamplerClaims) -> str:
    """Returns an 80-column table of the epsilons that you can claim for each sampler, with notes.

    The first row is the caller's sampler. `claims.order` describes the order of its examples.
    """
    records = []
    for row in claims.rows:
        record = {
            "sampler": f"{row.sampler} (yours)" if row.yours else row.sampler,
            "every model\nseen": _show_bracket(row),
            "last model\nalone": _show_upper(row.last_model.upper),
        }
        if row.last_model.tail is not None:  # in all rows, training ends with noise-only steps
            record[f"and {claims.tail} noise-\nonly steps"] = _show_upper(row.last_model.tail)
        records.append(record)
    title = f"epsilon at delta {claims.delta:g}, noise multiplier {claims.noise_multiplier:.4g}"
    lines = [title, "", format_table(records, right=tuple(records[0])[1:]), ""]
    notes = [f"{row.sampler}: {row.every_model.accountant}. {row.advice}" for row in claims.rows]
    notes.append(f"last model alone: {claims.rows[0].last_model.assumes}. Neighbours: {ZERO_OUT}.")
    if claims.order:
        notes.append(f"order: {claims.order}.")
    for note in notes:
        lines.extend(textwrap.wrap(note, _WIDTH, subsequent_indent="  "))
    return "\n".join(lines)


def _show_bracket(row: SamplerClaim) -> str:
    """Returns the bounds on epsilon if the adversary sees every model: "lower to upper", or only "upper"."""
    lower = row.every_model.lower
    shown_upper = _show_upper(row.every_model.upper)
    if lower is None or _show_upper(lower) == shown_upper:
        return shown_upper
    return f"{at_least(lower, decimals=2)} to {shown_upper}"


def list_noise_claims(claims: Sequence[MatrixMechanism], delta: float) -> list[dict[str, Any]]:
    """Returns a JSON record for each mechanism: its noise, and epsilon and mu in two threat models."""
    return [
        {
            "noise": str(claim.strategy),
            "noise_multiplier": claim.noise_multiplier,
            "every_model": {"epsilon": claim.epsilon(delta), "mu": claim.gaussian_mu},
            "last_model_if_linear": {
                "epsilon": claim.last_model_if_linear(delta),
                "mu": claim.linear_mu(),
            },
        }
        for claim in claims
    ]


def show_noise_claims(records: Sequence[dict[str, Any]], title: str) -> str:
    """Returns the records from `list_noise_claims` as a text table below a title."""
    rows = [
        {
            "noise": record["noise"],
            "sigma": f"{record['noise_multiplier']:.4g}",
            "every model\nseen": _show_upper(record["every_model"]["epsilon"]),
            # A prediction, so it is not rounded up.
            "last model, if\nlosses are linear": f"{record['last_model_if_linear']['epsilon']:.2f}",
        }
        for record in records
    ]
    note = textwrap.fill(_IF_LINEAR, _WIDTH)
    return format_table(rows, right=tuple(rows[0])[1:], before=[title, ""], after=["", note])
