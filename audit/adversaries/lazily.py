"""JAX and the mechanism's records, imported at their first use: the fields of adversaries load without JAX.

Flags and `--help` need the fields, and so do installations without the extra `train`.
"""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["jax", "jnp", "mechanism"]


class _Module:
    """A module that is imported when one of its attributes is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp

    from audit.mechanism import base as mechanism
else:
    jax = _Module("jax")
    jnp = _Module("jax.numpy")
    mechanism = _Module("audit.mechanism.base")
