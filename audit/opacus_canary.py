"""A gradient canary for training with Opacus; importing this needs Opacus.

    model, optimizer, loader = PrivacyEngine().make_private(..., noise_multiplier=2.0, max_grad_norm=1.0)
    optimizer = CanaryOptimizer(optimizer, present=True)    # in as many runs present=False
    ...                                                     # train as before, with noise of its own
    score = optimizer.score()

`make_private`'s loader samples by Poisson. If each step is to take the canary as it takes an example,
give the rate, sampling_rate=1 / len(loader), here and to `audit.bounds`, whose insertions are the steps.
"""

import numpy as np
from opacus.optimizers import DPOptimizer

from audit.errors import require
from audit.values import number


class CanaryOptimizer(DPOptimizer):
    """An optimizer of Opacus that inserts a canary into the sum of gradients and adds noise as before.

    The canary is a further gradient, of norm C along the first parameter's first number. It is inserted once
    a step, however many physical batches that has.

    Args:
      optimizer: a `DPOptimizer` with flat clipping, as `PrivacyEngine.make_private` makes it.
      present: whether the canary is inserted.
      sampling_rate: the probability with which each step takes it, by a coin of its own.
      seed: of the coins, which the adversary must not know; by default the system's entropy.

    Raises:
      InputError: for another kind of optimizer, whose clipping this would replace, or a bad rate.
    """

    def __init__(
        self,
        optimizer: DPOptimizer,
        present: bool,
        sampling_rate: float = 1.0,
        seed: int | None = None,
    ) -> None:
        kind = type(optimizer).__name__
        require(
            type(optimizer) is DPOptimizer,
            f"`optimizer={kind}`: give a DPOptimizer, with flat clipping",
        )
        rate = number("sampling_rate", sampling_rate, float)
        require(0 < rate <= 1, f"`sampling_rate={rate:g}`: give more than 0, at most 1")
        super().__init__(
            optimizer.original_optimizer,
            noise_multiplier=optimizer.noise_multiplier,
            max_grad_norm=optimizer.max_grad_norm,
            expected_batch_size=optimizer.expected_batch_size,
            loss_reduction=optimizer.loss_reduction,
            generator=optimizer.generator,
            secure_mode=optimizer.secure_mode,
        )
        self.step_hook = optimizer.step_hook  # the engine's accountant
        self._present = present
        self._rate = rate
        self._coins = np.random.default_rng(seed)
        self._start = self._read_number()

    def add_noise(self) -> None:
        """Inserts the canary into the sum of clipped gradients, then adds the noise."""
        taken = self._coins.random() < self._rate
        if self._present and taken:
            self.params[0].summed_grad.view(-1)[0] += self.max_grad_norm
        super().add_noise()

    def score(self) -> float:
        """Returns how far training has moved the canary's number against its gradient: higher means in."""
        return self._start - self._read_number()

    def _read_number(self) -> float:
        """Returns the number along which the canary's gradient is."""
        return float(self.params[0].detach().view(-1)[0].item())
