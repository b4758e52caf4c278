"""The causes of a wrong step: the signature of each cause in the measurements, and the fix.

C, sigma, eta and B are the stated clipping norm, noise multiplier, learning rate and batch size.
Movements are in units of eta C / B, noise in units of eta sigma C / B.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from audit.check import noise
from audit.check.findings import CheckFinding
from audit.check.movements import COARSE, SeedEffect, TriedExamples
from audit.check.noise import ALL_LAYERS, EMPTY, FOURFOLD, QUARTER, StepNoise
from audit.check.probe import Movement, StepProbe
from audit.check.ties import AT_ENDS, AT_ONE, Ties

_FIT = 3e-3  # the relative error up to which a factor explains a plateau
_MAX_DEVIATION_FIT = 0.05  # the same for the noise's deviation, at most
_AT_C = 5e-3  # a norm this close to C stops there
_MAX_PIECES = 16
_SIZES = {QUARTER: 0.25, FOURFOLD: 4.0}  # of other batches, in batches as given

# Mistakes that multiply a size by a power of a quantity: the quantity and the power, by the mistake's name.
_ANYWHERE = {
    "C is left out": ("clipping_norm", -1),
    "C enters twice": ("clipping_norm", 1),
    "divided by the batch size twice": ("batch_size", -1),
    "not divided by the batch size": ("batch_size", 1),
    "the learning rate is left out": ("learning_rate", -1),
    "the learning rate enters twice": ("learning_rate", 1),
}
_OF_EXAMPLES = {
    "clipping in {k} pieces or more, or an example that counts {k} times": ("k", 1),
    **_ANYWHERE,
    "clipping in {k} pieces (subspaces, views of an example, tied uses)": ("k", 0.5),
    "divided by {k} accumulated batches or workers": ("k", -1),
    "a loss scale of {k:,} divided out after clipping": ("scale", -1),
}
_OF_BOTH = {
    **_ANYWHERE,
    "C sqrt({k}) of {k} layers, each clipped to C": ("layers", 0.5),
    "divided by {k} accumulated batches or workers again": ("k", -1),
    "a loss scale of {k:,} that is not divided out": ("scale", 1),
    "a loss scale of {k:,} divided out twice": ("scale", -1),
}
_OF_NOISE = {
    **_ANYWHERE,
    "divided by sqrt(B) too much": ("batch_size", -0.5),
    "divided by sqrt(B), or drawn for every example": ("batch_size", 0.5),
    "sigma is squared: a variance taken for a deviation": ("noise_multiplier", 1),
    "sigma is left out": ("noise_multiplier", -1),
    "the root of sigma: a deviation taken for a variance": ("noise_multiplier", -0.5),
    "the root of sigma C: a deviation taken for a variance": ("sigma C", -0.5),
    "sigma C is squared: a variance taken for a deviation": ("sigma C", 1),
    "shared out among layers": ("layers", -0.5),
    "made for C sqrt({k}), of {k} layers each clipped to C": ("layers", 0.5),
    "noise added {k} times, by accumulated batches or workers": ("k", 0.5),
    "one draw added {k} times, by workers with one generator, or for {k} C": ("k", 1),
    "the noise of one of {k} accumulated batches or workers": ("k", -0.5),
    "divided by {k} accumulated batches or workers": ("k", -1),
    "a loss scale of {k:,} divided out of the noise": ("scale", -1),
}

# What a fix says in the words of the step's library.
_PHRASES = {
    "torch": {
        "gradient": "return `p.grad` after clipping and noise, with learning_rate=1",
        "clip": "by Opacus, or vmap over grad and one norm of all tensors",
        "generator": "torch.Generator().manual_seed(seed)",
    },
    "jaxlib": {
        "gradient": "return the private gradient that `optimizer.update` gets, with learning_rate=1",
        "clip": "by jax_privacy.clipped_grad, or optax.projections.projection_l2_ball under vmap",
        "generator": "jax.random.key(seed), split for the layers",
    },
    "numpy": {
        "gradient": "return the private gradient, the clipped and noisy mean, with learning_rate=1",
        "clip": "by one np.linalg.norm of each example's numbers",
        "generator": "np.random.default_rng(seed)",
    },
}

Words = dict[str, Any]  # the values of the names in braces


class Cause(NamedTuple):
    """A row of the table of causes.

    Attributes:
      symptom: the symptom that it explains: a row of the report, or "too short" (movements of less than C).
      name, meaning, fix: the texts of the finding, with measurements and phrases in braces.
      find: returns the words to fill in, once for each finding: none if the signature does not fit. The word
        "row" names another row of the report.
      explains: other symptoms that need no other cause if this cause fits.
    """

    symptom: str
    name: str
    meaning: str
    fix: str
    find: Callable[["Measured"], list[Words]]
    explains: tuple[str, ...] = ()


class Measured(NamedTuple):
    """The measurements of a step.

    Attributes:
      probe: the step.
      replay: the difference of two calls with the same seed.
      tried: how far each example moves the step.
      effect: how another seed changes the effect of an example in the batch as given, and `effect_alone` in
        a batch of one row; None if the step refuses these batches.
      interaction: how far two parts of a batch together differ from their sum, a Movement; or the reason why
        it was not measured.
      drawn: draws of the noise, a DrawnNoise; None if the noise cannot be judged.
      repeats: the number of seeds that repeat another seed's noise.
      ties: numbers of the noise that agree.
      rejected: by row, the names of the rejected tests of the noise.
    """

    probe: StepProbe
    replay: Movement
    tried: TriedExamples
    effect: SeedEffect | None
    effect_alone: SeedEffect | None = None
    interaction: Any = ""
    drawn: Any = None
    repeats: int = 0
    ties: Ties = Ties()
    rejected: dict[str, list[str]] = {}

    @property
    def replays(self) -> bool:
        """Whether two calls with the same seed give the same parameters."""
        return self.replay.norm <= min(self.replay.tolerance, 1e100)  # both may overflow

    @property
    def depends_on_seed(self) -> bool:
        """Whether the seed changes the effect of an example."""
        return self.replays and self.effect is not None and self.effect.excess > 0

    @property
    def is_changed_after_noise(self) -> bool:
        """Whether the seed changes it through dropout, or through an operation after the noise.

        It does not if noise is scaled by an example, or drawn once for each part of a batch: then there is
        more noise than stated, and the effect of an example is the same for all seeds in a batch of one row.
        """
        is_clamped = self.ties == Ties(AT_ENDS, is_shared=True)
        is_fixed_alone = self.effect_alone is not None and self.effect_alone.excess <= 0
        is_in_parts = is_fixed_alone and self.drawn and self.drawn.given.deviation > 1.1
        is_of_noise = is_in_parts or (self.effect is not None and self.effect.scales_noise)
        return is_clamped or (self.depends_on_seed and not is_of_noise)

    @property
    def judges_movements(self) -> bool:
        """Whether movements show sensitivity."""
        is_hidden = self.depends_on_seed or self.is_changed_after_noise
        return self.replays and self.tried.is_any_moved and not is_hidden

    @property
    def interacts(self) -> bool:
        """Whether examples change each other's gradients."""
        is_measured = isinstance(self.interaction, Movement)
        return is_measured and 0 < self.interaction.excess < np.inf

    def name_layers(self, layers: Any) -> str:
        """Returns the names of the first four layers."""
        return ", ".join(np.array(self.probe.layer_names)[layers[:4]])

    def find_mistakes(
        self, mistakes: Mapping[str, tuple[str, float]], factor: float, tolerance: float
    ) -> list[str]:
        """Returns the names of the mistakes that explain a factor, the best fit first."""
        stated = self.probe.settings
        quantities: dict[str, Any] = {
            "k": range(2, _MAX_PIECES + 1),
            "scale": 2 ** np.arange(5, 25),
            "layers": [np.sum(self.probe.is_layer_trained)],
            "sigma C": [stated.noise_multiplier * stated.clipping_norm],
        }
        for stated_name, value in stated._asdict().items():
            quantities[stated_name] = [value]
        errors: dict[str, float] = {}
        for name, (quantity, power) in mistakes.items():
            for k in quantities[quantity]:
                predicted = float(k) ** power
                # Rounded: mistakes that fit equally well stay in the table's order.
                error = round(abs(factor / predicted - 1), 3)
                # A factor of about 1 is not an explanation, such as "C is left out" if C is 1.
                if abs(predicted - 1) > 0.02 and error < tolerance:
                    errors.setdefault(name.format(k=k), error)
        return sorted(errors, key=lambda name: errors[name])


