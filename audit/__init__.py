"""Audits of DP-SGD: lower bounds on the epsilon that a training really leaks.

    import audit
    audit.bounds(scores_in, scores_out)                                     scores of your own training
    audit.bounds(cosines, dimension=parameters)                             with canaries of audit.directions
    audit.audit_loss(loss, params, features, labels, runs=1000)             loss(params, (feature, label))
    audit.audit_model(module, criterion, features, labels, runs=1000)       a Flax module
    audit.audit("fcnn", runs=5000, adversary="gc_r", k=5)                   a model of the repository
    audit.hidden_state_epsilon(noise_multiplier=4.0, insertions=250, k=5, lipschitz=1.0)    an upper bound

Each but the last returns a `Result`; what cannot be audited raises `InputError`, in one line. `bounds` and
`hidden_state_epsilon` load no JAX, and none of them touches the command line or JAX's configuration.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from audit.accountant import hidden_state_epsilon
from audit.api import Result, audit, audit_loss, audit_model, bounds
from audit.errors import InputError
from audit.version import __version__

if TYPE_CHECKING:
    from audit import directions

__all__ = [
    "InputError",
    "Result",
    "__version__",
    "audit",
    "audit_loss",
    "audit_model",
    "bounds",
    "directions",
    "hidden_state_epsilon",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> ModuleType:
        """The rooms that are loaded when they are asked for."""
        if name == "directions":
            return importlib.import_module("audit.directions")
        raise AttributeError(f"module 'audit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
