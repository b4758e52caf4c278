"""A step for `check_step`, made of what a training run with torch does with a batch."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from audit.errors import require, shown


class TorchStep:
    """A step for `check_step` that returns the private gradient of a torch training run, for any optimizer.

    Check it with learning_rate=1. Dropout is switched off during the step, since it makes what an example
    does depend on the seed.

    Args:
      model, optimizer: the module that is trained and its optimizer; with Opacus, those that `make_private`
        returned.
      train_batch: a function of a batch's arrays that takes one training step on them: `zero_grad`,
        `backward` and the optimizer's `step`, which leaves the clipped and noisy gradient in `p.grad`.

    Attributes:
      params: copies of the trained parameters at construction, by name; the check begins there.

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
        """Copies the trained parameters into `params`, at which the check begins.

        Args:
          model: the module that is trained; with Opacus, that which `make_private` returned.
          optimizer: its optimizer; with Opacus, that which `make_private` returned.
          train_batch: a function of a batch's arrays that takes a training step on them.

        Raises:
          InputError: the model is no module of torch, or no parameter requires a gradient.
        """
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
        """Returns the private gradient of a single step, after clipping and noise, by the parameter's name.

        The caller's training step leaves it in `grad` of each parameter.

        Args:
          params: the parameters at which the step begins, by name.
          batch: the batch's arrays, in the order in which `train_batch` takes them.
          seed: the seed of all randomness of the step.
        """
        # Not strict: `params` has only the parameters that are trained, not all of the model's state.
        self._model.load_state_dict(params, strict=False)
        _forget_failed_call(self._model, self._optimizer)
        sys.modules["torch"].manual_seed(seed)  # the caller's model has loaded torch
        # With dropout, the seed would decide what an example does, which hides what clipping does to it.
        with _without_dropout(self._model):
            self._train_batch(*batch)
        return {name: parameter.grad for name, parameter in self._list_trained().items()}

    def _list_trained(self) -> dict[str, Any]:
        """Returns the parameters that require a gradient, by name."""
        trained = {}
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                trained[name] = parameter
        return trained


def _forget_failed_call(model: Any, optimizer: Any) -> None:
    """Removes what a failed call may have left in a module and an optimizer of Opacus.

    These are the activations of the layers that were reached, how often each parameter was used, the
    per-example gradients so far, and the parts of an unfinished batch. With these left the next call would
    fail too, or take a different step.
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
    # Opacus's BatchMemoryManager cuts a batch into parts, and queues which of them take no step.
    queue = getattr(optimizer, "_step_skip_queue", None)
    if queue is not None:
        queue.clear()
        optimizer._is_last_step_skipped = False
    optimizer.zero_grad()


@contextmanager
def _without_dropout(model: Any) -> Iterator[None]:
    """Sets all dropout probabilities of a module to 0 inside a `with` block, and restores them after it.

    With dropout, what an example does to a step would depend on the seed. The module stays in training mode:
    eval() would stop Opacus's hooks.
    """
    probabilities = []
    for module in model.modules():
        # Dropout modules hold the probability in `p`, recurrent layers and attention in `dropout`. `p` of
        # another module is no such probability.
        for attribute in ("p", "dropout"):
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
