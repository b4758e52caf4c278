"""The causes of a wrong step: the signature of each cause in the measurements, and the fix.

C, sigma, eta and B are the stated clipping norm, noise multiplier, learning rate and batch size.
Movements are in units of eta C / B, noise in units of eta sigma C / B.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy

from audit.check import noise
from audit.check.findings import CheckFinding
from audit.check.movements import COARSE, SeedEffect, TriedExamples
from audit.check.noise import ALL_LAYERS, EMPTY, FOURFOLD, QUARTER
from audit.check.probe import Movement, StepProbe
from audit.check.ties import Repeats, Ties
from audit.written import counted

_FIT = 3e-3  # the relative error up to which a factor explains a plateau
_MAX_DEVIATION_FIT = 0.05  # the same for the noise's deviation, at most
_NEAR_INTEGER = 2e-3  # the same for a batch size
_MAX_BATCH = 100_000  # rounding hides the size of a larger batch
_AT_C = 5e-3  # a norm this close to C stops there

EXAMPLES = "examples"
NOISE = "noise"
BOTH = "both"
ANY = (EXAMPLES, NOISE, BOTH)
# Mistakes by a factor: the scope of the factor, the mistake, and the factor as a power of a quantity.
_MISTAKES = [
    ((EXAMPLES,), "an example that counts twice", "two", 1),
    ((EXAMPLES,), "divided by another batch size", "B / rows", 1),
    (ANY, "C is left out", "C", -1),
    (ANY, "C enters twice", "C", 1),
    (ANY, "divided by the batch size twice", "B", -1),
    (ANY, "not divided by the batch size", "B", 1),
    (ANY, "the learning rate is left out", "eta", -1),
    (ANY, "the learning rate enters twice", "eta", 1),
    ((EXAMPLES,), "divided by the batch's {k} rows, and by the batch size", "rows", -1),
    ((EXAMPLES,), "clipping in {k} pieces (subspaces, views of an example, tied uses)", "k", 0.5),
    ((EXAMPLES,), "an example that counts {k} times", "k", 1),
    ((EXAMPLES,), "divided by {k} accumulated batches or workers", "k", -1),
    ((EXAMPLES,), "a loss scale of {k:,} divided out after clipping", "scale", -1),
    ((BOTH,), "C sqrt({k}) of {k} layers, each clipped to C", "layers", 0.5),
    ((BOTH,), "divided by {k} accumulated batches or workers again", "k", -1),
    ((BOTH,), "a loss scale of {k:,} that is not divided out", "scale", 1),
    ((BOTH,), "a loss scale of {k:,} divided out twice", "scale", -1),
    ((NOISE,), "divided by sqrt(B) too much", "B", -0.5),
    ((NOISE,), "divided by sqrt(B), or drawn for every example", "B", 0.5),
    ((NOISE,), "sigma is squared: a variance taken for a deviation", "sigma", 1),
    ((NOISE,), "sigma is left out", "sigma", -1),
    ((NOISE,), "the root of sigma: a deviation taken for a variance", "sigma", -0.5),
    ((NOISE,), "the root of sigma C: a deviation taken for a variance", "sigma C", -0.5),
    ((NOISE,), "sigma C is squared: a variance taken for a deviation", "sigma C", 1),
    ((NOISE,), "shared out among layers", "layers", -0.5),
    ((NOISE,), "made for C sqrt({k}), of {k} layers each clipped to C", "layers", 0.5),
    ((NOISE,), "sensitivity 2 C (one replaced)", "two", 1),
    ((NOISE,), "noise added {k} times, by accumulated batches or workers", "k", 0.5),
    ((NOISE,), "one draw added {k} times, by workers with one generator", "k", 1),
    ((NOISE,), "the noise of one of {k} accumulated batches or workers", "k", -0.5),
    ((NOISE,), "divided by {k} accumulated batches or workers", "k", -1),
    ((NOISE,), "a loss scale of {k:,} divided out of the noise", "scale", -1),
]


Words = dict[str, Any]  # the values of the names in braces


class Cause(NamedTuple):
    """A row of the table of causes.

    Attributes:
      symptom: the symptom that it explains: a row of the report, "too far" or "too short" (movements), or
        "batches".
      name, meaning, fix: the texts of the finding, with measurements in braces.
      find: returns the words to fill in if the signature fits, or a list of words for several findings;
        otherwise None or False.
      explains: the symptoms that need no other cause if this cause fits.
    """

    symptom: str
    name: str
    meaning: str
    fix: str
    find: Callable[["Measured"], Any]
    explains: tuple[str, ...] = ()


class Measured(NamedTuple):
    """The measurements of a step.

    Attributes:
      probe: the step.
      replay: the difference of two calls with the same seed.
      tried: how far each example moves the step.
      effect: how another seed changes the effect of an example.
      interaction: how far two parts of a batch together differ from their sum, a Movement; or the reason why
        it was not measured.
      drawn: draws of the noise, a DrawnNoise; None if the noise cannot be judged.
      repeats, ties: draws and numbers of the noise that agree.
      p_values, rejected: by row, the p-values of the tests of the noise, and the names of rejected tests.
    """

    probe: StepProbe
    replay: Movement
    tried: TriedExamples
    effect: SeedEffect
    interaction: Any = ""
    drawn: Any = None
    repeats: Repeats = Repeats()
    ties: Ties = Ties()
    p_values: dict[str, dict[str, float]] = {}
    rejected: dict[str, list[str]] = {}

    @property
    def replays(self) -> bool:
        """Whether two calls with the same seed give the same parameters."""
        return self.replay.norm <= min(self.replay.tolerance, 1e100)  # the norm may be infinite

    @property
    def depends_on_seed(self) -> bool:
        """Whether the seed changes the effect of an example."""
        return self.replays and self.effect.is_seen

    @property
    def is_changed_after_noise(self) -> bool:
        """Whether the seed changes it by dropout, or by an operation after the noise."""
        is_clamped = self.ties.is_at_ends and self.ties.is_shared
        return bool(is_clamped) or (self.depends_on_seed and not self.effect.scales_noise)

    @property
    def judges_movements(self) -> bool:
        """Whether movements show sensitivity."""
        is_hidden = self.depends_on_seed or self.is_changed_after_noise
        return self.replays and self.tried.is_any_moved and not is_hidden

    @property
    def interacts(self) -> bool:
        """Whether examples change each other's gradients."""
        if not self.judges_movements or not isinstance(self.interaction, Movement):
            return False
        return 0 < self.interaction.excess < np.inf

    @property
    def symptoms(self) -> set[str]:
        """The symptoms that need a cause, if there is one."""
        symptoms = set()
        if not self.replays:
            symptoms.add("replay")
        if self.judges_movements:
            symptoms.add("too far" if self.tried.violations else "too short")
        if self.interacts:
            symptoms.add("separation")
        if self.drawn is not None:
            symptoms |= {"noise", "independence", "shape", "batches"}
        return symptoms

    @property
    def num_trained(self) -> int:
        """The number of trained layers."""
        return int(np.count_nonzero(self.probe.sum_layers(self.probe.is_trained)))

    def name_layers(self, layers: Any) -> str:
        """Returns the names of the first four layers, and the number of the others."""
        names = ", ".join(np.array(self.probe.layer_names)[layers[:4]])
        if len(layers) > 4:
            names += f" and {len(layers) - 4} more"
        return names

    def find_mistakes(self, scope: str, factor: float, tolerance: float) -> list[str]:
        """Returns the mistakes that multiply examples, noise or both by a factor, the best fit first."""
        clipping_norm, sigma, rate, batch_size = self.probe.settings
        rows = len(self.probe.rows[0])
        quantities: dict[str, Any] = {
            "two": [2],
            "k": range(2, 17),
            "scale": 2 ** np.arange(5, 25),
            "C": [clipping_norm],
            "B": [batch_size],
            "eta": [rate],
            "sigma": [sigma],
            "sigma C": [sigma * clipping_norm],
            "layers": [self.num_trained],
            "rows": {rows} - {batch_size},
            "B / rows": [batch_size / rows],
        }
        errors: dict[str, float] = {}
        for scopes, words, quantity, power in _MISTAKES:
            if scope not in scopes:
                continue
            for k in quantities[quantity]:
                predicted = float(k) ** power
                # Rounded: mistakes that fit equally well stay in the table's order.
                error = round(abs(factor / predicted - 1), 3)
                # A factor of about 1 is not an explanation, such as "C is left out" if C is 1.
                if abs(predicted - 1) > 0.02 and error < tolerance:
                    errors.setdefault(words.format(k=k), error)
        return sorted(errors, key=lambda mistake: errors[mistake])


