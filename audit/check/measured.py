"""Measures a step, to report on it and to explain its bugs."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from audit.check import examples, movements, noise
from audit.check.movements import MAX_TOLERANCE, SeedEffect, TriedExamples
from audit.check.noise import CLAMPED_SUM, FEATURES, FOURFOLD, LAGS, NO_TIES
from audit.check.probe import Movement, StepProbe
from audit.check.report import LEVEL, find_rejected_tests

_RESCALED_ERROR = 0.05  # in norms that are divided by estimated deviations
_ADAM = "this looks like Adam, or the sign of the gradient (all parameters move equally far): "
_ALL_CLIPPED = (
    "every example with an effect is clipped, which hides interactions: state a larger clipping norm, or let "
    "the step take clipping_norm="
)


class Phrases(NamedTuple):
    """Parts of messages for the step's array library.

    Attributes:
      gradient, clip, generator: how to return the private gradient, clip an example, and seed a generator.
      random: possible reasons why an example's effect is random, such as dropout.
    """

    gradient: str
    clip: str
    generator: str
    random: str = "is dropout on? Augmentation and sampling also have this effect"


_NUMPY = Phrases(
    gradient="return the private gradient, the clipped and noisy mean, with learning_rate=1",
    clip="with one np.linalg.norm over each example's whole gradient",
    generator="np.random.default_rng(seed)",
)
_PHRASES = {
    "torch": Phrases(
        gradient="return `p.grad` after clipping and noise, with learning_rate=1",
        clip="with Opacus, or with vmap over grad and one norm over all tensors",
        generator="torch.Generator().manual_seed(seed)",
        random="is dropout on? Set `m.p = 0.0` in every Dropout (model.eval() would remove Opacus's hooks)",
    ),
    "jaxlib": Phrases(
        gradient="return the private gradient that `optimizer.update` gets, with learning_rate=1",
        clip="with jax_privacy.clipped_grad, or optax.projections.projection_l2_ball under vmap",
        generator="jax.random.key(seed), split across layers",
    ),
}


class Measured(NamedTuple):
    """The measurements of a step.

    Attributes:
      probe: the step.
      replay: the difference between two calls with the same batch and seed.
      tried: the movement due to each example.
      drawn: the noise, a DrawnNoise; None if the stated noise is 0.
      ties: the kind of repeated values in the noise (see `find_ties`); otherwise "".
      movement_obstacle: why movements do not show sensitivity; "" if they do.
      noise_obstacle: why the noise cannot be tested; "" if it can.
      p_values: the p-values of the noise tests, by report row and test; empty if there is an obstacle.
      interaction: how much two parts of a batch affect each other's movements, or why this is unknown.
      rejected: the names of the noise tests that reject, by report row.
    """

    probe: StepProbe
    replay: Movement
    tried: TriedExamples
    drawn: Any
    ties: str
    movement_obstacle: str = ""
    noise_obstacle: str = ""
    p_values: dict[str, dict[str, float]] = {}
    interaction: Any = ""
    rejected: dict[str, list[str]] = {}

    @property
    def phrases(self) -> Phrases:
        """The phrases for the parameters' array library."""
        return _PHRASES.get(self.probe.library, _NUMPY)

    @property
    def replays(self) -> bool:
        """True if two calls with the same seed give the same parameters, up to rounding."""
        # For a huge difference, the tolerance may be infinite.
        return self.replay.norm <= min(self.replay.tolerance, 1e100)

    @property
    def replays_like_noise(self) -> bool:
        """True if two calls with the same seed differ as much as two draws of the noise.

        The difference between two draws has standard deviation sqrt(2) sigma in each trained parameter, and
        its norm has standard deviation sigma. The test has level 0.001 (3.3 standard deviations).
        """
        sigma = self.probe.settings.noise_multiplier
        expected = sigma * (2 * self.probe.is_trained.sum()) ** 0.5
        return abs(self.replay.norm - expected) < 3.3 * sigma

    @property
    def interacts(self) -> bool:
        """True if examples affect each other's gradients."""
        return isinstance(self.interaction, Movement) and 0 < self.interaction.excess < np.inf

    @property
    def largest(self) -> str:
        """A description of the largest movement, in total and in each of the first eight layers."""
        example, movement = self.tried.largest
        layers = zip(self.probe.layer_names[:8], movement.layer_norms, strict=False)
        by_layer = ", ".join(f"{name} {norm:.3g}" for name, norm in layers)
        return (
            f"One example moves the step by {movement.norm:.4g} eta C / B, with {example}; by layer: "
            f"{by_layer}."
        )

    @property
    def related(self) -> list[str]:
        """The names of the tests that reject independence within one step."""
        return [name for name in self.rejected["independence"] if name != LAGS]

    def name_layers(self, layers: Any) -> str:
        """Names up to four of the layers with these indices, and counts the others."""
        names = ", ".join(self.probe.layer_names[i] for i in layers[:4])
        if len(layers) > 4:
            names += f" and {len(layers) - 4} more"
        return names


