"""Turns torch training code into a step for `check_step`."""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

from audit.errors import require, shown


class TorchStep:
    """A step for `check_step` that runs torch code with any optimizer and returns the private gradient.

    Use learning_rate=1 in `check_step`. Every call starts from the given parameters, and from the buffers and
    optimizer state saved at construction. Dropout is disabled, because it makes an example's effect random.
    The check reports buffers that depend on the data, such as the running means of batch norm, because they
    are released with the model.

    Args:
      model, optimizer: the module and its optimizer; with Opacus, those that `make_private` returned.
      train_batch: a function that takes the arrays of a batch as arguments, and calls `zero_grad`, `backward`
        and `optimizer.step`. It must leave the clipped and noisy gradient in `p.grad`.

    Attributes:
      params: the trained parameters, copied at construction, keyed by name.
      changed_buffers: the names of floating-point buffers that depend on the data.

    Raises:
      InputError: the model is not a torch module, or no parameter requires a gradient.

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
        """Copies the state that each call restores, and starts counting optimizer steps."""
        is_module = hasattr(type(model), "named_parameters")
        require(is_module, f"`model={shown(model)}` is not a torch module: give the trained model")
        self._model = model
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.params = {name: p.detach().clone() for name, p in self._trained.items()}
        require(
            self.params, "`model` has no parameter that requires a gradient: give the trained model"
        )
        self._optimizer = optimizer
        self._train_batch = train_batch
        self._optimizer_state = copy.deepcopy(optimizer.state_dict())
        self._buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self._steps: list[Any] = []
        # Opacus wraps the optimizer and may skip steps, so we count the steps of the wrapped optimizer.
        wrapped = vars(optimizer).get("original_optimizer", optimizer)
        wrapped.register_step_post_hook(lambda *step: self._steps.append(step))
        self.changed_buffers: set[str] = set()
        self._first_values: dict[str, Any] = {}  # the buffers after the first call

    def __call__(
        self, params: Any, batch: Any, seed: int, clipping_norm: float | None = None
    ) -> dict[str, Any]:
        """Takes a step without dropout, and returns the clipped and noisy gradient, keyed by parameter name.

        Updates `changed_buffers`.

        Args:
          params: the parameters before the step, by name.
          batch: the arguments of `train_batch`.
          seed: the global seed of torch.
          clipping_norm: a different clipping norm for an Opacus optimizer, or None.

        Raises:
          InputError: `train_batch` takes several private steps.
          AttributeError: `clipping_norm` is given, but the optimizer has no `max_grad_norm`.
        """
        torch = sys.modules["torch"]  # loaded, since the model is a torch module
        self._restore(params)
        torch.manual_seed(seed)
        with ExitStack() as stack:
            for module, name in _list_dropout(self._model):
                stack.enter_context(mock.patch.object(module, name, 0.0))
            if clipping_norm is not None:
                stack.enter_context(
                    mock.patch.object(self._optimizer, "max_grad_norm", clipping_norm)
                )
            self._train_batch(*batch)
        require(
            len(self._steps) < 2,
            f"`train_batch` takes {len(self._steps)} private steps for one batch: account for each of them, "
            "or accumulate the gradients and step once",
        )
        # All calls start from the same buffers, so a difference is due to the data.
        for name, buffer in self._model.named_buffers():
            first = self._first_values.setdefault(name, buffer.clone())
            if buffer.is_floating_point() and not torch.equal(buffer, first):
                self.changed_buffers.add(name)
        return {name: parameter.grad for name, parameter in self._trained.items()}

    def _restore(self, params: Any) -> None:
        """Sets the parameters to `params`, keyed by name, and all other state to that at construction."""
        torch = sys.modules["torch"]
        with torch.no_grad():
            # `load_state_dict` would list tied parameters twice.
            for name, buffer in self._model.named_buffers():
                buffer.copy_(self._buffers[name])
            for name, parameter in self._trained.items():
                parameter.copy_(params[name])
        self._optimizer.load_state_dict(copy.deepcopy(self._optimizer_state))
        _forget_failed_call(self._model, self._optimizer)
        self._steps.clear()


def _forget_failed_call(model: Any, optimizer: Any) -> None:
    """Removes the state that a failed call may leave in an Opacus module and optimizer.

    Activations, usage counters, per-example gradients and parts of an unfinished batch would make the next
    call fail or return a different gradient. Uses `vars` because PEFT modules forward `getattr` to wrapped
    modules.
    """
    for module in model.modules():
        for attribute in ("activations", "max_batch_len"):
            vars(module).pop(attribute, None)
    for parameter in model.parameters():
        vars(parameter).pop("_current_grad_sample", None)
        parameter._forward_counter = 0
    # Opacus's BatchMemoryManager splits a batch, and queues a skip flag for each part.
    vars(optimizer).get("_step_skip_queue", []).clear()
    optimizer._is_last_step_skipped = False
    optimizer.zero_grad()


def _list_dropout(model: Any) -> Iterator[tuple[Any, str]]:
    """Yields each module with a dropout probability, and the name of the attribute.

    The attribute is `p` in dropout modules, and `dropout` in recurrent layers and attention. Calling
    `model.eval()` instead would also disable the Opacus hooks.
    """
    for module in model.modules():
        if isinstance(vars(module).get("dropout"), float):
            yield module, "dropout"
        if "Dropout" in type(module).__name__ and hasattr(module, "p"):
            yield module, "p"