def explain(m: Measured) -> list[CheckFinding]:
    """Returns the findings: for each symptom, the first causes of the table that fit."""
    findings = []
    symptoms = m.symptoms
    for cause in CAUSES:
        if cause.symptom not in symptoms:
            continue
        found = cause.find(m)
        if found is None or found is False:
            continue
        if not isinstance(found, list):
            found = [found]
        row = _ROWS.get(cause.symptom, cause.symptom)
        for words in found:
            template = CheckFinding(words.get("row", row), *cause[1:4])
            findings.append(template.fill(gradient=name_gradient(m.probe), **words))
        if found:
            symptoms -= set(cause.explains)
    return findings


def name_gradient(probe: StepProbe) -> str:
    """Returns the advice to return the private gradient, in the words of the step's library."""
    place = "the clipped and noisy mean"
    if probe.is_torch:
        place = "`p.grad` after clipping and noise"
    return f"return the private gradient, {place}, with learning_rate=1"


# Signatures of movements


def is_like_noise(m: Measured) -> bool:
    """Returns whether two calls with one seed differ as two draws do: by sqrt(2) sigma a number."""
    deviation = max(m.probe.settings.noise_multiplier * 2**0.5, 1e-300)
    with np.errstate(over="ignore"):  # an infinite square has the quantile 1
        square = np.square(np.float64(m.replay.norm) / deviation)
    return bool(1e-3 < scipy.stats.chi2.cdf(square, m.probe.start.size) < 0.999)


