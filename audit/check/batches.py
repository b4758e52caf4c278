"""Are batches what the accountant assumes? Their sizes, how often examples come, and who comes together."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from audit.check.report import FAILED, Check, CheckFinding, CheckReport, one_line, refused, row
from audit.errors import InputError, require
from audit.statistics import accounting
from audit.values import number, shown

POISSON, FIXED, SHUFFLED = "poisson", "fixed", "shuffled"
_SIMULATED, _MOST_EXAMPLES, _MOST_NUMBERS = 300, 1500, 4e7
_PASSES, _LEAST_BATCHES, _MOST_BATCHES = 8, 320, 400
_OTHERWISE = "otherwise than assumed"
_BUCKETS = 400  # of the largest number of an epoch
ROWS = (
    "indices",
    "batch size",
    "spread of sizes",
    "every example",
    "within a pass",
    "across passes",
    "order",
)


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
    known = isinstance(assumed, str) and assumed in (POISSON, FIXED, SHUFFLED)
    require(known, f"`assumed={shown(assumed)}`: give poisson, fixed or shuffled")
    leaks = {} if noise_multiplier is None else _leaks(noise_multiplier, rate, epochs, delta)
    passes, doubled = _passes(draw, size, rate)
    p_values = _against(passes, size, rate, assumed)
    rejected = refused(p_values)
    kind = _kind(passes, size, rate, assumed) if rejected else assumed
    found = [*_doubled(doubled), *_named(rejected, kind, assumed, passes, size * rate)]
    sizes = np.concatenate([one.sizes for one in passes])
    said = _said(sizes, len(passes), size * rate, p_values, leaks)
    rows = [row(name, found, *said[name]) for name in said]
    checks = tuple(c._replace(result=FAILED, seen=_OTHERWISE) if _failed(c, rejected) else c for c in rows)
    figures = {"kind": kind, "batches": len(sizes), **leaks}
    drawn = {"sizes": sizes, "expected": size * rate}
    return CheckReport("batches", checks, tuple(found), ROWS[:4], p_values, figures, drawn)


def _failed(check: Check, rejected: set[str]) -> bool:
    """Whether a row's own test rejects, and a finding of another row says why."""
    return check.name in rejected and check.result != FAILED


def _said(
    sizes: NDArray[np.int64],
    passes: int,
    expected: float,
    p_values: Mapping[str, float],
    leaks: Mapping[str, float],
) -> dict[str, tuple[str, bool]]:
    """What the rows say where nothing is found, and whether they could be tried."""
    said = {
        "indices": (f"{len(sizes)} batches in {passes} passes; none holds an example twice", True),
        "batch size": (f"{sizes.mean():.4g} examples on average, {expected:.4g} expected", True),
        "spread of sizes": (f"deviation {sizes.std():.3g}", True),
        **{name: ("as expected", name in p_values) for name in ROWS[3:]},
    }
    if leaks:
        one, other = leaks["poisson epsilon"], leaks["shuffled epsilon at least"]
        said["leak"] = (
            f"Poisson accounting: epsilon {one:.3f}; shuffled batches: at least {other:.3f}",
            True,
        )
    return said


def _passes(draw: Callable[[int], Any], size: int, rate: float) -> tuple[list[_Pass], int]:
    """Passes of boolean membership of some examples, and how many batches hold an example twice."""
    looked = np.unique(np.linspace(0, size - 1, min(size, _MOST_EXAMPLES)).astype(int))
    passes: list[_Pass] = []
    doubled, total = 0, 0
    while len(passes) < _PASSES or total < _LEAST_BATCHES:
        try:
            batches = _batches(draw(len(passes)))
        except InputError:
            raise
        except Exception as error:  # of the caller's code
            raise InputError(f"`draw` failed with seed {len(passes)}: {one_line(error)}") from error
        require(batches, f"`draw` gave no batch with seed {len(passes)}: return batches of indices")
        member = np.zeros((len(batches), looked.size), bool)
        for i, batch in enumerate(batches):
            inside = batch.size == 0 or (batch.min() >= 0 and batch.max() < size)
            require(
                inside, f"`draw` gave indices from {batch.min() if batch.size else 0}: give 0 to {size - 1}"
            )
            unique = np.unique(batch)
            doubled += len(unique) < len(batch)
            member[i] = np.isin(looked, unique, assume_unique=True)
        passes.append(_Pass(np.array([len(batch) for batch in batches]), member))
        total += len(batches)
        if total >= _MOST_BATCHES and len(passes) > 1:
            break
    if all(len(one.sizes) == 1 for one in passes):  # batch by batch: whoever follows each other is a pass
        whole = _Pass(np.concatenate([p.sizes for p in passes]), np.concatenate([p.joined for p in passes]))
        passes = [whole]
    return passes, doubled


