"""The contract of an adversary: three pure functions, in the shape of an Optax transformation.

The convention everywhere: `in` is the world where the canary was inserted, and a higher score means
"more likely in".
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array


class Adversary(NamedTuple):
    """What is decided before training, what is inserted, and how the final model is scored.

    init(key, theta_0 (p,), clipping_norm) -> state: any pytree of arrays, the same for all runs of an
        audit. theta_0 is what the adversary knows of the initialisation.
    craft(state, step, theta (p,)) -> (p,): what is inserted at a step, counted from 0. The mechanism
        clips it to C.
    score(state, theta_T (p,), theta_0 (p,)) -> scalar: higher means in.
    reads_theta: whether craft looks at theta, as a real training example's gradient must. An adversary
        that crafts gradients in the hidden-state model may not (hidden-state paper, Section 4).

    craft and score are compiled, once for all games that have the same two functions: what differs from
    one audit to the next belongs in the state.
    """

    init: Callable[[Array, Array, Array], Any]
    craft: Callable[[Any, Array, Array], Array]
    score: Callable[[Any, Array, Array], Array]
    reads_theta: bool = False