def explain(m: Measured) -> list[CheckFinding]:
    """Returns the findings: for each symptom, those of the first cause of the table that fits."""
    known = get_phrases(m.probe)
    symptoms = set()
    if not m.replays:
        symptoms.add("replay")
    if m.interacts:
        symptoms.add("separation")
    if m.judges_movements and m.tried.violations:
        example, largest = next(iter(m.tried.violations.items()))
        known |= {"example": example, "norm": largest.norm}
        symptoms.add("sensitivity")
    elif m.judges_movements:
        symptoms.add("too short")
    if m.drawn is not None:
        known["seeds"] = len(m.drawn.given.draws)
        symptoms.update(_ALL_OF_NOISE)

    findings = []
    for cause in CAUSES:
        if cause.symptom not in symptoms:
            continue
        for words in cause.find(m):
            row = words.get("row", cause.symptom)
            template = CheckFinding(row, cause.name, cause.meaning, cause.fix)
            findings.append(template.fill(**known | words))
            symptoms -= {cause.symptom, *cause.explains}
    return findings


def get_phrases(probe: StepProbe) -> dict[str, Any]:
    """Returns the phrases of fixes in the words of the step's library, by their names in braces."""
    return dict(_PHRASES.get(probe.library, _PHRASES["numpy"]))


