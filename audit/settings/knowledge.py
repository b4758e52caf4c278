"""What an adversary knows of a training. Importing it starts no JAX."""

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
    insertions, steps: how many insert, of how many.
    """

    model: "Model"
    classes: int
    hyper: "Hyperparameters"
    data: "Data"
    simulate: "Callable[[Hyperparameters, Array, Array], Trajectory]"
    canaries: int
    expect: "Expect"
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

    def principal(self) -> "Principal":
        """The principal directions of the data as the model's first layer sees them."""
        import jax
        import numpy as np

        from audit.adversaries import examples

        return examples.principal(np.asarray(jax.vmap(self.model.inputs)(self.data[0])))
