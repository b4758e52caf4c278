"""What the functions of `import audit` return: an audit's conclusion, and all that is made of it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from audit.report.subjects import Subject
    from audit.statistics.conclusion import Conclusion
    from audit.statistics.curves import Auc
    from audit.statistics.estimate import Bound, Estimate


@dataclasses.dataclass(frozen=True)
class Result:
    """An audit: its conclusion, what gathers the facts of its page, and the folder that keeps it, if any.

    Printed it is the table of bounds; a notebook shows verdict and bounds.
    """

    conclusion: "Conclusion"
    subject: "Callable[[], Subject]"
    folder: Path | None = None

    @property
    def bounds(self) -> "dict[str, Bound]":
        """Lower bounds by method, in the table's order, each at its confidence under what it assumes; where
        its `holds` is false the scores refute that.

        "assumption_free" and "if_gaussian" are there at any number of canaries a run.
        """
        ranked = self.conclusion.ranked()
        always = zip(("assumption_free", "if_gaussian"), ranked, strict=False)
        return {**dict(always), **{bound.method: bound for bound in ranked}}

    @property
    def epsilon(self) -> float:
        """What is proven, whatever the trade-off curve: the epsilon on which the verdict relies."""
        return self.conclusion.epsilon

    @property
    def verdict(self) -> str:
        """ "violated", "leaks", "nothing proven", or one of these with its condition, as on the page."""
        from audit.report import verdicts

        return verdicts.verdict(self.conclusion).word

    @property
    def estimates(self) -> "dict[str, Estimate]":
        """What is no bound, by method."""
        return {estimate.method: estimate for estimate in self.conclusion.estimates}

    @property
    def upper_bound(self) -> float | None:
        """The epsilon at delta that accounting guarantees; None where the mechanism is not known."""
        return self.conclusion.upper_bound

    @property
    def hidden_state_bound(self) -> float | None:
        """The epsilon at delta of the last model alone; None where no Lipschitz constants are known."""
        found = self.conclusion.hidden_state
        return None if found is None else found.bound.epsilon

    @property
    def auc(self) -> "Auc":
        """The area under the ROC curve; its standard error counts all scores as independent."""
        from audit.statistics import curves

        return curves.auc(self.conclusion.scores_in, self.conclusion.scores_out)

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The share of scores in above a threshold that at most such a share of scores out exceeds."""
        from audit.statistics import curves
        from audit.values import number

        scores = self.conclusion.scores_in, self.conclusion.scores_out
        return curves.true_positive_rate(*scores, number("false_positive_rate", false_positive_rate, float))

    def to_dict(self) -> dict[str, Any]:
        """What the command `bound --json` prints."""
        from audit.storage import results

        values: dict[str, Any] = json.loads(
            results.bounds_json(
                self.conclusion, verdict=self.verdict, **results.attack_fields(self.conclusion)
            )
        )
        return values

    def figure(self) -> "Figure":
        """Scores, trade-off curve, bounds and privacy profile."""
        from audit.report import audit_panels

        return audit_panels.audit_drawing(self.conclusion, self.subject().title)

    def report(self, path: str | Path) -> Path:
        """Writes the report, an HTML page; returns its path."""
        from audit import values
        from audit.report import audit_page
        from audit.storage import files

        return files.write_whole(values.path("path", path), audit_page.of_audits([self.subject()]))

    def __str__(self) -> str:
        from audit.report import bounds_table

        return bounds_table.bounds_table(self.conclusion)

    def _repr_html_(self) -> str:
        from audit.report import audit_page

        return audit_page.summary(self.subject())
