"""A step for `check_step`, made of what a training run with torch does with a batch."""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from audit.errors import require
from audit.values import shown


class TorchStep:
    """A step for `check_step` that returns the private gradient of a torch training run, for any optimizer.

    Check it with learning_rate=1. Every call begins with the parameters that it gets, and with the buffers
    and the optimizer's state of construction. Dropout is switched off during the step, since it makes what an
    example does depend on the seed. The check reports buffers that the data change, such as the
    running means of batch norm: they are released with the model.

    Args:
      model, optimizer: the module that is trained and its optimizer; with Opacus, those that `make_private`
        returned.
      train_batch: a function of a batch's arrays that takes one training step on them: `zero_grad`,
        `backward` and the optimizer's `step`, which leaves the clipped and noisy gradient in `p.grad`.

    Attributes:
      params: copies of the trained parameters at construction, by name; the check begins there.
      changed_buffers: the names of floating-point buffers that differed between calls so far.

    Raises:
      InputError: the model is no module of torch, or no parameter requires a gradient.

    >>> import torch
    >>> network = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.Adam(network.parameters())
    >>> def train_batch(x):
    ...     optimizer.zero_grad()
    ...     network(x).sum().backward()
    ...     optimizer.step()
    >>> step = audit.TorchStep(network, optimizer, train_batch)
    >>> step(step.params, (torch.ones(4, 3),), seed=0)["bias"]
    tensor([4.])
    """

    def __init__(self, model: Any, optimizer: Any, train_batch: Callable[..., Any]) -> None:
        is_module = hasattr(type(model), "named_parameters")
        require(
            is_module, f"`model={shown(model)}` is no module of torch: give the one that is trained"
        )
        self._model = model
        trained = self._list_trained()
        require(trained, "`model` has no parameter that requires a gradient: give a trained one")
        self._optimizer = optimizer
        self._train_batch = train_batch
        self._optimizer_state = copy.deepcopy(optimizer.state_dict())
        self._buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self._steps = 0
        # Opacus wraps the optimizer, whose steps it may skip.
        wrapped = vars(optimizer).get("original_optimizer", optimizer)
        wrapped.register_step_post_hook(self._count_step)
        self.params = {name: parameter.detach().clone() for name, parameter in trained.items()}
        self.changed_buffers: set[str] = set()
        self._first_values: dict[str, Any] = {}  # of floating-point buffers, after the first call

    def __call__(
        self, params: Any, batch: Any, seed: int, clipping_norm: float | None = None
    ) -> dict[str, Any]:
        """Returns the private gradient of one step, after clipping and noise, by the parameter's name.

        The caller's training step leaves it in `grad` of each parameter.

        Args:
          params: the parameters at which the step begins, by name.
          batch: the batch's arrays, in the order in which `train_batch` takes them.
          seed: the seed of all randomness of the step.
          clipping_norm: the clipping norm of an optimizer of Opacus, if another than it has.

        Raises:
          InputError: `train_batch` takes several private steps.
          ValueError: the clipping norm of this optimizer cannot be set.
        """
        torch = sys.modules["torch"]  # the caller's model has loaded torch
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                buffer.copy_(self._buffers[name])
            for name, parameter in self._list_trained().items():
                parameter.copy_(params[name])
        self._optimizer.load_state_dict(copy.deepcopy(self._optimizer_state))
        _forget_failed_call(self._model, self._optimizer)
        self._steps = 0
        torch.manual_seed(seed)
        with _without_dropout(self._model), _clipped_to(self._optimizer, clipping_norm):
            self._train_batch(*batch)
        require(
            self._steps < 2,
            f"`train_batch` takes {self._steps} private steps for one batch: account for each of them, or "
            "accumulate the gradients and step once",
        )
        for name, buffer in self._model.named_buffers():
            first = self._first_values.setdefault(name, buffer.clone())
            if buffer.is_floating_point() and not torch.equal(buffer, first):
                self.changed_buffers.add(name)
        return {name: parameter.grad for name, parameter in self._list_trained().items()}

    def _count_step(self, *_: Any) -> None:
        """Counts a step of the optimizer."""
        self._steps += 1

    def _list_trained(self) -> dict[str, Any]:
        """Returns the parameters that require a gradient, by name."""
        named = self._model.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}


def _forget_failed_call(model: Any, optimizer: Any) -> None:
    """Removes what a failed call may have left in a module and an optimizer of Opacus.

    With activations, counters of uses, per-example gradients, or the parts of an unfinished batch left, the
    next call would fail too, or take a different step. A module's own dict is read, since modules that wrap
    others, as those of PEFT, pass every other access on.
    """
    for module in model.modules():
        for attribute in ("activations", "max_batch_len"):
            vars(module).pop(attribute, None)
    for parameter in model.parameters():
        if hasattr(parameter, "_forward_counter"):
            parameter._forward_counter = 0
        if hasattr(parameter, "_current_grad_sample"):
            del parameter._current_grad_sample
    # Opacus's BatchMemoryManager cuts a batch into parts, and queues which of them take no step.
    queue = vars(optimizer).get("_step_skip_queue")
    if queue is not None:
        queue.clear()
        optimizer._is_last_step_skipped = False
    optimizer.zero_grad()


@contextmanager
def _clipped_to(optimizer: Any, clipping_norm: float | None) -> Iterator[None]:
    """Sets the clipping norm of an optimizer of Opacus within a block; None leaves it."""
    if clipping_norm is None:
        yield
        return
    stated = vars(optimizer).get("max_grad_norm")
    if not isinstance(stated, float | int):
        raise ValueError("the clipping norm of this optimizer cannot be set")
    optimizer.max_grad_norm = clipping_norm
    try:
        yield
    finally:
        optimizer.max_grad_norm = stated


@contextmanager
def _without_dropout(model: Any) -> Iterator[None]:
    """Sets all dropout probabilities of a module to 0 within a block.

    The module stays in training mode: eval() would stop Opacus's hooks.
    """
    probabilities = []
    for module in model.modules():
        # Dropout modules hold the probability in `p`, recurrent layers and attention in `dropout`.
        for attribute in ("p", "dropout"):
            is_dropout = attribute == "dropout" or "Dropout" in type(module).__name__
            value = vars(module).get(attribute)
            if is_dropout and isinstance(value, float):
                probabilities.append((module, attribute, value))
                setattr(module, attribute, 0.0)
    try:
        yield
    finally:
        for module, attribute, value in probabilities:
            setattr(module, attribute, value)
