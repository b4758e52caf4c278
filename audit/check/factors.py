"""Mistakes that multiply a movement, the noise, or both by a factor: which of them fit what was measured."""

from collections.abc import Mapping

from audit.check.probe import StepSettings

_MOST_WORKERS = 16
_LOSS_SCALES = range(5, 25)  # powers of two
_LARGEST_BATCH = 100_000  # that is named; rounding hides the number of larger ones
_NEAR_INTEGER = 2e-3  # relative, within which a measured size is taken for an exact one
_OPACUS_MOST = 1.5  # below which a step may be too large since Opacus rounds the batch size down


def find_mistakes(
    settings: StepSettings,
    factor: float,
    tolerance: float,
    special: Mapping[str, float],
) -> list[str]:
    """Returns the mistakes that multiply a movement or the noise by a factor, the likeliest first.

    Args:
      settings: what the caller states.
      factor: the movement or the noise over what it should be.
      tolerance: relative, of the factor.
      special: factors of mistakes that only a movement, or only the noise, can have.
    """
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
        has_effect = abs(mistaken_factor - 1) > 0.02
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
    """Returns a sentence on the mistakes that multiply the noise by a ratio; empty where there is none.

    Args:
      ratio: the measured deviation of the noise over the stated one.
      settings: what the caller states.
      layers: how many layers are trained.
      tolerance: relative, of the ratio.
    """
    sigma = settings.noise_multiplier
    size = settings.batch_size
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
        "sensitivity 2 C (one replaced)": 2.0,
    }
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
    """Returns the mistakes that shrink clipped gradients to less than C, but not the noise.

    Args:
      plateau: the norm in units of C that extreme examples do not pass.
      settings: what the caller states.
      rows: how many examples the batch has.
      tolerance: relative, of the plateau.
    """
    factors: dict[str, float] = {}
    for k in range(2, _MOST_WORKERS + 1):
        factors[f"divided by {k} accumulated batches or workers"] = 1 / k
    for power in _LOSS_SCALES:
        factors[f"a loss scale of {2**power:,} divided out after clipping"] = 2.0**-power
    if rows > 1:
        factors["divided by the batch size twice"] = 1 / rows
    return find_mistakes(settings, plateau, tolerance, factors)


def explain_step_size(factor: float, settings: StepSettings, layers: int) -> str:
    """Returns a sentence on what multiplies both an example's movement and the noise by the same factor.

    That is another batch size, clipping norm or learning rate than the stated one, or a mistake that
    multiplies the whole step.

    Args:
      factor: what is measured over what is stated, of the movement and of the noise alike.
      settings: what the caller states.
      layers: how many layers are trained.
    """
    fits = []
    batch_size = settings.batch_size / factor
    nearest_size = round(batch_size)
    is_size = 1 <= nearest_size < _LARGEST_BATCH
    if is_size and abs(batch_size / nearest_size - 1) < _NEAR_INTEGER:
        text = f"B = {batch_size:.4g} where {settings.batch_size:g} is stated"
        if 1 < factor < _OPACUS_MOST:
            text += " (Opacus divides by int(examples / len(loader)))"
        fits.append(text)
    if layers > 1 and abs(factor / layers**0.5 - 1) < _NEAR_INTEGER:
        norm = settings.clipping_norm * factor
        fits.append(f"C sqrt({layers}) = {norm:.4g} of {layers} layers, each clipped to C")
    rate = settings.learning_rate * factor
    fits.append(f"a learning rate of {rate:.4g} where {settings.learning_rate:g} is stated")

    factors: dict[str, float] = {}
    for k in range(2, _MOST_WORKERS + 1):
        factors[f"divided by {k} accumulated batches or workers again"] = 1 / k
    for power in _LOSS_SCALES:
        factors[f"a loss scale of {2**power:,} that is not divided out"] = 2.0**power
        factors[f"a loss scale of {2**power:,} divided out twice"] = 2.0**-power
    tolerance = 2 * _NEAR_INTEGER
    fits += find_mistakes(settings, factor, tolerance, factors)
    return _list_mistakes(fits)


def _list_mistakes(mistakes: list[str]) -> str:
    """Returns a sentence of mistakes; empty where there is none."""
    if not mistakes:
        return ""
    return f"It fits: {'; or '.join(mistakes)}."
