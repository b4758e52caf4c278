"""A step for `check_step`, made of what a training run with torch does with a batch."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from audit.errors import require
from audit.values import shown


class TorchStep:
    """A step that returns the private gradient of a training run with torch, whatever its optimizer.

    Check it with learning_rate=1. Dropout is off in it, since it makes what an example does depend on the
    seed.

    Args:
      model, optimizer: the module that is trained and its optimizer, with Opacus those that `make_private`
        returned.
      train_batch: a function of a batch's arrays that takes one step on it, as training does: `zero_grad`,
        `backward` and the optimizer's `step`, which leaves clipped and noisy gradients in `p.grad`.

    Attributes:
      params: the parameters that are trained, as they are now, by name: where the check begins.

    Raises:
      InputError: the model has no parameters that are trained.

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
        is_module = hasattr(model, "named_parameters")
        require(
            is_module, f"`model={shown(model)}` is no module of torch: give the one that is trained"
        )
        self._model = model
        self._optimizer = optimizer
        self._train_batch = train_batch
        self.params = {}
        for name, parameter in self._list_trained().items():
            self.params[name] = parameter.detach().clone()
        require(
            self.params, "`model` has no parameter that requires a gradient: give a trained one"
        )

    def __call__(self, params: Any, batch: Any, seed: int) -> dict[str, Any]:
        """Returns the gradients after clipping and noise, from these parameters, on this batch."""
        self._model.load_state_dict(params, strict=False)
        _forget_failed_call(self._model, self._optimizer)
        sys.modules["torch"].manual_seed(seed)
        with _without_dropout(self._model):
            self._train_batch(*batch)
        return {name: parameter.grad for name, parameter in self._list_trained().items()}

    def _list_trained(self) -> dict[str, Any]:
        """Returns the parameters that are trained, by name."""
        trained = {}
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                trained[name] = parameter
        return trained


def _forget_failed_call(model: Any, optimizer: Any) -> None:
    """Forgets what a call that failed left in a module and an optimizer of Opacus.

    It is the activations of layers that were reached, how often each parameter was used, and the parts of the
    batch. With them the next call would fail too, or be another step.
    """
    for module in model.modules():
        for attribute in ("activations", "max_batch_len"):
            if hasattr(module, attribute):
                delattr(module, attribute)
    for parameter in model.parameters():
        if hasattr(parameter, "_forward_counter"):
            parameter._forward_counter = 0
        if hasattr(parameter, "_current_grad_sample"):
            del parameter._current_grad_sample
    queue = getattr(optimizer, "_step_skip_queue", None)  # of its BatchMemoryManager
    if queue is not None:
        queue.clear()
        optimizer._is_last_step_skipped = False
    optimizer.zero_grad()


@contextmanager
def _without_dropout(model: Any) -> Iterator[None]:
    """Sets the probabilities of a module's dropout to 0 for a while; eval() would stop Opacus's hooks."""
    probabilities = []
    for module in model.modules():
        for attribute in ("p", "dropout"):  # of Dropout, and of recurrent layers and attention
            is_dropout = attribute == "dropout" or "Dropout" in type(module).__name__
            value = getattr(module, attribute, None)
            if is_dropout and isinstance(value, float):
                probabilities.append((module, attribute, value))
                setattr(module, attribute, 0.0)
    try:
        yield
    finally:
        for module, attribute, value in probabilities:
            setattr(module, attribute, value)
