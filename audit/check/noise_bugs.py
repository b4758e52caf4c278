"""The bugs of a step's noise, by name: which of them explain the tests that were rejected."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.check import factors, findings
from audit.check.findings import CheckFinding
from audit.check.grids import NoiseGrid
from audit.check.noise import (
    ALL_LAYERS,
    CONSECUTIVE,
    EMPTY,
    FOURFOLD,
    LENGTH_OF,
    QUARTER,
    SUM_OF,
    DrawnNoise,
    StepNoise,
    row_of,
)
from audit.check.probe import StepSettings
from audit.check.trees import Vector
from audit.written import counted

_MOST_TOLERANCE = 0.05  # the largest relative difference up to which a factor fits the noise


class NoiseBugs(NamedTuple):
    """The facts from which the bugs of the noise are named.

    Attributes:
      settings: the caller's settings of the step.
      drawn: the noise.
      grid: the grid or range of the noise; None if it has none.
      max_size: the smallest size, over the stated one, of a step in which no example tried exceeds C;
        infinite if the step can be of no other size.
      is_clipping_seen: returns whether clipping is seen to stop examples at C. A function, since it takes
        many steps to tell, and only wrong noise asks.
    """

    settings: StepSettings
    drawn: DrawnNoise
    grid: NoiseGrid | None
    max_size: float
    is_clipping_seen: Callable[[], bool]

    def name(
        self, certain: list[CheckFinding], rejected: dict[str, list[str]]
    ) -> list[CheckFinding]:
        """Returns the findings that are certain, and those that explain the rejected tests of the noise.

        A finding is a bug in words. A test rejects that the noise is as it should be.

        Args:
          certain: the findings that need no test.
          rejected: by row of the report, the names of its rejected tests; every row of the noise is there.
        """
        drawn = self.drawn
        given = drawn.given
        has_noise = bool(np.any(given.values))  # whether any parameter differs between seeds
        result = list(certain)
        repeats = count_repeats(drawn)

        # Whether seeds or parameters share noise. If so, fewer numbers are independent than other tests
        # assume, and their rejections need no finding. Seeds also repeat each other if the step has no noise
        # at all: `is_constant` tells constant noise from none.
        shares_numbers = bool(repeats) and (has_noise or drawn.is_constant())
        between_numbers = [what for what in rejected["independence"] if what != CONSECUTIVE]
        cancelled = self._list_cancelling(between_numbers)
        if shares_numbers and has_noise and _is_missing_in_some_steps(given):
            result.append(findings.MISSING_NOISE.fill(repeats=repeats + 1, seeds=len(given.values)))
        elif shares_numbers:
            of_seeds = f"of {counted(len(given.values), 'seed')}"
            finding = findings.REPEATED_NOISE.fill(
                which="several seeds" if has_noise else "every seed",
                repeats=counted(repeats, f"{of_seeds} gives", f"{of_seeds} give"),
            )
            result.append(finding)
        elif cancelled and len(cancelled) == len(between_numbers):
            result.append(findings.CANCELLING_NOISE.fill(where=", ".join(cancelled[:4])))
            shares_numbers = True
        elif between_numbers:
            result.append(findings.SHARED_NOISE.fill(tests="; ".join(between_numbers)))
            shares_numbers = True
        elif rejected["independence"]:
            result.append(findings.RELATED_STEPS)

        # Parameters without noise, deviations other than stated, and noise that changes with the batch.
        # Tests also reject a nearly right deviation if shared noise leaves them fewer independent numbers,
        # and noise that is the same for every seed, whose measured deviation is 0.
        result += _find_silent_numbers(drawn)
        sharing_explains = shares_numbers and (not has_noise or 0.5 < drawn.compute_deviation() < 2)
        if rejected["noise"] and not sharing_explains:
            result += self._explain_wrong_layers(rejected["noise"])
        result += _explain_other_batches(drawn, {} if shares_numbers else rejected)
        if not shares_numbers:
            result += self._explain_shape(rejected["shape"])
        return result

    def _list_cancelling(self, tests: list[str]) -> list[str]:
        """Returns the layers among the rejected tests whose noise nearly cancels in the layer's sum."""
        pairs = self.drawn.given.pairs
        layers = []
        for i, name in enumerate(self.drawn.layer_names):
            if f"{SUM_OF} {name}" in tests:
                share = np.sum(pairs.projections[:, 0, i]) / np.sum(pairs.squares[:, i])
                if share * pairs.counts[i] < 1:
                    layers.append(name)
        return layers

    def _explain_shape(self, rejected: list[str]) -> list[CheckFinding]:
        """Returns the findings of noise that is on a grid, clamped, of odd lengths, or not normal.

        Args:
          rejected: the rejected tests of the shape.
        """
        grid = self.grid
        if grid and not grid.is_shared:
            return [_describe_grid(grid)]
        lengths = [name for name in self.drawn.layer_names if f"{LENGTH_OF} {name}" in rejected]
        if lengths and len(lengths) == len(rejected):
            pairs = self.drawn.given.pairs
            layer = self.drawn.layer_names.index(lengths[0])
            roots = np.cbrt(pairs.squares[:, layer] / np.mean(pairs.squares[:, layer]))
            is_fixed = np.var(roots) < 2 / (9 * pairs.counts[layer])
            finding = findings.FIXED_LENGTH if is_fixed else findings.CHANGING_LENGTH
            return [finding.fill(where=", ".join(lengths[:4]))]
        return [findings.NOT_NORMAL] if rejected else []

    def _explain_wrong_layers(self, wrong: list[str]) -> list[CheckFinding]:
        """Returns the findings of layers whose noise has another deviation than stated, or none at all.

        Args:
          wrong: the names of these layers; ALL_LAYERS among them for the test of all layers together.
        """
        drawn = self.drawn
        given = drawn.given
        trained = np.flatnonzero(given.freedom).tolist()  # indices of layers
        index = {name: i for i, name in enumerate(drawn.layer_names)}
        indices = [index[name] for name in wrong if name in index]
        # All trained layers are wrong together if only the test of all together rejects, or if it rejects and
        # all have the same deviation.
        if not indices or (ALL_LAYERS in wrong and _have_one_deviation(drawn, trained)):
            indices = trained

        # Layers without any noise get another finding than those with noise of a wrong deviation.
        silent: list[int] = []
        noisy: list[int] = []
        for i in indices:
            is_silent = given.silent[i] == drawn.layer_sizes[i]  # every parameter of it is
            if is_silent:
                silent.append(i)
            else:
                noisy.append(i)

        result = []
        if silent:
            where = "anywhere"
            if len(silent) < len(trained):
                where = f"in {drawn.list_names(silent)}"
            finding = findings.SILENT.fill(
                where=where,
                count=_count_silent(len(silent), counted(len(trained), "trained layer")),
            )
            result.append(finding)
        if noisy:
            where = ""
            if len(noisy) < len(trained):
                where = f" in {drawn.list_names(noisy)}"
            result.append(self._explain_deviations(noisy, where, len(trained)))
        return result

    def _explain_deviations(self, indices: list[int], where: str, layers: int) -> CheckFinding:
        """Returns the finding of wrong deviations, with the mistakes that explain them if they are equal.

        Args:
          indices: the indices of the layers whose deviation is wrong.
          where: these layers in words, for the finding; empty for all.
          layers: the number of trained layers.
        """
        given = self.drawn.given
        deviations = given.deviations[indices]
        freedom = given.freedom[indices]
        varies_by_number = self.drawn.varies_by_number()
        remark = f" {findings.BY_NUMBER}" if varies_by_number else ""
        if not _are_equal(deviations, freedom):
            figure = f"{min(deviations):.3g} to {max(deviations):.3g}"
            why = f"It differs by layer.{remark}"
            return findings.WRONG_NOISE.fill(
                figure=figure, where=where, equivalent="", advice="", why=why
            )

        # 1%, and four standard errors of a measured deviation, each 1 / sqrt(2 freedom).
        deviation = float(np.average(deviations**2, weights=freedom) ** 0.5)
        error = 0.01 + 4 / (2 * sum(freedom)) ** 0.5
        tolerance = min(error, _MOST_TOLERANCE)
        fits = factors.explain_noise(deviation, self.settings, layers, tolerance)
        equivalent = ""
        advice = ""
        is_plain = not where and not varies_by_number
        if is_plain and self.is_clipping_seen():
            multiplier = f"about {deviation * self.settings.noise_multiplier:.3g}"
            equivalent = f", as a noise multiplier of {multiplier} gives"
            if deviation > 1:
                equivalent += ": more noise than stated, by which no privacy is lost"
                advice = f"state the noise multiplier that the step has, {multiplier}, or "
        elif is_plain and deviation > 0 and self.max_size <= deviation * (1 + error):
            size = float(f"{deviation:.3g}")  # as precise as it is measured
            why = factors.explain_step_size(size, self.settings, layers, tolerance)
            remark += f" {findings.PERHAPS_ANOTHER_SIZE.format(factor=size, why=why)}"
        return findings.WRONG_NOISE.fill(
            figure=f"{deviation:.3g}",
            where=where,
            equivalent=equivalent,
            advice=advice,
            why=f"{fits}{remark}".strip(),
        )


