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
    QUARTER,
    DrawnNoise,
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
      grid: the grid on which the noise lies; None if it lies on none.
      depends_on_example: whether the seed changes how far examples move the step.
      least_size: the least size, over the stated one, of a step in which no example tried moves it by more
        than C; infinite where the step can be of no other size.
      is_clipping_seen: returns whether clipping is seen to stop examples at C. A function, since it takes
        many steps to tell, and is asked of wrong noise alone.
    """

    settings: StepSettings
    drawn: DrawnNoise
    grid: NoiseGrid | None
    depends_on_example: bool
    least_size: float
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
        has_noise = bool(np.any(drawn.given.values))  # whether any parameter differs between seeds
        repeats = count_repeats(drawn)
        result = list(certain)

        # Whether seeds or parameters share noise. If so, fewer numbers are independent than other tests
        # assume, so that their rejections need no finding. Seeds also repeat each other where the step has no
        # noise at all, which is no shared noise: `is_constant` tells constant noise from none.
        shares_numbers = False
        if repeats and (has_noise or drawn.is_constant()):
            of_seeds = f"of {counted(len(drawn.given.values), 'seed')}"
            finding = findings.REPEATED_NOISE.fill(
                which="several seeds" if has_noise else "every seed",
                repeats=counted(repeats, f"{of_seeds} gives", f"{of_seeds} give"),
            )
            result.append(finding)
            shares_numbers = True
        elif rejected["independence"]:
            # Tests between parameters; if only consecutive seeds are correlated, numbers are not shared.
            between_numbers = [what for what in rejected["independence"] if what != CONSECUTIVE]
            if between_numbers:
                result.append(findings.SHARED_NOISE.fill(tests="; ".join(between_numbers)))
                shares_numbers = True
            else:
                result.append(findings.RELATED_STEPS)

        # Parameters without noise, deviations other than stated, and noise that changes with the batch.
        result += _find_silent_numbers(drawn)
        # Tests reject a nearly right deviation where shared noise leaves them fewer independent numbers. They
        # also reject noise that is the same for every seed, whose measured deviation is 0.
        sharing_explains = shares_numbers and (not has_noise or 0.5 < drawn.compute_deviation() < 2)
        if rejected["noise"] and not sharing_explains:
            result += self._explain_wrong_layers(rejected["noise"])
        result += _explain_other_batches(drawn, {} if shares_numbers else rejected)

        # The shape: a grid on which the noise lies, or else that it is not normal, which a grid explains.
        if not shares_numbers:
            if self.grid and self.grid.tells_batches_apart:
                result.append(_describe_grid(self.grid))
            elif rejected["shape"]:
                result.append(findings.NOT_NORMAL)
        return result

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
        deviation = np.average(deviations**2, weights=freedom) ** 0.5
        are_equal = _are_equal(deviations, freedom)
        least = deviation if are_equal else min(deviations)
        varies_by_number = self.drawn.varies_by_number()
        # Whether what was drawn is noise of one law: random gradients would add to it, and an optimizer like
        # Adam would rescale it number by number.
        is_plain = not self.depends_on_example and not varies_by_number
        # The noise's size alone says nothing of sigma: it does only beside examples that stop at C.
        is_clipping_seen = self.is_clipping_seen()
        tells_sigma = is_plain and is_clipping_seen
        finding = findings.MORE_NOISE if tells_sigma and least > 1 else findings.WRONG_NOISE
        room = "" if where else "; where all else is right, the claim holds with room"
        remarks = self._list_remarks(varies_by_number)

        if not are_equal:
            figure = f"{least:.3g} to {max(deviations):.3g}"
            why = f"It differs by layer.{remarks}"
            return finding.fill(
                figure=figure, where=where, equivalent="", room=room, advice="", why=why
            )

        # 1%, and four standard errors of a measured deviation, each 1 / sqrt(2 freedom).
        error = 0.01 + 4 / (2 * sum(freedom)) ** 0.5
        fits = factors.explain_noise(deviation, self.settings, layers, min(error, _MOST_TOLERANCE))
        if not where and not varies_by_number and not is_clipping_seen:
            remarks += self._describe_another_size(error, layers)
        # The noise multiplier that gives such noise. It can be stated if all layers have this noise.
        multiplier = f"about {deviation * self.settings.noise_multiplier:.3g}"
        equivalent = f", as a noise multiplier of {multiplier} gives"
        advice = (
            "if learning rate, clipping norm and batch size are as stated, state the noise multiplier that "
            f"the step has, {multiplier}, or "
        )
        return finding.fill(
            figure=f"{deviation:.3g}",
            where=where,
            equivalent=equivalent if tells_sigma else "",
            room=room,
            advice="" if where else advice,
            why=f"{fits}{remarks}".strip(),
        )

    def _describe_another_size(self, error: float, layers: int) -> str:
        """Returns a sentence, after a blank, on the size of a step whose noise is right; empty if none fits.

        No size fits where an example moves the step by more than C of that size.

        Args:
          error: the relative error of the noise's measured deviation.
          layers: the number of trained layers.
        """
        # Random gradients add to the noise: only an empty batch shows noise alone. NaN if it was refused.
        batch = EMPTY if self.depends_on_example else ""
        size = float(f"{self.drawn.compute_deviation(batch):.3g}")  # as precise as it is measured
        is_another_size = size > 0 and abs(size - 1) > error
        if not is_another_size or self.least_size > size * (1 + error):
            return ""
        tolerance = min(error, _MOST_TOLERANCE)
        why = factors.explain_step_size(size, self.settings, layers, tolerance)
        return f" {findings.PERHAPS_ANOTHER_SIZE.format(factor=size, why=why)}"

    def _list_remarks(self, varies_by_number: bool) -> str:
        """Returns sentences on what else than wrong noise may be seen, each after a blank; empty if nothing.

        Args:
          varies_by_number: whether the noise's deviation differs between numbers of the same layer.
        """
        remarks = ""
        if self.depends_on_example:
            remarks += (
                " What an example does depends on the seed: is something done after the noise?"
            )
        if varies_by_number:
            remarks += f" {findings.BY_NUMBER}"
        return remarks


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
    """Returns the finding of noise on a grid that the sum of gradients is not on.

    Args:
      grid: a grid that tells batches apart: draws at another batch hardly ever agree with it, or no other
        batch could be drawn.
    """
    where = "values of few digits, as of float16, bfloat16 or float8"
    if grid.is_even:
        where = f"multiples of {grid.spacing:.3g} deviations"
    why = (
        "Is the sum rounded to that grid too? If not, one step tells whether an example took part."
    )
    if grid.shared is not None:  # the grid was compared with the draws at another batch
        why = "At another batch no draw falls on it: one step tells the two batches apart."
    agreements = counted(grid.agreements, "pair of seeds agrees", "pairs of seeds agree")
    return findings.GRID.fill(where=where, agreements=agreements, why=why)
