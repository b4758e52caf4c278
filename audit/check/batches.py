"""Are batches what the accountant assumes? Their sizes, how often examples come, and who comes together."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.check import findings
from audit.check.accounting import POISSON, SHUFFLED, noise_of, shuffled_epsilon
from audit.check.findings import CheckFinding
from audit.check.noise import fits, two_sided
from audit.check.report import CheckOutcome, CheckReport, concluded, one_line, refused
from audit.errors import InputError, require
from audit.statistics import accounting
from audit.values import number, shown

FIXED = "fixed"
_TITLES = {POISSON: "Poisson", FIXED: "fixed-size", SHUFFLED: "shuffled"}
_PASSES, _LEAST_BATCHES, _MOST_BATCHES, _MOST_EXAMPLES = 8, 320, 400, 1500
_ODD = {  # by row, what batches that fail its test have
    "batch size": findings.ANOTHER_RATE.name,
    "spread of sizes": "sizes that vary otherwise",
    "empty batches": "no empty batch, or too many",
    "every example": "examples that come unequally often",
    "order": "neighbours come together",
}
Pass = tuple[NDArray[np.int64], NDArray[np.bool_]]  # (batches,) sizes, (batches, some examples) membership


def check_batches(
    draw: Callable[[int], Any],
    examples: int,
    sampling_rate: float,
    *,
    assumed: str = POISSON,
    noise_multiplier: float | None = None,
    epochs: int = 1,
    delta: float = 1e-5,
) -> CheckReport:
    """Whether a loader's batches are those that the accountant assumes.

    Args:
      draw: seed -> the batches of one pass over the loader, each the indices, from 0, of its examples;
        or one batch. Passes are drawn with seeds 0, 1, ...: ignore the seed where yours follow each other.
      examples: how many the data set has.
      sampling_rate: with which the accountant lets each batch take each example.
      assumed: "poisson", "fixed" (so many of all, without replacement) or "shuffled" (a permutation a pass).
      noise_multiplier, epochs, delta: with these, what shuffled batches leak at least beside what Poisson
        accounting claims.

    Raises InputError for what draws no batches, and for bad numbers.

    >>> import numpy as np
    >>> def poisson(seed):
    ...     rng = np.random.default_rng(seed)
    ...     return [np.flatnonzero(rng.random(500) < 0.05) for _ in range(20)]
    >>> audit.check_batches(poisson, 500, 0.05).passed
    True
    >>> def shuffled(seed):
    ...     return np.random.default_rng(seed).permutation(500).reshape(20, 25)
    >>> audit.check_batches(shuffled, 500, 0.05).verdict
    'FAILED: shuffled batches, not Poisson'
    """
    require(callable(draw), f"`draw={shown(draw)}` is no function: give seed -> batches of indices")
    size, rate = number("examples", examples, int), number("sampling_rate", sampling_rate, float)
    require(2 <= size <= 10**9, f"`examples={size}`: give 2 to 1,000,000,000")
    require(0 < rate < 1, f"`sampling_rate={rate:g}`: give a number between 0 and 1")
    known = isinstance(assumed, str) and assumed in _TITLES
    require(known, f"`assumed={shown(assumed)}`: give poisson, fixed or shuffled")
    leak = {} if noise_multiplier is None else {"leak": _leak(noise_multiplier, rate, epochs, delta)}
    return _checked(*_passes(draw, size), size, rate, assumed, leak)


def _checked(
    passes: list[Pass], doubled: int, size: int, rate: float, assumed: str, leak: dict[str, CheckOutcome]
) -> CheckReport:
    sizes, tests = np.concatenate([one for one, _ in passes]), _tests(passes, size, rate)
    kind = _kind(passes, rate) or (POISSON if not refused(tests) else "")
    if assumed != POISSON:
        usual = round(size * rate)
        fits = np.all((sizes == usual) | (sizes == (usual if assumed == FIXED else size % max(usual, 1))))
        near = fits or abs(sizes.mean() - usual) < 0.01 * usual
        tests |= {"batch size": float(near), "spread of sizes": float(fits), "empty batches": 1.0}
        tests |= {"every example": float(kind == SHUFFLED)} if assumed == SHUFFLED else {}
    certain = [findings.DOUBLED.of(count=doubled)] if doubled else []
    again = kind == SHUFFLED and len(passes) > 1 and _again(passes[0][1], passes[1][1])
    certain += [findings.SAME_BATCHES] if again else []
    said = f"{len(sizes)} batches in {len(passes)} passes; none holds an example twice"
    seen = {"indices": CheckOutcome(said, True, certain, {}, {"kind": kind, "batches": len(sizes)})}
    text = dict.fromkeys(_ODD, "as expected") | {"spread of sizes": f"deviation {sizes.std():.3g}"}
    text["batch size"] = f"{sizes.mean():.4g} examples on average, {size * rate:.4g} expected"
    seen |= {row: CheckOutcome(text[row], p_values={assumed: p}) for row, p in tests.items()}

    def named(certain: list[CheckFinding], rejected: dict[str, list[str]]) -> list[CheckFinding]:
        odd, found = [row for row in _ODD if rejected[row]], list(certain)
        if "batch size" in odd and abs(sizes.mean() / (size * rate) - 1) > 0.005:
            found.append(findings.ANOTHER_RATE.of(mean=sizes.mean(), expected=size * rate))
        if odd and kind and kind != assumed:
            unseen = min(int(np.sum(~np.any(joined, axis=0))) for _, joined in passes)
            dropped = kind == SHUFFLED and np.ptp(sizes) == 0 and len(passes) > 1 and unseen > 0
            last = "The last, smaller batch of a pass is dropped (drop_last)." if dropped else ""
            mend = "sample Poisson batches, a coin for every example, or " if assumed == POISSON else ""
            what = {"kind": _TITLES[kind], "assumed": _TITLES[assumed], "dropped": last, "mend": mend}
            found.append(findings.ANOTHER_KIND.of(**what))
        others = [] if found and kind else odd
        what = {"assumed": _TITLES[assumed]}
        return found + [findings.ODD_BATCHES.of(check=row, name=_ODD[row], **what) for row in others]

    needed = ("indices", "batch size", "spread of sizes", "every example")
    return concluded("batches", seen | leak, needed, named, sizes=sizes, expected=size * rate)


def _passes(draw: Callable[[int], Any], size: int) -> tuple[list[Pass], int]:
    """Passes of batches, and how many batches hold an example twice; looked at are some neighbours."""
    first = 2 * np.unique(np.linspace(0, size // 2 - 1, min(size, _MOST_EXAMPLES) // 2).astype(int))
    looked, doubled, total = np.column_stack([first, first + 1]).ravel(), 0, 0
    passes: list[Pass] = []
    while (len(passes) < _PASSES or total < _LEAST_BATCHES) and (total < _MOST_BATCHES or len(passes) < 2):
        try:
            batches = _batches(draw(len(passes)))
        except InputError:
            raise
        except Exception as error:  # of the caller's code
            raise InputError(f"`draw` failed with seed {len(passes)}: {one_line(error)}") from error
        require(batches, f"`draw` gave no batch with seed {len(passes)}: return batches of indices")
        known = np.concatenate(batches)
        inside = not known.size or (known.min() >= 0 and known.max() < size)
        require(inside, f"`draw` gave indices outside the data set: give 0 to {size - 1}")
        doubled += sum(len(np.unique(batch)) < len(batch) for batch in batches)
        sizes, joined = [len(batch) for batch in batches], [np.isin(looked, batch) for batch in batches]
        passes.append((np.array(sizes), np.array(joined)))
        total += len(batches)
    if all(len(sizes) == 1 for sizes, _ in passes):  # batch by batch: whoever follows each other is a pass
        passes = [(np.concatenate([one for one, _ in passes]), np.concatenate([one for _, one in passes]))]
    return passes, doubled


def _batches(given: Any) -> list[NDArray[np.int64]]:
    """The batches of a pass, or the one that it is."""
    require(isinstance(given, Iterable), f"`draw` gave {shown(given)}: return batches of indices")
    parts = []
    for part in given:
        parts.append(np.asarray(part.detach().cpu() if hasattr(part, "detach") else part))
        if len(parts) >= _MOST_BATCHES and parts[0].ndim:
            break
    if parts and all(part.ndim == 0 for part in parts):
        parts = [np.array(parts)]
    elif not parts and hasattr(given, "dtype"):
        parts = [np.zeros(0, int)]
    whole = all(part.ndim == 1 and (part.dtype.kind in "iu" or not part.size) for part in parts)
    require(whole, "`draw` gave no indices: return batches, each whole numbers from 0")
    return [part.astype(np.int64) for part in parts]


def _tests(passes: list[Pass], size: int, rate: float) -> dict[str, float]:
    """p-values of Poisson batches: of their sizes, how often each example comes, and neighbours together."""
    sizes, joined = (np.concatenate(parts) for parts in zip(*passes, strict=True))
    actual = float(np.clip(sizes.mean() / size, 1e-12, 1 - 1e-12))
    empty = int(np.sum(sizes == 0))
    return {
        "batch size": float(stats.binomtest(int(sizes.sum()), size * len(sizes), rate).pvalue),
        "spread of sizes": fits(sizes, stats.binom(size, actual)),
        "empty batches": float(stats.binomtest(empty, len(sizes), (1 - rate) ** size).pvalue),
        "every example": 1.0 if size < 10 else _spread(joined.sum(axis=0), stats.binom(len(sizes), actual)),
        "order": _spread((joined[:, ::2].astype(int) + joined[:, 1::2]).ravel(), stats.binom(2, actual)),
    }


def _spread(values: NDArray[np.int64], law: Any) -> float:
    """p-value of the spread of numbers of a law around its mean, chi-square with its kurtosis."""
    mean, variance, excess = law.stats("mvk")
    freedom = 2 * (len(values) - 1) / (2 + excess)
    found = np.sum((values - mean) ** 2) / (len(values) - 1) / variance
    return float(two_sided(stats.chi2(freedom), found * freedom))


def _kind(passes: list[Pass], rate: float) -> str:
    """Shuffled where no example comes twice in a pass, or in as many batches as a pass has; fixed where all
    sizes are one."""
    sizes, window = np.concatenate([one for one, _ in passes]), max(round(1 / rate), 1)
    joined = [one[:window] for _, one in passes]
    if len(passes) == 1:
        joined = np.split(passes[0][1], range(window, len(sizes), window))
    even = len(passes) > 1 or np.ptp(sizes[:-1]) == 0
    if even and len(joined) > 1 and all(one.sum(axis=0).max() <= 1 for one in joined[:-1]):
        return SHUFFLED
    return FIXED if np.ptp(sizes) == 0 else ""


def _again(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> bool:
    """Whether all batches of a pass come again in the next one."""
    members = one.sum(axis=1)
    return bool(members.max() > 1 and np.all(np.max(one.astype(int) @ other.T, axis=1) == members))


def _leak(noise_multiplier: Any, rate: float, epochs: Any, delta: Any) -> CheckOutcome:
    """What Poisson accounting claims, and what shuffled batches leak at least."""
    sigma, passes = noise_of(noise_multiplier), number("epochs", epochs, int)
    level, steps = number("delta", delta, float), max(round(1 / rate), 1)
    require(1 <= passes <= 10_000, f"`epochs={passes}`: give 1 to 10,000")
    claimed = accounting.participant_upper_bound(accounting.Composition(sigma, steps * passes, rate), level)
    least = shuffled_epsilon(sigma, steps, passes, level)
    said = f"Poisson accounting: epsilon {claimed:.3f}; shuffled batches: at least {least:.3f}"
    return CheckOutcome(said, figures={"poisson epsilon": claimed, "shuffled epsilon at least": least})
