"""The measurements of a step, which the report describes and the causes explain."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from audit.check import examples, movements, noise
from audit.check.movements import COARSE, SeedEffect, TriedExamples
from audit.check.noise import CLAMPED_SUM
from audit.check.probe import Movement, StepProbe
from audit.check.report import LEVEL

_CHANGED_AFTER = (
    "what an example does depends on the seed: is dropout on? Set `m.p = 0.0` in every Dropout (model.eval() "
    "would take away Opacus's hooks); augmentation or sampling before the gradient do it too. Or something "
    "happens after the noise, such as rounding, clamping, projection or top-k: return the noisy sum; with "
    "Adam "
)
_ADAM = "this looks like Adam, or the sign of the gradient (every number moves equally far): "
_ALL_CLIPPED = (
    "every example that was tried is clipped, which hides whether others change its gradient: check again "
    "with a larger clipping norm, or let the step take clipping_norm="
)


class Phrases(NamedTuple):
    """Parts of fixes in the words of the step's library.

    Attributes:
      gradient: how to return the private gradient.
      clip: how to clip the whole gradient of an example.
      generator: a generator for a seed.
    """

    gradient: str
    clip: str
    generator: str


_NUMPY = Phrases(
    "return the private gradient, the clipped and noisy mean, with learning_rate=1",
    "by one np.linalg.norm of each example's numbers",
    "np.random.default_rng(seed)",
)
_OF_LIBRARIES = {
    "torch": Phrases(
        "return `p.grad` after clipping and noise, with learning_rate=1",
        "by Opacus, or vmap over grad and one norm of all tensors",
        "torch.Generator().manual_seed(seed)",
    ),
    "jaxlib": Phrases(
        "return the private gradient that `optimizer.update` gets, with learning_rate=1",
        "by jax_privacy.clipped_grad, or optax.projections.projection_l2_ball under vmap",
        "jax.random.key(seed), split for the layers",
    ),
}


class Measured(NamedTuple):
    """The measurements of a step.

    Attributes:
      probe: the step.
      replay: the difference of two calls with the same batch and seed.
      tried: how far each example moves the step.
      drawn: the noise, a DrawnNoise; None if no noise is stated.
      ties: how numbers of the noise agree, see `find_ties`.
      hides_movements: the reason why movements do not show sensitivity; empty if they do.
      hides_noise: the reason why the noise cannot be tested; empty if it can.
      p_values: the p-values of the tests of the noise by row and test; empty if it cannot be tested.
      interaction: how far two parts of a batch differ from their sum, a Movement; or the reason why it is not
        known.
      rejected: by row of the report, the names of the rejected tests of the noise; empty before the report
        has tested all hypotheses together.
    """

    probe: StepProbe
    replay: Movement
    tried: TriedExamples
    drawn: Any
    ties: str
    hides_movements: str
    hides_noise: str
    p_values: dict[str, dict[str, float]]
    interaction: Any
    rejected: dict[str, list[str]] = {}

    @property
    def phrases(self) -> Phrases:
        """Parts of fixes in the words of the library of the parameters."""
        return _OF_LIBRARIES.get(self.probe.library, _NUMPY)

    @property
    def replays(self) -> bool:
        """True if two calls with the same seed give the same parameters."""
        return self.replay.norm <= min(self.replay.tolerance, 1e100)  # both may overflow

    @property
    def interacts(self) -> bool:
        """True if examples change each other's gradients."""
        is_measured = isinstance(self.interaction, Movement)
        return is_measured and 0 < self.interaction.excess < np.inf

    def name_layers(self, layers: Any) -> str:
        """Returns the names of the first four of these layers."""
        return ", ".join(np.array(self.probe.layer_names)[layers[:4]])


