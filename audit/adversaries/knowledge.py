"""What an adversary knows of a training run. Importing it starts no JAX."""

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
    from audit.tasks.model import Model


class Knowledge(NamedTuple):
    """The training run as an adversary knows it: everything but the noise.

    Attributes:
      model: the model that is trained.
      classes: the number of classes of its labels; 0 where labels are no classes.
      hyper: the hyperparameters of the training run.
      data: features and labels of the training examples.
      simulate: (hyper, key, theta_0) -> a training run without canaries.
      canaries: the number of canaries that the adversary is to make.
      expect: (craft, state, theta_0) -> the final model that an adversary with several canaries expects.
      insertions: the number of steps that insert a canary.
      steps: the number of steps of the training run.
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
        """Returns the shape and dtype of an example as the model's first layer sees it.

        Raises:
          InputError: the first layer does not take floats, so that no example can lie along a direction.
        """
        import jax
        import jax.numpy as jnp

        features = self.data[0]  # (N, ...)
        example = jax.ShapeDtypeStruct(features.shape[1:], features.dtype)
        first_input: jax.ShapeDtypeStruct = jax.eval_shape(self.model.inputs, example)
        is_float = jnp.issubdtype(first_input.dtype, jnp.floating)
        require(
            is_float,
            "poisoned examples are floats, and this model takes whole numbers: choose another `adversary`",
        )
        return first_input

    def labels(self) -> int:
        """Returns the number of classes; raises InputError if labels are not classes."""
        classes = "classes, whole numbers from 0 and at least two, which this adversary needs"
        require(self.classes >= 2, f"labels are no {classes}: choose another `adversary`")
        return self.classes

    def expect_of_several(self) -> "Expect | None":
        """Returns `expect` for several canaries; None for a single one, whose scores it would only shift."""
        return self.expect if self.canaries > 1 else None

    def require_coordinates(self) -> None:
        """Raises InputError for more canaries than the model has coordinates."""
        most = self.model.n_parameters
        message = f"`canaries={self.canaries}`: the model has {most} coordinates; give fewer"
        require(self.canaries <= most, message)

    def rehearsal(self) -> "Callable[[Array], Array]":
        """Returns a function theta_0 (p,) -> the final model (p,) of training without noise and canaries.

        The function caches its last result: it trains again only for another theta_0.
        """
        noiseless = self.hyper._replace(noise_multiplier=0.0)

        # A training run that is continued asks for the same theta_0 again.
        @functools.lru_cache(maxsize=1)
        def train(theta_0: bytes) -> "Array":
            """Trains from a float32 theta_0, given as bytes, since the cache needs a hashable argument.

            The key is arbitrary: without noise it decides nothing.
            """
            import jax
            import jax.numpy as jnp

            key = jax.random.key(0, impl="threefry2x32")
            return self.simulate(noiseless, key, jnp.frombuffer(theta_0, jnp.float32)).theta

        def rehearse(theta_0: "Array") -> "Array":
            import numpy as np

            return train(np.asarray(theta_0, np.float32).tobytes())

        return rehearse

    def principal(self) -> "Principal":
        """Returns mean and principal directions, in float64, of the data as the first layer sees them."""
        import jax
        import numpy as np

        from audit.adversaries import examples

        features = self.data[0]  # (N, ...)
        inputs = jax.vmap(self.model.inputs)(features)
        return examples.principal(np.asarray(inputs))
