"""The bugs of a step: one table of causes, each with its signature in what was measured, and its fix.

C, sigma, eta and B are the clipping norm, noise multiplier, learning rate and batch size that are stated.
Movements are in units of eta C / B, noise in units of eta sigma C / B.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy

from audit.check import noise
from audit.check.findings import CheckFinding
from audit.check.movements import COARSE, SeedEffect, TriedExamples
from audit.check.noise import ALL_LAYERS, EMPTY, FOURFOLD, QUARTER, DrawnNoise
from audit.check.probe import Movement, StepProbe
from audit.check.ties import Repeats, Ties
from audit.written import counted

_FIT = 3e-3  # the relative difference up to which a plateau fits a factor
_MOST_TOLERANCE = 0.05  # the same of the noise's deviation, at most
_NEAR_INTEGER = 2e-3  # the same of a batch size
_LARGEST_BATCH = 100_000  # a larger batch's size is not named: rounding hides it
_AT_C = 5e-3  # the distance from C up to which a norm stops there

EXAMPLES = "examples"
NOISE = "noise"
BOTH = "both"
ANY = (EXAMPLES, NOISE, BOTH)
# Mistakes by a factor: what it multiplies, the mistake in words, and its factor: a quantity and a power of
# it.
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


Words = dict[str, Any]  # to fill in, by their names in braces


class Cause(NamedTuple):
    """A row of the table of causes.

    Attributes:
      symptom: what it explains: a row of the report, "too far" or "too short" (movements), or "batches".
      name, meaning, fix: the finding, with measurements in braces.
      find: returns the words to fill in if the signature fits; several for several occurrences; else nothing.
      explains: the symptoms that need no other cause if this one fits.
    """

    symptom: str
    name: str
    meaning: str
    fix: str
    find: Callable[["Measured"], Any]
    explains: tuple[str, ...] = ()


class Measured(NamedTuple):
    """What was measured of a step.

    Attributes:
      probe: the step.
      replay: how far two calls with the same seed differ.
      tried: how far each example moves the step.
      interaction: how far two parts of a batch together differ from their sum; or why it was not measured.
      effect: how another seed changes what an example does; None if it could not be measured.
      drawn: draws of the noise; None if there is none to judge.
      repeats, ties: the draws and numbers of the noise that agree.
      p_values, rejected: by row, the p-values of the tests of the noise, and the tests that are rejected.
    """

    probe: StepProbe
    replay: Movement
    tried: TriedExamples
    interaction: Any = ""  # a Movement, or why it was not measured
    effect: SeedEffect | None = None
    drawn: DrawnNoise | None = None
    repeats: Repeats = Repeats(0, False)
    ties: Ties | None = None
    p_values: dict[str, dict[str, float]] = {}
    rejected: dict[str, list[str]] = {}

    @property
    def noise(self) -> DrawnNoise:
        """The draws of the noise, where there are some."""
        assert self.drawn is not None
        return self.drawn

    @property
    def replays(self) -> bool:
        """Whether two calls with the same seed give the same."""
        return self.replay.norm <= min(self.replay.tolerance, 1e100)  # which may overflow

    @property
    def depends_on_seed(self) -> bool:
        """Whether the seed changes what an example does: noise that examples scale, or what follows."""
        return self.replays and self.effect is not None and self.effect.movement.excess > 0

    @property
    def is_changed_after_noise(self) -> bool:
        """Whether dropout, or something after the noise, makes what an example does depend on the seed."""
        is_clamped_too = self.ties is not None and self.ties.is_at_ends and self.ties.is_shared
        is_scaled_noise = self.effect is not None and self.effect.scales_noise
        return bool(is_clamped_too) or (self.depends_on_seed and not is_scaled_noise)

    @property
    def judges_movements(self) -> bool:
        """Whether movements mean anything."""
        is_hidden = self.depends_on_seed or self.is_changed_after_noise
        return self.replays and self.tried.is_any_moved and not is_hidden

    @property
    def interacts(self) -> bool:
        """Whether examples change each other's gradients."""
        measured = self.interaction
        return (
            self.judges_movements
            and isinstance(measured, Movement)
            and 0 < measured.excess < np.inf
        )

    @property
    def symptoms(self) -> set[str]:
        """What is, or may be, wrong: the symptoms for which a cause is looked for."""
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
        """Returns the names of layers as text: the first four, and how many more there are."""
        names = ", ".join(self.probe.layer_names[i] for i in layers[:4])
        if len(layers) > 4:
            names += f" and {len(layers) - 4} more"
        return names

    def find_mistakes(self, scope: str, factor: float, tolerance: float) -> list[str]:
        """Returns the mistakes that multiply examples, noise or both by a factor, the best fit first."""
        settings = self.probe.settings
        rows = len(self.probe.rows[0])
        quantities: dict[str, Any] = {
            "two": [2],
            "k": range(2, 17),
            "scale": [2**power for power in range(5, 25)],
            "C": [settings.clipping_norm],
            "B": [settings.batch_size],
            "eta": [settings.learning_rate],
            "sigma": [settings.noise_multiplier],
            "sigma C": [settings.noise_multiplier * settings.clipping_norm],
            "layers": [self.num_trained],
            "rows": [rows] if rows not in (1, settings.batch_size) else [],
            "B / rows": [settings.batch_size / rows],
        }
        errors: dict[str, float] = {}
        for scopes, words, quantity, power in _MISTAKES:
            for k in quantities[quantity]:
                predicted = float(k) ** power if k else np.inf
                # Rounded, so that mistakes that fit as well as each other stay in their order.
                error = round(abs(factor / predicted - 1), 3)
                # A mistake whose factor is about 1 explains nothing, such as "C is left out" where C is 1.
                if scope in scopes and abs(predicted - 1) > 0.02 and error < tolerance:
                    errors.setdefault(words.format(k=k), error)
        return sorted(errors, key=lambda mistake: errors[mistake])


