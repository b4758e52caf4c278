"""An audit card: a record of an audit, as JSON, that others can recompute from its scores.

Field names follow the public registry of deployments of differential privacy (OpenDP) if it has the field.
`audit/card.schema.json` describes all fields. The commitment is a hash of the choices before the audit: the
claim, the method, the confidence, and the number of looks at the scores. It does not depend on the scores:
the card of any scores of the same shape has it.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.claims.brackets import ZERO_OUT
from audit.claims.claim import Claim, RandomAllocation
from audit.conclusions import results
from audit.conclusions.conclusion import Conclusion
from audit.errors import InputError, require, shown
from audit.evidence.given import hash_evidence
from audit.report.subjects import Subject
from audit.version import __version__
from audit.written import Level, write_json

_FORMAT = "hidden-state-audit/1"
_ADD_OR_REMOVE = "one example, added or removed"
_COMMITTED = ("dp_variant", "privacy_loss", "implementation", "method", "confidence", "looks")


class Stated(NamedTuple):
    """A card from a file.

    Attributes:
      card: the card.
      claim: its claim; None without a claim.
      level: its delta and confidence.
      runs: its number of runs.
    """

    card: dict[str, Any]
    claim: Claim | None
    level: Level
    runs: int


def make_card(subject: Subject) -> dict[str, Any]:
    """Returns the card of an audit, as nested dicts and lists for JSON."""
    conclusion = subject.conclusion
    evidence = conclusion.evidence
    found = json.loads(results.answer_json(conclusion))
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
        "bounds": found["bounds"],
        "claim_test": found.get("claim_test"),
        "verdict": found["verdict"],
        "provenance": subject.provenance,
    }
    card: dict[str, Any] = json.loads(write_json(content))
    return {**card, "commitment": _commit(card)}


def cite(subject: Subject) -> str:
    """Returns the line by which a paper cites an audit, with the first digits of its card's commitment."""
    commitment = make_card(subject)["commitment"]
    date = subject.provenance["Date"]
    return f"{subject.title}. hidden-state-audit {__version__}, {date:.10}, card {commitment:.16}"


def _commit(card: dict[str, Any]) -> str:
    """Returns the SHA-256, in hex, of the fields that are known before the audit, as canonical JSON."""
    committed = {name: card[name] for name in _COMMITTED}
    text = json.dumps(committed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_card(path: Path) -> Stated:
    """Returns the card in a file; raises InputError if it is not a card."""
    kinds: dict[str, Any] = {kind.__name__: kind for kind in Claim.__subclasses__()}
    claim = None
    try:
        card = json.loads(path.read_bytes())
        require(card["card"] == _FORMAT, "another format")
        stated = card["implementation"]
        if stated["mechanisms"] is not None:
            claim = kinds[stated["mechanisms"]](**stated["parameters"])
        delta = card["privacy_loss"]["privacy_parameters"]["delta"]
        _commit(card)  # fails without its fields
        level = Level(float(delta), float(card["confidence"]))
        return Stated(card, claim, level, int(card["evidence"]["runs"]))
    except (ValueError, LookupError, TypeError, RecursionError, OSError):
        raise InputError(
            f"`card={path}` is not an audit card: name a file of `write_card`"
        ) from None


def find_differences(card: dict[str, Any], recomputed: dict[str, Any]) -> Iterator[str]:
    """Yields each difference of a card from the recomputed one, in words.

    Numbers agree up to a relative difference of 1e-9, because the last digits depend on the machine.
    Provenances may differ. The commitment must be the hash of the card's own fields.
    """
    own = {"provenance": card.get("provenance"), "commitment": _commit(card)}
    return _compare("", card, {**recomputed, **own})


def _compare(place: str, stated: Any, found: Any) -> Iterator[str]:
    """Yields each difference of a part of a card, at a place in it, from the recomputed part."""
    if isinstance(stated, dict) and isinstance(found, dict):
        for name in {**stated, **found}:
            yield from _compare(f"{place}.{name}", stated.get(name), found.get(name))
    elif isinstance(stated, list) and isinstance(found, list) and len(stated) == len(found):
        for i, pair in enumerate(zip(stated, found, strict=True)):
            yield from _compare(f"{place}[{i}]", *pair)
    elif not _agree(stated, found):
        yield f"{place[1:]} is {shown(stated)} in the card and {shown(found)} by these scores"


def _agree(stated: Any, found: Any) -> bool:
    """Returns whether two values of JSON are equal, or numbers that are equal to nine digits."""
    if isinstance(stated, int | float) and isinstance(found, int | float):
        return math.isclose(stated, found)
    return bool(stated == found)


def _describe_claim(conclusion: Conclusion) -> dict[str, Any]:
    """Returns the claim: its kind, its numbers, and its class with the fields; null without a claim."""
    claim = conclusion.claim
    unit = _ADD_OR_REMOVE
    if isinstance(claim, RandomAllocation):
        unit = ZERO_OUT
    mu = conclusion.mu_upper_bound
    variant = "Approximate DP" if mu is None else "Gaussian DP"
    stated = {"epsilon": conclusion.upper_bound, "delta": conclusion.delta, "mu": mu}
    fields = {}
    for name in getattr(claim, "__dataclass_fields__", ()):
        fields[name.removeprefix("stated_")] = np.asarray(getattr(claim, name)).tolist()
    return {
        "dp_variant": {"variant_name": variant},
        "privacy_loss": {"privacy_unit": unit, "privacy_parameters": stated},
        "implementation": {"mechanisms": claim and type(claim).__name__, "parameters": fields},
    }


def _describe_method(conclusion: Conclusion) -> dict[str, Any]:
    """Returns the bound for any curve, which decides, and the number of its looks at the scores."""
    for bound in conclusion.ranked():
        if not bound.assumes.gaussian:
            method = {"name": bound.method, "assumes": str(bound.assumes)}
            return {"method": method, "looks": len(bound.path) or 1}
    # A single run's cosines with a fitted null give only estimates.
    return {"method": {"name": "no bound", "assumes": "nothing"}, "looks": 1}