def _when(fits: Any, **words: Any) -> list[Words]:
    """Returns words once if a signature fits."""
    return [words] if fits else []


# Signatures of movements


def is_like_noise(m: Measured) -> bool:
    """Returns whether two calls with one seed differ as two draws do: by sqrt(2) sigma a number."""
    sigma = m.probe.settings.noise_multiplier
    expected = sigma * (2 * np.sum(m.probe.is_trained)) ** 0.5
    # The norm of many normal numbers has deviation sigma; this is a test at level 0.001.
    return bool(abs(m.replay.norm - expected) < 3.3 * sigma)


def _find_size(m: Measured) -> list[Words]:
    """Finds one wrong factor of both movements and noise.

    The factor is the plateau of added examples. For examples that replace a row, it is the reach, which may
    be a tenth too small.
    """
    tried = m.tried
    if m.drawn is None or m.interacts or tried.tolerance > COARSE:
        return []
    deviation = m.drawn.given.deviation
    error = 4 / (2 * np.sum(m.drawn.given.freedom)) ** 0.5 + 0.005
    factor = tried.plateau
    if tried.refusal:
        factor = max(tried.reach, deviation * (1 - error))
    is_other = factor > 1.003 + 2 * tried.tolerance or (tried.is_stopped and factor < 1 - error)
    agrees = 0.9 * deviation < tried.reach < 1.01 * factor
    is_nearer = abs(factor / deviation - 1) < min(error, abs(deviation - 1))
    _, _, rate, size = m.probe.settings
    why = [
        f"B = {size / max(factor, 1e-30):.4g} where {size:g} is stated",
        f"a learning rate of {rate * factor:.4g} where {rate:g} is stated",
        *m.find_mistakes(_OF_BOTH, factor, _AT_C),
    ]
    fits = is_other and agrees and is_nearer
    return _when(fits, ratio=factor, why="; or ".join(why), row="sensitivity")


def _find_rows(m: Measured) -> list[Words]:
    """Finds examples that exceed C in some rows of the batch only."""
    places = m.tried.places
    rows = [row for row in sorted(places) if not places[row].excess <= 1]
    listed = f"{len(rows)} of {len(places)} rows tried: {', '.join(map(str, rows[:8]))}"
    # If all rows exceed C, but not an additional one, examples change each other's gradients.
    are_some = rows and len(rows) < len(places)
    return _when(are_some and len(m.tried.violations) <= len(rows), rows=listed)


