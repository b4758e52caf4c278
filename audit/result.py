"""Results of audits."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audit import errors
from audit.errors import require, require_type
from audit.written import at_least, at_most

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from audit.conclusions.conclusion import Conclusion
    from audit.methods.claimed_curve import ClaimTest
    from audit.methods.curves import Auc
    from audit.methods.estimate import Bound, Estimate
    from audit.report.subjects import Subject


@dataclass(frozen=True)
class Result:
    """The result of an audit, which prints as a table of bounds.

    Attributes:
      conclusion: the bounds, estimates and scores.
      subject: a function that returns the facts about the audit for its page.
      folder: the folder of the audit; None if the scores came from the user.

    >>> import numpy as np
    >>> scores_in, scores_out = np.random.default_rng(0).normal(size=(2, 80))
    >>> result = audit.bounds(scores_in + 2, scores_out, audit.Gdp(3))
    >>> result.verdict, result.epsilon > 1, round(result.upper_bound, 2)
    ('leaks', True, 16.68)
    >>> result.report(folder / "page.html").name
    'page.html'
    """

    conclusion: "Conclusion"
    subject: "Callable[[], Subject]"
    folder: Path | None = None

    @property
    def bounds(self) -> "dict[str, Bound]":
        """Returns the lower bounds on epsilon, keyed by method name, in the order of the table.

        Each bound is valid at its confidence level if its assumption holds. `Bound.holds` is False if the
        scores refute the assumption.

        Audits of several runs have an "assumption_free" bound and, unless scores are cosines or ranks, an
        "if_gaussian" bound. With several canaries per run, both names are aliases of other methods.
        """
        bounds: dict[str, Bound] = {}
        if not self.conclusion.is_one_run:
            bounds["assumption_free"] = self.conclusion.assumption_free
            if not self.conclusion.law_is_known:
                bounds["if_gaussian"] = self.conclusion.gaussian
        for bound in self.conclusion.ranked():
            bounds[bound.method] = bound
        return bounds

    @property
    def epsilon(self) -> float:
        """Returns the lower bound on epsilon that is valid for any trade-off curve.

        For a single run, returns the largest bound that does not assume a Gaussian curve, or 0.
        """
        return self.conclusion.epsilon

    @property
    def verdict(self) -> str:
        """Returns "violated", "leaks" or "nothing proven", or one of these with a condition."""
        return self.conclusion.verdict.word

    @property
    def claim_test(self) -> "ClaimTest | None":
        """Returns the test of the claim, with `refuted` and `e_value`; None if no claim was tested."""
        return self.conclusion.claim_test

    @property
    def estimates(self) -> "dict[str, Estimate]":
        """Returns estimates of epsilon, which are not bounds, keyed by method name."""
        return {estimate.method: estimate for estimate in self.conclusion.estimates}

    @property
    def upper_bound(self) -> float | None:
        """Returns the claimed epsilon at delta, such as the accountant's; None if there is no claim."""
        return self.conclusion.upper_bound

    @property
    def hidden_state_bound(self) -> float | None:
        """Returns an upper bound on the last model's epsilon; None if Lipschitz constants are unknown."""
        hidden_state = self.conclusion.hidden_state
        return None if hidden_state is None else hidden_state.bound.epsilon

    @property
    def auc(self) -> "Auc | None":
        """Returns the area under the ROC curve; None for a single run that inserts all canaries.

        The standard error treats all scores as independent.
        """
        return self.conclusion.auc

    def to_dict(self) -> dict[str, Any]:
        """Returns the conclusion as nested dicts and lists, as `bound --json` prints it."""
        from audit.conclusions import results

        return dict(json.loads(results.result_json(self.conclusion)))

    def figure(self, path: str | Path | None = None) -> "Figure":
        """Returns a matplotlib figure of the scores, the trade-off curve and the bounds.

        Args:
          path: a .png, .pdf or .svg file to write, or None.

        Raises:
          InputError: the path has any other suffix.
        """
        from audit.report import audit_panels

        figure = audit_panels.audit_figure(self.conclusion, self.subject().title)
        _write_figure(figure, path)
        return figure

    def report(self, path: str | Path) -> Path:
        """Writes the report, an HTML page, and returns its path."""
        from audit.report import audit_page
        from audit.storage import files

        place = errors.path("path", path)
        return files.write_whole(place, audit_page.make_page(self.subject()))

    def __repr__(self) -> str:
        from audit.report import bounds_table

        return bounds_table.bounds_table(self.conclusion)


