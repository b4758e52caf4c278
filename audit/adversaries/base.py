"""The contract of an adversary: pure functions, in the shape of an Optax transformation, and its fields.

The convention everywhere: `in` is the world where a canary was inserted, and a higher score means
"more likely in". An adversary has K canaries a run, each in or out by its own bit; K = 1 is the hidden-state
paper's. Importing this starts no JAX.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from audit.adversaries.lazily import jax, jnp, mechanism
from audit.errors import require
from audit.settings import fields
from audit.settings.fields import deciding

if TYPE_CHECKING:
    from jax import Array

    from audit.mechanism.base import Craft, Data, Hyperparameters, Observe, Trajectory, Tree
    from audit.tasks.model import Model


class Init(Protocol):
    """(key, theta_0 (p,), clipping_norm) -> state: any pytree of arrays, the same for all runs of an audit.
    theta_0 is what the adversary takes the initialisation to be."""

    def __call__(self, key: Array, theta_0: Array, clipping_norm: Array, /) -> Tree: ...


class Score(Protocol):
    """(state, seen, theta_T (p,), theta_0 (p,)) -> scores (K,): higher means in."""

    def __call__(self, state: Tree, seen: Tree, theta_t: Array, theta_0: Array, /) -> Array: ...


class Expect(Protocol):
    """(craft, state, theta_0 (p,)) -> the final theta (p,) that an adversary expects.

    The adversary knows everything of a training run but the noise and the coins. So it expects the model that
    is trained without noise and with half of every canary, or with less where steps also take a canary only
    with some probability.
    """

    def __call__(self, craft: Craft, state: Tree, theta_0: Array, /) -> Array: ...


class Draw(Protocol):
    """(state, run key) -> the state in that run, with canaries that are drawn for it alone."""

    def __call__(self, state: Tree, key: Array, /) -> Tree: ...


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
    draw: Draw | None = None
    null: NullLaw = NullLaw()

    def draw_for_run(self, state: Tree, keys: tuple[Array, ...]) -> Tree:
        """Returns the state that craft and score get in a run.

        Args:
          state: the state from `init`, the same for all runs.
          keys: (key,), the run's own key, if each run draws its own canaries; else ().
        """
        return state if self.draw is None else self.draw(state, *keys)


class Shapes(NamedTuple):
    """The shapes, without values, of a step, of theta, of what an observer remembers and of a run's state.

    The last is the state that craft, score and observe get: that of the run, if every run draws its own.
    """

    step: Tree
    theta: Tree
    seen: Tree
    state: Tree


def shapes(adversary: Adversary, state: Tree, parameters: int) -> Shapes:
    """Checks the shapes that an adversary's functions return, and returns the shapes of their arguments.

    The functions are only traced by JAX, with shapes in place of arrays. An exception that they raise is
    passed on.

    Args:
      adversary: the adversary to check.
      state: what its `init` returned.
      parameters: p, the number of the model's parameters.

    Returns:
      The shapes of a step's number, of the model, of what the observer remembers (() without observer), and
      of a run's state.

    Raises:
      InputError: craft or score return other shapes than the contract says.
    """
    theta = jax.ShapeDtypeStruct((parameters,), jnp.float32)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    canaries = adversary.canaries

    seen: Tree = ()  # without an observer
    if adversary.observer is not None:
        seen = jax.eval_shape(adversary.observer.begin, state, theta)
    if adversary.draw is not None:
        # Each run has a state of its own, whose shapes are the same for every key.
        key = jax.random.key(0, impl="threefry2x32")
        state = jax.eval_shape(adversary.draw, state, key)
    _require_crafted(jax.eval_shape(adversary.craft, state, step, theta), canaries, parameters)

    scores = jax.eval_shape(adversary.score, state, seen, theta, theta)
    # A score that is no array, such as a tuple of arrays, has no shape: the message shows its type.
    shape = getattr(scores, "shape", type(scores).__name__)
    expected = f"a score a canary, (canaries,) = {(canaries,)}"
    require(
        shape == (canaries,),
        f"the adversary's score gives shape {shape}: give {expected}",
    )
    return Shapes(step, theta, seen, state)


def _require_crafted(crafted: Tree, canaries: int, parameters: int) -> None:
    """Raises InputError unless an adversary crafted as many canaries as it has, in an accepted form.

    Accepted are an array (canaries, parameters), and Coordinates, Directions or Examples, whose first
    array has a row for each canary.

    Args:
      crafted: the shapes that an adversary's craft returned.
      canaries: K, the number of canaries of a run.
      parameters: p, the number of the model's parameters.
    """
    shape = (canaries, parameters)
    array = f"(canaries, parameters) = {shape}"
    if not isinstance(crafted, mechanism.Coordinates | mechanism.Directions | mechanism.Examples):
        # What is no array, such as a tuple of arrays, has no shape: its type takes the place of one. It
        # differs from every shape, and the message shows it.
        given = str(getattr(crafted, "shape", type(crafted).__name__))
        message = f"the adversary's craft gives shape {given}: give an array {array}"
        require(given == str(shape), message)
        return

    # Coordinates, Directions or Examples.
    first_shape = jax.tree.leaves(crafted)[0].shape
    number = first_shape[0] if first_shape else 0  # a scalar has no axis of canaries
    given = f"{type(crafted).__name__} of {number} canaries"
    message = f"the adversary's craft gives {given}: give {canaries}, or an array {array}"
    require(number == canaries, message)


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

    def inputs(self) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype of an example as the model's first layer sees it.

        Raises:
          InputError: the first layer does not take floats, so that no example can lie along a direction.
        """

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

    def expect_of_several(self) -> Expect | None:
        """Returns `expect` for several canaries; None for a single one, whose scores it would only shift."""
        return self.expect if self.canaries > 1 else None

    def require_coordinates(self) -> None:
        """Raises InputError for more canaries than the model has coordinates."""
        most = self.model.n_parameters
        message = f"`canaries={self.canaries}`: the model has {most} coordinates; give fewer"
        require(self.canaries <= most, message)

    def rehearsal(self) -> Callable[[Array], Array]:
        """Returns a function theta_0 (p,) -> the final model (p,) of training without noise and canaries.

        The function caches its last result: it trains again only for another theta_0.
        """
        noiseless = self.hyper._replace(noise_multiplier=0.0)

        # A training run that is continued asks for the same theta_0 again.
        @functools.lru_cache(maxsize=1)
        def train(theta_0: bytes) -> Array:
            """Trains from a float32 theta_0, given as bytes, since the cache needs a hashable argument.

            The key is arbitrary: without noise it decides nothing.
            """

            key = jax.random.key(0, impl="threefry2x32")
            return self.simulate(noiseless, key, jnp.frombuffer(theta_0, jnp.float32)).theta

        def rehearse(theta_0: Array) -> Array:
            return train(np.asarray(theta_0, np.float32).tobytes())

        return rehearse


