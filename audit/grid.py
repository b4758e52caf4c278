"""Audits of all combinations of some settings' values, as a table and a figure."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audit.errors import require, require_type, shown
from audit.result import Result, table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MAX_AUDITS = 1000
WIDTHS = (3.25, 6.75)  # inches: of a column and of a page of a two-column paper


@dataclasses.dataclass(frozen=True)
class Grid:
    """The results of a grid of audits, printed as its table.

    Attributes:
      varied: the names of the varied settings, in order.
      values: the values of the varied settings of each audit.
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

        rows = []
        for values, row in zip(self.values, table(self.results), strict=True):
            rows.append({**values, **row})
        return pd.DataFrame(rows)

    def figure(self, path: str | Path | None = None, width: float = WIDTHS[0]) -> "Figure":
        """Returns a figure of the proven epsilon over the first varied setting.

        Other varied settings have a line each. If the seed varies, a line is the mean over seeds, and its
        bars reach from the smallest to the largest value. Upper bounds are dotted.

        Args:
          path: a .png, .pdf or .svg file for the figure; None for no file.
          width: the width in inches; 3.25 and 6.75 fit a column and a page.

        Raises:
          InputError: the path is not a path or has another suffix, or the width is out of range.
        """
        from audit import errors
        from audit.report import grid_figure, style
        from audit.storage import files

        require(1 <= width <= 40, f"`width={width:g}`: give 1 to 40 inches")
        figure = grid_figure.draw_grid(self.table(), self.varied, width)
        if path is not None:
            place = errors.path("path", path)
            files.write_whole(place, style.find_format("path", place)(figure))
        return figure

    def __str__(self) -> str:
        columns = [*self.varied, "verdict", "epsilon", "upper_bound"]
        return str(self.table()[columns].to_string(index=False, float_format="{:.4g}".format))


def audit_grid(audit_one: Callable[..., Result], vary: Mapping[str, Sequence[Any]]) -> Grid:
    """Returns the audits of all combinations of settings; the last setting changes fastest.

    Audits with equal shapes share their compiled program: the seed, k, the learning rate, the noise
    multiplier and the clipping norm do not change shapes. `audit_one` makes an audit from keyword arguments.

    Raises:
      InputError: `vary` is not a mapping to lists of values, or a setting cannot be audited.
    """
    require_type("vary", vary, Mapping)
    require(len(vary) > 0, "`vary` is empty: give lists of values by setting")
    for name, values in vary.items():
        is_list = isinstance(values, Sequence) and not isinstance(values, str) and len(values)
        require(is_list, f"`vary[{name!r}]={shown(values)}`: give a list of values")
    combinations = []
    for values in itertools.product(*vary.values()):
        combinations.append(dict(zip(vary, values, strict=True)))
    count = len(combinations)
    require(count <= MAX_AUDITS, f"`vary` has {count:,} audits: give at most {MAX_AUDITS:,}")
    results = [audit_one(**combination) for combination in combinations]
    return Grid(tuple(vary), tuple(combinations), tuple(results))