def explain(m: Measured) -> list[CheckFinding]:
    """Returns the findings: for each symptom, the first causes of the table whose signatures fit."""
    findings = []
    symptoms = m.symptoms
    for cause in CAUSES:
        if cause.symptom not in symptoms:
            continue
        found = cause.find(m)
        if found is None or found is False:
            continue
        row = _ROWS.get(cause.symptom, cause.symptom)
        template = CheckFinding(row, cause.name, cause.meaning, cause.fix)
        for words in found if isinstance(found, list) else [found]:
            filled = template.fill(gradient=name_gradient(m.probe), **words)
            findings.append(filled._replace(check=words.get("row", row)))
        if found != []:
            symptoms -= set(cause.explains)
    return findings


def name_gradient(probe: StepProbe) -> str:
    """Returns what to return in place of parameters, in words of the step's library."""
    where = "`p.grad` after clipping and noise" if probe.is_torch else "the clipped and noisy mean"
    return f"return the private gradient, {where}, with learning_rate=1"


# Signatures of movements


def is_like_noise(m: Measured) -> bool:
    """Returns whether two calls with one seed differ as two draws do: by sqrt(2) sigma a number."""
    deviation = max(m.probe.settings.noise_multiplier * 2**0.5, 1e-300)
    with np.errstate(over="ignore"):  # an infinite square has the quantile 1
        square = np.square(np.float64(m.replay.norm) / deviation)
    return bool(1e-3 < scipy.stats.chi2.cdf(square, m.probe.start.size) < 0.999)


def _describe(m: Measured, name: str, why: str = "") -> Words:
    """Returns the words for the largest movement of more than C."""
    example, largest = next(iter(m.tried.violations.items()))
    return {"name": name, "why": why, "norm": largest.norm, "example": example}


