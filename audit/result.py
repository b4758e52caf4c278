"""The results of the functions of `import audit`: an audit's conclusion, and all that is made of it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from audit.conclusions.conclusion import Conclusion
    from audit.methods.claimed_curve import ClaimTest
    from audit.methods.curves import Auc
    from audit.methods.estimate import Bound, Estimate
    from audit.report.subjects import Subject


@dataclasses.dataclass(frozen=True)
class Result:
    """An audit, which prints as the table of its bounds; a notebook shows its verdict and bounds.

    Attributes:
      conclusion: of the audit.
      subject: gathers the facts of its page.
      folder: that keeps it, or None.
    """

    conclusion: "Conclusion"
    subject: "Callable[[], Subject]"
    folder: Path | None = None

    @property
    def bounds(self) -> "dict[str, Bound]":
        """Lower bounds by method, in the table's order, each at its confidence under what it assumes.

        Where a bound's `holds` is false, the scores refute what it assumes. "assumption_free" and
        "if_gaussian" are there at any number of canaries of several runs; the latter not of fresh directions.
        """
        ranked = self.conclusion.ranked()
        bounds: dict[str, Bound] = {}
        if not self.conclusion.is_one_run:
            bounds["assumption_free"] = self.conclusion.assumption_free
            if not self.conclusion.law_is_known:
                bounds["if_gaussian"] = self.conclusion.gaussian
        for bound in ranked:
            bounds[bound.method] = bound
        return bounds

    @property
    def epsilon(self) -> float:
        """The epsilon that is proven whatever the trade-off curve, on which the verdict relies.

        Of one run it is the largest of the bounds that assume no Gaussian curve, 0 where there is none.
        """
        return self.conclusion.epsilon

    @property
    def verdict(self) -> str:
        """ "violated", "leaks", "nothing proven", or one of these with its condition, as on the page."""
        from audit.report import verdicts

        return verdicts.verdict(self.conclusion).word

    @property
    def claim_test(self) -> "ClaimTest | None":
        """The test of what is claimed: e_value, refuted, runs, seen; None where there is none."""
        return self.conclusion.claim_test

    @property
    def estimates(self) -> "dict[str, Estimate]":
        """Estimates, which are no bounds, by method."""
        return {estimate.method: estimate for estimate in self.conclusion.estimates}

    @property
    def upper_bound(self) -> float | None:
        """The epsilon at delta that accounting guarantees; None where the mechanism is not known."""
        return self.conclusion.upper_bound

    @property
    def hidden_state_bound(self) -> float | None:
        """The epsilon at delta of the last model alone; None where no Lipschitz constants are known."""
        hidden_state = self.conclusion.hidden_state
        return None if hidden_state is None else hidden_state.bound.epsilon

    @property
    def auc(self) -> "Auc":
        """The area under the ROC curve; its standard error counts all scores as independent."""
        from audit.methods import curves

        return curves.auc(self.conclusion.scores_in, self.conclusion.scores_out)

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Returns the share of scores in above a threshold that at most this share of scores out exceeds."""
        from audit.methods import curves
        from audit.values import number

        rate = number("false_positive_rate", false_positive_rate, float)
        return curves.true_positive_rate(
            self.conclusion.scores_in, self.conclusion.scores_out, rate
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns what the command `bound --json` prints."""
        from audit.conclusions import results

        values: dict[str, Any] = json.loads(results.answer_json(self.conclusion, self.verdict))
        return values

    def figure(self, path: str | Path | None = None) -> "Figure":
        """Returns scores, trade-off curve, bounds and privacy profile as a figure.

        Args:
          path: a .png, .pdf or .svg file to write it to as well.
        """
        from audit import values
        from audit.errors import require
        from audit.report import audit_panels, style
        from audit.storage import files

        title = self.subject().title
        if path is not None:
            place = values.path("path", path)
            encode = style.FORMATS.get(place.suffix.lower())
            require(encode is not None, f"`path={place}`: end it in {', '.join(style.FORMATS)}")
            assert encode is not None
            files.write_whole(place, audit_panels.audit_figure(self.conclusion, title, encode))
        return audit_panels.audit_drawing(self.conclusion, title)

    def report(self, path: str | Path) -> Path:
        """Writes the report, an HTML page; returns its path."""
        from audit import values
        from audit.report import audit_page
        from audit.storage import files

        content = audit_page.make_audits_page([self.subject()])
        return files.write_whole(values.path("path", path), content)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        from audit.report import bounds_table

        return bounds_table.bounds_table(self.conclusion)

    def _repr_html_(self) -> str:
        from audit.report import audit_page

        return audit_page.summary(self.subject())
