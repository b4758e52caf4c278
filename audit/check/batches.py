"""Are batches what the accountant assumes? Their sizes, how often examples come, and who comes together."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from audit.check import findings
from audit.check.findings import CheckFinding
from audit.check.report import CheckOutcome, CheckReport, concluded, one_line, refused
from audit.errors import InputError, require
from audit.statistics import accounting
from audit.values import number, shown

POISSON, FIXED, SHUFFLED = "poisson", "fixed", "shuffled"
_TITLES = {POISSON: "Poisson", FIXED: "fixed-size", SHUFFLED: "shuffled"}
_TOGETHER = ("every example", "within a pass", "across passes", "order")
_SIMULATED, _MOST_EXAMPLES, _MOST_NUMBERS = 300, 1500, 4e7
_PASSES, _LEAST_BATCHES, _MOST_BATCHES = 8, 320, 400
_BUCKETS = 400  # of the largest number of an epoch


class _Pass(NamedTuple):
    sizes: NDArray[np.int64]  # (batches,)
    joined: NDArray[np.bool_]  # (batches, examples looked at)


def shuffled_epsilon(noise_multiplier: float, batches: int, epochs: int, delta: float) -> float:
    """A lower bound on epsilon at delta where the examples are shuffled once an epoch and cut into `batches`.

    Chua et al. (2024, "How private are DP-SGD implementations?", Section 4): all others' gradients are -C and
    the example's is C, so that the batch with it is 2 C, or 1 C where it is zeroed out, above the rest; the
    adversary looks at the largest sum. Epochs compose, since each is shuffled afresh (Chua et al., 2024,
    arXiv 2411.04205); the largest sum is sorted into buckets and an optimistic grid keeps it a lower bound.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    sigma = noise_multiplier
    ends = np.linspace(-2 * sigma, 2 + sigma * (6 + np.sqrt(2 * np.log(batches))), _BUCKETS)

    def masses(shift: float) -> dict[int, float]:
        below = special.log_ndtr((ends - shift) / sigma) + (batches - 1) * special.log_ndtr(ends / sigma)
        cdf = np.concatenate([[0.0], np.exp(below), [1.0]])
        return {i: float(np.log(m)) for i, m in enumerate(np.diff(cdf)) if m > 0}

    inside, outside = masses(2.0), masses(1.0)
    common = inside.keys() & outside.keys()
    kept = [{i: world[i] for i in sorted(common)} for world in (outside, inside)]
    law = pld.from_two_probability_mass_functions(*kept, pessimistic_estimate=False)
    with np.errstate(over="ignore"):
        return float(max(0.0, law.self_compose(epochs).get_epsilon_for_delta(delta)))


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
    leaks = {} if noise_multiplier is None else _leaks(noise_multiplier, rate, epochs, delta)
    return _checked(draw, size, rate, assumed, leaks)


def _checked(
    draw: Callable[[int], Any], size: int, rate: float, assumed: str, leaks: Mapping[str, float]
) -> CheckReport:
    passes, doubled = _passes(draw, size)
    sizes = np.concatenate([one.sizes for one in passes])
    p_values = _of_sizes(sizes, size, rate, assumed) | _of_examples(passes, size, rate, assumed)
    kind = _kind(passes, size, rate, assumed)
    texts = {
        "indices": f"{len(sizes)} batches in {len(passes)} passes; none holds an example twice",
        "batch size": f"{sizes.mean():.4g} examples on average, {size * rate:.4g} expected",
        "spread of sizes": f"deviation {sizes.std():.3g}",
    }
    seen = {}
    for row in ("indices", "batch size", "spread of sizes", *_TOGETHER):
        own = {what: p for what, p in p_values.items() if findings.ODD_BATCHES[what].check == row}
        seen[row] = CheckOutcome(texts.get(row, "as expected"), bool(own), (), own)
    certain = [findings.DOUBLED.of(count=doubled)] if doubled else []
    figures = {"kind": kind, "batches": len(sizes)}
    seen["indices"] = seen["indices"]._replace(tried=True, findings=certain, figures=figures)
    if leaks:
        said = "Poisson accounting: epsilon {:.3f}; shuffled batches: at least {:.3f}".format(*leaks.values())
        seen["leak"] = CheckOutcome(said, figures=leaks)

    def named(certain: list[CheckFinding], rejected: set[str]) -> list[CheckFinding]:
        odd = {test.partition(": ")[2] for test in rejected}
        return certain + (_named(odd, kind, assumed, passes, size * rate) if odd else [])

    needed = ("indices", "batch size", "spread of sizes", "every example")
    return concluded("batches", seen, needed, named, sizes=sizes, expected=size * rate)


