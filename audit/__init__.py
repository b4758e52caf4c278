"""Audits of DP-SGD: lower bounds on the true epsilon of training.

    import audit
    audit.bounds(scores_in, scores_out)                                     scores of your own training
    audit.bounds(audit.cosines(values, dimension))                          cosines from audit.directions
    audit.bounds(audit.ranks(scores, fresh))                                canaries among fresh draws
    audit.bounds(audit.coins(scores, presence))                             canaries chosen by fair coins
    audit.bounds(..., claim=audit.DpSgd(noise_multiplier=4, insertions=250))
    audit.audit_loss(loss, params, features, labels, runs=1000)             loss(params, (feature, label))
    audit.audit_model(module, criterion, features, labels, runs=1000)       a Flax module
    audit.audit("fcnn", runs=5000, adversary="gc_r", k=5)                   a model from the repository
    audit.hidden_state_epsilon(noise_multiplier=4.0, insertions=250, k=5, lipschitz=1.0)    an upper bound
    audit.check_step(step, params, batch, clipping_norm=1, ...)             is a DP-SGD step correct?
    audit.TorchStep(model, optimizer, train_batch)                          a PyTorch step for check_step
    audit.check_batches(draw, examples, sampling_rate)                      are the batches correct?
    audit.Indices(examples)                                                 replaces the loader's data set
    audit.check_accounting(epsilon, delta, ...)                             is the epsilon correct?
    audit.sampler_claims("shuffled", noise_multiplier=1, batches=98, ...)   epsilon for real samplers
    audit.card(result)                                                      a record that others can check
    audit.table(results)                                                    rows for a DataFrame

Audits and bounds return a `Result`, audits with `vary` return a `Grid`, and checks return a `CheckReport`.
Invalid input raises `InputError`. Only audits load JAX. No function reads the command line or changes JAX's
configuration.
"""

import importlib
from typing import TYPE_CHECKING, Any

from audit.api import audit, audit_loss, audit_model, bounds
from audit.errors import InputError
from audit.result import Grid, Result, card, table
from audit.version import __version__

if TYPE_CHECKING:
    from audit import directions
    from audit.adversaries.subspace import choose_tensors
    from audit.check.accounting import check_accounting
    from audit.check.batches import check_batches
    from audit.check.correlated import check_noise
    from audit.check.loaders import Indices
    from audit.check.step import check_step
    from audit.check.torch_step import TorchStep
    from audit.claims.claim import DpSgd, EpsilonDelta, Gdp
    from audit.claims.hidden_state import hidden_state_epsilon
    from audit.claims.matrix import MatrixMechanism
    from audit.claims.sampler_claims import TruncatedPoisson, sampler_claims
    from audit.evidence.given import coins, cosines, ranks

# Each module is imported when its name is first used.
_DEFINING_MODULES = {
    "DpSgd": "audit.claims.claim",
    "EpsilonDelta": "audit.claims.claim",
    "Gdp": "audit.claims.claim",
    "Indices": "audit.check.loaders",
    "MatrixMechanism": "audit.claims.matrix",
    "TorchStep": "audit.check.torch_step",
    "TruncatedPoisson": "audit.claims.sampler_claims",
    "coins": "audit.evidence.given",
    "cosines": "audit.evidence.given",
    "ranks": "audit.evidence.given",
    "directions": "audit.directions",
    "check_accounting": "audit.check.accounting",
    "choose_tensors": "audit.adversaries.subspace",
    "check_batches": "audit.check.batches",
    "check_noise": "audit.check.correlated",
    "check_step": "audit.check.step",
    "hidden_state_epsilon": "audit.claims.hidden_state",
    "sampler_claims": "audit.claims.sampler_claims",
}
__all__ = [
    "DpSgd",
    "EpsilonDelta",
    "Gdp",
    "Grid",
    "Indices",
    "InputError",
    "MatrixMechanism",
    "Result",
    "TorchStep",
    "TruncatedPoisson",
    "__version__",
    "audit",
    "audit_loss",
    "audit_model",
    "bounds",
    "card",
    "check_accounting",
    "check_batches",
    "check_noise",
    "check_step",
    "choose_tensors",
    "coins",
    "cosines",
    "directions",
    "hidden_state_epsilon",
    "ranks",
    "sampler_claims",
    "table",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Imports and returns a public object by name; raises AttributeError for other names."""
        if name not in _DEFINING_MODULES:
            raise AttributeError(f"module 'audit' has no attribute {name!r}")
        module = importlib.import_module(_DEFINING_MODULES[name])
        return getattr(module, name, module)  # the public name "directions" is itself a module


def __dir__() -> list[str]:
    return sorted(__all__)
