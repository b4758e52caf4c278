"""The files beside a setting's scores.

audit.json, audit.png   an audit's conclusion, for programs and for people
"""

import dataclasses
import json
from typing import Any

from audit.claims.hidden_state import HiddenState
from audit.conclusions.conclusion import Conclusion
from audit.methods.estimate import Bound, Estimate, Finding
from audit.storage.store import RESULT, Store
from audit.written import write_json

_ALWAYS = ("bounds", "upper_bound", "epsilon", "most_provable")  # fields that may be null
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
    more = {"mu_upper_bound": conclusion.mu_upper_bound, **more}
    if conclusion.is_one_run:
        return write_json({**one_run_fields(conclusion), "epsilon": conclusion.epsilon, **more})
    return bounds_json(conclusion, **more)


def bounds_json(conclusion: Conclusion, **more: object) -> str:
    """Returns a conclusion from several runs as a JSON object on a single line.

    Its fields follow. Those marked * are left out where there is nothing to say.

      bounds: a list of the estimates and the lower bounds.
      notes*: remarks for people.
      upper_bound: the claimed epsilon; null if infinite or unknown.
      hidden_state*: the upper bound on the last model, its assumption, the range of the steps' Lipschitz
        constants, and the canary's schedule: it is inserted at step `insert` of every `k` steps.
      last_model*: that bound and its margins, or `why_not`.
      every_model*: lower and upper bound on epsilon with a sampler, for an adversary who sees every model.
      claim_test*: the test of the claim.
      expected*: the epsilon of the last model if losses were linear; null if infinite.
      epsilon: the lower bound that needs no assumption on the curve.
      most_provable: the largest such bound that this many runs can prove; null with several canaries a run.
      gaussian_curve*: the test of the Gaussian curve, and how many runs would give it enough power.
      looks*: the declared numbers of runs, the confidence of each look, and the bounds of those taken.

    Then come the fields `more`.
    """
    state = conclusion.hidden_state
    sampled = conclusion.sampled
    curve = conclusion.curve
    looks = conclusion.looks
    last_model = None
    if state is not None:
        last_model = last_model_fields(state)
    elif conclusion.uncovered:
        last_model = {"why_not": conclusion.uncovered}
    fields = {
        "bounds": [*map(finding_fields, conclusion.rows())],
        "notes": conclusion.notes or None,
        "upper_bound": conclusion.upper_bound,
        "hidden_state": state
        and {
            "epsilon": state.bound.epsilon,
            "mu": state.bound.mu,
            "assumes": str(state.assumes),
            "lipschitz": state.range,
            "k": state.periods.k,
            "insert": state.periods.insert,
        },
        "last_model": last_model,
        "every_model": sampled and {"sampler": sampled.sampler, **sampled.every_model._asdict()},
        **claim_fields(conclusion),
        "expected": conclusion.expected,
        "epsilon": conclusion.epsilon,
        "most_provable": conclusion.most_provable,
        "gaussian_curve": curve
        and {
            "p_value": curve.p_value,
            "power": curve.power,
            "status": curve.status,
        },
        "looks": looks
        and {
            "schedule": looks.schedule,
            "confidence_of_each": looks.confidence,
            "taken": [
                {"runs": look.runs, "bounds": [*map(finding_fields, look.bounds)]}
                for look in looks.taken
            ],
        },
    }
    kept = {name: fields[name] for name in fields if fields[name] is not None or name in _ALWAYS}
    return write_json(kept | more)


def last_model_fields(state: HiddenState) -> dict[str, Any]:
    """Returns the upper bound on the last model for JSON, with its margins.

    `margins` has an epsilon for each of some factors f: that of the bound if each step's constant c were
    larger by (f - 1) |c - 1|.
    """
    return {
        "epsilon": state.bound.epsilon,
        "mu": state.bound.mu,
        "assumes": state.assumes.word,
        "margins": {str(factor): bound.epsilon for factor, bound in state.margins.items()},
    }


def claim_fields(conclusion: Conclusion) -> dict[str, Any]:
    """Returns the field `claim_test` of a conclusion's JSON; empty where the claim is not tested.

    It has the e-value, whether the claim is refuted, and the number of runs. Its field `seen` is the smallest
    departure from the claim that so many runs would have refuted, or None.
    """
    test = conclusion.claim_test
    if test is None:
        return {}
    return {"claim_test": {**test._asdict(), "seen": test.seen and test.seen._asdict()}}


def answer_json(conclusion: Conclusion) -> str:
    """Returns what `bound --json` prints, a JSON object on a single line.

    For several runs it has the fields of `bounds_json`, the verdict, and how well the attack distinguishes
    both worlds, none of them a bound: `auc`; `true_positive_rates`, by false-positive rate; and `attack`, the
    95% intervals of the accuracy and of the true-positive rates at 1% and 0.1% false positives. A rate's
    interval is null where there are too few scores out to allow a false positive. For a single run it has the
    fields of `one_run_fields` and the verdict.
    """
    verdict = conclusion.verdict.word
    guesses = conclusion.guesses
    if conclusion.is_one_run:
        return write_json({**one_run_fields(conclusion), "verdict": verdict})
    if guesses is None:
        return bounds_json(conclusion, verdict=verdict)
    intervals = guesses.attack._asdict().items()
    return bounds_json(
        conclusion,
        verdict=verdict,
        auc=guesses.auc.value,
        true_positive_rates=guesses.true_positive_rates,
        attack={name: interval and interval._asdict() for name, interval in intervals},
    )


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
        "upper_bound": conclusion.upper_bound,
        **claim_fields(conclusion),
        **({"notes": conclusion.notes} if conclusion.notes else {}),
        **sizes,
        "coins": coins is not None,
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
    dropped = {"method", "assumes", "caveat"}
    if not fields.get("counted"):
        dropped.add("counted")
    if finding.false_positive_rate is None:
        dropped |= {"false_positive_rate", "path"}
    if isinstance(finding, Estimate) and not finding.noise_floor.audits:
        dropped |= {"noise_floor", "standard_error"}
    assumes = finding.assumes.text if isinstance(finding, Bound) else finding.caveat
    for name in dropped & set(fields):
        del fields[name]
    return {"method": finding.method, "assumes": assumes, **fields}
