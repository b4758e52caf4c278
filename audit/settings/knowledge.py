"""What an adversary knows of a training. Importing it starts no JAX."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from audit.errors import require

if TYPE_CHECKING:
    import jax
    from jax import Array

    from audit.adversaries.base import Expect
    from audit.adversaries.examples import Principal
    from audit.mechanism.base import Data, Hyperparameters, Trajectory
    from audit.model import Model


class Knowledge(NamedTuple):
    """The training as an adversary knows it: everything but the noise.

    simulate(hyper, key, theta_0) trains once without canaries. classes: how many labels there are. canaries:
    how many are to be made. expect: what an adversary with several canaries expects of the final model.
    respond(theta_0): the mu (p,) that linear response forecasts by coordinate; unresponsive: why it can't,
    empty where it can. insertions, steps: how many insert, of how many.
    """

    model: "Model"
    classes: int
    hyper: "Hyperparameters"
    data: "Data"
    simulate: "Callable[[Hyperparameters, Array, Array], Trajectory]"
    canaries: int
    expect: "Expect"
    respond: "Callable[[Array], Array]"
    unresponsive: str
    insertions: int = 1
    steps: int = 1

    def inputs(self) -> "jax.ShapeDtypeStruct":
        """An example as the model's first layer sees it; raises InputError where that is no floats."""
        import jax
        import jax.numpy as jnp

        example = jax.ShapeDtypeStruct(self.data[0].shape[1:], self.data[0].dtype)
        found: jax.ShapeDtypeStruct = jax.eval_shape(self.model.inputs, example)
        floats = jnp.issubdtype(found.dtype, jnp.floating)
        whole = "this model takes whole numbers: choose another `adversary`"
        require(floats, f"poisoned examples are floats, and {whole}")
        return found

    def labels(self) -> int:
        """How many classes there are; raises InputError where labels are none."""
        none = "labels are no classes, which this adversary needs: choose another `adversary`"
        require(self.classes >= 2, none)
        return self.classes

    def require_coordinates(self) -> None:
        """Raises InputError for more canaries than the model has coordinates."""
        asked, most = self.canaries, self.model.n_parameters
        require(asked <= most, f"`canaries={asked}`: the model has {most} coordinates; give fewer")

    def rehearsal(self) -> "Callable[[Array], Array]":
        """theta_0 (p,) -> the final model without noise and canaries, trained once for one theta_0."""
        silent = self.hyper._replace(noise_multiplier=0.0)

        @functools.lru_cache(maxsize=1)  # a training that is continued begins anew from one theta_0
        def trained(theta_0: bytes) -> "Array":
            import jax
            import jax.numpy as jnp

            key = jax.random.key(0, impl="threefry2x32")
            return self.simulate(silent, key, jnp.frombuffer(theta_0, jnp.float32)).theta

        def rehearse(theta_0: "Array") -> "Array":
            import numpy as np

            return trained(np.asarray(theta_0, np.float32).tobytes())

        return rehearse

    def principal(self) -> "Principal":
        """The principal directions of the data as the model's first layer sees them."""
        import jax
        import numpy as np

        from audit.adversaries import examples

        return examples.principal(np.asarray(jax.vmap(self.model.inputs)(self.data[0])))