def _passes(draw: Callable[[int], Any], size: int) -> tuple[list[_Pass], int]:
    """Passes of boolean membership of some examples, and how many batches hold an example twice."""
    looked = np.unique(np.linspace(0, size - 1, min(size, _MOST_EXAMPLES)).astype(int))
    passes: list[_Pass] = []
    doubled = total = 0
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
        unique = [np.unique(batch) for batch in batches]
        doubled += sum(len(one) < len(batch) for one, batch in zip(unique, batches, strict=True))
        joined = np.array([np.isin(looked, one, assume_unique=True) for one in unique])
        passes.append(_Pass(np.array([len(batch) for batch in batches]), joined))
        total += len(batches)
    if all(len(one.sizes) == 1 for one in passes):  # batch by batch: whoever follows each other is a pass
        passes = [_Pass(*(np.concatenate(parts) for parts in zip(*passes, strict=True)))]
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


def _of_sizes(sizes: NDArray[np.int64], size: int, rate: float, kind: str) -> dict[str, float]:
    """p-values of batches' sizes under a kind of sampling: binomial ones, or 1 and 0."""
    if kind != POISSON:
        usual = round(size * rate)
        rest = size % max(usual, 1) if kind == SHUFFLED else usual
        fits = bool(np.all((sizes == usual) | (sizes == rest)))
        near = fits or abs(sizes.mean() - usual) < 0.01 * usual
        return {"batch size": float(near), "spread of sizes": float(fits)}
    edges = np.unique(stats.binom.ppf(np.arange(1, 8) / 8, size, rate))
    share = np.diff(np.concatenate([[0.0], stats.binom.cdf(edges, size, rate), [1.0]]))
    seen, expected = np.bincount(np.searchsorted(edges, sizes), minlength=len(share)), share * len(sizes)
    enough = len(share) > 1 and bool(np.all(expected >= 5))
    return {
        "batch size": _binomial(int(sizes.sum()), size * len(sizes), rate),
        "spread of sizes": float(stats.chisquare(seen, expected).pvalue) if enough else 1.0,
        "empty": _binomial(int(np.sum(sizes == 0)), len(sizes), float((1 - rate) ** size)),
    }


def _binomial(count: int, n: int, rate: float) -> float:
    """Two-sided p-value of a binomial count."""
    law = stats.binom(n, rate)
    return float(min(1.0, 2 * min(law.cdf(count), law.sf(count - 1))))


def _of_examples(passes: Sequence[_Pass], size: int, rate: float, kind: str) -> dict[str, float]:
    """p-values of who is in batches of these sizes, by figures whose law is simulated: in every batch, or
    shuffled in every pass, it may as well be any other example."""
    rng, given = np.random.default_rng(0), [one.joined for one in passes]
    other = rng.permutation if kind == SHUFFLED else rng.permuted
    times = int(np.clip(_MOST_NUMBERS / sum(one.size for one in given), 40, _SIMULATED))
    drawn = [_statistics([other(one, axis=1) for one in given], size, rate) for _ in range(times)]
    found = {}
    for name, value in _statistics(given, size, rate).items():
        law = np.array([one[name] for one in drawn])
        spread = max(float(law.std(ddof=1)) * (1 + 1 / times) ** 0.5, 1e-9 * max(abs(value), 1))
        found[name] = float(2 * stats.t.sf(abs(value - law.mean()) / spread, times - 1))
    return found


