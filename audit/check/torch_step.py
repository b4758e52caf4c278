"""Turns torch training code into a step for `check_step`."""

import copy
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

from audit.check import trees
from audit.errors import require, shown


class TorchStep:
    """A step for `check_step` that runs torch code with any optimizer and returns the private gradient.

    Use learning_rate=1 in `check_step`. Every call starts from the given parameters, and from the buffers and
    optimizer state saved at construction. Dropout is disabled, because it makes an example's effect random.
    The check reports buffers that depend on the data, such as the running means of batch norm, because they
    are released with the model.

    Args:
      model, optimizer: the module and its optimizer; with Opacus, those that `make_private` returned.
      train_batch: a function that takes the arrays of a batch as arguments (or a dict as one argument), and
        calls `zero_grad`, `backward` and `optimizer.step`. Before the parameters change, `p.grad` must be the
        clipped and noisy gradient.

    Attributes:
      params: the trained parameters, copied at construction, keyed by name.

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
        # Schedulers change numbers that are not in the state, such as Opacus's noise multiplier.
        numbers = vars(optimizer).items()
        self._numbers = {name: value for name, value in numbers if isinstance(value, int | float)}
        self._untrained = {name: value.clone() for name, value in self._list_untrained()}
        # Opacus wraps the optimizer and may skip steps, so we record the steps of the wrapped optimizer.
        self._wrapped = vars(optimizer).get("original_optimizer", optimizer)
        self._before: dict[str, Any] = {}  # the gradients before the last step
        self._steps: list[Any] = []  # the gradients before and after each step
        self._wrapped.register_step_pre_hook(lambda *step: self._begin_step())
        self._wrapped.register_step_post_hook(lambda *step: self._end_step())
        # Hashes of untrained values after a call, by name and parameters, then by batch, then by seed.
        self._hashes: dict[Any, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))

    @property
    def changed_buffers(self) -> set[str]:
        """The names of released buffers and frozen parameters that depend on the batch, but not on the seed.

        Noisy statistics and averages of the private parameters depend on the seed. Two values may be a flag
        that is computed from private parameters.
        """
        names = set()
        for (name, _), by_batch in self._hashes.items():
            distinct = [set(by_seed.values()) for by_seed in by_batch.values()]
            is_seed_varied = max(map(len, by_batch.values())) > 1
            if is_seed_varied and max(map(len, distinct)) == 1 and len(set().union(*distinct)) > 2:
                names.add(name)
        return names

    def __call__(
        self, params: Any, batch: Any, seed: int, clipping_norm: float | None = None
    ) -> dict[str, Any]:
        """Takes a step without dropout, and returns the clipped and noisy gradient, keyed by parameter name.

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
            self._train_batch(*batch if isinstance(batch, tuple | list) else [batch])
        count = len(self._steps)
        require(
            count < 2,
            f"`train_batch` takes {count} private steps for one batch: account for each of them, or "
            "accumulate the gradients and step once",
        )
        if clipping_norm is None:
            self._record_untrained(params, batch, seed)
        gradients = self._copy_gradients()
        if self._steps:
            before, after = self._steps[0]
            for name, final in gradients.items():
                gradients[name] = self._choose_gradient(before[name], after[name], final)
        return gradients

    def _begin_step(self) -> None:
        """Copies the gradients before a step of the optimizer."""
        self._before = self._copy_gradients()

    def _end_step(self) -> None:
        """Copies the gradients after a step of the optimizer."""
        self._steps.append((self._before, self._copy_gradients()))

    def _copy_gradients(self) -> dict[str, Any]:
        """Returns copies of the trained parameters' gradients by name; None for missing ones."""
        gradients = {name: parameter.grad for name, parameter in self._trained.items()}
        return {
            name: g if g is None else g.detach().clone().to_dense() for name, g in gradients.items()
        }

    def _choose_gradient(self, before: Any, after: Any, final: Any) -> Any:
        """Returns the private gradient, given the gradients before and after the step, and at the end.

        Optimizers of torch may change a private gradient, such as for Nesterov momentum. Other optimizers
        and closures may compute it in the step. Later code may edit it, or reset it to None or 0.
        """
        torch = sys.modules["torch"]
        is_reset = final is None or not final.any()
        is_edited = not is_reset and (after is None or not torch.equal(final, after))
        if is_edited:
            return final
        # Opacus makes gradients private before the wrapped optimizer's step.
        is_opacus = self._wrapped is not self._optimizer
        is_builtin = is_opacus or type(self._wrapped).__module__.startswith("torch.")
        is_private_before = is_builtin and before is not None and before.any()
        return before if is_private_before else after

    def _list_untrained(self) -> list[tuple[str, Any]]:
        """Returns the names and values of the buffers and the frozen parameters that are dense."""
        torch = sys.modules["torch"]
        dense = []
        for name, value in [*self._model.named_buffers(), *self._model.named_parameters()]:
            is_dense = value.layout == torch.strided and not value.is_meta
            if is_dense and name not in self._trained:
                dense.append((name, value))
        return dense

    def _record_untrained(self, params: Any, batch: Any, seed: int) -> None:
        """Records hashes of the released buffers and frozen parameters after a call; 0 if unchanged.

        Values outside the state dict are not released. Integers without axes may count the parts of a batch.
        """
        torch = sys.modules["torch"]
        released = self._model.state_dict()
        start = tuple(value.sum().item() for value in params.values())
        leaves = trees.collect_leaves("batch", batch).values()
        content = hash(b"".join(trees.to_numpy(leaf).tobytes() for leaf in leaves))
        for name, value in self._list_untrained():
            is_counter = not value.ndim and not value.is_floating_point()
            if name in released and not is_counter:
                is_changed = not torch.equal(value, self._untrained.get(name, value))
                values = hash(trees.to_numpy(value).tobytes()) if is_changed else 0
                self._hashes[name, start][content][seed] = values

    def _restore(self, params: Any) -> None:
        """Sets the parameters to `params`, keyed by name, and restores other state saved at construction."""
        torch = sys.modules["torch"]
        with torch.no_grad():
            # `load_state_dict` would list tied parameters twice.
            for name, value in self._list_untrained():
                saved = self._untrained.setdefault(name, value.clone())
                if value.shape != saved.shape:  # a call may resize a buffer, such as a cache
                    value.data = saved.clone()
                elif not torch.equal(value, saved):
                    value.copy_(saved)
            for name, parameter in self._trained.items():
                parameter.copy_(params[name])
        vars(self._optimizer).update(self._numbers)
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