def _count_silent(silent: int, of_all: str) -> str:
    """Returns how many are silent, of all of their kind in words, and a verb: "1 of 2 trained layers is"."""
    return counted(silent, f"of {of_all} is", f"of {of_all} are")


def _have_one_deviation(drawn: DrawnNoise, layers: list[int]) -> bool:
    """Returns whether the noise of these layers may have one common deviation."""
    return _are_equal(drawn.given.deviations[layers], drawn.given.freedom[layers])


def _are_equal(deviations: Vector, freedom: NDArray[np.float64]) -> bool:
    """Returns whether layers' measured deviations may come from equal ones.

    They may if the largest exceeds the smallest by at most 10%, or by eight standard errors, whichever is
    more. That allows the largest and the smallest four standard errors each, of a relative size
    1 / sqrt(2 freedom), by the layer with the fewest degrees of freedom.

    Args:
      deviations: (layers,) the measured deviations.
      freedom: (layers,) their degrees of freedom.
    """
    least = min(deviations)
    most = max(deviations)
    return bool(most <= least * max(1.1, 1 + 8 / (2 * min(freedom)) ** 0.5))


def count_repeats(drawn: DrawnNoise) -> int:
    """Returns how many seeds repeat the noise of another seed exactly; 0 where that can be chance.

    Only parameters without visible rounding are compared. If any parameter has noise, those without are left
    out.
    """
    given = drawn.given
    varies = given.values.std(axis=0) > 0
    is_telling = given.exact & varies if np.any(varies) else given.exact
    # So many parameters do not all repeat by chance. A type of 16 bits holds few different values and needs
    # more of them. Its tolerance, four spacings, is 0.0039 or more; that of float32 is 5e-7.
    is_coarse = np.max(given.tolerance) > 1e-6
    least = 16 if is_coarse else 4
    if np.sum(is_telling) < least:
        return 0
    distinct = {draw.tobytes() for draw in given.values[:, is_telling]}
    return len(given.values) - len(distinct)


