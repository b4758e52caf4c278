"""Audit cards: JSON records of audits that others can recompute from the scores.

Where possible, fields have the same names as in OpenDP's registry of differential-privacy deployments.
`audit/card.schema.json` describes all fields.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.claims.brackets import ZERO_OUT
from audit.claims.claim import Claim, GaussianClaim, RandomAllocation
from audit.conclusions import results
from audit.conclusions.conclusion import Conclusion
from audit.errors import InputError, require, shown
from audit.evidence.given import hash_evidence
from audit.report.subjects import Subject
from audit.version import __version__
from audit.written import Level, write_json

_FORMAT = "hidden-state-audit/2"
_ADD_OR_REMOVE = "one example, added or removed"
_HASHED_FIELDS = ("dp_variant", "privacy_loss", "implementation", "method", "confidence", "looks")


class StoredCard(NamedTuple):
    """A card read from a file, and the inputs needed to recompute it."""

    card: dict[str, Any]
    claim: Claim | None
    level: Level
    runs: int


def make_card(subject: Subject) -> dict[str, Any]:
    """Returns an audit's card, as nested dicts and lists for JSON."""
    conclusion = subject.conclusion
    evidence = conclusion.evidence
    answer = json.loads(results.result_json(conclusion))
    content = {
        "card": _FORMAT,
        **_describe_claim(conclusion),
        "threat_model": subject.threats,
        **_describe_method(conclusion),
        "confidence": conclusion.confidence,
        "evidence": {
            "description": str(evidence),
            "runs": conclusion.runs,
            "canaries": evidence.canaries,
            "sha256": hash_evidence(evidence),
        },
        "bounds": answer["bounds"],
        "claim_test": answer.get("claim_test"),
        "verdict": answer["verdict"],
        "provenance": subject.provenance,
    }
    # Parsed like the file, so readers compute the same commitment.
    card = json.loads(write_json(content))
    return {**card, "commitment": _commit(card)}


def cite(subject: Subject) -> str:
    """Returns a one-line citation of an audit, with the first 16 digits of its card's commitment."""
    commitment = make_card(subject)["commitment"]
    date = subject.provenance["Date"]  # 10 characters for the day
    return f"{subject.title}. hidden-state-audit {__version__}, {date:.10}, card {commitment:.16}"


def _commit(card: dict[str, Any]) -> str:
    """Returns the SHA-256, in hex, of the canonical JSON of the card fields known before the audit."""
    committed = {name: card[name] for name in _HASHED_FIELDS}
    text = json.dumps(committed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_card(path: Path) -> StoredCard:
    """Reads a card from a file; raises InputError if the file is not a card.

    The field that OpenDP calls "mechanisms" contains the claim's class name.
    """
    # `Claim.__subclasses__` omits the subclasses of GaussianClaim.
    claims = [*Claim.__subclasses__(), *GaussianClaim.__subclasses__()]
    claim_classes = {kind.__name__: kind for kind in claims}
    claim = None
    try:
        card = json.loads(path.read_bytes())
        require(card["card"] == _FORMAT, "a different format")
        implementation = card["implementation"]
        if implementation["mechanisms"] is not None:
            claim = claim_classes[implementation["mechanisms"]](**implementation["parameters"])
        delta = card["privacy_loss"]["privacy_parameters"]["delta"]
        _commit(card)  # raises KeyError if a field is missing
        level = Level(float(delta), float(card["confidence"]))
        return StoredCard(card, claim, level, int(card["evidence"]["runs"]))
    except (ValueError, LookupError, TypeError, RecursionError, OSError):
        raise InputError(
            f"`card={path}` is not an audit card: give a file written by `write_card`"
        ) from None


def find_difference(card: dict[str, Any], recomputed: dict[str, Any]) -> str:
    """Returns the first difference between a card and the recomputed one, in words; empty if they agree.

    Provenances may differ. Numbers count as equal if their relative difference is at most 1e-9, because last
    digits depend on the machine. The commitment must match the card's own fields.
    """
    own = {"provenance": card.get("provenance"), "commitment": _commit(card)}
    return _compare("", card, {**recomputed, **own})


def _compare(place: str, stated: Any, recomputed: Any) -> str:
    """Returns the first difference between parts of two cards, in words; empty if they agree.

    `place` is the path to the parts, such as ".bounds.0" for the first item of "bounds".
    """
    if isinstance(stated, list) and isinstance(recomputed, list):
        stated = dict(enumerate(stated))
        recomputed = dict(enumerate(recomputed))
    if isinstance(stated, dict) and isinstance(recomputed, dict):
        for name in {**stated, **recomputed}:
            difference = _compare(f"{place}.{name}", stated.get(name), recomputed.get(name))
            if difference:
                return difference
        return ""
    are_numbers = isinstance(stated, int | float) and isinstance(recomputed, int | float)
    if stated == recomputed or (are_numbers and math.isclose(stated, recomputed)):
        return ""
    values = f"{shown(stated)} in the card but {shown(recomputed)} from these scores"
    return f"{place.removeprefix('.')} is {values}"


def _describe_claim(conclusion: Conclusion) -> dict[str, Any]:
    """Returns the fields that describe the claim."""
    claim = conclusion.claim
    # Bounds for random allocation replace the example's gradient with zero.
    unit = ZERO_OUT if isinstance(claim, RandomAllocation) else _ADD_OR_REMOVE
    mu = conclusion.mu_upper_bound
    variant = "Approximate DP" if mu is None else "Gaussian DP"
    stated = {"epsilon": conclusion.upper_bound, "delta": conclusion.delta, "mu": mu}
    class_name = None if claim is None else type(claim).__name__
    arguments = {}
    for field in getattr(claim, "__dataclass_fields__", ()):
        value = np.asarray(getattr(claim, field)).tolist()
        arguments[field.removeprefix("stated_")] = value  # `epsilon` is stored as `stated_epsilon`
    return {
        "dp_variant": {"variant_name": variant},
        "privacy_loss": {"privacy_unit": unit, "privacy_parameters": stated},
        "implementation": {"mechanisms": class_name, "parameters": arguments},
    }


def _describe_method(conclusion: Conclusion) -> dict[str, Any]:
    """Returns the method of the first bound without a Gaussian assumption, and its number of looks.

    A method looks at the scores once, or once per run if its bound is valid after any number of runs.
    """
    for bound in conclusion.ranked():
        if not bound.assumes.gaussian:
            return {
                "method": {"name": bound.method, "assumes": str(bound.assumes)},
                "looks": len(bound.path) or 1,  # `path` contains the bound after each run
            }
    # A single run without coins has no bound if its null distribution is fitted.
    return {"method": {"name": "no bound", "assumes": "nothing"}, "looks": 1}
