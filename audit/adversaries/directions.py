"""Canaries along uniformly random directions, scored by their cosines with the model's displacement.

CotS is from the hidden-state paper (Algorithms 7 and 8). The one-shot paper (Andrew et al., 2024) inserts
many canaries in one run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from audit.adversaries.base import (
    Adversary,
    AdversaryFields,
    Array,
    ComputeReference,
    Knowledge,
    NullLaw,
    Observer,
    PredictFinal,
    Tree,
    craft_same,
    jax,
    jnp,
    mechanism,
)
from audit.errors import require
from audit.settings.fields import described

_TINY = 1e-30  # avoids 0 / 0
# The maximum size K * p of stored directions (K, p): 1 GiB of float32.
_MAX_KEPT = 1 << 28


@dataclass(frozen=True)
class CotS(AdversaryFields):
    """CotS: gradients along random directions, scored by cosines with the model's displacement or weights."""

    name = "cots"
    canary = "along a random direction"
    description = (
        "CotS: draws a direction at random and inserts a gradient of norm C along it. Its score is the "
        "cosine between that direction and the model's displacement."
    )
    cots_score: str = described(
        "Score: cosine with the displacement of the model, or with its final weights as in the LiDP paper.",
        default="displacement",
        choices=("displacement", "weights"),
        has_flag=False,
    )

    def make(self, knowledge: Knowledge) -> Adversary:
        """Returns the adversary that scores each canary by its direction's cosine with reference - final.

        If `cots_score` is "weights", the reference is 0, as in the LiDP paper. With "displacement", it is
        theta_0 for one canary, as in the hidden-state paper. For several, it is the predicted final model,
        which includes the examples' effect.
        """
        compute_reference = REFERENCE_MODELS[self.cots_score]
        if knowledge.canaries == 1:
            return single_direction(compute_reference)
        if self.cots_score == "weights":
            return final_cosines(knowledge.canaries, compute_reference)
        return random_directions(knowledge.canaries, knowledge.predict_final)


@dataclass(frozen=True)
class OneShotCanaries(AdversaryFields):
    """The one-shot paper's canaries: gradients along random directions, scored by cosines."""

    name = "one_shot"
    canary = "the one-shot paper's random directions"
    description = (
        "One-shot: inserts gradients of norm C along random directions. A score is a direction's cosine "
        "with the model's displacement or weights, or its largest cosine with any step's displacement."
    )
    observe: str = described(
        "one_shot: score by the cosine with the final displacement (final) or the final weights (weights), "
        "or by the largest cosine over steps (all).",
        default="final",
        choices=("final", "weights", "all"),
    )

    @property
    def sees_every_model(self) -> bool:
        """True if scores use the model after every step."""
        return self.observe == "all"

    def make(self, knowledge: Knowledge) -> Adversary:
        """Returns the adversary that scores each canary by its direction's cosine with reference - final.

        The reference model is theta_0 for `observe="final"` and 0 for "weights". With "all", a score is the
        largest cosine over steps. Raises InputError for a single canary, because each run compares inserted
        canaries with held-out ones.
        """
        canaries = knowledge.canaries
        require(canaries > 1, f"`canaries` must be at least 2 for one_shot, got {canaries}")
        if self.observe == "all":
            return largest_cosines(canaries)  # their null distribution is unknown
        adversary = final_cosines(canaries, REFERENCE_MODELS[self.observe])
        # Runs share directions, so `read_evidence` uses the known distribution of held-out cosines only for a
        # single run.
        return adversary._replace(null=NullLaw(dimension=knowledge.model.n_parameters))


class RandomDirection(NamedTuple):
    """The state of an adversary with a single direction, a unit vector v.

    Attributes:
      canaries: (1, p), the canary C * v.
      reference: (p,) the model from which we measure the final model's displacement.
    """

    canaries: Array
    reference: Array

    def score(self, seen: Tree, final: Array, theta_0: Array) -> Array:
        """Returns the cosine (1,) between v and u = reference - final; 0 if u is 0."""
        direction = self.canaries[0]
        u = self.reference - final
        lengths = jnp.linalg.norm(direction) * jnp.linalg.norm(u)
        cosine = jnp.vdot(direction, u) / jnp.maximum(lengths, _TINY)
        return cosine[None]


def initial_model(theta_0: Array) -> Array:
    """Returns theta_0 (p,) as the reference model."""
    return theta_0


def zero_model(theta_0: Array) -> Array:
    """Returns zeros (p,) as the reference model, so the displacement is the negated final weights."""
    return jnp.zeros_like(theta_0)


# Functions theta_0 -> the reference model, keyed by `CotS.cots_score` and `OneShotCanaries.observe`.
REFERENCE_MODELS = {"displacement": initial_model, "final": initial_model, "weights": zero_model}


def single_direction(compute_reference: ComputeReference = initial_model) -> Adversary:
    """Returns the adversary that inserts C * v for a uniformly random unit vector v.

    The score is the cosine between v and compute_reference(theta_0) - final.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> RandomDirection:
        """Draws v and computes the reference model."""
        normal = jax.random.normal(key, theta_0.shape, theta_0.dtype)
        gradient = clipping_norm * normal / jnp.linalg.norm(normal)
        return RandomDirection(gradient[None], compute_reference(theta_0))

    return Adversary(init, craft_same, RandomDirection.score)


class RandomDirections(NamedTuple):
    """The state of an adversary with K random directions.

    Attributes:
      keys: (K,) typed keys, one per direction.
      reference: (p,) the model from which we measure the final model's displacement.
    """

    keys: Array
    reference: Array

    def draw(self, key: Array) -> RandomDirections:
        """Returns the state for a run, with new directions drawn from the run's key."""
        return self._replace(keys=jax.random.split(key, len(self.keys)))

    def score(self, seen: Tree, final: Array, theta_0: Array) -> Array:
        """Returns the cosines (K,) between the canaries' directions and reference - final."""
        return _compute_cosines(self.keys, self.reference - final)


