"""A row of the table: one point of a figure beside a paper's words."""

from collections.abc import Mapping
from typing import NamedTuple

from experiments.sweeps.points import Spread


class Claim(NamedTuple):
    """A paper's word for a series, and the section that has it: "tight" is a lower bound that matches the
    accountant's. The heights in figures are not printed as numbers, so none is given."""

    says: str
    section: str


PaperClaims = Mapping[tuple[str, str, float | None], Claim]


class Seeds(NamedTuple):
    """How much a row stands on: runs a seed, seeds that are there, seeds that are missing, canaries a run."""

    runs: int
    found: int
    missing: int
    canaries: int = 1


class Row(NamedTuple):
    """One point of a figure; epsilons at one delta, by method, None where there is nothing to say.

    interval: the ends of the two-sided interval where scores are normal; None with several seeds.
    """

    figure: str
    panel: str
    series: str
    x: float
    seeds: Seeds
    epsilons: dict[str, Spread]
    interval: tuple[float, float] | None
    predicted: float | None
    upper_bound: float
    claim: Claim | None