def _find_size(m: Measured) -> Words | None:
    """Finds one wrong factor of both movements and noise.

    The factor is the plateau of added examples. For examples that replace a row, it is the reach, which may
    be a tenth too small.
    """
    tried = m.tried
    if m.drawn is None or tried.tolerance > COARSE:
        return None
    deviation = float(m.drawn.compute_deviation())
    if not deviation > 0:
        return None
    error = 4 / (2 * np.sum(m.drawn.given.freedom)) ** 0.5 + 0.005
    factor = tried.plateau
    if tried.refusal:
        factor = max(tried.reach, deviation * (1 - error))
    is_larger = factor > 1.003 + 2 * tried.tolerance
    is_smaller = 0 < factor < min(0.997, 1 - error) and tried.is_stopped
    agrees = tried.reach < 1.01 * factor and tried.reach > 0.9 * deviation
    is_nearer = abs(factor / deviation - 1) < min(error, abs(deviation - 1))
    if not (is_larger or is_smaller) or not agrees or not is_nearer:
        return None
    _, _, rate, batch_size = m.probe.settings
    size = batch_size / factor
    fits = []
    if 1 <= round(size) < _MAX_BATCH and abs(size / round(size) - 1) < _NEAR_INTEGER:
        fits.append(f"B = {round(size)} where {batch_size:g} is stated")
    fits.append(f"a learning rate of {rate * factor:.4g} where {rate:g} is stated")
    fits += m.find_mistakes(BOTH, factor, 2 * _NEAR_INTEGER)
    harmless = ""
    if not m.interacts:
        harmless = ": no privacy is lost by it"
    return {"ratio": factor, "harmless": harmless, "why": "; or ".join(fits)}


def _find_too_far(m: Measured) -> Words:
    """Describes the largest movement of more than C, and its cause."""
    example, largest = next(iter(m.tried.violations.items()))
    words = {"norm": largest.norm, "example": example, "name": _EXCESS}
    finders = [_find_rows, _find_numbers, _find_layers, _find_factor, _find_growth]
    if m.interacts:
        finders = [_find_rows]
        words["why"] = "First look for what mixes examples."
    elif m.tried.reach < 1.1:
        words["why"] = (
            "Is a number added to the norm or the factor, or are numbers left out of the norm?"
        )
    else:
        words["why"] = "They do not stop at any norm: is there any clipping?"
        for layers, _ in _list_candidates(m):
            words["why"] = (
                f"All but {m.name_layers(layers)} stay within C: is their gradient clipped too?"
            )
            break
    for find in finders:
        found = find(m)
        if found is not None:
            words["name"], words["why"] = found
            break
    return words