def _find_numbers(m: Measured) -> list[Words]:
    """Finds gradients clipped number by number: most numbers move by C, and never by more."""
    sizes = np.abs(m.tried.vectors[0])
    sizes = sizes[sizes > 1e-3]
    return _when(sizes.size > 3 and np.max(sizes) < 1.02 and np.mean(sizes > 0.98) > 0.5)


def _find_separate_layers(m: Measured, count: int) -> list[Words]:
    """Finds layers that never exceed C, `count` or more of which stop at C with the same example."""
    norms = m.tried.layer_norms
    error = max(_AT_C, m.tried.tolerance)
    is_at_c = np.abs(norms - 1) < error
    layers = np.flatnonzero(is_at_c[np.argmax(np.sum(is_at_c, axis=1))])
    fits = np.max(norms) < 1 + error < m.tried.norms[0] and len(layers) >= count
    return _when(fits, where=m.name_layers(layers), count=len(layers))


def _list_left_out(m: Measured) -> Iterator[Words]:
    """Yields layers without which no example exceeds C, and whether the others stop at C.

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
            yield {"where": m.name_layers(layers), "stops": others[-2:][0] > 0.96}


def _find_factor(m: Measured) -> list[Words]:
    """Finds a wrong factor, such as clipping in k pieces, from the norm at which clipping stops examples.

    Smaller norms need a known mistake: layers may be clipped to their shares of C.
    """
    plateau = m.tried.plateau
    mistakes = m.find_mistakes(_OF_EXAMPLES, plateau, _AT_C + m.tried.tolerance)
    if m.tried.violations and not mistakes:
        mistakes = [f"clipped to {plateau:.4g} times the stated C"]
    if not mistakes or m.tried.stops_by_layer or not m.tried.is_stopped:
        return []
    why = "; or ".join(mistakes)
    return [{"name": mistakes[0], "plateau": plateau, "why": why, "row": "sensitivity"}]


def _find_scaling_up(m: Measured) -> list[Words]:
    """Finds examples that never move the step by less than C."""
    moved = m.tried.norms[m.tried.norms > 0]
    return _when(np.min(moved) > 1 - _FIT and np.sum(moved < 1 + _FIT) > 3)


# Signatures of noise


def _find_repeats(m: Measured) -> list[Words]:
    """Finds seeds that give the noise of other seeds.

    If all seeds give the same step, it may have no noise at all. An empty batch shows this. If the step
    refuses an empty batch, a batch with every example four times shows it: with the gradients' part g and
    noise z, the step moves by g + z at the batch as given, and by 4 g + z at the larger batch.
    """
    others = m.drawn.others
    if np.any(m.drawn.given.values):
        return _when(m.repeats, which="several seeds", count=m.repeats)
    constant: Any = 0
    if EMPTY in others:
        constant = others[EMPTY].draws[0]
    elif FOURFOLD in others:
        constant = (4 * m.drawn.given.draws[0] - others[FOURFOLD].draws[0]) / 3
    is_noise = 0.3 < np.max(np.abs(constant), initial=0) < 10
    return _when(is_noise, which="every seed", count=m.repeats)


def _list_related(m: Measured) -> list[str]:
    """Returns the rejected tests of independence within a draw."""
    return [name for name in m.rejected["independence"] if name != noise.CONSECUTIVE]


def _find_small(
    m: Measured, row: str, test: str, statistics: dict[str, float], limit: float
) -> list[Words]:
    """Finds layers whose test was rejected, and whose statistic, 1 in a correct step, is below a limit."""
    layers = []
    for name, value in statistics.items():
        if value < limit and f"{test} {name}" in m.rejected[row]:
            layers.append(name)
    return _when(layers, where=", ".join(layers[:4]))


def _find_cancelling(m: Measured) -> list[Words]:
    """Finds layers with noise that nearly cancels in the sum."""
    shares = noise.compute_shares(m.drawn)
    return _find_small(m, "independence", noise.SUM_OF, shares, limit=0.2)


def _find_silence(m: Measured) -> list[Words]:
    """Finds layers without noise in some or all parameters."""
    given = m.drawn.given
    places = []
    for i in np.flatnonzero((given.freedom > 0) & (given.silent > 0)):
        part = "a part of " if given.silent[i] < m.probe.sizes[i] else ""
        places.append(f"{part}{m.probe.layer_names[i]}")
    return _when(places, where=", ".join(places[:4]))


def _are_equal(given: StepNoise, layers: Any) -> bool:
    """Returns whether layers' deviations may be equal: within 10%, or within eight standard errors."""
    deviations = given.deviations[layers]
    allowed = max(0.1, 8 / (2 * np.min(given.freedom[layers])) ** 0.5)
    return bool(np.ptp(deviations) <= allowed * np.min(deviations))