def measure_step(
    probe: StepProbe, seeds: int | None, tell: Callable[[str], object] = str
) -> Measured:
    """Replays a step, tries examples, draws its noise, and tests what nothing hides.

    Args:
      probe: the step.
      seeds: the number of draws of the noise; None for the default.
      tell: a function that is called with a line on the time of the check, and with a line after each part.

    Raises:
      RefusedError: the step fails on the batch as given.
    """
    # The probe has called the step before, so this time is without compilation.
    began = time.perf_counter()
    difference = probe.run(probe.rows, 0) - probe.base
    seconds = time.perf_counter() - began
    replay = probe.measure(difference, probe.base, probe.rows)
    # About 50 examples are tried, and 250 seeds.
    total = 300 * seconds
    tell(
        f"a step takes {1000 * seconds:.0f} ms; about {total:.0f} s for all checks (less if it is compiled)"
    )
    tried = movements.try_examples(probe, seconds)
    tell(f"{len(tried.movements)} examples tried, and {len(tried.places)} rows")
    effect = movements.measure_seed_effect(tried, probe.rows)
    drawn = None
    found_ties = ""
    hides_noise = "noise_multiplier=0: no noise is expected"
    if probe.settings.noise_multiplier:
        drawn = noise.draw_noise(probe, seeds, seconds)
        tell(f"noise drawn with {len(drawn.given.draws)} seeds")
        found_ties = noise.find_ties(drawn)
        hides_noise = ""
    m = Measured(probe, replay, tried, drawn, found_ties, "", hides_noise, {}, "")
    if m.replays and drawn and drawn.is_sign_step():
        reason = _ADAM + m.phrases.gradient
        return m._replace(hides_movements=reason, hides_noise=reason)
    m = _find_obstacles(m, effect)
    if not m.hides_movements:
        m = m._replace(interaction=_measure_interaction(m))
    if not m.hides_noise:
        m = m._replace(p_values=_test_noise(m, effect))
    return m


def _find_obstacles(m: Measured, effect: SeedEffect | None) -> Measured:
    """Returns the measurements with the reasons that hide movements and noise, given the effect of a seed."""
    if m.ties == CLAMPED_SUM or (m.replays and _is_changed_after_noise(m, effect)):
        reason = _CHANGED_AFTER + m.phrases.gradient
        m = m._replace(hides_movements=reason, hides_noise=m.hides_noise or reason)
    elif m.replays and not m.tried.is_any_moved:
        reason = "no example changes anything: does the step use its batch?"
        m = m._replace(hides_movements=reason)
    elif not m.replays or (effect is not None and effect.excess > 0):
        m = m._replace(hides_movements="other noise, at every call or by the batch, hides it")
    # A step that keeps state may be an optimizer with running means, which rescale the noise too.
    if not m.replays and not is_replay_like_noise(m):
        m = m._replace(hides_noise="the step keeps state, which hides it")
    if m.drawn and m.drawn.given.not_finite:
        m = m._replace(hides_noise="the step is not finite at some seeds")
    return m


def _test_noise(m: Measured, effect: SeedEffect | None) -> dict[str, dict[str, float]]:
    """Returns the p-values of the tests of the noise by row and test.

    Other batches are not compared if an operation after the noise changes only large sums: then the seed has
    an effect at larger batches, and not at the batch as given.
    """
    p_values = noise.run_tests(m.drawn)
    tests = p_values["noise and data"]
    has_no_effect = effect is None or effect.excess <= 0
    if min(tests.values(), default=1.0) < LEVEL and has_no_effect:
        rows = m.probe.rows
        for batch in (examples.scale_features(rows, 1e3, rows), examples.join(*[rows] * 4)):
            if _is_changed_after_noise(m, movements.measure_seed_effect(m.tried, batch)):
                tests.clear()
    return p_values


def is_replay_like_noise(m: Measured) -> bool:
    """Returns True if two calls with the same seed differ as two draws of the noise do.

    Each number then differs by sqrt(2) sigma. The norm of many normal numbers has deviation sigma; 3.3
    deviations are a test at level 0.001.
    """
    sigma = m.probe.settings.noise_multiplier
    expected = sigma * (2 * np.sum(m.probe.is_trained)) ** 0.5
    return bool(abs(m.replay.norm - expected) < 3.3 * sigma)


def _is_changed_after_noise(m: Measured, effect: SeedEffect | None) -> bool:
    """Returns True if dropout or an operation after the noise causes a seed's effect.

    Noise that is scaled by an example, or drawn once for each part of a batch, has such an effect too. The
    latter is more noise than stated, and has no effect in a batch of one row.
    """
    if effect is None or effect.excess <= 0 or effect.scales_noise:
        return False
    first_row = examples.take(m.probe.rows, [0])
    alone = movements.measure_seed_effect(m.tried, first_row, seeds=8)
    is_fixed_alone = alone is not None and alone.excess <= 0
    return not (is_fixed_alone and m.drawn and m.drawn.given.deviation > 1.1)


def _measure_interaction(m: Measured) -> Movement | str:
    """Returns how far two parts of a batch differ from their sum, or the reason why this is not known.

    If every example is clipped, the step is tried with a larger clipping norm.
    """
    norms = m.tried.collect("norm")
    is_all_clipped = not m.tried.refusal and np.min(norms, initial=np.inf) > 1 - COARSE
    larger = m.probe.with_larger_norm() if is_all_clipped else None
    interaction = movements.measure_interactions(larger or m.probe, m.tried)
    is_unseen = not m._replace(interaction=interaction).interacts
    return _ALL_CLIPPED if is_all_clipped and larger is None and is_unseen else interaction
