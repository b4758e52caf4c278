"""The interface of an adversary: fields, and pure functions as in an Optax transformation.

An adversary has K canaries per run, with K = 1 in the hidden-state paper. One bit per canary decides whether
a run inserts it. Higher scores mean "more likely inserted".

Adversaries import `jax`, `jnp`, `mechanism` and types from this module. It loads JAX on first use, because
`--help` needs the adversaries' fields even without the `train` extra.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from audit.errors import require
from audit.settings.fields import deciding

__all__ = ["Array", "Tree", "jax", "jnp", "mechanism"]


@dataclass(frozen=True)
class _Module:
    """A module that is imported when one of its attributes is first read."""

    path: str

    def __getattr__(self, attribute: str) -> Any:
        """Imports the module and returns its attribute."""
        return getattr(importlib.import_module(self.path), attribute)


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax import Array

    from audit.mechanism import base as mechanism
    from audit.mechanism.base import Craft, Data, Hyperparameters, Observe, Trajectory, Tree
    from audit.tasks.model import Model
else:
    jax = _Module("jax")
    jnp = _Module("jax.numpy")
    mechanism = _Module("audit.mechanism.base")
    Array = Tree = Craft = Any  # only type annotations use them

# (key, theta_0 (p,), clipping_norm) -> the state: any pytree of arrays, shared by all runs of an audit.
Init = Callable[[Array, Array, Array], Tree]
# (craft, state, theta_0 (p,)) -> the predicted final model (p,). To predict it, we train without noise and
# scale each canary by its probability of insertion.
PredictFinal = Callable[[Craft, Tree, Array], Array]
# (theta (p,), (features, label)) -> the loss of a single example, ().
ExampleLoss = Callable[[Array, tuple[Array, Array]], Array]
# theta_0 (p,) -> a reference model (p,), to compare with the final model.
ComputeReference = Callable[[Array], Array]


class Observer(NamedTuple):
    """Functions that record every iterate for the adversary.

    The record `seen` is a pytree with fixed shapes.

    Attributes:
      begin: (state, theta_0 (p,)) -> the record before the first step.
      observe: (state, seen, step from 0, the iterate (p,) after the step) -> the record after the step.
    """

    begin: Callable[[Tree, Array], Tree]
    observe: Observe


class NullLaw(NamedTuple):
    """The known properties of the null distribution: the distribution of held-out canaries' scores.

    Attributes:
      all_in: True if every run inserts all canaries. Bounds then use the known distribution instead of
        held-out canaries' scores.
      dimension: m if a held-out canary's score is the cosine between a uniformly random direction in m
        parameters and a vector independent of the direction; otherwise 0. Runs may share directions.
      draws: M if a score counts how many of the run's M random draws score below the canary; otherwise 0.
    """

    all_in: bool = False
    dimension: int = 0
    draws: int = 0


class Adversary(NamedTuple):
    """An adversary: its choices before training, its canaries, and its scores of the final model.

    All functions except init are compiled, and audits with equal functions (`==`) share compiled programs. So
    use module-level functions instead of lambdas. Values that differ between audits belong in the state, or
    in a frozen dataclass with `__call__` if they must be compiled in. Only init should use the data, because
    everything that compiled functions refer to stays in memory.

    Attributes:
      init: (key, theta_0, clipping_norm) -> the state, made before training.
      craft: (state, step, theta) -> the canaries of that step.
      score: (state, the observer's record, the final model (p,), theta_0 (p,)) -> the scores (K,).
      canaries: K, the number of canaries per run.
      observer: sees every iterate. If it is None, the adversary sees only the final model, and its record is
        ().
      reads_theta: True if craft depends on theta, as the gradient of a training example does.
      crafts_constant: True if craft returns the same canaries at every step.
      draw: (state, run key) -> the state for craft and score in that run. If it is None, all runs share the
        canaries.
      null: the known properties of held-out canaries' scores.
    """

    init: Init
    craft: Craft
    score: Callable[[Tree, Tree, Array, Array], Array]
    canaries: int = 1
    observer: Observer | None = None
    reads_theta: bool = False
    crafts_constant: bool = False
    draw: Callable[[Tree, Array], Tree] | None = None
    null: NullLaw = NullLaw()

    def draw_for_run(self, state: Tree, key: Array) -> Tree:
        """Returns the state of the run with this key."""
        return state if self.draw is None else self.draw(state, key)

    def score_run(self, state: Tree, key: Array, seen: Tree, final: Array, theta_0: Array) -> Array:
        """Returns the scores (K,) of the run with this key; `state` is from `init`."""
        return self.score(self.draw_for_run(state, key), seen, final, theta_0)


def craft_same(state: Any, step: Array, theta: Array) -> Any:
    """Returns the adversary state's `canaries` at every step."""
    return state.canaries


class Shapes(NamedTuple):
    """The shapes of the observer's record (() without an observer), a run's state, and its canaries."""

    seen: Tree
    state: Tree
    crafted: Tree


def check_shapes(adversary: Adversary, state: Tree, parameters: int) -> Shapes:
    """Checks and returns the shapes of an adversary's results, without running its functions.

    `state` is from `Adversary.init`, and `parameters` is p, the number of model parameters.

    Raises:
      InputError: craft does not return K canaries with p parameters, or score does not return K scores.
    """
    theta = jax.ShapeDtypeStruct((parameters,), jnp.float32)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    key = jax.random.key(0, impl="threefry2x32")  # like a run's key
    canaries = adversary.canaries

    seen: Tree = ()
    if adversary.observer is not None:
        seen = jax.eval_shape(adversary.observer.begin, state, theta)
    state_of_run = jax.eval_shape(adversary.draw_for_run, state, key)
    crafted = jax.eval_shape(adversary.craft, state_of_run, step, theta)
    # Arguments: (..., final model, theta_0).
    scores = jax.eval_shape(adversary.score, state_of_run, seen, theta, theta)

    # The message shows the type of a result that is not an array.
    crafted_shape = getattr(crafted, "shape", type(crafted).__name__)
    if isinstance(crafted, mechanism.Coordinates | mechanism.Directions | mechanism.Examples):
        # These types represent arrays (K, p). Their first field has K rows.
        leading_axis = jax.tree.leaves(crafted)[0].shape[:1]
        crafted_shape = (*leading_axis, parameters)
    require(
        crafted_shape == (canaries, parameters),
        "the adversary's craft must return an array (canaries, parameters) = "
        f"{(canaries, parameters)}, got shape {crafted_shape}",
    )
    scores_shape = getattr(scores, "shape", type(scores).__name__)
    require(
        scores_shape == (canaries,),
        "the adversary's score must return a score per canary, (canaries,) = "
        f"{(canaries,)}, got shape {scores_shape}",
    )
    return Shapes(seen, state_of_run, crafted)


class Knowledge(NamedTuple):
    """The training run as an adversary knows it: everything except the noise.

    Attributes:
      classes: the number of label classes; 0 if labels are not classes.
      data: features and labels of the training examples.
      simulate: (hyper, key, theta_0) -> a training run without canaries, with noise drawn from the key.
      canaries: the number of canaries per run.
      predict_final: see `PredictFinal`.
      insertions: the number of steps that insert a canary.
      noise_steps: the variance of the final model's noise for linear losses, divided by the variance of the
        raw noise in one step. It equals the number of steps if noise is independent across steps.
      is_rehearsed: (the dimension of random directions) -> True if the adversary should train a model to
        predict the final model (`Setting.is_rehearsed`).
    """

    model: Model
    classes: int
    hyper: Hyperparameters
    data: Data
    simulate: Callable[[Hyperparameters, Array, Array], Trajectory]
    canaries: int
    predict_final: PredictFinal
    insertions: int = 1
    noise_steps: float = 1
    is_rehearsed: Callable[[int], bool] = lambda parameters: True

    def count_inputs(self) -> int:
        """Returns the number of floats per example that the model's first layer takes.

        Raises InputError if the layer takes integers, because poisoned examples are floats.
        """
        features = self.data[0]  # (N, ...)
        first_input: jax.ShapeDtypeStruct = jax.eval_shape(self.model.inputs, features[0])
        require(
            jnp.issubdtype(first_input.dtype, jnp.floating),
            "poisoned examples are floats, but this model takes integers: choose another `adversary`",
        )
        return math.prod(first_input.shape)

    def count_classes(self) -> int:
        """Returns the number of classes; raises InputError if labels are not classes."""
        require(
            self.classes >= 2,
            "this adversary needs integer class labels 0..n-1 with n >= 2: choose another `adversary`",
        )
        return self.classes

    def rehearsal(self) -> ComputeReference:
        """Returns a function: theta_0 (p,) -> the final model (p,) of a run without noise or canaries.

        The function caches its last result, because an audit may call `Adversary.init` several times.
        """
        noiseless = self.hyper._replace(noise_multiplier=0.0)

        @functools.lru_cache(maxsize=1)
        def train(theta_0_bytes: bytes) -> Array:
            """Trains from theta_0, given as float32 bytes because arrays are not hashable."""
            theta_0 = jnp.frombuffer(theta_0_bytes, jnp.float32)
            any_key = jax.random.key(0, impl="threefry2x32")  # noise from it is multiplied by 0
            return self.simulate(noiseless, any_key, theta_0).theta

        return lambda theta_0: train(np.asarray(theta_0, np.float32).tobytes())


def describe_view(sees_every_model: bool) -> str:
    """Describes, for reports, which of a run's models an adversary sees."""
    if sees_every_model:
        return "No hidden state: the adversary sees the model after every step."
    return "Hidden state: the adversary sees only the final model, not the models before it."


@dataclass(frozen=True)
class AdversaryFields:
    """The fields of an adversary, and the function that makes it.

    Attributes:
      name: its key in `audit.settings.adversaries.ADVERSARIES`.
      canary: a description of its canary for --help, such as "a gradient along a random coordinate".
      biased: True if each canary is a gradient along a single coordinate. The distribution of its score is
        known if training examples do not move that coordinate.
      reads_theta: True if its canaries depend on the model, as in `Adversary`. The hidden-state bound then
        needs a single canary.
      version: the version of its stored scores. If it changes, audits train again.
    """

    name: ClassVar[str]
    canary: ClassVar[str] = ""
    description: ClassVar[str]
    biased: ClassVar[bool] = False
    reads_theta: ClassVar[bool] = False
    version: ClassVar[int] = 1

    def make(self, knowledge: Knowledge) -> Adversary:
        """Returns the adversary; raises InputError if it does not fit the training run."""
        raise NotImplementedError

    @property
    def has_fresh_canaries(self) -> bool:
        """True if every run draws its own canaries. Bounds are then valid whenever the audit stops."""
        return False

    @property
    def all_in(self) -> bool:
        """True if every run inserts all canaries, without coin flips."""
        return self.has_fresh_canaries

    @property
    def sees_every_model(self) -> bool:
        """True if the adversary sees the model after every step, not only after the last."""
        return False

    @property
    def view(self) -> str:
        """A description, for reports, of the models that the adversary sees."""
        return describe_view(self.sees_every_model)

    @property
    def usual_runs(self) -> int:
        """The default number of runs."""
        return 5000

    def deciding(self) -> dict[str, Any]:
        """Returns the fields that identify stored scores: non-default fields, and the version if above 1."""
        decisive = deciding(self)  # the function, not this method
        if self.version > 1:
            decisive["version"] = self.version
        return decisive
