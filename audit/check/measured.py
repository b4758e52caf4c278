"""The measurements of a step, which the report describes and the causes explain."""

import time
from functools import cached_property
from typing import Any

import numpy as np

from audit.check import examples, movements, noise
from audit.check.movements import COARSE, SeedEffect
from audit.check.noise import AT_ENDS, Ties
from audit.check.probe import Movement, StepProbe
from audit.check.report import LEVEL
from audit.check.trees import Columns

_CHANGED_AFTER = (
    "what an example does depends on the seed: is dropout on? Set `m.p = 0.0` in every Dropout (model.eval() "
    "would take away Opacus's hooks); augmentation or sampling before the gradient do it too. Or something "
    "happens after the noise, such as rounding, clamping, projection or top-k: return the noisy sum; with "
    "Adam return the private gradient, with learning_rate=1"
)
_ALL_CLIPPED = (
    "every example that was tried is clipped, which hides whether others change its gradient: check again "
    "with a larger clipping norm, or let the step take clipping_norm="
)


class Measured:
    """The measurements of a step; those that not every step needs are made when they are first used.

    Attributes:
      probe: the step.
      replay: the difference of two calls with the same batch and seed.
      tried: how far each example moves the step.
      drawn: the noise, a DrawnNoise; None if no noise is stated.
      rejected: by row of the report, the names of the rejected tests of the noise; empty before the report
        has tested all hypotheses together.
    """

    def __init__(
        self, probe: StepProbe, tried_examples: dict[str, Columns], seeds: int | None
    ) -> None:
        """Replays the step, tries the examples and draws the noise.

        Args:
          probe: the step.
          tried_examples: the examples by name, each as a batch of one row.
          seeds: the number of draws of the noise; None for the default.

        Raises:
          RefusedError: the step fails on the batch as given.
        """
        self.probe = probe
        # The probe has called the step before, so this time is without compilation.
        began = time.perf_counter()
        difference = probe.run(probe.rows, 0) - probe.base
        seconds = time.perf_counter() - began
        self.replay = probe.measure(difference, probe.base, probe.rows)
        self.tried = movements.try_examples(probe, tried_examples, seconds)
        self.rejected: dict[str, list[str]] = {}
        self.drawn: Any = None
        if probe.settings.noise_multiplier:
            self.drawn = noise.draw_noise(probe, seeds, seconds)

    @property
    def replays(self) -> bool:
        """True if two calls with the same seed give the same parameters."""
        return self.replay.norm <= min(self.replay.tolerance, 1e100)  # both may overflow

    @property
    def is_replay_like_noise(self) -> bool:
        """True if two calls with the same seed differ as two draws of the noise do.

        Each number then differs by sqrt(2) sigma. The norm of many normal numbers has deviation sigma; 3.3
        deviations are a test at level 0.001.
        """
        sigma = self.probe.settings.noise_multiplier
        expected = sigma * (2 * np.sum(self.probe.is_trained)) ** 0.5
        return bool(abs(self.replay.norm - expected) < 3.3 * sigma)

    @cached_property
    def ties(self) -> Ties:
        """The numbers of the noise that agree."""
        return noise.find_ties(self.drawn) if self.drawn else Ties()

    @cached_property
    def repeats(self) -> int:
        """The number of seeds that repeat the noise of another seed."""
        return noise.count_repeats(self.drawn) if self.drawn else 0

    @cached_property
    def depends_on_seed(self) -> bool:
        """True if the seed changes the effect of an example in the batch as given."""
        effect = self._effect
        return self.replays and effect is not None and effect.excess > 0

    @cached_property
    def _effect(self) -> SeedEffect | None:
        return movements.measure_seed_effect(self.tried, self.probe.rows)

    def _is_changed_after(self, effect: SeedEffect | None) -> bool:
        """Returns True if dropout or an operation after the noise causes a seed's effect.

        Noise that is scaled by an example, or drawn once for each part of a batch, has such an effect too.
        The latter is more noise than stated, and has no effect in a batch of one row.
        """
        if effect is None or effect.excess <= 0 or effect.scales_noise:
            return False
        first_row = examples.take(self.probe.rows, [0])
        alone = movements.measure_seed_effect(self.tried, first_row, seeds=8)
        is_fixed_alone = alone is not None and alone.excess <= 0
        return not (is_fixed_alone and self.drawn and self.drawn.given.deviation > 1.1)

    @cached_property
    def is_changed_after_noise(self) -> bool:
        """True if dropout or an operation after the noise changes the effect of an example."""
        is_clamped = self.ties == Ties(AT_ENDS, is_shared=True)
        return is_clamped or (self.depends_on_seed and self._is_changed_after(self._effect))

    @property
    def hides_movements(self) -> str:
        """The reason why movements do not show sensitivity; empty if they do."""
        if self.is_changed_after_noise:
            return _CHANGED_AFTER
        if self.replays and not self.tried.is_any_moved:
            return "no example changes anything: does the step use its batch?"
        if self.depends_on_seed or not self.replays:
            return "other noise, at every call or by the batch, hides it"
        return ""

    @property
    def hides_noise(self) -> str:
        """The reason why the noise cannot be tested; empty if it can."""
        if self.drawn is None:
            return "noise_multiplier=0: no noise is expected"
        if self.drawn.given.not_finite:
            return "the step is not finite at some seeds"
        # A step that keeps state may be an optimizer with running means, which rescale the noise too.
        if not self.replays and not self.is_replay_like_noise:
            return "the step keeps state, which hides it"
        return _CHANGED_AFTER if self.is_changed_after_noise else ""

    @cached_property
    def p_values(self) -> dict[str, dict[str, float]]:
        """The p-values of the tests of the noise by row and test; empty if it cannot be tested.

        An operation after the noise may change only large sums. Then other batches are not compared.
        """
        if self.hides_noise:
            return {}
        p_values = noise.run_tests(self.drawn)
        tests = p_values["noise and data"]
        if min(tests.values(), default=1.0) < LEVEL and not self.depends_on_seed:
            rows = self.probe.rows
            for batch in (examples.scale_features(rows, 1e3, rows), examples.join(*[rows] * 4)):
                if self._is_changed_after(movements.measure_seed_effect(self.tried, batch)):
                    tests.clear()
        return p_values

    @cached_property
    def interaction(self) -> Any:
        """How far two parts of a batch differ from their sum, a Movement; or the reason why it is not known.

        If every example is clipped, the step is tried with a larger clipping norm.
        """
        probe = self.probe
        is_all_clipped = False
        if (
            not self.tried.refusal
            and np.min(self.tried.collect("norm"), initial=np.inf) > 1 - COARSE
        ):
            is_all_clipped = True
            larger = probe.with_larger_norm()
            if larger is not None:
                probe = larger
                is_all_clipped = False
        interaction = movements.measure_interactions(probe, self.tried)
        is_seen = isinstance(interaction, Movement) and 0 < interaction.excess < np.inf
        return _ALL_CLIPPED if is_all_clipped and not is_seen else interaction

    @property
    def interacts(self) -> bool:
        """True if examples change each other's gradients."""
        if self.hides_movements or isinstance(self.interaction, str):
            return False
        return 0 < self.interaction.excess < np.inf

    def name_layers(self, layers: Any) -> str:
        """Returns the names of the first four of these layers."""
        return ", ".join(np.array(self.probe.layer_names)[layers[:4]])
