"""Mistakes that multiply a movement, the noise, or both by a factor: which of them fit what was measured.

C, sigma, eta and B are the clipping norm, noise multiplier, learning rate and batch size of `StepSettings`.
"""

from collections.abc import Mapping

from audit.check.probe import StepSettings

_MOST_WORKERS = 16
_LOSS_SCALES = range(5, 25)  # exponents of two
_LARGEST_BATCH = 100_000  # a larger batch's size is not named: rounding hides it
_NEAR_INTEGER = 2e-3  # the relative distance up to which a measured number counts as a whole number


def find_mistakes(
    settings: StepSettings,
    factor: float,
    tolerance: float,
    special: Mapping[str, float],
) -> list[str]:
    """Returns in words the mistakes that multiply a movement or the noise by a factor, the best fit first.

    Args:
      settings: what the caller states.
      factor: the measured movement or noise over what it should be.
      tolerance: the relative difference up to which a mistake's factor fits.
      special: further mistakes to consider, with the factor that each gives.
    """
    # By the mistake in words, the factor that it gives.
    factors = {
        **special,
        "C is left out": 1 / settings.clipping_norm,
        "C enters twice": settings.clipping_norm,
        "divided by the batch size twice": 1 / settings.batch_size,
        "not divided by the batch size": settings.batch_size,
        "the learning rate is left out": 1 / settings.learning_rate,
        "the learning rate enters twice": settings.learning_rate,
    }
    errors = {}
    for mistake, mistaken_factor in factors.items():
        # A mistake whose factor is about 1 explains nothing, such as "C is left out" where C is 1.
        has_effect = abs(mistaken_factor - 1) > 0.02
        # Rounded, so that mistakes that fit as well as each other stay in their order.
        error = round(abs(factor / mistaken_factor - 1), 3)
        if has_effect and error < tolerance:
            errors[mistake] = error
    return sorted(errors, key=lambda mistake: errors[mistake])


def explain_noise(
    ratio: float,
    settings: StepSettings,
    layers: int,
    tolerance: float,
) -> str:
    """Returns a sentence on the mistakes that multiply the noise by this ratio; empty if none fits.

    The sentence is "It fits: ...; or ....", with the mistakes in words, the best fit first.

    Args:
      ratio: the noise's measured standard deviation over what the settings make it.
      settings: what the caller states; its noise multiplier is above 0.
      layers: how many layers are trained.
      tolerance: the relative difference up to which a mistake's factor fits.
    """
    sigma = settings.noise_multiplier
    size = settings.batch_size  # B in the texts, as C is the clipping norm
    # By the mistake in words, the factor by which it multiplies the noise's deviation.
    factors: dict[str, float] = {
        "divided by sqrt(B) too much": size**-0.5,
        "divided by sqrt(B), or drawn for every example": size**0.5,
        "sigma is squared: a variance taken for a deviation": sigma,
        "sigma is left out": 1 / sigma,
        "the root of sigma: a deviation taken for a variance": sigma**-0.5,
        "the root of sigma C: a deviation taken for a variance": (sigma * settings.clipping_norm)
        ** -0.5,
        "sigma C is squared: a variance taken for a deviation": sigma * settings.clipping_norm,
        "shared out among layers": layers**-0.5,
        f"made for C sqrt({layers}), of {layers} layers each clipped to C": layers**0.5,
        "sensitivity 2 C (one replaced)": 2.0,
    }
    # The sum of k independent draws has sqrt(k) times the deviation of a single draw, and k times a single
    # draw has k times its deviation. A worker with a k-th of the variance draws 1 / sqrt(k) of the deviation.
    for k in range(2, _MOST_WORKERS + 1):
        factors[f"noise added {k} times, by accumulated batches or workers"] = k**0.5
        factors[f"one draw added {k} times, by workers with one generator"] = k
        factors[f"the noise of one of {k} accumulated batches or workers"] = k**-0.5
        factors[f"divided by {k} accumulated batches or workers"] = 1 / k
    return _list_mistakes(find_mistakes(settings, ratio, tolerance, factors))


