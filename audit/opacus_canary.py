"""Canaries for training with Opacus, which must be installed.

    model, optimizer, loader = PrivacyEngine().make_private(..., noise_multiplier=2.0, max_grad_norm=1.0)
    optimizer = CanaryOptimizer(optimizer, present=True)    # present=False in the same number of runs
    ...                                                     # train as before, with independent noise
    score = optimizer.score()

Alternatively, insert many canaries per run. Cosines of canaries that are not inserted have a known
distribution:

    optimizer = DirectionsOptimizer(optimizer, seed=SECRET, run=run, count=200)
    ...                                                     # train as before, with independent noise
    rows.append(optimizer.cosines(drift))                   # audit.bounds(audit.cosines(rows, dimension))

The loader of `make_private` uses Poisson sampling. To sample a single canary as often as an example, pass
sampling_rate=1 / len(loader) to `CanaryOptimizer` and `audit.DpSgd`, and count every step as an insertion.
Directions are inserted at every step, so do not compare their bounds with an epsilon for Poisson sampling.
"""

from collections.abc import Callable, Iterable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from torch import Tensor

from audit import directions
from audit.errors import number, require


class _InsertingOptimizer(DPOptimizer):
    """The base class of optimizers that insert canaries into Opacus's sum of clipped gradients.

    Raises InputError for optimizers that clip each layer separately or use several processes.
    """

    def __new__(cls, optimizer: DPOptimizer, *args: Any, **kwargs: Any) -> Self:
        """Creates an object that inherits the optimizer's methods, which differ for ghost clipping."""
        optimizer_class = type(optimizer)
        require(
            optimizer_class in (DPOptimizer, DPOptimizerFastGradientClipping),
            f"`optimizer={optimizer_class.__name__}` does not clip whole gradients: "
            "give a DPOptimizer, or one for ghost clipping",
        )
        return object.__new__(type(cls.__name__, (cls, optimizer_class), {}))

    def __init__(self, optimizer: DPOptimizer) -> None:
        """Shares all attributes with `optimizer`, because the loss for ghost clipping refers to it."""
        self.__dict__ = optimizer.__dict__


class CanaryOptimizer(_InsertingOptimizer):
    """An Opacus optimizer that inserts a canary into the sum of clipped gradients before adding noise.

    The canary is an additional gradient: the clipping norm C in the first entry of the first parameter, and 0
    elsewhere. The canary is inserted once per step, even if a step has several physical batches.

    Args:
      optimizer: a `DPOptimizer` with flat clipping, as returned by `PrivacyEngine.make_private`.
      present: True if the run inserts the canary.
      sampling_rate: the probability that a step inserts the canary, independently of other steps.
      seed: the seed for sampling, unknown to the adversary; by default, the system's entropy.

    Raises:
      InputError: the class of the optimizer is not supported, or the rate is not in (0, 1].
    """

    def __init__(
        self,
        optimizer: DPOptimizer,
        present: bool,
        sampling_rate: float = 1.0,
        seed: int | None = None,
    ) -> None:
        """Shares the attributes of `optimizer`."""
        super().__init__(optimizer)
        rate = number("sampling_rate", sampling_rate, float)
        require(0 < rate <= 1, f"`sampling_rate` must be above 0 and at most 1, got {rate:g}")
        self._inserts = present
        self._rate = rate
        self._coins = np.random.default_rng(seed)
        # The canary's entry; `score` returns its decrease.
        self._initial_entry = self._read_first_entry()

    def add_noise(self) -> None:
        """Inserts the canary if the run includes it and the step samples it, then adds the noise."""
        is_sampled = self._coins.random() < self._rate
        if self._inserts and is_sampled:
            self.params[0].summed_grad.view(-1)[0] += self.max_grad_norm
        super().add_noise()

    def score(self) -> float:
        """Returns the decrease in the canary's entry during training.

        Steps subtract gradients, so insertions increase the score.
        """
        return self._initial_entry - self._read_first_entry()

    def _read_first_entry(self) -> float:
        """Returns the first entry of the first parameter."""
        return float(self.params[0].detach().view(-1)[0])


