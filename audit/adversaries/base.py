"""The contract of an adversary: pure functions, in the shape of an Optax transformation, and its fields.

The convention everywhere: `in` is the world where a canary was inserted, and a higher score means
"more likely in". An adversary has K canaries a run, each in or out by its own bit; K = 1 is the hidden-state
paper's. Importing this starts no JAX: flags and `--help` need the fields, and so do installations without the
extra `train`. So adversaries take `jax`, `jnp` and `mechanism` from here, which load at their first use.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from audit.errors import require
from audit.settings import fields
from audit.settings.fields import deciding

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
    from jax import Array

    from audit.mechanism import base as mechanism
    from audit.mechanism.base import Craft, Data, Hyperparameters, Observe, Trajectory, Tree
    from audit.tasks.model import Model
else:
    jax = _Module("jax")
    jnp = _Module("jax.numpy")
    mechanism = _Module("audit.mechanism.base")

# (key, theta_0 (p,), clipping_norm) -> state: any pytree of arrays, the same for all runs of an audit.
# theta_0 is what the adversary takes the initialisation to be.
Init = Callable[["Array", "Array", "Array"], "Tree"]
# (state, seen, theta_T (p,), theta_0 (p,)) -> scores (K,): higher means in.
Score = Callable[["Tree", "Tree", "Array", "Array"], "Array"]
# (craft, state, theta_0 (p,)) -> the final model (p,) that an adversary expects. It knows everything of a run
# but the noise and the coins: it trains without noise and inserts each canary times its probability.
Expect = Callable[["Craft", "Tree", "Array"], "Array"]
# theta_0 (p,) -> the final model (p,) of training without noise and canaries.
Rehearse = Callable[["Array"], "Array"]


class Observer(NamedTuple):
    """How an adversary sees every iterate: it remembers a pytree whose shapes never change.

    Attributes:
      begin: (state, theta_0 (p,)) -> what it remembers before the first step.
      observe: (state, what it remembers, step, the iterate (p,)) -> what it remembers after that iterate.
    """

    begin: Callable[[Tree, Array], Tree]
    observe: Observe


class NullLaw(NamedTuple):
    """What is known of the law of the scores of canaries that are out.

    Attributes:
      all_in: whether every canary is in in every run, because a known law takes the place of the others.
      law_is_known: whether each score is the cosine of a canary's uniform direction, drawn by every run or
        shared by all, and a vector that does not depend on the direction if its canary is out.
      draws: M, if a score is the number of a run's M fresh draws that score below the canary; else 0.
    """

    all_in: bool = False
    law_is_known: bool = False
    draws: int = 0


class Adversary(NamedTuple):
    """An adversary: what it decides before training, its canaries, and its scores of the final model.

    All functions but init are compiled. Audits whose functions are equal (`==`) share compiled programs. A
    function that is made anew for each audit, such as a lambda, equals no other and is compiled for each. To
    share programs, give functions of a module, and put what differs from one audit to the next into the
    state. If a value must be compiled in, make it a field of a frozen dataclass with `__call__`: two of them
    are equal if all their fields are. What a function refers to stays in memory with its programs, so leave
    the data to init.

    Attributes:
      init: (key, theta_0, clipping_norm) -> the state, made before training.
      craft: (state, step, theta) -> the canaries of that step.
      score: (state, seen, theta_T, theta_0) -> the scores (K,) of the final model.
      canaries: K, the number of canaries of a run.
      observer: how it sees every iterate; None if it sees only the final model, and score gets () for `seen`.
      reads_theta: whether craft looks at theta, as a real training example's gradient must. An adversary
        that crafts gradients in the hidden-state model may not (hidden-state paper, Section 4).
      crafts_constant: whether craft gives the same at every step.
      draw: (state, run key) -> the state that craft and score get in that run, if every run has canaries of
        its own; None if all runs share the canaries.
      null: what is known of the scores of canaries that are out.
    """

    init: Init
    craft: Craft
    score: Score
    canaries: int = 1
    observer: Observer | None = None
    reads_theta: bool = False
    crafts_constant: bool = False
    draw: Callable[[Tree, Array], Tree] | None = None
    null: NullLaw = NullLaw()

    def draw_for_run(self, state: Tree, key: Array) -> Tree:
        """Returns the state that craft and score get in a run, from the common state and the run's key."""
        return state if self.draw is None else self.draw(state, key)


class Shapes(NamedTuple):
    """The shapes of what an observer remembers (() without one), of a run's state, and of its canaries."""

    seen: Tree
    state: Tree
    crafted: Tree