def random_directions(canaries: int, predict_final: PredictFinal) -> Adversary:
    """Returns the adversary that inserts K canaries C * u_k, for uniformly random unit vectors u_k.

    The score of canary k is the cosine between u_k and the predicted final model minus the actual one. The
    mechanism draws u_k from keys in the state.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> RandomDirections:
        """Draws the keys and predicts the final model.

        The mechanism scales directions to the clipping norm.
        """
        keys = jax.random.split(key, canaries)
        # `predict_final` trains with directions from these keys and ignores the placeholder reference.
        state = RandomDirections(keys, reference=jnp.zeros_like(theta_0))
        return state._replace(reference=predict_final(craft_directions, state, theta_0))

    return Adversary(
        init, craft_directions, RandomDirections.score, canaries=canaries, crafts_constant=True
    )


def final_cosines(canaries: int, compute_reference: ComputeReference = initial_model) -> Adversary:
    """Returns the one-shot adversary that scores the final model (Andrew et al., 2024, Algorithm 2).

    The score of canary k is the cosine between its direction u_k and compute_reference(theta_0) - final.

    Args:
      canaries: K.
      compute_reference: `initial_model` for cosines with the change due to training, or `zero_model` for
        cosines with the negated final weights, as in the paper.
    """
    # The reference model does not depend on canaries.
    return random_directions(
        canaries, predict_final=lambda craft, state, theta_0: compute_reference(theta_0)
    )


class Seen(NamedTuple):
    """The record that the adversary of `largest_cosines` updates at every step.

    Attributes:
      theta: the last iterate (p,).
      move: the last step's move (p,), the iterate before the step minus the iterate after it.
      largest: each canary's largest cosine so far, (K,).
    """

    theta: Array
    move: Array
    largest: Array


class OneShot(NamedTuple):
    """The state of the adversary of `largest_cosines`.

    Attributes:
      keys: (K,) typed keys, one per direction.
      units: the drawn directions (K, p); (0, p) if they would take too much memory.
      momentum: the momentum of the server's SGD, ().
    """

    keys: Array
    units: Array
    momentum: Array

    def begin(self, theta_0: Array) -> Seen:
        """Returns the record before the first step, with all cosines at their minimum of -1."""
        return Seen(theta_0, move=jnp.zeros_like(theta_0), largest=jnp.full(len(self.keys), -1.0))

    def observe(self, seen: Seen, step: Array, theta: Array) -> Seen:
        """Returns the record after a step that moved the model from seen.theta to theta (p,).

        SGD with momentum moves the model by learning rate * gradient + momentum * previous move. Subtracting
        the second term leaves a vector along the gradient.
        """
        move = seen.theta - theta
        along_gradient = move - self.momentum * seen.move
        if len(self.units):  # the directions fit into memory
            cosines = self.units @ _scale_to_unit(along_gradient)
        else:
            cosines = _compute_cosines(self.keys, along_gradient)
        return Seen(theta, move, jnp.maximum(seen.largest, cosines))

    def score(self, seen: Seen, final: Array, theta_0: Array) -> Array:
        """Returns each canary's largest cosine over all steps, (K,)."""
        return seen.largest


def largest_cosines(canaries: int, momentum: float = 0.0) -> Adversary:
    """Returns the adversary that scores random directions by their largest cosine with a step's displacement.

    The displacement in step t is theta_{t-1} - theta_t, as in the public code of Andrew et al. (2024). Their
    Algorithm 3 instead uses the noisy mean of the step's updates, which is the gradient in the server's SGD.

    Args:
      canaries: K.
      momentum: the momentum of the server's SGD, which `OneShot.observe` removes from each displacement.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> OneShot:
        """Draws K keys, and the K directions if they fit into memory.

        Otherwise, every step draws the directions from the keys. The mechanism scales directions to the
        clipping norm.
        """
        keys = jax.random.split(key, canaries)
        fits = canaries * theta_0.size <= _MAX_KEPT
        stored_keys = keys if fits else keys[:0]
        # To save memory, `map` draws one direction at a time.
        units = jax.lax.map(lambda key: mechanism.draw_unit_direction(key, theta_0), stored_keys)
        return OneShot(keys, units, jnp.float32(momentum))

    return Adversary(
        init,
        craft_directions,
        OneShot.score,
        canaries=canaries,
        observer=Observer(OneShot.begin, OneShot.observe),
        crafts_constant=True,
    )


def craft_directions(state: Any, step: Array, theta: Array) -> mechanism.Directions:
    """Returns the state's keys at every step; the mechanism draws a direction from each."""
    return mechanism.Directions(state.keys)


def _scale_to_unit(vector: Array) -> Array:
    """Scales a vector (p,) to length 1; returns zeros for a zero vector."""
    return vector / jnp.maximum(jnp.linalg.norm(vector), _TINY)


def _compute_cosines(keys: Array, vector: Array) -> Array:
    """Returns the cosines (K,) between a vector (p,) and the directions drawn from K keys, one at a time."""
    unit = _scale_to_unit(vector)
    return jax.lax.map(lambda key: jnp.vdot(mechanism.draw_unit_direction(key, unit), unit), keys)