def _find_size(m: Measured) -> Words | None:
    """Finds movements and noise that differ from their stated sizes by one factor, and what gives it.

    The factor is the plateau of added examples, or how far examples in place of a row reach, which may be
    measured a tenth too small.
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
    settings = m.probe.settings
    size = settings.batch_size / factor
    fits = []
    if 1 <= round(size) < _LARGEST_BATCH and abs(size / round(size) - 1) < _NEAR_INTEGER:
        fits.append(f"B = {round(size)} where {settings.batch_size:g} is stated")
    rate = settings.learning_rate
    fits.append(f"a learning rate of {rate * factor:.4g} where {rate:g} is stated")
    fits += m.find_mistakes(BOTH, factor, 2 * _NEAR_INTEGER)
    harmless = "" if m.interacts else ": no privacy is lost by it"
    return {"ratio": factor, "harmless": harmless, "why": "; or ".join(fits)}


def _find_rows(m: Measured) -> Words | None:
    """Finds examples that exceed C in some rows of the batch only."""
    places = m.tried.places
    rows = sorted(row for row, one in places.items() if not one.excess <= 1)
    if not rows or len(m.tried.violations) > len(rows):
        return None
    listed = ", ".join(map(str, rows[:8])) + " ..." * (len(rows) > 8)
    why = f"It does so in {len(rows)} of {counted(len(places), 'row')} tried: {listed}."
    return _describe(m, "rows of the batch that are not clipped", why)


def _find_numbers(m: Measured) -> Words | None:
    """Finds gradients whose numbers are clipped one by one: most move by C, and none by more."""
    sizes = np.abs(next(iter(m.tried.violations.values())).vector)
    sizes = sizes[sizes > 1e-3]
    is_clipped = sizes.size > 3 and np.max(sizes) < 1.02 and np.mean(sizes > 0.98) > 0.5
    return (
        _describe(m, "clipped number by number", "None moves by more than C.")
        if is_clipped
        else None
    )


def _find_layers(m: Measured) -> Words | None:
    """Finds layers that are clipped one by one, or without which no example exceeds C."""
    norms = m.tried.layer_norms
    if not len(norms) or not np.all(np.isfinite(norms)):
        return None
    peaks = np.max(norms, axis=0)
    loudest = norms[np.argmax(np.linalg.norm(norms, axis=1))]
    at_c = np.sum(np.abs(loudest - 1) < max(0.01, m.tried.tolerance))
    if np.max(peaks) <= 1 + max(m.tried.tolerance, _AT_C) and at_c > 1:
        moved = np.sum(peaks > 1e-3)
        name = "every layer clipped by itself" if at_c == moved else "layers clipped by themselves"
        return _describe(m, name, f"{at_c} of {moved} layers stop at C at once.")

    for layers, others in _list_candidates(m):
        if others[-2:][0] > 0.96:
            name = f"{m.name_layers(layers)} left out of the clipping norm, or of clipping"
            return _describe(m, name, "The others stop at C.")
    return None


def _list_candidates(m: Measured) -> Iterator[tuple[list[int], Any]]:
    """Yields layers without which no example exceeds C, and the sorted norms of the others in all examples.

    They are a layer, all vectors (biases), or the 2, 3, ... layers that move most, up to half of all.
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


def _find_factor(m: Measured) -> Words | None:
    """Finds mistakes in a factor, such as clipping in k pieces, by the norm at which examples stop.

    The same gradient several times has one norm without clipping.
    """
    plateau = m.tried.plateau
    if not m.tried.stops_in_several_directions:
        return None
    mistakes = m.find_mistakes(EXAMPLES, plateau, _AT_C)
    mistakes = mistakes or [f"clipped to {plateau:.4g} times the stated C"]
    why = f"Extreme examples stop at {plateau:.4g} times the stated clipping norm."
    if len(mistakes) > 1:
        why += f" Or: {'; or '.join(mistakes[1:3])}."
    return _describe(m, mistakes[0], why)


def _find_growth(m: Measured) -> Words | None:
    """Finds movements that grow with the features, stop growing at several C, or are never below C."""
    norms = {name: one.norm for name, one in m.tried.movements.items()}
    growths = []
    for name, norm in norms.items():
        smaller = norms.get(name.replace("times 1000", "times 100"), 0.0)
        if "times 1000" in name and smaller > 1.05:
            growths.append(norm / smaller)
    pieces = int(np.ceil(m.tried.reach - 0.01))
    moved = m.tried.norms[m.tried.norms > 0]
    if np.min(moved, initial=1) > 1 - _FIT and np.sum(np.abs(moved - 1) < _FIT) > 3:
        why = "Short ones come to C, longer ones are left: min where max is meant, or max for min?"
        return _describe(m, "gradients scaled up to C, not down", why)
    if max(growths, default=0) > 2:
        return _describe(m, "no clipping of single examples", "It grows with the features.")
    if len(growths) > 1 and np.ptp([1.0, *growths]) < 0.01 and pieces <= 16:
        why = "Larger features do not move it farther: are uses of a shared tensor clipped one by one?"
        return _describe(m, f"clipping in {pieces} pieces or more", why)
    return None


def _find_excess(m: Measured) -> Words:
    """Describes movements of more than C that no other cause explains."""
    why = "They do not stop at any norm: is there any clipping?"
    if m.interacts:
        why = "First look for what mixes examples."
    elif m.tried.reach < 1.1:
        why = "Is a number added to the norm or the factor, or are numbers left out of the norm?"
    else:
        for layers, _ in _list_candidates(m):
            names = m.name_layers(layers)
            why = f"All but {names} stay within C: is their gradient clipped too?"
            break
    return _describe(m, _EXCESS, why)