def _statistics(passes: Sequence[NDArray[np.bool_]], size: int, rate: float) -> dict[str, float]:
    """How evenly examples come, how they are together within a pass, in the next one, and with neighbours."""
    centred = [joined - rate for joined in passes]
    found = {"every example": float(np.cbrt(np.var(np.sum(np.concatenate(passes), axis=0))))}
    within = [c for c in _windows(centred, rate) if len(c) > 1]
    if within:
        found["within a pass"] = float(sum(np.sum(c.sum(axis=0) ** 2) - np.sum(c**2) for c in within))
    if len(passes) > 1:
        grams = [np.sum((a @ b.T) ** 2) for a, b in zip(centred, centred[1:], strict=False)]
        found["across passes"] = float(np.cbrt(sum(grams)))
    if passes[0].shape[1] == size:
        found["order"] = float(sum(np.sum(c[:, :-1] * c[:, 1:]) for c in centred))
    return found


def _windows(passes: Sequence[NDArray[Any]], rate: float) -> list[NDArray[Any]]:
    """Batches that are a pass, or one after the other as many as a pass has."""
    window = max(round(1 / rate), 1)
    if len(passes) > 1:
        return [one[:window] for one in passes]
    return [passes[0][i : i + window] for i in range(0, len(passes[0]), window)]


def _kind(passes: Sequence[_Pass], size: int, rate: float, assumed: str) -> str:
    """What the batches look like, empty where they look like nothing that is known."""
    sizes = np.concatenate([one.sizes for one in passes])
    windows = _windows([one.joined for one in passes], rate)
    even = len(passes) > 1 or np.ptp(sizes[:-1]) == 0
    if even and len(windows) > 1 and all(one.sum(axis=0).max() <= 1 for one in windows[:-1]):
        return SHUFFLED
    if np.ptp(sizes) == 0:
        return FIXED
    tests = _of_sizes(sizes, size, rate, POISSON) | _of_examples(passes, size, rate, POISSON)
    return "" if refused(tests) else POISSON


def _named(
    odd: set[str], kind: str, assumed: str, passes: Sequence[_Pass], expected: float
) -> list[CheckFinding]:
    """The findings that rejected tests amount to."""
    sizes, found = np.concatenate([one.sizes for one in passes]), []
    if "across passes" in odd and kind == SHUFFLED and _repeats(passes):
        found.append(findings.SAME_BATCHES)
    if "batch size" in odd and abs(sizes.mean() / expected - 1) > 0.005:
        found.append(findings.ANOTHER_RATE.of(mean=sizes.mean(), expected=expected))
    if kind and kind != assumed:
        unseen = min(int(np.sum(~np.any(one.joined, axis=0))) for one in passes)
        dropped = kind == SHUFFLED and np.ptp(sizes) == 0 and len(passes) > 1 and unseen > 0
        coin = "sample Poisson batches, a coin for every example, or " if assumed == POISSON else ""
        given = findings.ANOTHER_KIND.of(
            check="spread of sizes" if kind != POISSON else "every example",
            kind=_TITLES[kind],
            assumed=_TITLES[assumed],
            dropped="The last, smaller batch of a pass is dropped (drop_last)." if dropped else "",
            mend=coin,
        )
        found.append(given)
    if found and kind:
        return found
    return found + [findings.ODD_BATCHES[what].of(assumed=_TITLES[assumed]) for what in sorted(odd)]


def _repeats(passes: Sequence[_Pass]) -> bool:
    """Whether some batch of a pass comes again in the next one."""
    one, other = passes[0].joined.astype(float), passes[1].joined.astype(float)
    return bool(np.any((one @ other.T >= one.sum(axis=1)[:, None] - 0.5) & (one.sum(axis=1) >= 4)[:, None]))


def _leaks(noise_multiplier: Any, rate: float, epochs: Any, delta: Any) -> Mapping[str, float]:
    """What Poisson accounting claims, and what shuffled batches leak at least."""
    sigma, passes = number("noise_multiplier", noise_multiplier, float), number("epochs", epochs, int)
    level, steps = number("delta", delta, float), max(round(1 / rate), 1)
    require(0.05 <= sigma <= 1e4, f"`noise_multiplier={sigma:g}`: give 0.05 to 10,000")
    require(1 <= passes <= 10_000, f"`epochs={passes}`: give 1 to 10,000")
    claimed = accounting.participant_upper_bound(accounting.Composition(sigma, steps * passes, rate), level)
    least = shuffled_epsilon(sigma, steps, passes, level)
    return {"poisson epsilon": claimed, "shuffled epsilon at least": least}