def shapes(adversary: Adversary, state: Tree, parameters: int) -> Shapes:
    """Returns the shapes of what an adversary's functions return; JAX only traces them.

    An exception that they raise is passed on.

    Args:
      adversary: the adversary to check.
      state: what its `init` returned.
      parameters: p, the number of the model's parameters.

    Raises:
      InputError: craft or score return other shapes than the contract says.
    """
    theta = jax.ShapeDtypeStruct((parameters,), jnp.float32)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    key = jax.random.key(0, impl="threefry2x32")
    canaries = adversary.canaries

    seen: Tree = ()
    if adversary.observer is not None:
        seen = jax.eval_shape(adversary.observer.begin, state, theta)
    state = jax.eval_shape(adversary.draw_for_run, state, key)

    crafted = jax.eval_shape(adversary.craft, state, step, theta)
    scores = jax.eval_shape(adversary.score, state, seen, theta, theta)
    rows = f"an array (canaries, parameters) = {(canaries, parameters)}"
    if isinstance(crafted, mechanism.Coordinates | mechanism.Directions | mechanism.Examples):
        number = len(jax.tree.leaves(crafted)[0].shape) and jax.tree.leaves(crafted)[0].shape[0]
        given = f"{type(crafted).__name__} of {number} canaries: give {canaries}, or"
        require(number == canaries, f"the adversary's craft gives {given} {rows}")
        crafted_shape: Any = (canaries, parameters)
    else:
        # What is no array, such as a tuple of arrays, has no shape: the message has its type.
        crafted_shape = getattr(crafted, "shape", type(crafted).__name__)
    message = f"the adversary's craft gives shape {crafted_shape}: give {rows}"
    require(crafted_shape == (canaries, parameters), message)
    scores_shape = getattr(scores, "shape", type(scores).__name__)
    fix = f"give a score a canary, (canaries,) = {(canaries,)}"
    require(scores_shape == (canaries,), f"the adversary's score gives shape {scores_shape}: {fix}")
    return Shapes(seen, state, crafted)


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

    model: Model
    classes: int
    hyper: Hyperparameters
    data: Data
    simulate: Callable[[Hyperparameters, Array, Array], Trajectory]
    canaries: int
    expect: Expect
    insertions: int = 1
    steps: int = 1

    def count_inputs(self) -> int:
        """Returns the number of floats of an example as the model's first layer sees it.

        Raises InputError if the first layer does not take floats, so that no example lies along a direction.
        """
        features = self.data[0]  # (N, ...)
        example = jax.ShapeDtypeStruct(features.shape[1:], features.dtype)
        first_input: jax.ShapeDtypeStruct = jax.eval_shape(self.model.inputs, example)
        require(
            jnp.issubdtype(first_input.dtype, jnp.floating),
            "poisoned examples are floats, and this model takes whole numbers: choose another `adversary`",
        )
        return math.prod(first_input.shape)

    def count_classes(self) -> int:
        """Returns the number of classes; raises InputError if labels are not classes."""
        classes = "classes, whole numbers from 0 and at least two, which this adversary needs"
        require(self.classes >= 2, f"labels are no {classes}: choose another `adversary`")
        return self.classes

    def rehearsal(self) -> Rehearse:
        """Returns the function theta_0 (p,) -> the final model (p,) of training without noise and canaries.

        It caches its last result, since a training run that is continued asks for the same theta_0 again.
        """
        noiseless = self.hyper._replace(noise_multiplier=0.0)

        @functools.lru_cache(maxsize=1)
        def train(theta_0: bytes) -> Array:
            """Trains from a float32 theta_0, given as bytes, since the cache needs a hashable argument."""
            key = jax.random.key(0, impl="threefry2x32")  # without noise it decides nothing
            return self.simulate(noiseless, key, jnp.frombuffer(theta_0, jnp.float32)).theta

        return lambda theta_0: train(np.asarray(theta_0, np.float32).tobytes())


def describe_view(sees_every_model: bool) -> str:
    """Returns a sentence on whether an adversary sees all models of a training run or only the last."""
    if sees_every_model:
        return "No hidden state: the adversary sees the model after every step."
    return "Hidden state: the adversary sees the final model only, no model in between."


@dataclasses.dataclass(frozen=True)
class AdversaryFields:
    """An adversary as people and programs know it: its own fields, and the function that makes it.

    Attributes:
      name: its key in `audit.settings.adversaries.ADVERSARIES`.
      canary: what it inserts, for --help.
      description: a sentence or two for a report.
      biased: whether it inserts a gradient along a single coordinate; the law of its scores is then known if
        genuine gradients do not interfere.
      group: the group of its flags in --help.
      version: what stored scores of it are; raised where they have to be trained again.
    """

    name: ClassVar[str]
    canary: ClassVar[str] = ""
    description: ClassVar[str]
    biased: ClassVar[bool] = False
    group: ClassVar[str] = fields.ADVERSARY
    version: ClassVar[int] = 1

    def make(self, knowledge: Knowledge) -> Adversary:
        """Returns the adversary; raises InputError if it does not fit the training run."""
        raise NotImplementedError

    @property
    def any_time(self) -> bool:
        """Returns whether every run draws its own canaries, so that bounds hold wherever the audit stops."""
        return False

    @property
    def inserts_all(self) -> bool:
        """Returns whether every canary is in in every run, without coins."""
        return self.any_time

    @property
    def sees_every_model(self) -> bool:
        """Returns whether the adversary sees the model after every step, not only after the last."""
        return False

    @property
    def view(self) -> str:
        """Returns a sentence on what the adversary sees of the training, for a report."""
        return describe_view(self.sees_every_model)

    @property
    def usual_runs(self) -> int:
        """Returns the number of runs where none is given."""
        return 5000

    def deciding(self) -> dict[str, Any]:
        """Returns the fields that decide scores, without those at their defaults, and a version above 1."""
        decisive = deciding(self)
        if self.version > 1:
            decisive["version"] = self.version
        return decisive