def _find_lost_signal(m: Measured) -> Words | None:
    """Finds examples that stop at a fraction of C, if a mistake explains it that shrinks their sum only.

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
    """Finds seeds that give the noise of others. The same step for all seeds may have no noise at all.

    Then an empty batch shows it. If the step refuses that, a batch with every example four times does: with
    gradients' part g and noise z the step moves by g + z at the batch as given, and there by 4 g + z.
    """
    if not m.repeats.repeated:
        return None
    which = "several seeds"
    if not np.any(m.noise.given.values):
        which = "every seed"
        others = {name: other.draws[0] for name, other in m.noise.others.items()}
        fourfold = (4 * m.noise.given.draws[0] - others.get(FOURFOLD, np.nan)) / 3
        constant = others.get(EMPTY, fourfold)
        constant = constant[constant != 0]  # a parameter of exactly 0 has no noise
        if not constant.size or not 0.3 < np.sqrt(np.mean(constant**2)) < 3:
            return None
    seeds = f"of {counted(len(m.noise.given.draws), 'seed')}"
    repeats = counted(m.repeats.repeated, f"{seeds} gives", f"{seeds} give")
    return {"which": which, "repeats": repeats}


def _list_related(m: Measured) -> list[str]:
    """Returns the rejected tests that numbers of the noise are independent, the smallest p-value first."""
    p_values = m.p_values["independence"]
    rejected = [name for name in m.rejected["independence"] if name != noise.CONSECUTIVE]
    return sorted(rejected, key=lambda name: p_values[name])


def _find_cancelling(m: Measured) -> Words | None:
    """Finds layers whose noise nearly cancels in their sum, which no other test shows more clearly."""
    related = _list_related(m)
    cancelled = []
    for name, shares in noise.compute_shares(m.noise).items():
        if f"{noise.SUM_OF} {name}" in related and shares[0] < 0.2:
            cancelled.append(name)
    if not cancelled or not related[0].startswith(noise.SUM_OF):
        return None
    return {"where": ", ".join(cancelled[:4])}


def _find_shared(m: Measured) -> Words | None:
    related = _list_related(m)
    return {"tests": "; ".join(related)} if related else None


def _find_silent_parts(m: Measured) -> list[Words]:
    """Finds layers in which some parameters have noise and others have none."""
    given = m.noise.given
    sizes = m.noise.layer_sizes
    is_partial = (given.freedom > 0) & (given.silent > 0) & (given.silent < sizes)
    found = []
    for i in np.flatnonzero(is_partial):
        name = m.probe.layer_names[i]
        numbers = f"of {sizes[i]:,} numbers of {name}"
        count = counted(int(given.silent[i]), f"{numbers} is", f"{numbers} are")
        found.append({"where": f"in a part of {name}", "count": count})
    return found


def _list_wrong_layers(m: Measured, is_silent: bool) -> Any:
    """Returns the layers whose noise has another deviation than stated: those without any, or the others.

    All trained layers are wrong together if the test of all together rejects and they may have one deviation.
    """
    wrong = m.rejected["noise"]
    given = m.noise.given
    trained = np.flatnonzero(given.freedom)
    layers = np.array([i for i in trained if m.probe.layer_names[i] in wrong], int)
    if wrong and (not layers.size or (ALL_LAYERS in wrong and _are_equal(m, trained))):
        layers = trained
    return layers[(given.silent == m.noise.layer_sizes)[layers] == is_silent]


def _are_equal(m: Measured, layers: Any) -> bool:
    """Returns whether layers' deviations may be equal: within 10%, or within eight standard errors."""
    deviations = m.noise.given.deviations[layers]
    allowed = max(1.1, 1 + 8 / (2 * np.min(m.noise.given.freedom[layers])) ** 0.5)
    return bool(np.max(deviations) <= np.min(deviations) * allowed)


def _find_silent_layers(m: Measured) -> Words | None:
    silent = _list_wrong_layers(m, is_silent=True)
    if not silent.size:
        return None
    trained = int(np.count_nonzero(m.noise.given.freedom))
    where = "anywhere" if len(silent) == trained else f"in {m.name_layers(silent)}"
    layers = f"of {counted(trained, 'trained layer')}"
    return {"where": where, "count": counted(len(silent), f"{layers} is", f"{layers} are")}


