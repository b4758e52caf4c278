"""What a page says of an audit of a single run, or of runs that are each concluded alone."""

from collections.abc import Sequence

import numpy as np

from audit.conclusions import verdicts
from audit.conclusions.conclusion import Conclusion
from audit.methods.level import show_level
from audit.report.federated_table import collect_over_runs
from audit.report.page import PageTable
from audit.report.subjects import Subject


def make_bounds_table(subject: Subject) -> PageTable:
    """Returns a page's table of a single run's lower bounds, followed by the mechanism's epsilons.

    A bound's row holds epsilon, mu if the bound has one, what was counted for it, and what it assumes. A row
    of the mechanism holds epsilon and what that rests on.
    """
    conclusion = subject.conclusion
    rows = []
    for bound in conclusion.bounds:
        epsilon = verdicts.show_lower_bound(bound.epsilon)
        mu = "" if bound.mu is None else verdicts.show_lower_bound(bound.mu)
        rows.append((bound.method, epsilon, mu, bound.counted, bound.assumes.sentence))
    for upper in subject.uppers:
        # Only a bound gets an inequality sign.
        show = verdicts.show_upper_bound if upper.is_bound else verdicts.at_most
        rows.append((upper.name, show(upper.epsilon), "", "", upper.reason))
    header = ("bound", "epsilon", "mu", "counts", "assumes")
    return PageTable(verdicts.describe_level(conclusion), header, rows)


def make_estimates_table(conclusion: Conclusion) -> PageTable:
    """Returns a page's table of a single run's estimates, and of the values they have where nothing leaks."""
    header = (
        "estimate",
        "epsilon",
        "standard error",
        "mean without a leak",
        "95% without a leak",
        "caveat",
    )
    delta = show_level(conclusion.delta)
    caption = f"Estimates of epsilon at delta = {delta}; a leak shows where they exceed the 95%"
    rows = []
    for row in conclusion.estimates:
        floor = row.noise_floor
        numbers = (row.epsilon, row.standard_error, floor.mean, floor.quantile_95)
        cells = [f"{value:.3f}" for value in numbers]
        caveat = row.caveat
        if row.epsilon <= floor.quantile_95:
            caveat += "; within its floor"
        rows.append((row.method, *cells, caveat))
    return PageTable(caption, header, rows)


def make_runs_table(runs: Sequence[Conclusion]) -> PageTable:
    """Returns a page's table of each method's mean epsilon and standard deviation over runs."""
    rows = []
    for row in collect_over_runs(runs):
        kind = "estimate" if row.floor else "bound"  # only estimates have a floor
        deviation = f"{np.std(row.epsilons):.3f}"
        rows.append((row.method, row.show_mean(), deviation, kind))
    caption = f"{len(runs):,} runs, each with bounds of its own"
    return PageTable(caption, ("method", "mean epsilon", "deviation", "each is a"), rows)


def describe_cosines(conclusion: Conclusion) -> str:
    """Returns the caption of the panel of a single run's cosines."""
    return "Cosines of the canaries with what was released. A leak moves the observed ones to the right."


def describe_epsilons(conclusion: Conclusion) -> str:
    """Returns the caption of the panel of epsilon by method."""
    if not conclusion.estimates:
        return "Lower bounds on epsilon."
    return (
        "Estimates (circles, with two standard errors) over the range that they show in 95% of audits "
        "where nothing leaks (grey), and lower bounds (bars)."
    )