NameAndWhy = tuple[str, str] | None


def _find_rows(m: Measured) -> NameAndWhy:
    """Finds examples that exceed C in some rows of the batch only."""
    places = m.tried.places
    rows = []
    for row in sorted(places):
        if not places[row].excess <= 1:
            rows.append(row)
    if not rows or len(m.tried.violations) > len(rows):
        return None
    listed = ", ".join(map(str, rows[:8]))
    if len(rows) > 8:
        listed += " ..."
    why = f"It does so in {len(rows)} of {counted(len(places), 'row')} tried: {listed}."
    return "rows of the batch that are not clipped", why


def _find_numbers(m: Measured) -> NameAndWhy:
    """Finds gradients clipped number by number: most numbers move by C, and never by more."""
    sizes = np.abs(next(iter(m.tried.violations.values())).vector)
    sizes = sizes[sizes > 1e-3]
    if sizes.size > 3 and np.max(sizes) < 1.02 and np.mean(sizes > 0.98) > 0.5:
        return "clipped number by number", "None moves by more than C."
    return None


def _find_layers(m: Measured) -> NameAndWhy:
    """Finds layers that are clipped separately, or layers without which no example exceeds C."""
    norms = m.tried.layer_norms
    if not len(norms) or not np.all(np.isfinite(norms)):
        return None
    peaks = np.max(norms, axis=0)
    loudest = norms[np.argmax(np.linalg.norm(norms, axis=1))]
    at_c = np.sum(np.abs(loudest - 1) < max(0.01, m.tried.tolerance))
    if np.max(peaks) <= 1 + max(m.tried.tolerance, _AT_C) and at_c > 1:
        moved = np.sum(peaks > 1e-3)
        name = "layers clipped by themselves"
        if at_c == moved:
            name = "every layer clipped by itself"
        return name, f"{at_c} of {moved} layers stop at C at once."

    for layers, others in _list_candidates(m):
        if others[-2:][0] > 0.96:
            name = f"{m.name_layers(layers)} left out of the clipping norm, or of clipping"
            return name, "The others stop at C."
    return None