def _find_wrong_deviation(m: Measured) -> Words | None:
    """Finds deviations other than stated, with the mistakes that explain them if they are equal."""
    layers = _list_wrong_layers(m, is_silent=False)
    # Shared noise leaves fewer independent numbers than the test assumes.
    is_explained = bool(_list_related(m)) and 0.5 < m.noise.compute_deviation() < 2
    if not layers.size or is_explained:
        return None
    deviations = m.noise.given.deviations[layers]
    freedom = m.noise.given.freedom[layers]
    is_everywhere = len(layers) == np.count_nonzero(m.noise.given.freedom)
    figure = f"{np.min(deviations):.3g} to {np.max(deviations):.3g}"
    remark = "It differs by layer."
    advice = ""
    if _are_equal(m, layers):
        # 1%, and four standard errors of a measured deviation, each 1 / sqrt(2 freedom).
        deviation = float(np.average(deviations**2, weights=freedom) ** 0.5)
        error = 0.01 + 4 / (2 * np.sum(freedom)) ** 0.5
        figure = f"{deviation:.3g}"
        mistakes = m.find_mistakes(NOISE, deviation, min(error, _MOST_TOLERANCE))
        remark = f"It fits: {'; or '.join(mistakes)}." if mistakes else ""
        is_within = m.judges_movements and not m.tried.violations
        multiplier = f"about {deviation * m.probe.settings.noise_multiplier:.3g}"
        if is_everywhere and is_within and not m.tried.is_clipping_seen:
            remark += " Or the whole step has another size than stated: clipping was not seen."
        elif is_everywhere and is_within and deviation > 1:
            remark += " It is more noise than stated, by which no privacy is lost."
            advice = f"state the noise multiplier that the step has, {multiplier}, or "
    where = "" if is_everywhere else f" in {m.name_layers(layers)}"
    return {"figure": figure, "where": where, "why": remark, "advice": advice}


def _find_changes(m: Measured) -> list[Words]:
    """Finds noise that is not finite, gone, or of another deviation with another batch."""
    found = []
    for batch, other in m.noise.others.items():
        row = noise.row_of(batch)
        ratio = m.noise.compute_deviation(batch) / m.noise.compute_deviation()
        words = {"row": row, "name": "noise that depends on the batch"}
        words["seen"] = f"At {batch} it is {ratio:.3g} times as large."
        words["fix"] = (
            "take the noise's deviation from sigma, C and B alone, and add it once a step"
        )
        # Noise that is divided by the actual number of examples is 4 times as large at a quarter of them, and
        # a quarter as large at four times as many.
        predicted = {QUARTER: 4.0, FOURFOLD: 0.25}.get(batch, np.inf)
        if other.not_finite:
            words["name"] = "NaN or infinity"
            words["seen"] = f"The step gives NaN or infinity at {batch}."
            words["fix"] = _FINITE
        elif abs(ratio / predicted - 1) < 0.15:
            words["name"] = _ACTUAL_SIZE
            words["fix"] = _CONSTANT
        elif batch == EMPTY and ratio == 0:
            words["name"] = "steps with an empty batch are skipped"
            words["seen"] = "Nothing moves: whoever sees the step knows that the batch was empty."
            words["fix"] = "add the noise to a sum of zero too"
        if other.not_finite or batch in m.rejected[row]:
            found.append(words)
    return found


def _find_ties(m: Measured) -> Words | None:
    """Finds noise on a grid, or within a range, that the sum of gradients is not in."""
    if m.ties is None or m.ties.is_shared:
        return None
    name = "noise on a grid that the sum is not on"
    fix = "draw the noise in float32 or float64, and round the sum after adding it"
    if m.ties.is_at_ends:
        name = "noise that is clamped"
        fix = "draw it by normal() and do not clamp it"
    return {
        "name": name,
        "fix": fix,
        "ties": counted(m.ties.agreeing, "draw agrees", "draws agree"),
    }


def _find_odd_lengths(m: Measured) -> Words | None:
    """Finds layers whose noise has nearly one norm, or one that changes too much, and no other shape."""
    rejected = m.rejected["shape"]
    names = [name for name in m.probe.layer_names if f"{noise.LENGTH_OF} {name}" in rejected]
    if not names or len(names) < len(rejected):
        return None
    layer = m.probe.layer_names.index(names[0])
    lengths = m.noise.given.lengths[:, layer]
    is_fixed = np.var(np.cbrt(lengths / np.mean(lengths))) < 2 / (9 * m.noise.given.counts[layer])
    name = "noise of one length" if is_fixed else "noise whose size changes from step to step"
    return {"name": name, "where": ", ".join(names[:4])}


