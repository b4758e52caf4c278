"""Descriptions of methods, assumptions and noise floors for reports.

This module does not load SciPy.
"""

import dataclasses
import math
from typing import NamedTuple


class NoiseFloor(NamedTuple):
    """The mean and the 95% quantile of an estimate's epsilon in `audits` simulated audits without leakage."""

    mean: float
    quantile_95: float
    audits: int


NOT_SIMULATED = NoiseFloor(math.nan, math.nan, 0)


class Assumption(NamedTuple):
    """Phrases that state a bound's assumption, or why an estimate is not a bound.

    Attributes:
      text: The text in JSON, and next to bounds outside tables.
      word: The word in the last column of a table.
      sentence: The text in an HTML report.
      note: The line below a table that explains the word; may be empty.
      gaussian: Whether the bound is on mu, which determines epsilon only if the trade-off curve is Gaussian.
      proviso: The text after "with 95% confidence, and" in a verdict; empty if there is no assumption.
    """

    text: str
    word: str
    sentence: str
    note: str = ""
    gaussian: bool = False
    proviso: str = ""

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """The description of a method for reports. Subclasses add the function that computes its result.

    Attributes:
      name: The name in tables, figures and JSON.
      legend: The name together with the assumption.
    """

    name: str
    assumes: Assumption
    legend: str = ""


class VerdictMethods(NamedTuple):
    """The names of a verdict's two bounds: for a Gaussian curve, and for any curve."""

    gaussian: str
    any_curve: str


ONE_CANARY = VerdictMethods("if_gaussian", "assumption_free")
MANY_CANARIES = VerdictMethods("lifted_gaussian", "lifted")
FRESH_DIRECTIONS = VerdictMethods("exact_null", "exact_null")
NO_BOUND = "(no bound)"
NOTHING = Assumption("nothing", "nothing", "independent runs")
COINS = Assumption(
    "independent coins with the same probability",
    "coins",
    "independent runs; each canary is inserted by its own coin, and all coins have the same probability",
    "each canary inserted by its own coin, all coins with the same probability",
)
OTHERS_IN = Assumption(
    "runs without a canary contain the other K - 1 canaries",
    "nothing",  # except how the runs are made
    "independent runs; runs that score left-out canaries also insert K - 1 others, else "
    "bounds are too high",
)
ACCOUNTED = Assumption(
    "composition", "accounting", "sensitivity C, Gaussian noise with standard deviation sigma C"
)
GIVEN = Assumption("another accountant", "given", "as given, computed by another accountant")
GAUSSIAN_CURVE = Assumption(
    "a Gaussian trade-off curve",
    "Gaussian",
    "independent runs; for epsilon, a Gaussian trade-off curve",
    "rejects any GDP guarantee below its mu, for any curve; its epsilon needs a Gaussian curve",
    gaussian=True,
)