def _list_candidates(m: Measured) -> Iterator[tuple[list[int], Any]]:
    """Yields layers without which no example exceeds C, and the sorted norms of the other layers.

    Candidates are each layer, all vectors (biases), and the 2, 3, ... layers that move most, up to half of
    all layers.
    """
    norms = m.tried.layer_norms
    count = norms.shape[1]
    ranked = np.argsort(-np.max(norms, axis=0)).tolist()
    candidates = [[layer] for layer in ranked]
    candidates.append(np.flatnonzero(m.probe.dimensions <= 1).tolist())
    candidates += [ranked[:size] for size in range(2, count // 2 + 1)]
    for layers in candidates:
        others = np.sort(np.linalg.norm(np.delete(norms, layers, axis=1), axis=1))
        if 0 < len(layers) < count and others[-1] <= 1 + m.tried.tolerance:
            yield layers, others


def _find_factor(m: Measured) -> NameAndWhy:
    """Finds a wrong factor, such as clipping in k pieces, from the plateau of examples."""
    plateau = m.tried.plateau
    # The same gradient several times has one norm without clipping.
    if not m.tried.stops_in_several_directions:
        return None
    mistakes = m.find_mistakes(EXAMPLES, plateau, _AT_C)
    mistakes = mistakes or [f"clipped to {plateau:.4g} times the stated C"]
    why = f"Extreme examples stop at {plateau:.4g} times the stated clipping norm."
    if len(mistakes) > 1:
        why += f" Or: {'; or '.join(mistakes[1:3])}."
    return mistakes[0], why


def _find_growth(m: Measured) -> NameAndWhy:
    """Finds movements that grow with the features, stop growing at several C, or are never below C."""
    movements = m.tried.movements
    growths = []
    for name, movement in movements.items():
        smaller = movements.get(name.replace("times 1000", "times 100"), movement)
        if smaller is not movement and smaller.norm > 1.05:
            growths.append(movement.norm / smaller.norm)
    pieces = int(np.ceil(m.tried.reach - 0.01))
    moved = m.tried.norms[m.tried.norms > 0]
    if np.min(moved, initial=1) > 1 - _FIT and np.sum(np.abs(moved - 1) < _FIT) > 3:
        why = "Short ones come to C, longer ones are left: min where max is meant, or max for min?"
        return "gradients scaled up to C, not down", why
    if max(growths, default=0) > 2:
        return "no clipping of single examples", "It grows with the features."
    if len(growths) > 1 and np.ptp([1.0, *growths]) < 0.01 and pieces <= 16:
        why = "Larger features do not move it farther: are uses of a shared tensor clipped one by one?"
        return f"clipping in {pieces} pieces or more", why
    return None


def _find_lost_signal(m: Measured) -> Words | None:
    """Finds a mistake that shrinks only the sum of examples, which then stop at a fraction of C.

    A layer that stops at C / sqrt(layers) may be clipped to its share of C.
    """
    plateau = m.tried.plateau
    tolerance = _FIT + m.tried.tolerance
    if not 0 < plateau < 1 - 2 * tolerance or tolerance > 0.1 * plateau + _FIT:
        return None
    shares = np.max(m.tried.layer_norms, axis=0) * m.num_trained**0.5
    mistakes = m.find_mistakes(EXAMPLES, plateau, tolerance)
    has_share = shares.size > 1 and np.any(np.abs(shares - 1) < _AT_C)
    if has_share or not mistakes or not m.tried.is_stopped:
        return None
    return {"name": mistakes[0], "plateau": plateau, "why": "; or ".join(mistakes)}


# Signatures of noise


def _find_repeats(m: Measured) -> Words | None:
    """Finds seeds that give the noise of other seeds.

    If all seeds give the same step, it may have no noise at all. An empty batch shows this. If the step
    refuses an empty batch, a batch with every example four times shows it: with the gradients' part g and
    noise z, the step moves by g + z at the batch as given, and by 4 g + z at the larger batch.
    """
    if not m.repeats.repeated:
        return None
    draws = m.drawn.given.draws
    others = m.drawn.others
    which = "several seeds"
    if not np.any(m.drawn.given.values):
        which = "every seed"
        constant = np.zeros(0)
        if EMPTY in others:
            constant = others[EMPTY].draws[0]
        elif FOURFOLD in others:
            constant = (4 * draws[0] - others[FOURFOLD].draws[0]) / 3
        constant = constant[constant != 0]  # a parameter of exactly 0 has no noise
        if not constant.size or not 0.3 < np.sqrt(np.mean(constant**2)) < 3:
            return None
    seeds = f"of {counted(len(draws), 'seed')}"
    repeats = counted(m.repeats.repeated, f"{seeds} gives", f"{seeds} give")
    return {"which": which, "repeats": repeats}


def _list_related(m: Measured) -> list[str]:
    """Returns the rejected tests of independence within a draw, the smallest p-value first."""
    rejected = [name for name in m.rejected["independence"] if name != noise.CONSECUTIVE]
    return sorted(rejected, key=lambda name: m.p_values["independence"][name])


def _find_cancelling(m: Measured) -> Words | None:
    """Finds layers with noise that nearly cancels in the sum, if no other test shows it more clearly."""
    related = _list_related(m)
    cancelled = []
    for name, share in noise.compute_shares(m.drawn).items():
        if f"{noise.SUM_OF} {name}" in related and share < 0.2:
            cancelled.append(name)
    if not cancelled or not related[0].startswith(noise.SUM_OF):
        return None
    return {"where": ", ".join(cancelled[:4])}


def _find_shared(m: Measured) -> Words | None:
    """Finds numbers of a draw that are not independent."""
    related = _list_related(m)
    return {"tests": "; ".join(related)} if related else None


def _find_silent_parts(m: Measured) -> list[Words]:
    """Finds layers with noise only in some parameters."""
    given = m.drawn.given
    sizes = m.drawn.layer_sizes
    is_partial = (given.freedom > 0) & (given.silent > 0) & (given.silent < sizes)
    found = []
    for i in np.flatnonzero(is_partial):
        name = m.probe.layer_names[i]
        numbers = f"of {sizes[i]:,} numbers of {name}"
        count = counted(int(given.silent[i]), f"{numbers} is", f"{numbers} are")
        found.append({"where": f"in a part of {name}", "count": count})
    return found


def _list_wrong_layers(m: Measured, is_silent: bool) -> Any:
    """Returns the layers with a wrong deviation of the noise: those without noise, or the others.

    All trained layers are wrong if the test of all layers together rejects and their deviations may be equal.
    """
    wrong = m.rejected["noise"]
    given = m.drawn.given
    trained = np.flatnonzero(given.freedom)
    layers = trained[np.isin(np.array(m.probe.layer_names)[trained], wrong)]
    if wrong and (not layers.size or (ALL_LAYERS in wrong and _are_equal(m, trained))):
        layers = trained
    return layers[(given.silent == m.drawn.layer_sizes)[layers] == is_silent]


def _are_equal(m: Measured, layers: Any) -> bool:
    """Returns whether layers' deviations may be equal: within 10%, or within eight standard errors."""
    deviations = m.drawn.given.deviations[layers]
    allowed = max(1.1, 1 + 8 / (2 * np.min(m.drawn.given.freedom[layers])) ** 0.5)
    return bool(np.max(deviations) <= np.min(deviations) * allowed)


def _find_silent_layers(m: Measured) -> Words | None:
    """Finds layers without any noise."""
    silent = _list_wrong_layers(m, is_silent=True)
    if not silent.size:
        return None
    trained = int(np.count_nonzero(m.drawn.given.freedom))
    where = f"in {m.name_layers(silent)}"
    if len(silent) == trained:
        where = "anywhere"
    layers = f"of {counted(trained, 'trained layer')}"
    return {"where": where, "count": counted(len(silent), f"{layers} is", f"{layers} are")}


def _find_wrong_deviation(m: Measured) -> Words | None:
    """Finds wrong deviations, and the mistakes that explain them if they are equal."""
    layers = _list_wrong_layers(m, is_silent=False)
    # Shared noise leaves fewer independent numbers than the test assumes.
    is_explained = bool(_list_related(m)) and 0.5 < m.drawn.compute_deviation() < 2
    if not layers.size or is_explained:
        return None
    deviations = m.drawn.given.deviations[layers]
    freedom = m.drawn.given.freedom[layers]
    is_everywhere = len(layers) == np.count_nonzero(m.drawn.given.freedom)
    words = {
        "figure": f"{np.min(deviations):.3g} to {np.max(deviations):.3g}",
        "where": "",
        "why": "It differs by layer.",
        "advice": "",
    }
    if not is_everywhere:
        words["where"] = f" in {m.name_layers(layers)}"
    if not _are_equal(m, layers):
        return words

    # 1%, and four standard errors of a measured deviation, each 1 / sqrt(2 freedom).
    deviation = float(np.average(deviations**2, weights=freedom) ** 0.5)
    error = 0.01 + 4 / (2 * np.sum(freedom)) ** 0.5
    words["figure"] = f"{deviation:.3g}"
    words["why"] = ""
    mistakes = m.find_mistakes(NOISE, deviation, min(error, _MAX_DEVIATION_FIT))
    if mistakes:
        words["why"] = f"It fits: {'; or '.join(mistakes)}."
    if not is_everywhere or not m.judges_movements or m.tried.violations:
        return words
    if not m.tried.is_clipping_seen:
        words["why"] += " Or the whole step has another size than stated: clipping was not seen."
    elif deviation > 1:
        multiplier = f"about {deviation * m.probe.settings.noise_multiplier:.3g}"
        words["why"] += " It is more noise than stated, by which no privacy is lost."
        words["advice"] = f"state the noise multiplier that the step has, {multiplier}, or "
    return words


def _find_changes(m: Measured) -> list[Words]:
    """Finds noise that is not finite, missing, or of another deviation at another batch."""
    found = []
    for batch, other in m.drawn.others.items():
        row = noise.row_of(batch)
        if not other.not_finite and batch not in m.rejected[row]:
            continue
        ratio = m.drawn.compute_deviation(batch) / m.drawn.compute_deviation()
        # Noise divided by the actual number of examples is 4 times as large at a quarter of them, and a
        # quarter as large at four times as many.
        predicted = {QUARTER: 4.0, FOURFOLD: 0.25}.get(batch, np.inf)
        name = "noise that depends on the batch"
        seen = f"At {batch} it is {ratio:.3g} times as large."
        fix = "take the noise's deviation only from sigma, C and B, and add it once a step"
        if other.not_finite:
            name = "NaN or infinity"
            seen = f"The step gives NaN or infinity at {batch}."
            fix = _FINITE
        elif abs(ratio / predicted - 1) < 0.15:
            name = "normalised by the batch's actual size"
            fix = (
                "divide by the stated batch size, a constant, not by the number of examples that "
                "are there"
            )
        elif batch == EMPTY and ratio == 0:
            name = "steps with an empty batch are skipped"
            seen = "Nothing moves: whoever sees the step knows that the batch was empty."
            fix = "add the noise to a sum of zero too"
        found.append({"row": row, "name": name, "seen": seen, "fix": fix})
    return found


def _find_ties(m: Measured) -> Words | None:
    """Finds noise on a grid or within a range that the sum of gradients is not in."""
    if not m.ties.agreeing or m.ties.is_shared:
        return None
    name = "noise on a grid that the sum is not on"
    fix = "draw the noise in float32 or float64, and round the sum after adding it"
    if m.ties.is_at_ends:
        name = "noise that is clamped"
        fix = "draw it by normal() and do not clamp it"
    ties = counted(m.ties.agreeing, "draw agrees", "draws agree")
    return {"name": name, "fix": fix, "ties": ties}


def _find_odd_lengths(m: Measured) -> Words | None:
    """Finds layers with noise of nearly one norm, or of a norm that varies too much, as the only symptom."""
    rejected = m.rejected["shape"]
    prefix = f"{noise.LENGTH_OF} "
    if not rejected or not all(name.startswith(prefix) for name in rejected):
        return None
    names = [name.removeprefix(prefix) for name in rejected]
    name = "noise whose size changes from step to step"
    if noise.compute_length_spreads(m.drawn)[names[0]] < 1:
        name = "noise of one length"
    return {"name": name, "where": ", ".join(names[:4])}


_ROWS = {"too far": "sensitivity", "too short": "sensitivity", "batches": "noise and data"}
_EXCESS = "an example that moves the step by more than C"
_FINITE = (
    "clip with C / max(C, norm), replace gradients that are not finite by 0, never divide by a size"
)
_SIZE = (
    "a step of another size than stated",
    "Movements and noise are both {ratio:.4g} times as stated by eta C / B{harmless}. It fits: {why}.",
    "state the learning rate, clipping norm and batch size that the step has, or divide by the stated one",
)
_SIZES = ("too far", "too short", "noise")
_SILENT = (
    "noise",
    "no noise {where}",
    "{count} the same for every seed.",
    "add noise of deviation sigma C to all numbers of the sum, also to an embedding's rows without "
    "examples; leave numbers that are not trained out of `params`",
)
_SHARES = ("independence", "batches", "shape")  # fewer numbers are independent than tests assume
_ALL_OF_NOISE = ("noise", *_SHARES)

# The first cause that fits explains its symptom. Movements mean little if examples change each other's
# gradients,
# and tests of the noise if seeds or numbers share it.
CAUSES = (
    Cause(
        "replay",
        "noise that does not follow the seed",
        "Two calls with the same seed differ as much as two draws of the noise: the seed does not "
        "determine it.",
        "draw the noise from a generator made of `seed`; until then only the noise can be checked",
        lambda m: is_like_noise(m) and {},
        ("replay",),
    ),
    Cause(
        "replay",
        "a step that keeps state between calls",
        "Two calls with the same seed and batch differ by {distance:.3g} eta C / B, which the noise does "
        "not explain.",
        "restore parameters, optimizer and generators before each call; with Adam {gradient}",
        lambda m: {"distance": m.replay.norm},
    ),
    Cause(
        "separation",
        "examples change each other's gradients",
        "Two parts of a batch together do not move the step by the sum of their separate movements: it "
        "differs by {distance:.3g} eta C / B.",
        "look for what mixes examples: batch norm, division by the actual size, a clipping norm or "
        "weights taken from the batch, microbatches clipped as one, a loss over pairs",
        lambda m: {"distance": m.interaction.norm},
    ),
    Cause("too far", *_SIZE, _find_size, _SIZES),
    Cause("too short", *_SIZE, _find_size, _SIZES),
    Cause(
        "too far",
        "NaN or infinity",
        "The step gives NaN or infinity with {example}: an example, or its absence, is seen in the model.",
        _FINITE,
        lambda m: not np.isfinite(_find_too_far(m)["norm"]) and _find_too_far(m),
        ("too far",),
    ),
    Cause(
        "too far",
        "{name}",
        "One example moves the step by {norm:.4g} times eta C / B, with {example}. {why}",
        "clip every example's whole gradient, all layers together, to norm C, sum, divide by the stated "
        "B once",
        _find_too_far,
    ),
    Cause(
        "too short",
        "{name}",
        "Extreme examples stop at {plateau:.4g} times eta C / B, where the stated noise is for 1: no "
        "privacy is lost by it, but the gradient drowns. It fits: {why}.",
        "divide the clipped sum once, by the stated B",
        _find_lost_signal,
    ),
    Cause(
        "noise",
        "NaN or infinity",
        "The step gives NaN or infinity at {count:,} of {seeds:,} seeds with the batch as given, which "
        "hides other bugs of the noise.",
        "look for a logarithm of 0, a division by 0 or an overflow where the noise is drawn, and for "
        "gradients that are not finite at some seeds",
        lambda m: (
            bool(m.drawn.given.not_finite)
            and {"count": m.drawn.given.not_finite, "seeds": len(m.drawn.given.draws)}
        ),
        _ALL_OF_NOISE,
    ),
    Cause(
        "noise",
        "no noise in some steps",
        "{count} of {seeds} seeds give the step without noise.",
        "add noise at every step: look for a condition, a branch or a skipped call before it",
        lambda m: (
            m.repeats.is_missing
            and {"count": m.repeats.repeated + 1, "seeds": len(m.drawn.given.draws)}
        ),
        _ALL_OF_NOISE,
    ),
    Cause(
        "noise",
        "no noise in some numbers of some steps",
        "A number of the step is often the same for two seeds: there it shows the sum of gradients.",
        "add noise to all numbers of the sum at every step",
        lambda m: m.ties.is_at_one and not m.ties.is_shared and {},
        _ALL_OF_NOISE,
    ),
    Cause(
        "independence",
        "the same noise for {which}",
        "{repeats} exactly the noise of another: comparing two steps reveals the gradients.",
        "make the generator once, before training, or from the whole of the step's seed",
        _find_repeats,
        _ALL_OF_NOISE,
    ),
    Cause(
        "independence",
        "noise that cancels in a sum",
        "The sum of {where} has much less noise than its numbers: it shows the sum of gradients.",
        "add the numbers as the generator draws them: do not subtract their mean, and do not pair them",
        _find_cancelling,
        _SHARES,
    ),
    Cause(
        "independence",
        "noise shared by several numbers",
        "Sums or differences of numbers carry less noise than the accountant assumes; seen in {tests}.",
        "draw a number for every parameter, from another key in every layer, another generator on every "
        "worker",
        _find_shared,
        _SHARES,
    ),
    Cause(
        "independence",
        "noise of consecutive steps is related",
        "Sums or differences of steps carry less noise than the accountant assumes.",
        "make the generator once, or fold the number of the step into the key",
        lambda m: bool(m.rejected["independence"]) and {},
    ),
    Cause(*_SILENT, _find_silent_parts),
    Cause(*_SILENT, _find_silent_layers),
    Cause(
        "noise",
        "noise of {figure} times the stated deviation",
        "It is {figure} times eta sigma C / B{where}. {why}",
        "{advice}add noise of deviation sigma C once, to the sum of clipped gradients, before dividing by B",
        _find_wrong_deviation,
    ),
    Cause("batches", "{name}", "The batch changes the noise. {seen}", "{fix}", _find_changes),
    Cause(
        "shape",
        "{name}",
        "Draws have few values: {ties} exactly. Steps with different gradients have different "
        "values, which a single step shows.",
        "{fix}",
        _find_ties,
        ("shape",),
    ),
    Cause(
        "shape",
        "{name}",
        "The norm of the noise of {where} is not that of independent normal numbers: it shows the "
        "gradients.",
        "draw an independent number for every parameter at every step, all of deviation sigma C, and do not "
        "normalise them",
        _find_odd_lengths,
        ("shape",),
    ),
    Cause(
        "shape",
        "noise that is not normal",
        "Its distribution is not the Gaussian that the accountant assumes.",
        "draw it by normal(), not uniform() or laplace(), not truncated, and do not clip after adding it",
        lambda m: bool(m.rejected["shape"]) and {},
    ),
)