_ROWS = {"too far": "sensitivity", "too short": "sensitivity", "batches": "noise and data"}
_EXCESS = "an example that moves the step by more than C"
_ACTUAL_SIZE = "normalised by the batch's actual size"
_CONSTANT = (
    "divide by the stated batch size, a constant, not by the number of examples that are there"
)
_FINITE = (
    "clip with C / max(C, norm), replace gradients that are not finite by 0, never divide by a size"
)
_TOO_FAR = (
    "too far",
    "{name}",
    "One example moves the step by {norm:.4g} times eta C / B, with {example}. {why}",
    "clip every example's whole gradient, all layers together, to norm C, sum, divide by the stated B once",
)
_SIZE = (
    "a step of another size than stated",
    "Movements and noise are both {ratio:.4g} times what eta C / B says{harmless}. It fits: {why}.",
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
        "Two calls with the same seed and batch differ by {distance:.3g} eta C / B, which the noise "
        "alone does "
        "not explain.",
        "restore parameters, optimizer and generators before each call; with Adam {gradient}",
        lambda m: {"distance": m.replay.norm},
    ),
    Cause(
        "separation",
        "examples change each other's gradients",
        "Two parts of a batch together do not move the step by the sum of what each does alone: it "
        "differs by "
        "{distance:.3g} eta C / B.",
        "look for what mixes examples: batch norm, division by the actual size, a clipping norm or "
        "weights taken "
        "from the batch, microbatches clipped as one, a loss over pairs",
        lambda m: {"distance": m.interaction.norm},
    ),
    Cause("too far", *_SIZE, _find_size, _SIZES),
    Cause("too short", *_SIZE, _find_size, _SIZES),
    Cause(
        "too far",
        "NaN or infinity",
        "The step gives NaN or infinity with {example}: an example, or its absence, is seen in the model.",
        _FINITE,
        lambda m: (
            not np.isfinite(next(iter(m.tried.violations.values())).norm) and _describe(m, "")
        ),
        ("too far",),
    ),
    Cause(*_TOO_FAR, _find_rows, ("too far",)),
    Cause(*_TOO_FAR, lambda m: m.interacts and _find_excess(m), ("too far",)),
    Cause(*_TOO_FAR, _find_numbers, ("too far",)),
    Cause(*_TOO_FAR, _find_layers, ("too far",)),
    Cause(*_TOO_FAR, _find_factor, ("too far",)),
    Cause(*_TOO_FAR, _find_growth, ("too far",)),
    Cause(*_TOO_FAR, _find_excess),
    Cause(
        "too short",
        "{name}",
        "Extreme examples stop at {plateau:.4g} times eta C / B, where the stated noise is for 1: no "
        "privacy is "
        "lost by it, but the gradient drowns. It fits: {why}.",
        "divide the clipped sum by the stated B once, and by nothing else",
        _find_lost_signal,
    ),
    Cause(
        "noise",
        "NaN or infinity",
        "The step gives NaN or infinity at {count:,} of {seeds:,} seeds with the batch as given: "
        "nothing else can "
        "be told of the noise.",
        "look for a logarithm of 0, a division by 0 or an overflow where the noise is drawn, and for "
        "gradients "
        "that are not finite at some seeds",
        lambda m: (
            bool(m.noise.given.not_finite)
            and {"count": m.noise.given.not_finite, "seeds": len(m.noise.given.draws)}
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
            and {"count": m.repeats.repeated + 1, "seeds": len(m.noise.given.draws)}
        ),
        _ALL_OF_NOISE,
    ),
    Cause(
        "noise",
        "no noise in some numbers of some steps",
        "A number of the step is often the same for two seeds: there it shows the sum of gradients.",
        "add noise to all numbers of the sum at every step",
        lambda m: m.ties is not None and m.ties.is_at_one and not m.ties.is_shared and {},
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
        "draw a number for every parameter, from another key in every layer, another generator on "
        "every worker",
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
        "values, which one "
        "step tells from each other.",
        "{fix}",
        _find_ties,
        ("shape",),
    ),
    Cause(
        "shape",
        "{name}",
        "The norm of the noise of {where} is not that of independent normal numbers: it tells of the "
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
