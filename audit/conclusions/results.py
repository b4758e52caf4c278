"""The files beside a setting's scores.

audit.json, audit.png   an audit's conclusion, for programs and for people
"""

import dataclasses
import json
from typing import Any

from audit.claims.hidden_state import HiddenState
from audit.conclusions.conclusion import Conclusion
from audit.json_text import finite, write_json
from audit.methods.estimate import Bound, Finding
from audit.storage.store import RESULT, Store

# Of a single run's findings, in JSON.
_ESTIMATE_FIELDS = ("method", "epsilon", "delta", "standard_error")
_BOUND_FIELDS = ("method", "epsilon", "mu", "delta", "confidence", "assumes", "counted")


def keep_result(store: Store, conclusion: Conclusion, **more: object) -> str:
    """Writes a conclusion and further fields to a store's audit.json; returns the JSON on a single line."""
    result = result_json(conclusion, **more)
    store.write_text(RESULT, json.dumps(json.loads(result), indent=2) + "\n")
    return result


def result_json(conclusion: Conclusion, **more: object) -> str:
    """Returns the content of audit.json on a single line.

    For several runs it is `bounds_json`. For a single run it is `one_run_fields` with the proven epsilon. In
    both cases it has the upper bound on mu and the fields `more`.
    """
    more = {"mu_upper_bound": finite(conclusion.mu_upper_bound), **more}
    if conclusion.is_one_run:
        return write_json({**one_run_fields(conclusion), "epsilon": conclusion.epsilon, **more})
    return bounds_json(conclusion, **more)


def bounds_json(conclusion: Conclusion, **more: object) -> str:
    """Returns a conclusion from several runs as a JSON object on a single line.

    Its fields follow. Those marked * are left out where there is nothing to say.

      bounds: a list of the estimates and the lower bounds.
      notes*: remarks for people.
      upper_bound: the claimed epsilon; null if infinite or unknown.
      hidden_state*, last_model*: the upper bound on the last model alone, or why there is none.
      every_model*: lower and upper bound on epsilon with a sampler, for an adversary who sees every model.
      claim_test*: the test of the claim.
      expected*: the epsilon of the last model if losses were linear; null if infinite.
      epsilon: the lower bound that needs no assumption on the curve.
      most_provable: the largest such bound that this many runs can prove; null with several canaries a run.

    Then come the test of the Gaussian curve*, the looks*, and `more`.
    """
    fields: dict[str, Any] = {"bounds": [finding_fields(row) for row in conclusion.rows()]}
    if conclusion.notes:
        fields["notes"] = conclusion.notes
    fields["upper_bound"] = finite(conclusion.upper_bound)
    fields |= _make_hidden_state_fields(conclusion)
    if conclusion.sampled is not None:
        every_model = conclusion.sampled.every_model._asdict()
        fields["every_model"] = {"sampler": conclusion.sampled.sampler, **every_model}
    fields |= claim_fields(conclusion)
    if conclusion.expected is not None:
        fields["expected"] = finite(conclusion.expected)
    fields["epsilon"] = conclusion.epsilon
    fields["most_provable"] = conclusion.most_provable
    fields |= _make_curve_fields(conclusion)
    fields |= _make_looks_fields(conclusion)
    return write_json({**fields, **more})


def claim_fields(conclusion: Conclusion) -> dict[str, Any]:
    """Returns the field `claim_test` of a conclusion's JSON; empty where the claim is not tested.

    It has the e-value, whether the claim is refuted, and the number of runs. Its field `seen` is the smallest
    departure from the claim that so many runs would have refuted, or None.
    """
    test = conclusion.claim_test
    if test is None:
        return {}
    # A record inside a record, which `_asdict` of the outer record leaves as it is.
    seen = None if test.seen is None else test.seen._asdict()
    return {"claim_test": {**test._asdict(), "seen": seen}}


def answer_json(conclusion: Conclusion) -> str:
    """Returns what `bound --json` prints, a JSON object on a single line.

    For several runs it has the fields of `bounds_json`, the verdict, and the attack's AUC and rates. For a
    single run it has the fields of `one_run_fields` and the verdict.
    """
    verdict = conclusion.verdict.word
    if conclusion.is_one_run:
        return write_json({**one_run_fields(conclusion), "verdict": verdict})
    return bounds_json(conclusion, verdict=verdict, **_make_attack_fields(conclusion))


def one_run_fields(conclusion: Conclusion) -> dict[str, Any]:
    """Returns a conclusion from a single run as fields for JSON.

    These are `estimates`, `bounds`, `upper_bound`, `claim_test` where a claim is tested, and `coins`, whether
    there were any. Without cosines there is the number of `canaries`. With cosines there are the numbers of
    `observed` and `unobserved` ones, their `dimension`, and the test of their `normality`.
    """
    estimates = []
    for estimate in conclusion.estimates:
        values = {name: getattr(estimate, name) for name in _ESTIMATE_FIELDS}
        values["noise_floor"] = estimate.noise_floor._asdict()
        estimates.append({**values, "canaries": estimate.n_in, "caveat": estimate.caveat})
    bounds = []
    for bound in conclusion.bounds:
        fields = finding_fields(bound)
        bounds.append({name: fields[name] for name in _BOUND_FIELDS})

    coins, cosines = conclusion.one_run
    sizes: dict[str, Any] = {"canaries": sum(conclusion.evidence.canaries)}
    if cosines is not None and conclusion.normality is not None:
        sizes = {
            "normality": conclusion.normality._asdict(),
            "observed": len(cosines.observed),
            "unobserved": len(cosines.unobserved),
            "dimension": cosines.dimension,
        }
    return {
        "estimates": estimates,
        "bounds": bounds,
        "upper_bound": finite(conclusion.upper_bound),
        **claim_fields(conclusion),
        **({"notes": conclusion.notes} if conclusion.notes else {}),
        **sizes,
        "coins": coins is not None,
    }