def _batches(given: Any) -> list[NDArray[np.int64]]:
    """The batches of a pass, or the one that it is."""
    if hasattr(given, "detach"):
        given = given.detach().cpu().numpy()
    require(isinstance(given, Iterable), f"`draw` gave {shown(given)}: return batches of indices")
    parts = []
    for part in given:
        parts.append(np.asarray(part.detach().cpu() if hasattr(part, "detach") else part))
        if len(parts) >= _MOST_BATCHES and parts[0].ndim:
            break
    if parts and all(part.ndim == 0 for part in parts):
        parts = [np.array(parts)]
    elif not parts:
        parts = [np.zeros(0, int)] if isinstance(given, np.ndarray) else []
    whole = all(part.ndim == 1 and (part.dtype.kind in "iu" or not part.size) for part in parts)
    require(whole, "`draw` gave no indices: return batches, each whole numbers from 0")
    return [part.astype(np.int64) for part in parts]


def _statistics(passes: Sequence[_Pass], rate: float, size: int) -> dict[str, float]:
    """Figures whose law under an assumption is simulated."""
    sizes = np.concatenate([one.sizes for one in passes]).astype(float)
    counts = np.sum([one.joined.sum(axis=0) for one in passes], axis=0)
    total = len(sizes)
    found = {
        "batch size": float(sizes.mean()),
        "spread of sizes": float(np.cbrt(np.mean((sizes - size * rate) ** 2))),
        "every example": float(np.cbrt(np.var(counts))),
        "empty": float(np.sum(sizes == 0)),
    }
    window = round(1 / rate)
    centred = [one.joined - rate for one in passes]
    within = (
        [c[:window] for c in centred] if len(passes) > 1 else np.array_split(centred[0], -(-total // window))
    )
    if any(len(c) > 1 for c in within):
        found["within a pass"] = float(sum(np.sum(c.sum(axis=0) ** 2) - np.sum(c**2) for c in within))
    if len(passes) > 1:
        grams = [np.sum((a @ b.T) ** 2) for a, b in zip(centred, centred[1:], strict=False)]
        found["across passes"] = float(np.cbrt(sum(grams)))
    found["order"] = (
        float(sum(np.sum(c[:, :-1] * c[:, 1:]) for c in centred)) if len(centred[0][0]) == size else 0.0
    )
    return found


def _simulated(
    passes: Sequence[_Pass], size: int, rate: float, kind: str, rng: np.random.Generator
) -> list[_Pass]:
    """Passes of as many batches as were seen, of a kind of sampling."""
    looked, fixed, found = passes[0].joined.shape[1], round(size * rate), []
    for one in passes:
        count = len(one.sizes)
        if kind == POISSON:
            joined = rng.random((count, looked), np.float32) < rate
            others = rng.binomial(size - looked, rate, count)
        elif kind == FIXED:
            others = fixed - rng.hypergeometric(looked, size - looked, fixed, count)
            ranks = rng.random((count, looked), np.float32).argsort(axis=1)
            joined = ranks < (fixed - others)[:, None]
        else:
            per = -(-size // max(fixed, 1))
            place = rng.integers(0, size, looked) if looked < size else rng.permutation(size)
            joined = np.zeros((count, looked), bool)
            for begin in range(0, count, per):
                place = rng.permutation(size)[:looked]
                for i in range(begin, min(count, begin + per)):
                    joined[i] = place // max(fixed, 1) == i - begin
            cut = [min(fixed, size - (i % per) * fixed) for i in range(count)]
            found.append(_Pass(np.array(cut), joined))
            continue
        found.append(_Pass(joined.sum(axis=1) + others, joined))
    return found


def _against(passes: Sequence[_Pass], size: int, rate: float, kind: str) -> dict[str, float]:
    """p-values of the batches' figures under a kind of sampling, whose law is simulated."""
    seen, rng = _statistics(passes, rate, size), np.random.default_rng(0)
    numbers = sum(one.joined.size for one in passes)
    times = int(np.clip(_MOST_NUMBERS / numbers, 40, _SIMULATED))
    drawn = [_statistics(_simulated(passes, size, rate, kind, rng), rate, size) for _ in range(times)]
    found = {}
    for name, value in seen.items():
        law = np.array([one[name] for one in drawn])
        center, spread = float(law.mean()), float(law.std(ddof=1))
        if spread < 1e-9 * max(abs(center), 1):
            found[name] = 1.0 if abs(value - center) <= 1e-6 * max(abs(center), 1) else 0.0
        elif name == "empty":
            few = special.pdtr(value, center) if value < center else special.pdtrc(value - 1, center)
            found[name] = float(min(1.0, 2 * few))
        else:
            far = abs(value - center) / spread / np.sqrt(1 + 1 / times)
            found[name] = float(2 * stats.t.sf(far, times - 1))
    if kind == POISSON:
        found["law of sizes"] = _law_of_sizes(np.concatenate([one.sizes for one in passes]), size, rate)
    return found


def _law_of_sizes(sizes: NDArray[np.int64], size: int, rate: float) -> float:
    """p-value of binomial sizes, chi-square over an eighth of the law each."""
    edges = np.unique(stats.binom.ppf(np.arange(1, 8) / 8, size, rate))
    share = np.diff(np.concatenate([[0.0], stats.binom.cdf(edges, size, rate), [1.0]]))
    seen = np.bincount(np.searchsorted(edges, sizes, side="left"), minlength=len(share))
    few = share * len(sizes) < 5
    return 1.0 if np.any(few) or len(share) < 2 else float(stats.chisquare(seen, share * len(sizes)).pvalue)


def _kind(passes: Sequence[_Pass], size: int, rate: float, assumed: str) -> str:
    """What the batches look like, empty where they look like nothing that is known."""
    sizes = np.concatenate([one.sizes for one in passes])
    once = all(one.joined.sum(axis=0).max() <= 1 for one in passes) and len(passes) > 1
    if once:
        return SHUFFLED
    if len(passes) == 1 and np.ptp(sizes[: max(len(sizes) - 1, 1)]) == 0:
        window = max(round(1 / rate), 1)
        whole = (
            passes[0].joined[: len(sizes) // window * window].reshape(-1, window, passes[0].joined.shape[1])
        )
        if len(whole) and whole.sum(axis=1).max() <= 1:
            return SHUFFLED
    if np.ptp(sizes) == 0:
        return FIXED
    return POISSON if assumed != POISSON and not refused(_against(passes, size, rate, POISSON)) else ""


def _doubled(count: int) -> list[CheckFinding]:
    if not count:
        return []
    meaning = (
        f"{count} batches hold an example twice, which then counts twice: its sensitivity is 2 C or more."
    )
    mend = "draw without replacement, or clip the sum of an example's copies"
    return [CheckFinding("indices", "an example twice in a batch", meaning, mend)]


def _named(
    rejected: set[str], kind: str, assumed: str, passes: Sequence[_Pass], expected: float
) -> list[CheckFinding]:
    """The findings that rejected tests amount to."""
    if not rejected:
        return []
    sizes = np.concatenate([one.sizes for one in passes])
    title = {POISSON: "Poisson", FIXED: "fixed-size", SHUFFLED: "shuffled"}
    found = []
    if "across passes" in rejected and kind == SHUFFLED and _repeats(passes):
        meaning = "Passes are cut into the same batches: an example always meets the same others."
        mend = "shuffle anew in every pass, or sample every batch"
        found.append(CheckFinding("across passes", "the same batches in every pass", meaning, mend))
    if "batch size" in rejected and abs(sizes.mean() / expected - 1) > 0.005:
        meaning = f"Batches hold {sizes.mean():.4g} examples on average where the rate says {expected:.4g}."
        mend = "give the accountant the rate at which batches are drawn, examples in a batch / all examples"
        found.append(CheckFinding("batch size", "another sampling rate than stated", meaning, mend))
    if kind and kind != assumed:
        meaning = f"The accountant assumes {title[assumed]} batches, these are {title[kind]}."
        unseen = [int(np.sum(one.joined.sum(axis=0) == 0)) for one in passes]
        dropped = kind == SHUFFLED and np.ptp(sizes) == 0 and len(passes) > 1 and min(unseen) > 0
        meaning += " The last, smaller batch of a pass is dropped (drop_last)." if dropped else ""
        mend = f"sample {title[assumed]} batches, a coin for every example, or account for {kind} ones"
        mend = mend if assumed == POISSON else f"account for {kind} batches"
        name = f"{title[kind]} batches, not {title[assumed]}"
        found.append(
            CheckFinding("spread of sizes" if kind != POISSON else "every example", name, meaning, mend)
        )
    elif not kind:
        found += _unknown(rejected, assumed)
    if not found:
        found += _unknown(rejected, assumed)
    return found


def _unknown(rejected: set[str], assumed: str) -> list[CheckFinding]:
    """Findings of batches that are no known kind, each by the figure that shows it."""
    meanings = {
        "spread of sizes": (
            "sizes that vary otherwise",
            "Sizes spread otherwise than they should: cut or padded?",
        ),
        "every example": ("examples that come unequally often", "Some come more often, or all too evenly."),
        "empty": (
            "no empty batch, or too many",
            "Empty batches come in another number than by chance: skipped?",
        ),
        "within a pass": (
            "batches of a pass that depend on each other",
            "Who was in one is rarer in the next.",
        ),
        "across passes": ("passes that resemble each other", "The same examples come together again."),
        "order": ("neighbours come together", "An example's neighbour in the data set comes with it."),
        "batch size": ("another sampling rate than stated", "The mean size is not the stated one."),
    }
    mend = (
        f"take every example by a coin of its own, in every batch; the accountant assumes {assumed} batches"
    )
    meanings["law of sizes"] = meanings["spread of sizes"]
    rows = {"empty": "spread of sizes", "law of sizes": "spread of sizes"}
    return [
        CheckFinding(rows.get(name, name), meanings[name][0], meanings[name][1], mend)
        for name in sorted(rejected)
    ]


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
    return {
        "poisson epsilon": claimed,
        "shuffled epsilon at least": shuffled_epsilon(sigma, steps, passes, level),
    }
