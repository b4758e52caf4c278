"""Audits of DP-SGD: lower bounds on the epsilon that a training really leaks.

    import audit
    audit.bounds(scores_in, scores_out)                                     scores of your own training
    audit.audit_loss(loss, params, features, labels, runs=1000)             loss(params, (feature, label))
    audit.audit_model(module, criterion, features, labels, runs=1000)       a Flax module
    audit.audit("fcnn", runs=5000, adversary="gc_r", k=5)                   a model of the repository

Each returns a `Result`; what cannot be audited raises `InputError`, in one line. `bounds` loads no JAX, and
none of them touches the command line or JAX's configuration.
"""

from audit.api import Result, audit, audit_loss, audit_model, bounds
from audit.errors import InputError
from audit.version import __version__

__all__ = ["InputError", "Result", "__version__", "audit", "audit_loss", "audit_model", "bounds"]


def __dir__() -> list[str]:
    return sorted(__all__)
