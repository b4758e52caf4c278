"""Audit cards: records of audits, as JSON, that others can recompute from the scores.

If the public registry of deployments of differential privacy (OpenDP) has a field, we use its name.
`audit/card.schema.json` describes all fields. The commitment is a hash of the choices before the audit: the
claim, the method, the confidence, and the number of looks at the scores. It does not depend on the scores.
"""

import hashlib
import json
import math
from collections.abc import Iterator
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

_FORMAT = "hidden-state-audit/1"
_ADD_OR_REMOVE = "one example, added or removed"
_COMMITTED = ("dp_variant", "privacy_loss", "implementation", "method", "confidence", "looks")


class StoredCard(NamedTuple):
    """A card from a file, with what is needed to recompute it.

    Attributes:
      card: The content of the file.
      claim: Its claim; None without a claim.
      level: Its delta and confidence.
      runs: Its number of runs.
    """

    card: dict[str, Any]
    claim: Claim | None
    level: Level
    runs: int


def make_card(subject: Subject) -> dict[str, Any]:
    """Returns the card of an audit, as nested dicts and lists for JSON."""
    conclusion = subject.conclusion
    evidence = conclusion.evidence
    answer = json.loads(results.answer_json(conclusion))
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
    card: dict[str, Any] = json.loads(write_json(content))
    return {**card, "commitment": _commit(card)}


def cite(subject: Subject) -> str:
    """Returns a line for citing an audit, with the first 16 digits of its card's commitment."""
    commitment = make_card(subject)["commitment"]
    date = subject.provenance["Date"]
    return f"{subject.title}. hidden-state-audit {__version__}, {date:.10}, card {commitment:.16}"


def _commit(card: dict[str, Any]) -> str:
    """Returns the SHA-256, in hex, of a card's fields that are known before the audit, as canonical JSON."""
    committed = {name: card[name] for name in _COMMITTED}
    text = json.dumps(committed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_card(path: Path) -> StoredCard:
    """Reads the card in a file; raises InputError if the file is not a card."""
    kinds = [*Claim.__subclasses__(), *GaussianClaim.__subclasses__()]
    claim_classes: dict[str, Any] = {kind.__name__: kind for kind in kinds}
    claim = None
    try:
        card = json.loads(path.read_bytes())
        require(card["card"] == _FORMAT, "another format")
        implementation = card["implementation"]
        if implementation["mechanisms"] is not None:
            claim = claim_classes[implementation["mechanisms"]](**implementation["parameters"])
        delta = card["privacy_loss"]["privacy_parameters"]["delta"]
        _commit(card)  # raises KeyError if a field is missing
        level = Level(float(delta), float(card["confidence"]))
        return StoredCard(card, claim, level, int(card["evidence"]["runs"]))
    except (ValueError, LookupError, TypeError, RecursionError, OSError):
        raise InputError(
            f"`card={path}` is not an audit card: name a file of `write_card`"
        ) from None


def find_differences(card: dict[str, Any], recomputed: dict[str, Any]) -> Iterator[str]:
    """Yields each difference between a card and the recomputed one, in words.

    Numbers agree up to a relative difference of 1e-9, because the last digits depend on the machine.
    Provenances may differ. The commitment must be the hash of the card's own fields.
    """
    own = {"provenance": card.get("provenance"), "commitment": _commit(card)}
    return _compare("", card, {**recomputed, **own})


def _compare(path: str, stated: Any, recomputed: Any) -> Iterator[str]:
    """Yields each difference between a part of a card and the recomputed part.

    `path` is the place of the part in the card, such as ".bounds[0]", for the text.
    """
    if isinstance(stated, dict) and isinstance(recomputed, dict):
        for name in {**stated, **recomputed}:
            yield from _compare(f"{path}.{name}", stated.get(name), recomputed.get(name))
    elif (
        isinstance(stated, list) and isinstance(recomputed, list) and len(stated) == len(recomputed)
    ):
        for i, pair in enumerate(zip(stated, recomputed, strict=True)):
            yield from _compare(f"{path}[{i}]", *pair)
    elif not _agree(stated, recomputed):
        values = f"{shown(stated)} in the card and {shown(recomputed)} by these scores"
        yield f"{path[1:]} is {values}"


def _agree(stated: Any, recomputed: Any) -> bool:
    """Returns True if two values of JSON are equal, or are numbers with nine equal digits."""
    if isinstance(stated, int | float) and isinstance(recomputed, int | float):
        return math.isclose(stated, recomputed)
    return bool(stated == recomputed)


def _describe_claim(conclusion: Conclusion) -> dict[str, Any]:
    """Returns the fields on the claim: its kind, its numbers, and its class with the class's fields.

    Without a claim the class is None.
    """
    claim = conclusion.claim
    unit = _ADD_OR_REMOVE
    if isinstance(claim, RandomAllocation):
        unit = ZERO_OUT
    mu = conclusion.mu_upper_bound
    variant = "Gaussian DP"
    if mu is None:
        variant = "Approximate DP"
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
    """Returns the first bound for any curve, which decides, and how many times it looks at the scores."""
    for bound in conclusion.ranked():
        if not bound.assumes.gaussian:
            method = {"name": bound.method, "assumes": str(bound.assumes)}
            return {"method": method, "looks": len(bound.path) or 1}
    # A single run's cosines with a fitted null give only estimates.
    return {"method": {"name": "no bound", "assumes": "nothing"}, "looks": 1}