def _make_attack_fields(conclusion: Conclusion) -> dict[str, Any]:
    """Returns fields for JSON on how well the attack distinguishes both worlds, none of them a bound.

    They are `auc`; `true_positive_rates`, by false-positive rate; and `attack`, the 95% intervals of the
    accuracy and of the true-positive rates at 1% and 0.1% false positives. A rate's interval is None where
    there are too few scores out to allow a false positive.
    """
    guesses = conclusion.guesses
    if guesses is None:
        return {}
    attack = {}
    for name, interval in guesses.attack._asdict().items():
        attack[name] = None if interval is None else interval._asdict()
    rates = guesses.true_positive_rates
    return {"auc": guesses.auc.value, "true_positive_rates": rates, "attack": attack}


def _make_hidden_state_fields(conclusion: Conclusion) -> dict[str, Any]:
    """Returns fields for JSON on the last model alone: its upper bound, or why there is none.

    `last_model` has the bound and its margins, or `why_not`. `hidden_state` has the bound, its assumption,
    the range of the steps' Lipschitz constants, and the canary's schedule: it is inserted at step `insert` of
    every `k` steps. Empty where there is neither a bound nor a reason.
    """
    hidden_state = conclusion.hidden_state
    if hidden_state is None:
        why_not = conclusion.uncovered
        return {"last_model": {"why_not": why_not}} if why_not else {}
    fields = {
        "epsilon": finite(hidden_state.bound.epsilon),
        "mu": finite(hidden_state.bound.mu),
        "assumes": str(hidden_state.assumes),
        "lipschitz": hidden_state.range,
        "k": hidden_state.periods.k,
        "insert": hidden_state.periods.insert,
    }
    return {"hidden_state": fields, "last_model": last_model_fields(hidden_state)}


def last_model_fields(hidden_state: HiddenState) -> dict[str, Any]:
    """Returns the upper bound on the last model for JSON, and what it would be if steps expanded more.

    `margins` has an epsilon for each of some factors f: that of the bound if each step's constant c were
    larger by (f - 1) |c - 1|.
    """
    margins = {}
    for factor, bound in hidden_state.margins.items():
        margins[str(factor)] = finite(bound.epsilon)
    return {
        "epsilon": finite(hidden_state.bound.epsilon),
        "mu": finite(hidden_state.bound.mu),
        "assumes": hidden_state.assumes.word,
        "margins": margins,
    }


def _make_curve_fields(conclusion: Conclusion) -> dict[str, Any]:
    """Returns the field `gaussian_curve` of a conclusion's JSON: the curve's test; empty without a test.

    Its `deciding_runs` is how many runs would give the test enough power. It is None if the test decides
    already, and if no number that was tried would do.
    """
    curve = conclusion.curve
    if curve is None:
        return {}
    fields = {
        "p_value": curve.p_value,
        "power": curve.power,
        "status": curve.status,
        "deciding_runs": curve.deciding_runs,
    }
    return {"gaussian_curve": fields}


def _make_looks_fields(conclusion: Conclusion) -> dict[str, Any]:
    """Returns the field `looks` of a conclusion's JSON; none where no looks were declared.

    A look is a conclusion from the runs so far, at a number of runs that was declared beforehand. The
    field has the declared numbers, the confidence of each look, and the bounds of those that were taken.
    """
    looks = conclusion.looks
    if looks is None:
        return {}
    taken = []
    for look in looks.taken:
        bounds = [finding_fields(bound) for bound in look.bounds]
        taken.append({"runs": look.runs, "bounds": bounds})
    return {
        "looks": {
            "schedule": looks.schedule,
            "confidence_of_each": looks.confidence,
            "taken": taken,
        }
    }


def finding_fields(finding: Finding) -> dict[str, Any]:
    """Returns a bound's or an estimate's fields for JSON.

    `assumes` is what a bound assumes, or why an estimate is no bound. Some fields may be left out:

      `counted`, the counts in words, where it is empty.
      `false_positive_rate` and `path`, the bound after each run, where no exact law gives the false-positive
        rate. Only methods that know this law fill in either of them.
      `noise_floor` and `standard_error` of an estimate whose floor was not simulated.
    """
    fields = dataclasses.asdict(finding)
    if not fields.get("counted"):
        fields.pop("counted", None)
    if finding.false_positive_rate is None:
        fields.pop("false_positive_rate", None)
        fields.pop("path", None)
    method = fields.pop("method")
    if isinstance(finding, Bound):
        del fields["assumes"]
        assumes = str(finding.assumes)
    else:
        del fields["caveat"]
        assumes = str(finding.caveat)
        if not finding.noise_floor.audits:
            del fields["noise_floor"]
            del fields["standard_error"]
    return {"method": method, "assumes": assumes, **fields}