def measure_step(probe: StepProbe, seeds: int | None, tell: Callable[[str], object]) -> Measured:
    """Measures the effects of examples, repeats a call, and draws and tests noise.

    `seeds` is the number of noise draws, or None for the default. `tell` receives progress lines. Raises
    RefusedError if the step fails on the given batch.
    """
    began = time.perf_counter()
    again = probe.run(probe.rows)  # the first call compiled a JAX step
    seconds = time.perf_counter() - began
    # About 50 steps for examples, and 250 for seeds.
    tell(
        f"a step takes {1000 * seconds:.0f} ms; about {300 * seconds:.0f} s for all checks (less if it is "
        "compiled)"
    )
    tried = movements.try_examples(probe, seconds)
    tell(f"{len(tried.movements)} examples tried, and {len(tried.by_row)} rows")
    seed_effect = movements.measure_seed_effect(tried, probe.rows, seeds=4)
    drawn = None
    ties = NO_TIES
    if probe.settings.noise_multiplier:
        drawn = noise.draw_noise(probe, seeds, seconds)
        tell(f"noise drawn with {len(drawn.given.draws)} seeds")
        ties = noise.find_ties(drawn)
    replay = probe.measure([again], [probe.base], probe.rows)
    m = Measured(probe, replay, tried, drawn, ties)
    movement_obstacle, noise_obstacle = _find_obstacles(m, seed_effect)
    m = m._replace(movement_obstacle=movement_obstacle, noise_obstacle=noise_obstacle)
    if not movement_obstacle:
        m = m._replace(interaction=_measure_interaction(m))
    if noise_obstacle:
        return m
    p_values = _test_noise(m, seed_effect)
    return m._replace(p_values=p_values, rejected=find_rejected_tests(p_values))


def _find_obstacles(m: Measured, effect: SeedEffect) -> tuple[str, str]:
    """Returns why sensitivity cannot be measured, and why noise cannot be tested; either may be "".

    Returns the first reason that applies.
    """
    drawn = m.drawn
    replays = m.replays
    noise_obstacle = ""
    if not drawn:
        noise_obstacle = "noise_multiplier=0: no noise is expected"
    elif drawn.given.not_finite:
        noise_obstacle = "the step is not finite for some seeds"
    elif not (replays or m.replays_like_noise):
        # The calls differ by more than noise. The state may contain an optimizer's running means, which also
        # rescale the noise.
        noise_obstacle = "the step keeps state, which hides the noise"
    if replays and drawn and drawn.is_sign_step():
        reason = _ADAM + m.phrases.gradient
        return reason, reason
    # A clamped sum has repeated values (ties).
    if m.ties == CLAMPED_SUM or (replays and _is_effect_random(m, effect)):
        reason = (
            "something happens after the noise, such as rounding, clamping, projection or top-k: return the "
            f"noisy sum, with noise in all parameters; with Adam {m.phrases.gradient}. Or the seed changes "
            f"the effect of an example: {m.phrases.random}"
        )
        return reason, noise_obstacle or reason
    if not noise_obstacle and replays and _are_layers_rescaled(m):
        reason = (
            f"layers are rescaled after the noise (different learning rates?): {m.phrases.gradient}"
        )
        return reason, reason
    if replays and not m.tried.is_any_moved:
        return "no example changes anything: does the step use its batch?", noise_obstacle
    if not replays or effect.excess > 0:
        return "noise that changes with the call or the batch hides movements", noise_obstacle
    return "", noise_obstacle


