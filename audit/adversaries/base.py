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
    """(craft, state, theta_0 (p,)) -> the final theta (p,) that an adversary expects which knows all of a
    training run but the noise and the coins: trained without noise, with half of every canary."""

    def __call__(self, craft: Craft, state: Tree, theta_0: Array, /) -> Array: ...


class Draw(Protocol):
    """(state, run key) -> the state of one run alone, in which its own canaries are drawn afresh."""

    def __call__(self, state: Tree, key: Array, /) -> Tree: ...


class Observer(NamedTuple):
    """Sees every iterate and remembers a pytree of constant shapes.

    Attributes:
      begin: (state, theta_0 (p,)) -> the first value of what it remembers.
      observe: what it remembers after an iterate.
    """

    begin: Callable[[Tree, Array], Tree]
    observe: Observe


class Adversary(NamedTuple):
    """An adversary's decision before training, its canaries, and its score of the final model.

    All functions but init are compiled: what differs from one audit to the next belongs in the state.

    Attributes:
      init: makes the state before training.
      craft: gives the canaries of a step.
      score: scores the final model.
      canaries: K.
      observer: None where only the final model is seen; score then gets () for `seen`.
      reads_theta: whether craft looks at theta, as a real training example's gradient must. An adversary
        that crafts gradients in the hidden-state model may not (hidden-state paper, Section 4).
      crafts_constant: whether craft gives the same at every step.
      draw: where every run has canaries of its own; craft and score then get what it gives for `state`.
      all_in: whether every canary is in in every run.
      law_is_known: whether scores are cosines of uniform directions, those that every run draws or those that
        all share, with something that does not depend on a direction whose canary is out.
      draws: M, where a score is the number of a run's M fresh draws below a canary; else 0.
      variant: what tells its functions from those that the same maker gives for other settings.
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
    variant: str = ""

    def draw_for_run(self, state: Tree, keys: tuple[Array, ...]) -> Tree:
        """Returns the state that craft and score get in a run.

        Args:
          state: the same for all runs.
          keys: the run's own key where it draws canaries of its own; else ().
        """
        return state if self.draw is None else self.draw(state, *keys)


class Shapes(NamedTuple):
    """The shapes, without values, of a step, of theta and of what an observer remembers."""

    step: Tree
    theta: Tree
    seen: Tree


def shapes(adversary: Adversary, state: Tree, parameters: int) -> Shapes:
    """Returns the shapes that an adversary's functions take, and checks those that they return.

    Nothing is computed or compiled. Whatever the adversary's functions raise is raised here.

    Args:
      adversary: whose contract is checked.
      state: what its `init` returned.
      parameters: p.

    Raises:
      InputError: craft or score return other shapes than the contract says.
    """
    theta = jax.ShapeDtypeStruct((parameters,), jnp.float32)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    canaries = adversary.canaries

    if adversary.draw is not None:
        state = jax.eval_shape(lambda: adversary.draw_for_run(state, (jax.random.key(0),)))
    seen: Tree = ()
    if adversary.observer is not None:
        seen = jax.eval_shape(adversary.observer.begin, state, theta)
    _require_crafted(jax.eval_shape(adversary.craft, state, step, theta), canaries, parameters)

    scores = jax.eval_shape(adversary.score, state, seen, theta, theta)
    shape = getattr(scores, "shape", type(scores).__name__)
    expected = f"a score a canary, (canaries,) = {(canaries,)}"
    require(
        shape == (canaries,),
        f"the adversary's score gives shape {shape}: give {expected}",
    )
    return Shapes(step, theta, seen)


def _require_crafted(crafted: Tree, canaries: int, parameters: int) -> None:
    """Raises InputError unless `crafted` is canaries of an accepted kind, and as many as there should be.

    Args:
      crafted: the shapes that an adversary's craft returned.
      canaries: K.
      parameters: p.
    """
    shape = (canaries, parameters)
    array = f"(canaries, parameters) = {shape}"
    if not isinstance(crafted, Coordinates | Directions | Examples):
        given = str(getattr(crafted, "shape", type(crafted).__name__))
        message = f"the adversary's craft gives shape {given}: give an array {array}"
        require(given == str(shape), message)
        return

    leading_axes = jax.tree.leaves(crafted)[0].shape
    number = leading_axes[0] if leading_axes else 0
    given = f"{type(crafted).__name__} of {number} canaries"
    message = f"the adversary's craft gives {given}: give {canaries}, or an array {array}"
    require(number == canaries, message)
