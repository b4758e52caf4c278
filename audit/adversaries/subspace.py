"""Chooses the parameters in which a large model's canaries have their directions.

A direction that is uniform within m fixed parameters has the same exact law and the same power as one within
all of a model's parameters, but drawing it only costs m numbers. The choice must not depend on the training
data of the audited runs. With fewer than 100 parameters for each canary, use leave-one-out cosines.
"""

import difflib
import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from audit.errors import number, require

AUTO = "auto"
ALL = "all"

_MAX_SHOWN = 5  # names in a message


class Subspace(NamedTuple):
    """The tensors in which directions are drawn.

    Attributes:
      names: their names, in the order of the model's parameters.
      dimension: m, the number of their parameters.
      parameters: the number of all trained parameters.
    """

    names: tuple[str, ...]
    dimension: int
    parameters: int

    def __str__(self) -> str:
        """Returns a sentence about the choice."""
        names = ", ".join(self.names[:_MAX_SHOWN])
        if len(self.names) > _MAX_SHOWN:
            names += f" and {len(self.names) - _MAX_SHOWN} more"
        return f"{self.dimension:,} of {self.parameters:,} parameters: {names}"


def choose_tensors(
    parameters: Mapping[str, Any], count: int, within: str | Sequence[str] = AUTO
) -> Subspace:
    """Chooses tensors of a model for directions, and checks that the law of cosines holds in them.

    Args:
      parameters: the model's arrays or tensors by name, such as dict(model.named_parameters()) in PyTorch.
        Those with `requires_grad=False` are not trained.
      count: the number of canaries.
      within: "auto" chooses the largest float32 tensor that is trained and not tied to another, "all" chooses
        all of them. Otherwise a tensor's name, a pattern such as "*lora*", or a list of these.

    Raises:
      InputError: no name fits; a chosen tensor is not float32, is frozen, or is tied to another; or there are
        more canaries than half of the parameters.

    >>> import numpy as np
    >>> parameters = {"embed": np.zeros((90, 64), "f4"), "dense": np.zeros((64, 256), "f4")}
    >>> print(audit.choose_tensors(parameters, count=100))
    16,384 of 22,144 parameters: dense
    """
    count = number("count", count, int)
    require(parameters, "`parameters` has no tensor: give those that the optimizer updates")
    reasons = {name: _refuse(parameters, name) for name in parameters}
    usable = [name for name in parameters if not reasons[name]]
    sizes = {name: math.prod(tensor.shape) for name, tensor in parameters.items()}
    names = usable
    if within == AUTO:
        require(usable, f"no tensor is fit for directions: {next(iter(reasons.values()))}")
        names = [max(usable, key=sizes.__getitem__)]
    elif within != ALL:
        patterns = [within] if isinstance(within, str) else list(within)
        names = _find_names(parameters, patterns)
    for name in names:
        require(not reasons[name], f"`within={name}` {reasons[name]}: choose another tensor")
    dimension = sum(sizes[name] for name in names)
    few = f"`canaries` must be at most {dimension // 2}, half the parameters"
    require(2 * count <= dimension, f"{few} of {', '.join(names[:_MAX_SHOWN])}, got {count}")
    trained = sum(sizes[name] for name in parameters if _is_trained(parameters[name]))
    return Subspace(tuple(names), dimension, trained)


def _refuse(parameters: Mapping[str, Any], name: str) -> str:
    """Returns the reason why directions cannot be in a tensor; empty if they can."""
    tensor = parameters[name]
    if not _is_trained(tensor):
        return "is frozen"
    if str(tensor.dtype).removeprefix("torch.") not in ("float32", "float64"):
        return f"is {tensor.dtype}, in which rounding hides small updates"
    for other in parameters:
        if other != name and _address(parameters[other]) == _address(tensor):
            return f"is the same tensor as {other}, which counts it twice"
    return ""


def _find_names(parameters: Mapping[str, Any], patterns: Sequence[str]) -> list[str]:
    """Returns the names that fit any of some patterns, in the model's order; each pattern must fit one."""
    chosen = set()
    for pattern in patterns:
        fitting = fnmatch.filter(parameters, pattern)
        closest = ", ".join(difflib.get_close_matches(pattern, parameters, _MAX_SHOWN, cutoff=0.0))
        require(
            fitting, f"`within={pattern}` is not a tensor of the model: choose {closest}, or auto"
        )
        chosen.update(fitting)
    return [name for name in parameters if name in chosen]


def _address(one: Any) -> int:
    """Returns a number that tied tensors share: a torch tensor's memory address, or an id."""
    return one.data_ptr() if hasattr(one, "data_ptr") else id(one)


def _is_trained(one: Any) -> bool:
    """Returns whether a tensor is trained: all arrays, and torch's tensors with a gradient."""
    return bool(getattr(one, "requires_grad", True))