def describe_view(sees_every_model: bool) -> str:
    """Returns a sentence on whether an adversary sees all models of a training run or the last alone."""
    if sees_every_model:
        return "No hidden state: the adversary sees the model after every step."
    return "Hidden state: the adversary sees the final model only, no model in between."


@dataclasses.dataclass(frozen=True)
class AdversaryFields:
    """An adversary's own fields.

    Attributes:
      name: a key of `audit.settings.adversaries.ADVERSARIES`.
      group: the group of its flags in --help.
      version: what stored scores of it are; raised where they have to be trained again.
    """

    name: ClassVar[str]
    group: ClassVar[str] = fields.ADVERSARY
    version: ClassVar[int] = 1

    @property
    def any_time(self) -> bool:
        """Returns whether every run draws its own canaries, so that bounds hold wherever the audit stops."""
        return False

    @property
    def inserts_all(self) -> bool:
        """Returns whether every canary is in in every run, without coins."""
        return self.any_time

    @property
    def least_runs(self) -> int:
        """Returns the fewest runs of an audit: 2, so that there is a run with the canary and one without.

        It is 1 if every run draws its own canaries (`any_time`), or if all canaries are in (`inserts_all`):
        bounds then need no run of the world without canaries.
        """
        return 1 if self.any_time or self.inserts_all else 2

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


class AdversaryRow(NamedTuple):
    """An adversary as people and programs know it.

    Attributes:
      fields: the type of its own fields.
      label: its name on figures.
      canary: what it inserts, for --help.
      description: a sentence or two for a report.
      make: (its fields, what it knows) -> the adversary.
      biased: whether it inserts a gradient along a single coordinate; the law of its scores is then known if
        genuine gradients do not interfere.
    """

    fields: type[AdversaryFields]
    label: str
    canary: str
    description: str
    make: Callable[[Any, Knowledge], Adversary]
    biased: bool = False
