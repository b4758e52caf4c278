"""Conclusions as JSON, for programs and for the file audit.json in a setting's folder."""

from typing import Any

from audit.conclusions.conclusion import Conclusion
from audit.methods.estimate import Bound, Finding
from audit.storage.store import RESULT, Store
from audit.written import write_json


def keep_result(store: Store, conclusion: Conclusion, **more: Any) -> None:
    """Writes a conclusion, with additional fields `more`, to a store's audit.json."""
    store.write_text(RESULT, result_json(conclusion, indent=2, **more) + "\n")


def result_json(conclusion: Conclusion, indent: int | None = None, **more: Any) -> str:
    """Returns the JSON in audit.json: `result_fields`, epsilon, the upper bound on mu, and `more`."""
    fields = result_fields(conclusion)
    fields["epsilon"] = conclusion.epsilon
    return write_json({**fields, "mu_upper_bound": conclusion.mu_upper_bound, **more}, indent)


def answer_json(conclusion: Conclusion) -> str:
    """Returns the output of `bound --json`, a JSON object on a single line.

    It has `result_fields` and the verdict. For several runs it also has `auc` and `attack`: the accuracy, and
    the true-positive rates at 1% and 0.1% false positives, with 95% intervals. A rate is null if there are
    too few left-out canaries to measure it.
    """
    fields = {**result_fields(conclusion), "verdict": conclusion.verdict.word}
    if not conclusion.is_one_run and conclusion.auc is not None and conclusion.attack is not None:
        fields["auc"] = conclusion.auc.value
        rates = conclusion.attack._asdict()
        fields["attack"] = {name: rate and rate._asdict() for name, rate in rates.items()}
    return write_json(fields)


def result_fields(conclusion: Conclusion) -> dict[str, Any]:
    """Returns a conclusion as a JSON-serializable dict.

    For several runs, it has these fields (* marks optional ones):

      bounds: a list of the estimates and the lower bounds.
      notes*: remarks.
      upper_bound: the claimed epsilon; null if infinite or unknown.
      last_model*: the upper bound for the last model, or `why_not`. `margins` maps factors f to the epsilon
        if each step's Lipschitz constant c is larger by (f - 1) |c - 1|.
      claim_test*: the test of the claim.
      expected*: the epsilon that the last model would have with linear losses; null if infinite.
      epsilon: the lower bound for any curve.
      most_provable: the largest such bound that this number of runs can prove; null with several canaries per
        run.
      gaussian_curve*: the test for a Gaussian curve.

    For a single run, the fields are `estimates`, `bounds`, `upper_bound`, `claim_test`*, `notes`*, and
    `coins`, which is true if coins inserted the canaries. With cosines, they also include the counts
    `observed` and `unobserved`, `dimension` and the `normality` test; otherwise, the number of `canaries`.
    """
    if conclusion.is_one_run:
        return _list_one_run_fields(conclusion)
    state = conclusion.hidden_state
    curve = conclusion.curve
    last_model = None
    if state is not None:
        last_model = {
            "epsilon": state.bound.epsilon,
            "mu": state.bound.mu,
            "assumes": state.assumes.word,
            "margins": {str(factor): bound.epsilon for factor, bound in state.margins.items()},
        }
    elif conclusion.uncovered:
        last_model = {"why_not": conclusion.uncovered}
    fields = {
        "bounds": [*map(finding_fields, conclusion.rows())],
        "notes": conclusion.notes or None,
        "upper_bound": conclusion.upper_bound,
        "last_model": last_model,
        **claim_fields(conclusion),
        "expected": conclusion.expected,
        "epsilon": conclusion.epsilon,
        "most_provable": conclusion.most_provable,
        "gaussian_curve": curve and {**curve._asdict(), "status": curve.status},
    }
    nullable = ("upper_bound", "most_provable")
    return {name: value for name, value in fields.items() if value is not None or name in nullable}


def _list_one_run_fields(conclusion: Conclusion) -> dict[str, Any]:
    """Returns a conclusion from a single run as a JSON-serializable dict."""
    fields = {
        "estimates": [
            {**finding_fields(estimate), "canaries": estimate.n_in, "caveat": estimate.caveat}
            for estimate in conclusion.estimates
        ],
        "bounds": [*map(finding_fields, conclusion.bounds)],
        "upper_bound": conclusion.upper_bound,
        **claim_fields(conclusion),
    }
    if conclusion.notes:
        fields["notes"] = conclusion.notes
    coins, cosines = conclusion.one_run
    if cosines is not None and conclusion.normality is not None:
        fields |= {
            "normality": conclusion.normality._asdict(),
            "observed": len(cosines.observed),
            "unobserved": len(cosines.unobserved),
            "dimension": cosines.dimension,
        }
    else:
        fields["canaries"] = sum(conclusion.evidence.canaries)
    return {**fields, "coins": coins is not None}


def claim_fields(conclusion: Conclusion) -> dict[str, Any]:
    """Returns {"claim_test": ...} for a conclusion's JSON; an empty dict if the claim was not tested.

    The test's `seen` is the smallest departure from the claim that this number of runs would have refuted, or
    None.
    """
    test = conclusion.claim_test
    if test is None:
        return {}
    return {"claim_test": {**test._asdict(), "seen": test.seen and test.seen._asdict()}}


def finding_fields(finding: Finding) -> dict[str, Any]:
    """Returns a bound or an estimate as a JSON-serializable dict.

    `assumes` is text: the assumption of a bound, or why an estimate is not a bound. Only bounds with an exact
    null distribution have `false_positive_rate` and `path`. Only estimates that were also simulated without a
    leak have `noise_floor` and `standard_error`.
    """
    # The first two keys set the order; `assumes` gets its text below.
    fields = {"method": finding.method, "assumes": "", **vars(finding)}
    if isinstance(finding, Bound):
        fields["assumes"] = finding.assumes.text
        if not finding.counted:
            del fields["counted"]
        if finding.false_positive_rate is None:
            del fields["false_positive_rate"]
            del fields["path"]
        return fields
    fields["assumes"] = fields.pop("caveat")
    if finding.noise_floor.audits:
        fields["noise_floor"] = finding.noise_floor._asdict()
    else:
        del fields["noise_floor"]
        del fields["standard_error"]
    return fields
