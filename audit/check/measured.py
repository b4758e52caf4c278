"""Measures a step, for the report and to find the causes of bugs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from audit.check import examples, movements, noise
from audit.check.movements import CHANGED, COARSE, SCALED, TriedExamples, find_seed_effect
from audit.check.noise import FEATURES, FOURFOLD
from audit.check.probe import Movement, StepProbe
from audit.check.report import LEVEL, find_rejected_tests

_ALL_CLIPPED = (
    "every example with an effect is clipped, which hides interactions: state a larger clipping norm, or let "
    "the step take clipping_norm="
)


class Phrases(NamedTuple):
    """Parts of messages, phrased for the step's array library.

    Attributes:
      gradient, clip, generator: how to return the private gradient, clip an example, and seed a generator.
      random: what may make an example's effect random, such as dropout.
    """

    gradient: str
    clip: str
    generator: str
    random: str = "is dropout on? Augmentation and sampling also have this effect"


_NUMPY = Phrases(
    gradient="return the private gradient, the clipped and noisy mean, with learning_rate=1",
    clip="with one np.linalg.norm over all of each example's gradient",
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


def find_phrases(probe: StepProbe) -> Phrases:
    """Returns the phrases for the array library of a step's parameters."""
    return _PHRASES.get(probe.library, _NUMPY)


class Measured(NamedTuple):
    """The measurements of a step.

    Attributes:
      probe: the step.
      tried: how far each example moves the step.
      drawn: the noise, a DrawnNoise; None if the stated noise is 0.
      ties: the kind of repeated values in the noise (see `find_ties`); otherwise "".
      movement_obstacle: the reason why movements do not show sensitivity; "" if they do.
      noise_obstacle: the reason why the noise cannot be tested; "" if it can.
      p_values: the p-values of the noise tests, by report row and test; empty if there is an obstacle.
      interaction: the joint movement of two parts of a batch minus the sum of their separate movements, or
        the reason why it is unknown.
      rejected: the names of the rejected noise tests, by report row.
    """

    probe: StepProbe
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
        return find_phrases(self.probe)

    @property
    def interacts(self) -> bool:
        """True if examples change each other's gradients."""
        is_measured = isinstance(self.interaction, Movement)
        return is_measured and 0 < self.interaction.excess < np.inf

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

    def name_layers(self, layers: Any) -> str:
        """Returns the names of the first four layers with these indices, and how many more there are."""
        names = ", ".join(self.probe.layer_names[i] for i in layers[:4])
        if len(layers) > 4:
            names += f" and {len(layers) - 4} more"
        return names


def measure_step(
    probe: StepProbe, seconds: float, seeds: int | None, tell: Callable[[str], object]
) -> Measured:
    """Tries examples in a step, draws its noise, and tests the noise.

    A step takes `seconds`. `seeds` is the number of noise draws, or None for the default. `tell` receives
    progress lines. Raises RefusedError if the step fails on the given batch.
    """
    # About 50 steps for examples, and 250 for seeds.
    tell(
        f"a step takes {1000 * seconds:.0f} ms; about {300 * seconds:.0f} s for all checks (less if it is "
        "compiled)"
    )
    tried = movements.try_examples(probe, seconds)
    tell(f"{len(tried.movements)} examples tried, and {len(tried.by_row)} rows")
    drawn = None
    ties = ""
    other_seeds = [1, 2, 3]
    if probe.settings.noise_multiplier:
        drawn = noise.draw_noise(probe, seeds, seconds)
        tell(f"noise drawn with {len(drawn.given.draws)} seeds")
        ties = noise.find_ties(drawn)
        other_seeds = drawn.seeds_of_largest_draws
    m = Measured(probe, tried, drawn, ties)
    effect = find_seed_effect(probe, probe.rows, other_seeds)
    is_too_large = drawn and drawn.given.deviation > 1.1
    if effect == CHANGED and is_too_large:
        # If each part of a batch gets its own noise, the seed changes the effect of a batch, but not that of
        # one row. Such noise can be tested, so we treat it as SCALED.
        first_row = examples.take(probe.rows, [0])
        effect = find_seed_effect(probe, first_row, other_seeds) or SCALED
    movement_obstacle, noise_obstacle = _find_obstacles(m, effect)
    m = m._replace(movement_obstacle=movement_obstacle, noise_obstacle=noise_obstacle)
    if not movement_obstacle:
        m = _measure_interaction(m)
    if noise_obstacle:
        return m
    p_values = _test_noise(m, effect)
    return m._replace(p_values=p_values, rejected=find_rejected_tests(p_values))


def _find_obstacles(m: Measured, effect: str) -> tuple[str, str]:
    """Returns the obstacles to measuring sensitivity and to testing noise: two reasons, or "" for none.

    `effect` is how the seed changes the effect of features (see `find_seed_effect`): "" (not at all), SCALED
    (the noise depends on the batch) or CHANGED (for another reason).
    """
    noise_obstacle = ""
    if not m.drawn:
        noise_obstacle = "noise_multiplier=0: no noise is expected"
    elif m.drawn.given.not_finite:
        noise_obstacle = "the step is not finite for some seeds"
    if effect == CHANGED:
        reason = (
            "something happens after the noise, such as rounding, clamping, projection or top-k: return the "
            f"noisy sum; with Adam, {m.phrases.gradient}. Or the seed changes the effect of an example: "
            f"{m.phrases.random}"
        )
        return reason, noise_obstacle or reason
    if not m.tried.is_any_moved:
        return "no example changes anything: does the step use its batch?", noise_obstacle
    if effect == SCALED:
        return "noise that changes with the batch hides movements", noise_obstacle
    return "", noise_obstacle


def _test_noise(m: Measured, effect: str) -> dict[str, dict[str, float]]:
    """Returns the p-values of the noise tests, by row and test.

    If an operation after the noise changes only large sums, as a projection does, noise may differ between
    batches although it is correct. We then omit the comparison of batches. `effect`: see `_find_obstacles`.
    """
    p_values = noise.run_tests(m.drawn)
    tests = p_values["noise and data"]
    if not effect and min(tests.values(), default=1.0) < LEVEL:
        batches = noise.make_batches(m.probe.rows)
        # These batches have larger sums.
        for name in (FEATURES, FOURFOLD):
            if find_seed_effect(m.probe, batches[name], m.drawn.seeds_of_largest_draws) == CHANGED:
                tests.clear()
    return p_values


def _measure_interaction(m: Measured) -> Measured:
    """Returns the measurements with their `interaction`.

    Clipping hides interactions if the movements of all examples are about C or 0. We then use a larger
    clipping norm if the step takes it as an argument.
    """
    norms = m.tried.collect("norm")
    is_clipped = norms > 1 - COARSE
    is_hidden = is_clipped | (norms < COARSE)
    # If examples replaced a row, movements are differences. Their norms do not show clipping.
    is_all_clipped = not m.tried.why_not_added and is_hidden.all() and is_clipped.any()
    larger = m.probe.with_larger_norm() if is_all_clipped else None
    m = m._replace(interaction=movements.measure_interactions(larger or m.probe, m.tried))
    if is_all_clipped and not larger and not m.interacts:
        return m._replace(interaction=_ALL_CLIPPED)
    return m