def _find_silent_numbers(drawn: DrawnNoise) -> list[CheckFinding]:
    """Returns a finding for each layer in which some parameters have noise and others have none."""
    given = drawn.given
    result = []
    is_partial = (given.silent > 0) & (given.silent < drawn.layer_sizes)
    # A layer that is not trained may look partial too: parameters whose rounding is too coarse to show noise
    # do not count as silent. It has no degrees of freedom, nor has a layer whose noise is all hidden.
    is_judged = given.freedom > 0
    for i in np.flatnonzero(is_partial & is_judged):
        name = drawn.layer_names[i]
        finding = findings.SILENT.fill(
            where=f"in a part of {name}",
            count=_count_silent(given.silent[i], f"{drawn.layer_sizes[i]:,} numbers of {name}"),
        )
        result.append(finding)
    return result


def _explain_other_batches(
    drawn: DrawnNoise, rejected: Mapping[str, list[str]]
) -> list[CheckFinding]:
    """Returns the findings of noise that changes with the batch.

    Args:
      drawn: the noise at the batch as given and at others.
      rejected: by row of the report, the batches whose test was rejected.
    """
    deviation = drawn.compute_deviation()
    result = []
    changes: dict[str, list[str]] = {}
    for batch, noise in drawn.list_accepted().items():
        row = row_of(batch)
        if noise.not_finite:
            result.append(findings.NOT_FINITE.fill(check=row, where=batch))
            continue
        if batch not in rejected.get(row, []):
            continue
        ratio = drawn.compute_deviation(batch) / deviation
        if batch == EMPTY and not np.any(noise.values):
            result.append(findings.SKIPPED)
            continue
        # Noise that is divided by the actual number of examples is 4 times as large at a quarter of them, and
        # a quarter as large at four times as many. Few draws measure the ratio, so that 15% are allowed.
        ratio_of_actual_size = {QUARTER: 4.0, FOURFOLD: 0.25}.get(batch, np.inf)  # inf fits none
        if abs(ratio / ratio_of_actual_size - 1) < 0.15:
            figure = f"noise {ratio:.3g} times as large at {batch}"
            result.append(findings.ACTUAL_SIZE.fill(check=row, figure=figure))
            continue
        changes.setdefault(row, []).append(f"{ratio:.3g} times as large at {batch}")
    for row, ratios in changes.items():
        finding = findings.NOISE_DEPENDS_ON_BATCH.fill(check=row, ratios=", ".join(ratios))
        result.append(finding)
    return result


def _describe_grid(grid: NoiseGrid) -> CheckFinding:
    """Returns the finding of noise on a grid, or within a range, that the sum of gradients is not in."""
    why = ""
    if grid.is_shared is not None:
        why = "At another batch no draw falls on it: one step tells the two batches apart."
    agreements = counted(grid.agreements, "pair of seeds agrees", "pairs of seeds agree")
    finding = findings.CLAMPED if grid.is_clamped else findings.GRID
    return finding.fill(agreements=agreements, why=why)


def _is_missing_in_some_steps(given: StepNoise) -> bool:
    """Returns whether the seeds that repeat each other lack noise: they are near the mean of all seeds."""
    draws, counts = np.unique(given.values[:, given.exact], axis=0, return_counts=True)
    if np.count_nonzero(counts > 1) != 1:
        return False
    lengths = np.linalg.norm(draws, axis=1)
    return bool(lengths[np.argmax(counts)] < 0.5 * np.median(np.delete(lengths, np.argmax(counts))))
