"""Chooses which of a large model's parameters the canaries' directions use.

A random direction in m fixed parameters needs only m random numbers. The score keeps its exact null
distribution and its power. The choice must not depend on the audited runs' data.
"""

import difflib
import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from audit.errors import number, require

AUTO = "auto"
ALL = "all"

_MAX_SHOWN = 5  # the most names in a message


class Subspace(NamedTuple):
    """The tensors that the directions use.

    Attributes:
      names: the tensors' names, in the model's order.
      dimension: m, the number of parameters in these tensors.
      parameters: the total number of trained parameters.
    """

    names: tuple[str, ...]
    dimension: int
    parameters: int

    def __str__(self) -> str:
        """Describes the choice in words."""
        names = ", ".join(self.names[:_MAX_SHOWN])
        if len(self.names) > _MAX_SHOWN:
            names += f" and {len(self.names) - _MAX_SHOWN} more"
        return f"{self.dimension:,} of {self.parameters:,} parameters: {names}"


def choose_tensors(
    parameters: Mapping[str, Any], canaries: int, within: str | Sequence[str] = AUTO
) -> Subspace:
    """Chooses which of a model's tensors random directions use, and checks that these are suitable.

    Args:
      parameters: the model's arrays or tensors by name, such as dict(model.named_parameters()) in PyTorch.
        Tensors with `requires_grad=False` are not trained.
      canaries: the number of canaries per run, each with its own direction.
      within: the name of a tensor, a pattern such as "*lora*", or a list of these. "auto" chooses the largest
        suitable tensor (float32 or float64, trained, and not tied to another). "all" chooses all such
        tensors.

    Raises:
      InputError: no tensor matches `within`; a chosen tensor is unsuitable; or the number of canaries exceeds
        half the number of chosen parameters.

    >>> import numpy as np
    >>> parameters = {"embed": np.zeros((90, 64), "f4"), "dense": np.zeros((64, 256), "f4")}
    >>> print(audit.choose_tensors(parameters, canaries=100))
    16,384 of 22,144 parameters: dense
    """
    canaries = number("canaries", canaries, int)
    require(parameters, "`parameters` has no tensor: give those that the optimizer updates")
    problems = {name: _find_problem(parameters, name) for name in parameters}  # "" if suitable
    usable = [name for name in parameters if not problems[name]]
    sizes = {name: math.prod(tensor.shape) for name, tensor in parameters.items()}
    if within == AUTO:
        require(usable, f"no tensor is suitable for directions: {next(iter(problems.values()))}")
        names = [max(usable, key=sizes.__getitem__)]
    elif within == ALL:
        names = usable
    else:
        patterns = [within] if isinstance(within, str) else within
        names = _find_names(parameters, patterns)
    for name in names:
        require(not problems[name], f"`within={name}` {problems[name]}: choose another tensor")
    dimension = sum(sizes[name] for name in names)
    # With more canaries, the Gram matrix of their directions might be ill-conditioned.
    require(
        2 * canaries <= dimension,
        f"`canaries` must be at most {dimension // 2}, half the parameters of "
        f"{', '.join(names[:_MAX_SHOWN])}, got {canaries}",
    )
    trained = sum(sizes[name] for name in parameters if _is_trained(parameters[name]))
    return Subspace(tuple(names), dimension, trained)


def _find_problem(parameters: Mapping[str, Any], name: str) -> str:
    """Returns why a tensor is unsuitable for directions, such as "is frozen"; "" if it is suitable."""
    tensor = parameters[name]
    if not _is_trained(tensor):
        return "is frozen"
    if str(tensor.dtype).removeprefix("torch.") not in ("float32", "float64"):
        return f"is {tensor.dtype}, in which rounding hides small updates"
    for other in parameters:
        if other != name and _identify(parameters[other]) == _identify(tensor):
            return f"is the same tensor as {other}, so it would count twice"
    return ""


def _find_names(parameters: Mapping[str, Any], patterns: Sequence[str]) -> list[str]:
    """Returns the names that match any of the patterns, in the model's order.

    Raises InputError if a pattern matches no name, and suggests the closest names.
    """
    chosen = set()
    for pattern in patterns:
        fitting = fnmatch.filter(parameters, pattern)
        closest = ", ".join(difflib.get_close_matches(pattern, parameters, _MAX_SHOWN, cutoff=0.0))
        require(
            fitting, f"`within={pattern}` is not a tensor of the model: choose {closest}, or auto"
        )
        chosen.update(fitting)
    return [name for name in parameters if name in chosen]


def _identify(tensor: Any) -> int:
    """Returns a number that tied tensors share: a PyTorch tensor's memory address, or an array's id."""
    return tensor.data_ptr() if hasattr(tensor, "data_ptr") else id(tensor)


def _is_trained(tensor: Any) -> bool:
    """Returns True for arrays, and for PyTorch tensors that require a gradient."""
    return bool(getattr(tensor, "requires_grad", True))