def card(result: Result) -> dict[str, Any]:
    """Returns the card of an audit: a JSON record that others can recompute from the scores.

    A card contains the claim, the threat model, the method, checksums of the evidence, the bounds, the
    verdict, the provenance, and a commitment. The commitment is a hash of the claim, the method, the
    confidence and the number of looks at the scores, so you can publish the commitment before the audit.
    `./run.sh bound --card=card.json --scores=...` verifies a card. The schema is `audit/card.schema.json`.

    Args:
      result: the result of an audit or of `bounds`.

    Raises:
      InputError: the argument is not a `Result`, or the scores are missing from its folder.

    >>> runs = [2.0 + 0.1 * i for i in range(40)], [0.1 * i for i in range(40)]
    >>> card = audit.card(audit.bounds(*runs, audit.Gdp(1)))
    >>> card["privacy_loss"]["privacy_parameters"]["delta"], card["method"]["name"], card["looks"]
    (1e-05, 'assumption_free', 1)
    """
    from audit.report.card import make_card

    require_type("result", result, Result)
    return make_card(result.subject())


def table(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Returns a row for each result, for `pandas.DataFrame` or `csv.DictWriter`.

    A row contains the name, the verdict, the number of runs, the proven epsilon, the upper bounds, delta and
    confidence. If the audit trained models, the row also contains the folder and the setting.

    Args:
      results: results of audits and of `bounds`.

    Raises:
      InputError: an item is not a `Result`.

    >>> rows = audit.table(
    ...     audit.bounds([2.0 + 0.1 * i for i in range(40)], [0.1 * i for i in range(40)], audit.Gdp(mu))
    ...     for mu in (1, 2)
    ... )
    >>> [(row["runs"], round(row["upper_bound"], 2)) for row in rows]
    [(80, 4.38), (80, 10.0)]
    """
    from audit.settings import make
    from audit.settings.setting import flat

    require_type("results", results, Iterable)
    rows = []
    for result in results:
        require_type("results", result, Result)
        row: dict[str, Any] = {
            "name": result.subject().title,
            "verdict": result.verdict,
            "runs": result.conclusion.runs,
            "epsilon": result.epsilon,
            "upper_bound": result.upper_bound,
            "hidden_state_bound": result.hidden_state_bound,
            "delta": result.conclusion.delta,
            "confidence": result.conclusion.confidence,
        }
        if result.folder is not None:  # scores from the user do not have a setting
            _, stored = make.open_audit(result.folder)
            row |= {"folder": str(result.folder), **flat(stored.setting)}
        rows.append(row)
    return rows


def _write_figure(figure: "Figure", path: str | Path | None) -> None:
    """Writes a figure in the format given by the path's suffix, unless the path is None."""
    if path is None:
        return
    from audit.report import style
    from audit.storage import files

    place = errors.path("path", path)
    encode = style.find_format(place)
    files.write_whole(place, encode(figure))


@dataclass(frozen=True)
class Grid:
    """The results of a grid of audits, which print as a table.

    Attributes:
      varied: the names of the varied settings.
      values: the values of the varied settings in each audit.
      results: the result of each audit.

    >>> import jax.numpy as jnp, numpy as np
    >>> def loss(params, labelled):
    ...     return (params["w"] @ labelled[0] - labelled[1]) ** 2
    >>> data = np.eye(8, dtype=np.float32), np.ones(8)
    >>> small = {"runs": 40, "steps": 2, "batch_size": 4, "out": folder}
    >>> grid = audit.audit_loss(loss, {"w": jnp.zeros(8)}, *data, vary={"seed": [0, 1]}, **small)
    >>> list(grid.table()["seed"])
    [0, 1]
    """

    varied: tuple[str, ...]
    values: tuple[Mapping[str, Any], ...]
    results: tuple[Result, ...]

    def table(self) -> "pd.DataFrame":
        """Returns a row for each audit: the varied settings, then the columns of `audit.table`."""
        import pandas as pd

        results = table(self.results)  # the function, not this method
        rows = [{**values, **row} for values, row in zip(self.values, results, strict=True)]
        return pd.DataFrame(rows)

    def figure(self, path: str | Path | None = None, width: float = 3.25) -> "Figure":
        """Returns a figure that plots the proven epsilon against the first varied setting.

        There is a line for each combination of the other varied settings. If the seed varies, lines show the
        mean over seeds, with bars from the smallest to the largest value. Upper bounds are dotted.

        Args:
          path: a .png, .pdf or .svg file to write, or None.
          width: the width in inches; 3.25 fits a column and 6.75 a page.

        Raises:
          InputError: the path has any other suffix, or the width is out of range.
        """
        from audit.report import grid_figure

        require(1 <= width <= 40, f"`width={width:g}`: give 1 to 40 inches")
        figure = grid_figure.draw_grid(self.table(), self.varied, width)
        _write_figure(figure, path)
        return figure

    def __str__(self) -> str:
        table = self.table()[[*self.varied, "verdict", "epsilon", "upper_bound"]]
        # Without a claim, the upper bound is None and prints as infinity.
        table["upper_bound"] = table["upper_bound"].astype(float).fillna(math.inf)
        formatters = {"epsilon": at_least, "upper_bound": at_most}
        return str(table.to_string(index=False, formatters=formatters))
