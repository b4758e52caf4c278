"""The contract of an adversary: pure functions, in the shape of an Optax transformation.

The convention everywhere: `in` is the world where a canary was inserted, and a higher score means
"more likely in". An adversary has K canaries a run, each in or out by its own bit; K = 1 is the hidden-state
paper's.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from audit.errors import require
from audit.mechanism.base import Coordinates, Craft, Directions, Examples, Observe, Tree


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
      all_in: whether every canary is in in every run.
      law_is_known: whether the law of the scores of canaries that are out is known: each score is the cosine
        of a canary's uniform direction, drawn by every run or shared by all, and a vector that does not
        depend on the direction if its canary is out.
      draws: M, if a score is the number of a run's M fresh draws that score below the canary; else 0.
    """

    init: Init
    craft: Craft
    score: Score
    canaries: int = 1
    observer: Observer | None = None
    reads_theta: bool = False
    crafts_constant: bool = False
    draw: Draw | None = None
    all_in: bool = False
    law_is_known: bool = False
    draws: int = 0

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
    if not isinstance(crafted, Coordinates | Directions | Examples):
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