def _find_deviation(m: Measured) -> list[Words]:
    """Finds wrong deviations, and the mistakes that explain them if they are equal.

    All trained layers are wrong if the test of all layers together rejects and their deviations may be equal.
    """
    given = m.drawn.given
    wrong = m.rejected["noise"]
    layers = trained = np.flatnonzero(given.freedom)
    named = trained[np.isin(np.array(m.probe.layer_names)[trained], wrong)]
    if named.size and not (ALL_LAYERS in wrong and _are_equal(given, trained)):
        layers = named
    layers = layers[given.silent[layers] == 0]
    # Shared noise leaves fewer independent numbers than the test assumes.
    is_explained = _list_related(m) and 0.5 < m.drawn.given.deviation < 2
    if not wrong or not layers.size or is_explained:
        return []
    deviations = given.deviations[layers]
    freedom = given.freedom[layers]
    deviation = float(np.average(deviations**2, weights=freedom) ** 0.5)
    # 1%, and four standard errors of a measured deviation, each 1 / sqrt(2 freedom).
    error = min(0.01 + 4 / (2 * np.sum(freedom)) ** 0.5, _MAX_DEVIATION_FIT)
    figure = f"{deviation:.3g}"
    fits = m.find_mistakes(_OF_NOISE, deviation, error)
    if not _are_equal(given, layers):
        figure = f"{np.min(deviations):.3g} to {np.max(deviations):.3g}"
        fits = ["it differs by layer"]
    if not m.tried.is_clipping_seen:
        fits.append("the whole step has another size than stated: clipping was not seen")
    multiplier = np.min(given.deviations[trained]) * m.probe.settings.noise_multiplier
    words = {"figure": figure, "layers": m.name_layers(layers), "multiplier": multiplier}
    return [words | {"why": "; or ".join(fits) or "no known mistake"}]


def _find_changes(m: Measured) -> list[Words]:
    """Finds noise that is not finite, missing, or of another deviation at another batch."""
    found: dict[str, Words] = {}
    for batch, other in m.drawn.others.items():
        row = noise.row_of(batch)
        ratio = other.deviation / m.drawn.given.deviation
        name = "noise that depends on the batch"
        advice = "take the noise's deviation only from sigma, C and B, and add it once a step"
        if other.not_finite:
            name = "NaN or infinity"
            advice = _FINITE
        elif batch not in m.rejected[row]:
            continue
        elif ratio == 0:
            name = "steps with an empty batch are skipped"
            advice = "add the noise to a sum of zero too: no step shows that the batch was empty"
        elif abs(ratio * _SIZES.get(batch, 0) - 1) < 0.15:
            name = "normalised by the batch's actual size"
            advice = "divide by the stated batch size, a constant, not by the number of examples"
        words = {"row": row, "name": name, "advice": advice, "batch": batch, "ratio": ratio}
        found.setdefault(row, words)
    return list(found.values())


def _find_one_length(m: Measured) -> list[Words]:
    """Finds layers with noise of nearly one norm, as the only symptom."""
    if "distribution" in m.rejected["shape"]:
        return []
    spreads = noise.compute_length_spreads(m.drawn)
    return _find_small(m, "shape", noise.LENGTH_OF, spreads, limit=1)