class DirectionsOptimizer(_InsertingOptimizer):
    """An Opacus optimizer that inserts the fresh directions of `audit.directions` into the sum of gradients.

    Each direction is an additional gradient over all chosen parameters, scaled to the clipping norm C. All
    directions are inserted once per step, even if a step has several physical batches. With several
    data-parallel workers, exactly one must use this optimizer.

    Args:
      optimizer: a `DPOptimizer` with flat or ghost clipping, as returned by `PrivacyEngine.make_private`.
      seed: the seed of all runs' directions, known only to the auditor.
      run: the run's index; each run has its own directions.
      count: the number of directions.
      present: True to insert them; False for a rehearsal, which must also run without noise.
      parameters: the parameters that the directions span, chosen before training; by default, all trained
        parameters. In a large model, using a single tensor is faster and loses no power.

    Raises:
      InputError: the class of the optimizer is not supported, a parameter cannot be used, or a number is out
        of range.
    """

    def __init__(
        self,
        optimizer: DPOptimizer,
        seed: int,
        run: int,
        count: int,
        present: bool = True,
        parameters: Iterable[Tensor] | None = None,
    ) -> None:
        """Shares the attributes of `optimizer`, and draws the directions."""
        super().__init__(optimizer)
        self._chosen = list(self.params if parameters is None else parameters)
        _require_trained(self._chosen, self.params)
        self._identity = {"seed": seed, "run": run, "count": count}
        self._inserts = present
        self._is_moved = False  # `step` checks once that the optimizer moves every chosen parameter
        self._theta_0 = self._read_parameters()
        norm = float(self.max_grad_norm)
        total = directions.inserted(**self._identity, dimension=self.dimension, norm=norm)
        # If `present`, every step inserts these directions.
        self._inserted = self._split(torch.from_numpy(total).float())

    @property
    def dimension(self) -> int:
        """Returns the number of chosen parameters, which `audit.cosines` needs."""
        return len(self._theta_0)

    def add_noise(self) -> None:
        """Inserts the directions into the sum of clipped gradients, then adds the noise."""
        if self._inserts:
            for parameter, part in zip(self._chosen, self._inserted, strict=True):
                parameter.summed_grad += part.view_as(parameter).to(parameter)
        super().add_noise()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Takes a step.

        Raises InputError if the first step with a learning rate above 0 leaves a chosen parameter unchanged.
        """
        learns = any(group["lr"] > 0 for group in self.param_groups)
        loss: float | None = super().step(closure)
        # Opacus skips steps between the physical batches of a logical batch.
        is_complete = not self._is_last_step_skipped
        # We check only once, and not in a rehearsal, because it inserts no directions.
        if self._inserts and learns and is_complete and not self._is_moved:
            moves = self._split(torch.from_numpy(self._read_parameters() - self._theta_0))
            unmoved = [str(index) for index, move in enumerate(moves) if not move.any()]
            require(
                not unmoved,
                f"the first step does not move parameter {', '.join(unmoved)} of `parameters`: choose "
                "tensors that the optimizer updates",
            )
            self._is_moved = True
        return loss

    def movement(self) -> NDArray[np.float64]:
        """Returns the chosen parameters (dimension,) minus their initial values.

        Raises:
          InputError: a rehearsal (a run without directions) has noise, which would cancel that of other runs.
        """
        noise = self.noise_multiplier
        is_rehearsal = not self._inserts
        require(
            not is_rehearsal or noise == 0,
            f"a rehearsal with `noise_multiplier={noise}` removes its noise from every run: rehearse with "
            "noise_multiplier=0",
        )
        return self._read_parameters() - self._theta_0

    def cosines(self, drift: ArrayLike = 0.0, leave_one_out: bool = False) -> NDArray[np.float64]:
        """Returns the cosines (count,) between the run's directions and its displacement, drift - movement.

        Inserting a direction increases its cosine.

        Args:
          drift: (dimension,) the `movement` of a rehearsal, a run without noise or directions. The default
            gives smaller cosines.
          leave_one_out: True to project the other directions out of the displacement before computing each
            cosine. If `count` exceeds 1% of the dimension, use True here and in `audit.cosines`.

        Raises:
          InputError: no parameter has moved, parameters are not finite, or there are too many directions for
            leave-one-out.
        """
        # Steps subtract gradients, so we negate the movement.
        movement = self._read_parameters() - self._theta_0
        displacement = np.asarray(drift, np.float64) - movement
        return directions.cosines(displacement, **self._identity, leave_one_out=leave_one_out)

    def _split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Splits a vector (dimension,) into one part per chosen parameter."""
        return tuple(values.split([parameter.numel() for parameter in self._chosen]))

    def _read_parameters(self) -> NDArray[np.float64]:
        """Returns the chosen parameters as one vector (dimension,)."""
        parts = [parameter.detach().cpu().flatten() for parameter in self._chosen]
        return np.asarray(torch.cat(parts).double().numpy())


def _require_trained(chosen: list[Tensor], trained: list[Tensor]) -> None:
    """Raises InputError unless the chosen parameters are trained, distinct, and float32 or float64."""
    fix = "choose parameters that the optimizer trains"
    require(chosen, f"`parameters` is empty: {fix}")
    # `==` compares tensors entry by entry, so we compare their ids.
    remaining = {id(parameter) for parameter in trained}
    for index, parameter in enumerate(chosen):
        problem = f"parameter {index} of `parameters`"
        require(
            id(parameter) in remaining, f"{problem} is not trained, or is repeated: {fix}, once"
        )
        remaining.remove(id(parameter))
        is_exact = parameter.dtype in (torch.float32, torch.float64)
        require(
            is_exact,
            f"{problem} is {parameter.dtype}: rounding hides small updates, so train it in float32",
        )
