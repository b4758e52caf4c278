"""Conclusions as JSON, for programs and for the file audit.json in a setting's folder."""

from typing import Any

from audit.conclusions.conclusion import Conclusion
from audit.methods.estimate import Bound, Finding
from audit.written import write_json


def result_json(conclusion: Conclusion, indent: int | None = None, **more: Any) -> str:
    """Returns a conclusion as a JSON object, as in audit.json and the output of `bound --json`.

    For several runs, the object includes `auc` and `attack`: the in-sample accuracy, and the true-positive
    rates at 1% and 0.1% false positives. A rate is null if there are too few left-out canaries to measure it.
    `more` contains additional fields.
    """
    fields = {
        **result_fields(conclusion),
        "epsilon": conclusion.epsilon,
        "mu_upper_bound": conclusion.mu_upper_bound,
        "verdict": conclusion.verdict.word,
    }
    if not conclusion.is_one_run and conclusion.auc is not None and conclusion.attack is not None:
        fields["auc"] = conclusion.auc.value
        fields["attack"] = conclusion.attack._asdict()
    return write_json({**fields, **more}, indent)


def result_fields(conclusion: Conclusion) -> dict[str, Any]:
    """Returns a conclusion as a JSON-serializable dict.

    `write_json` writes infinity as null. For several runs, the fields are (* marks optional ones):

      bounds: a list of the estimates and the lower bounds.
      notes*: remarks.
      upper_bound: the claimed epsilon; null if unknown.
      claim_test*: the test of the claim. `seen` is the smallest noise reduction that it would have detected.
      last_model*: the upper bound for the last model (`epsilon`, `mu`, `assumes`), or `why_not`. `margins`
        maps a factor f to the epsilon for Lipschitz constants c + (f - 1) |c - 1| instead of c.
      expected*: the epsilon that the last model would have with linear losses.
      epsilon: the lower bound for any curve.
      most_provable: the largest such bound that this number of runs can prove; null with several canaries per
        run.
      gaussian_curve*: the test for a Gaussian curve.

    A single run has the fields `bounds` (without estimates), `notes`*, `upper_bound`, `claim_test`*, and
    those of `_describe_one_run`.
    """
    findings = conclusion.bounds if conclusion.is_one_run else conclusion.rows()
    fields: dict[str, Any] = {
        "bounds": [*map(finding_fields, findings)],
        "upper_bound": conclusion.upper_bound,
    }
    test = conclusion.claim_test
    if test is not None:
        seen = test.seen and test.seen._asdict()  # may be None
        fields["claim_test"] = {**test._asdict(), "seen": seen}
    if conclusion.notes:
        fields["notes"] = conclusion.notes
    if conclusion.is_one_run:
        return fields | _describe_one_run(conclusion)
    fields |= {"epsilon": conclusion.epsilon, "most_provable": conclusion.most_provable}
    state = conclusion.hidden_state
    if state is not None:
        fields["last_model"] = {
            "epsilon": state.bound.epsilon,
            "mu": state.bound.mu,
            "assumes": state.assumes.word,
            "margins": {str(factor): bound.epsilon for factor, bound in state.margins.items()},
        }
    elif conclusion.uncovered:
        fields["last_model"] = {"why_not": conclusion.uncovered}
    if conclusion.epsilon_if_linear is not None:
        fields["expected"] = conclusion.epsilon_if_linear
    curve = conclusion.curve
    if curve is not None:
        fields["gaussian_curve"] = {**curve._asdict(), "status": curve.status}
    return fields


def _describe_one_run(conclusion: Conclusion) -> dict[str, Any]:
    """Returns the fields that exist only for a single run.

    `coins` is true if coin flips decided which canaries to insert. For cosines, `observed` and `unobserved`
    are the numbers of inserted and left-out canaries. For other scores, `canaries` is the total number of
    canaries. In `estimates`, it counts only inserted canaries.
    """
    fields: dict[str, Any] = {
        "estimates": [
            {**finding_fields(estimate), "canaries": estimate.n_in, "caveat": estimate.caveat}
            for estimate in conclusion.estimates
        ]
    }
    coins, cosines = conclusion.one_run  # a run may have both or only one
    if cosines is not None:
        fields |= {
            "observed": len(cosines.observed),
            "unobserved": len(cosines.unobserved),
            "dimension": cosines.dimension,
        }
    else:
        fields["canaries"] = sum(conclusion.evidence.canaries)
    return {**fields, "coins": coins is not None}


def finding_fields(finding: Finding) -> dict[str, Any]:
    """Returns a bound or an estimate as a JSON-serializable dict.

    `assumes` is text: the assumption of a bound, or why an estimate is not a bound. We leave out fields that
    the method does not compute.
    """
    # These two keys come first; `assumes` is filled in below.
    fields = {"method": finding.method, "assumes": "", **vars(finding)}
    if isinstance(finding, Bound):
        fields["assumes"] = finding.assumes.text
        if not finding.counted:
            del fields["counted"]
        # Methods compute this rate only together with `path`, the bound after each run.
        if finding.false_positive_rate is None:
            del fields["false_positive_rate"]
            del fields["path"]
        return fields
    fields["assumes"] = fields.pop("caveat")
    is_simulated = finding.noise_floor.audits > 0
    if is_simulated:  # these methods also compute `standard_error`
        fields["noise_floor"] = finding.noise_floor._asdict()
    else:
        del fields["noise_floor"]
        del fields["standard_error"]
    return fields