_EXCESS = "an example that moves the step by more than C"
_FINITE = (
    "clip with C / max(C, norm), replace gradients that are not finite by 0, never divide by a size"
)
_SIZE = (
    "a step of another size than stated",
    "Movements and noise are both {ratio:.4g} times as stated by eta C / B: no privacy is lost by it. "
    "It fits: {why}.",
    "state the learning rate, clipping norm and batch size that the step has, or divide by the stated one",
    _find_size,
    ("noise",),
)
_SHARES = ("noise and data", "shape")  # tests assume that many numbers are independent
_ALL_OF_NOISE = ("noise", "independence", *_SHARES)


def _too_far(name: str, why: str, find: Callable[[Measured], list[Words]]) -> Cause:
    """Returns a cause of an example that moves the step by more than C."""
    meaning = f"One example moves the step by {{norm:.4g}} times eta C / B, with {{example}}. {why}"
    fix = "clip every example's whole gradient to norm C, {clip}; sum, divide by the stated B once"
    return Cause("sensitivity", name, meaning, fix, find)


# The first cause that fits explains its symptom. Movements mean little if examples change each other's
# gradients, and tests of the noise if seeds or numbers share it.
CAUSES = (
    Cause(
        "replay",
        "noise that does not follow the seed",
        "Two calls with the same seed differ as much as two draws of the noise: the seed does not "
        "determine it.",
        "draw the noise from {generator}; until then only the noise can be checked",
        lambda m: _when(is_like_noise(m)),
    ),
    Cause(
        "replay",
        "a step that keeps state between calls",
        "Two calls with the same seed and batch differ by {distance:.3g} eta C / B, which the noise does "
        "not explain.",
        "restore parameters, optimizer and generators before each call; with Adam {gradient}",
        lambda m: [{"distance": m.replay.norm}],
    ),
    Cause(
        "separation",
        "examples change each other's gradients",
        "Two parts of a batch together do not move the step by the sum of their separate movements: it "
        "differs by {distance:.3g} eta C / B.",
        "look for what mixes examples: batch norm, division by the actual size, a clipping norm or "
        "weights taken from the batch, microbatches clipped as one, a loss over pairs",
        lambda m: [{"distance": m.interaction.norm}],
    ),
    Cause("sensitivity", *_SIZE),
    Cause("too short", *_SIZE),
    Cause(
        "sensitivity",
        "NaN or infinity",
        "The step gives NaN or infinity with {example}: an example, or its absence, is seen in the model.",
        _FINITE,
        lambda m: _when(not np.isfinite(next(iter(m.tried.violations.values())).norm)),
    ),
    _too_far(
        "rows of the batch that are not clipped",
        "It does so in {rows}.",
        _find_rows,
    ),
    _too_far(
        _EXCESS,
        "First look for what mixes examples.",
        lambda m: _when(m.interacts),
    ),
    _too_far(
        "clipped number by number",
        "No number moves by more than C.",
        _find_numbers,
    ),
    _too_far(
        "layers clipped by themselves",
        "{count} layers stop at C at once: {where}.",
        lambda m: _find_separate_layers(m, 2),
    ),
    _too_far(
        "{where} left out of the clipping norm, or of clipping",
        "The others stop at C.",
        lambda m: [words for words in _list_left_out(m) if words["stops"]][:1],
    ),
    _too_far(
        "{name}",
        "Extreme examples stop at {plateau:.4g} times the stated clipping norm. It fits: {why}.",
        _find_factor,
    ),
    _too_far(
        "gradients scaled up to C, not down",
        "Short ones come to C, longer ones are left: min where max is meant, or max for min?",
        _find_scaling_up,
    ),
    _too_far(
        "no clipping of single examples",
        "",
        lambda m: _when(m.tried.reach > _MAX_PIECES),
    ),
    _too_far(
        "{where} clipped apart from other layers",
        "It stops at C while others move too.",
        lambda m: _find_separate_layers(m, 1),
    ),
    _too_far(
        _EXCESS,
        "All but {where} stay within C: is their gradient clipped too?",
        lambda m: list(_list_left_out(m))[:1],
    ),
    _too_far(
        _EXCESS,
        "They do not stop at C: is there any clipping, and are all numbers in the norm?",
        lambda m: [{}],
    ),
    Cause(
        "too short",
        "{name}",
        "Extreme examples stop at {plateau:.4g} times eta C / B, where the stated noise is for 1: no "
        "privacy is lost by it, but the gradient drowns. It fits: {why}.",
        "divide the clipped sum once, by the stated B",
        _find_factor,
    ),
    Cause(
        "noise",
        "NaN or infinity",
        "The step gives NaN or infinity at {count:,} of {seeds:,} seeds with the batch as given, which "
        "hides other bugs of the noise.",
        "look for a logarithm of 0, a division by 0 or an overflow where the noise is drawn, and for "
        "gradients that are not finite at some seeds",
        lambda m: _when(m.drawn.given.not_finite, count=m.drawn.given.not_finite),
        _ALL_OF_NOISE,
    ),
    Cause(
        "noise",
        "no noise in some {parts}",
        "{parts} are often the same for two seeds: there the step shows the sum of gradients.",
        "add noise to all numbers at every step: look for a condition, a mask or a skipped call before it",
        lambda m: _when(
            m.ties == Ties(AT_ONE),
            parts="steps" if m.repeats else "numbers of some steps",
        ),
        _ALL_OF_NOISE,
    ),
    Cause(
        "independence",
        "the same noise for {which}",
        "{count} of {seeds} seeds give exactly the noise of another: two steps reveal the gradients.",
        "make the generator once, before training, or from the whole of the step's seed: {generator}",
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
        lambda m: _when(_list_related(m), tests="; ".join(_list_related(m))),
        _SHARES,
    ),
    Cause(
        "independence",
        "noise of consecutive steps is related",
        "Sums or differences of steps carry less noise than the accountant assumes.",
        "make the generator once, or fold the number of the step into the key",
        lambda m: _when(m.rejected["independence"]),
    ),
    Cause(
        "noise",
        "no noise in {where}",
        "These numbers are the same for every seed.",
        "add noise of deviation sigma C to all numbers of the sum, also to an embedding's rows without "
        "examples; leave numbers that are not trained out of `params`",
        _find_silence,
        ("noise and data",),
    ),
    Cause(
        "noise",
        "noise of {figure} times the stated deviation",
        "It is {figure} times eta sigma C / B in {layers}. It fits: {why}. More noise than stated loses no "
        "privacy.",
        "add noise of deviation sigma C once, to the sum of clipped gradients, before dividing by B; or "
        "state the noise multiplier that all layers have, about {multiplier:.3g}",
        _find_deviation,
    ),
    Cause(
        "noise and data",
        "{name}",
        "The batch changes the noise: at {batch} it is {ratio:.3g} times as large.",
        "{advice}",
        _find_changes,
    ),
    Cause(
        "shape",
        "noise that is clamped",
        "Several draws agree at the largest and smallest values.",
        "draw it by normal() and do not clamp it",
        lambda m: _when(m.ties == Ties(AT_ENDS)),
    ),
    Cause(
        "shape",
        "noise on a grid that the sum is not on",
        "Draws have few values. Steps with different gradients have different values, which a single step "
        "shows.",
        "draw the noise in float32 or float64, and round the sum after adding it",
        lambda m: _when(m.ties.kind and not m.ties.is_shared),
    ),
    Cause(
        "shape",
        "noise of one length",
        "The norm of the noise of {where} does not vary as that of independent normal numbers: it shows the "
        "gradients.",
        "draw a number for every parameter at every step, and do not normalise them",
        _find_one_length,
    ),
    Cause(
        "shape",
        "noise that is not normal",
        "Its numbers, or the norms of its draws, do not have the distribution of the Gaussian that the "
        "accountant assumes.",
        "draw it by normal(), not uniform() or laplace(), not truncated, and do not clip after adding it",
        lambda m: _when(m.rejected["shape"]),
    ),
)