def _are_layers_rescaled(m: Measured) -> bool:
    """Returns True if the step seems to multiply each layer of the noisy sum by its own factor.

    The movements of clipped examples then have the same norm, C, only after division by the layers' noise.
    """
    given = m.drawn.given
    is_used = m.probe.is_layer_trained
    # A deviation is 0 without noise, or if rounding hides it.
    if m.tried.replaces_rows or not m.tried.finite or given.deviations[is_used].min() == 0:
        return False
    layer_norms = m.tried.collect("layer_norms")[:, is_used]
    norms = np.linalg.norm(layer_norms / given.deviations[is_used], axis=1)
    largest = norms.max()
    is_clipped = norms > 0.99 * largest
    are_equal = abs(largest - 1) < _RESCALED_ERROR and is_clipped.sum() >= 4
    before = m.tried.collect("norm")[is_clipped]
    return bool(are_equal and before.min() < 0.98 * before.max())


def _test_noise(m: Measured, effect: SeedEffect) -> dict[str, dict[str, float]]:
    """Returns the p-values of the noise tests, by row and test.

    If a test on another batch rejects, an operation after the noise, such as a projection, may change only
    large sums. The seed then changes an example's effect (`excess` above 0) in a batch with larger features
    or more rows, but not in the given batch. In this case, the tests on other batches are omitted.
    """
    p_values = noise.run_tests(m.drawn)
    smallest = min(p_values["noise and data"].values(), default=1.0)
    if smallest < LEVEL and not effect.excess > 0:
        batches = noise.make_batches(m.probe.rows)
        for name in (FEATURES, FOURFOLD):
            other_effect = movements.measure_seed_effect(m.tried, batches[name])
            if _is_effect_random(m, other_effect):
                p_values["noise and data"] = {}
    return p_values


def _is_effect_random(m: Measured, effect: SeedEffect) -> bool:
    """Returns True if dropout or an operation after the noise makes an example's effect random.

    Returns False if examples scale the noise, or if noise is drawn for each part of a batch. Such noise is
    larger than stated, but effects are not random in a batch of one row.
    """
    if effect.scales_noise or not effect.excess > 0:  # within rounding
        return False
    first_row = examples.take(m.probe.rows, [0])
    needs_several_rows = movements.measure_seed_effect(m.tried, first_row, seeds=8).excess <= 0
    has_more_noise = m.drawn and m.drawn.given.deviation > 1.1
    return not (needs_several_rows and has_more_noise)


def _measure_interaction(m: Measured) -> Movement | str:
    """Measures how much two parts of a batch affect each other's movements; if unknown, returns why.

    Tries a larger norm if every example with an effect is clipped, because clipping hides interactions.
    """
    norms = m.tried.collect("norm")  # C is 1
    is_clipped = norms > 1 - MAX_TOLERANCE
    is_hidden = is_clipped | (norms < MAX_TOLERANCE)
    # Differences from a replaced row do not show clipping.
    is_all_clipped = not m.tried.replaces_rows and is_hidden.all() and is_clipped.any()
    larger = m.probe.with_larger_norm() if is_all_clipped else None
    interaction = movements.measure_interactions(larger or m.probe, m.tried)
    is_found = m._replace(interaction=interaction).interacts
    if is_all_clipped and not larger and not is_found:
        return _ALL_CLIPPED
    return interaction
