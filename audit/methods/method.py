"""The record of a method: all that tables, figures, pages and JSON know of a bound or an estimate.

A method is a function and its record, side by side in a file: `estimate.METHODS` has the methods of a single
canary a run, `lifted.METHODS` those of several. Whatever shows, counts or calibrates methods reads these;
functions of a single run alone are in `one_run_bounds.OF_COINS`, and in one_shot's FITTED and LIMITS.
Importing this loads no SciPy.
"""

import dataclasses
import math
from typing import NamedTuple


class NoiseFloor(NamedTuple):
    """The epsilon that an estimate shows in simulated audits in which nothing leaks.

    Attributes:
      mean: The mean of epsilon.
      quantile_95: The epsilon that 95% of the audits do not exceed.
      audits: The number of simulated audits.
    """

    mean: float
    quantile_95: float
    audits: int


NOT_SIMULATED = NoiseFloor(math.nan, math.nan, 0)


class Assumption(NamedTuple):
    """What a bound assumes, or why an estimate is no bound, in words for each place where it is shown.

    Attributes:
      text: The words in JSON, and where a bound is printed alone.
      word: The word in the last column of a table.
      sentence: The words on a page.
      note: The line below a table that says what the word means; empty where it needs none.
      gaussian: Whether epsilon follows from mu only if the trade-off curve is Gaussian, so that the test of
        the curve concerns it.
      proviso: The words in a verdict, after "with 95% confidence, and"; empty where nothing is assumed.
    """

    text: str
    word: str
    sentence: str
    note: str = ""
    gaussian: bool = False
    proviso: str = ""

    def __str__(self) -> str:
        return self.text


class Mark(NamedTuple):
    """How a method's epsilons look in a sweep's figure.

    Attributes:
      color: A colour's name in the figures' palette.
      marker: A marker of matplotlib's.
      size: The marker's size in points.
      place: The rank, from left to right, among the marks at a single point of the axis.
      filled: Whether the marker is filled.
      outline: A colour of matplotlib's for the marker's edge; empty for the marker's own colour.
      line: The width of lines, in points.
    """

    color: str
    marker: str
    size: float
    place: int
    filled: bool = True
    outline: str = ""
    line: float = 0.8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """The words and looks of a method; records of subclasses add the functions that compute it.

    Attributes:
      name: The method's name in tables and JSON.
      assumes: What its values assume.
      label: Its name in figures and on pages.
      legend: Its name together with what it assumes.
      counterpart: The name of the method for a single canary a run that it replaces where runs have several.
      mark: Its look in sweeps' figures; None where they leave it out.
    """

    name: str
    assumes: Assumption
    label: str
    legend: str = ""
    counterpart: str = ""
    mark: Mark | None = None


class Pair(NamedTuple):
    """The names of the two bounds of a verdict: the one for a Gaussian curve, and the one for any curve."""

    gaussian: str
    free: str


ONE_CANARY = Pair("if_gaussian", "assumption_free")
MANY_CANARIES = Pair("lifted_gaussian", "lifted")
FRESH_DIRECTIONS = Pair("exact_null", "exact_null")
NO_BOUND = "(no bound)"
NOTHING = Assumption("nothing", "nothing", "independent runs")
COINS = Assumption(
    "independent coins with one probability",
    "coins",
    "independent runs; each canary is inserted by its own coin, and all coins have the same probability",
    "each canary inserted by its own coin, all coins with the same probability",
)
OTHERS_IN = Assumption(
    "runs out contain the other K - 1 canaries",
    "nothing",  # except how the runs are made
    "independent runs; runs out insert K - 1 other canaries next to the ones they score, else bounds are too high",
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
