"""Audits of DP-SGD, and the front door of the whole project:

    import audit
    audit.bounds(scores_in, scores_out)                                     scores of one's own training
    audit.audit("fcnn", runs=5000, adversary="gc_r", k=5)                   a built-in model
    audit.audit_model(module, criterion, features, labels, runs=1000)       a Flax module
    audit.audit_loss(loss, params, features, labels, runs=1000)             loss(params, (feature, label))

Each returns a `Result`. Importing this loads nothing; `bounds` loads no JAX, and none of them touches the
command line or JAX's configuration.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.front import Result, audit, audit_loss, audit_model, bounds

__version__ = "0.1.0"
__all__ = ["Result", "audit", "audit_loss", "audit_model", "bounds"]


def __getattr__(name: str) -> Any:
    """What `experiments.front` has, when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from experiments import front

    return getattr(front, name)