def find_lost_signal(
    plateau: float,
    settings: StepSettings,
    rows: int,
    tolerance: float,
) -> list[str]:
    """Returns in words the mistakes that shrink the examples' sum but not the noise, the best fit first.

    Args:
      plateau: the norm at which the movements of extreme examples stop, in units of C. It is 1 in a correct
        step and below 1 here, where it is the factor that mistakes have to explain.
      settings: what the caller states.
      rows: how many examples the batch has.
      tolerance: the relative difference up to which a mistake's factor fits.
    """
    # By the mistake in words, the factor by which it multiplies the examples' sum.
    factors: dict[str, float] = {}
    for k in range(2, _MOST_WORKERS + 1):
        factors[f"divided by {k} accumulated batches or workers"] = 1 / k
    for power in _LOSS_SCALES:
        factors[f"a loss scale of {2**power:,} divided out after clipping"] = 2.0**-power
    # `find_mistakes` has a second division by the stated batch size. Code may divide by the rows instead.
    if rows not in (1, settings.batch_size):
        factors[f"divided by the batch's {rows} rows, and by the batch size"] = 1 / rows
    return find_mistakes(settings, plateau, tolerance, factors)


def explain_step_size(
    factor: float,
    settings: StepSettings,
    layers: int,
    tolerance: float = _NEAR_INTEGER,
) -> str:
    """Returns a sentence on why a whole step, examples' movements and noise, is a factor too large.

    The sentence always names the learning rate that gives such a step. It names a batch size B if the step
    fits a whole number, the clipping norm C sqrt(layers) if the factor is sqrt(layers), and mistakes that
    multiply a whole step by the factor.

    Args:
      factor: the step's size over what the settings make it; below 1 if the step is too small.
      settings: what the caller states.
      layers: how many layers are trained.
      tolerance: the relative difference up to which a size fits; by default that of a plateau, which is
        measured more precisely than the noise.
    """
    # Each of these settings, with the others as stated, gives a step of the measured size.
    batch_size = settings.batch_size / factor
    learning_rate = settings.learning_rate * factor
    clipping_norm = settings.clipping_norm * factor
    about = "about " if tolerance > _NEAR_INTEGER else ""
    explanations = []
    whole_size = round(batch_size)
    is_possible_size = 1 <= whole_size < _LARGEST_BATCH
    if is_possible_size and abs(batch_size / whole_size - 1) < tolerance:
        text = f"B = {about}{whole_size} where {settings.batch_size:g} is stated"
        # Opacus rounds its divisor down, which makes steps larger: by a factor below 1.5 if it is 2 or more.
        if 1 < factor < 1.5:
            text += " (Opacus divides by int(examples / len(loader)))"
        explanations.append(text)
    # With a single layer the factor would be 1, which explains nothing.
    if layers > 1 and abs(factor / layers**0.5 - 1) < tolerance:
        explanations.append(
            f"C sqrt({layers}) = {about}{clipping_norm:.4g} of {layers} layers, each clipped to C"
        )
    explanations.append(
        f"a learning rate of {about}{learning_rate:.4g} where {settings.learning_rate:g} is stated"
    )

    mistakes_of_a_step: dict[str, float] = {}
    for k in range(2, _MOST_WORKERS + 1):
        mistakes_of_a_step[f"divided by {k} accumulated batches or workers again"] = 1 / k
    for power in _LOSS_SCALES:
        scale = 2**power
        mistakes_of_a_step[f"a loss scale of {scale:,} that is not divided out"] = float(scale)
        mistakes_of_a_step[f"a loss scale of {scale:,} divided out twice"] = 1 / scale
    # At least 0.4%, twice what a plateau is allowed above: a factor on this list fits by chance less often
    # than some whole B.
    allowed = max(tolerance, 2 * _NEAR_INTEGER)
    explanations += find_mistakes(settings, factor, allowed, mistakes_of_a_step)
    return _list_mistakes(explanations)


def _list_mistakes(mistakes: list[str]) -> str:
    """Returns a sentence that lists the mistakes; empty if there is none."""
    if not mistakes:
        return ""
    return f"It fits: {'; or '.join(mistakes)}."
