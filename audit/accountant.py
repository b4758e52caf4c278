"""The public functions for upper bounds."""

from typing import TYPE_CHECKING

from audit.errors import require

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def hidden_state_epsilon(
    *,
    noise_multiplier: float,
    insertions: int,
    lipschitz: "ArrayLike",
    k: int = 1,
    insert: str | int = "last",
    step_sizes: "ArrayLike" = 1.0,
    delta: float = 1e-5,
) -> float:
    """Returns an upper bound on epsilon for an adversary that sees only the last model of DP-SGD.

    The bound is at most the epsilon of composition, which allows an adversary to see every model. It is the
    smallest bound that is valid for every loss with these Lipschitz constants.

    Args:
      noise_multiplier: the standard deviation of the noise, divided by the clipping norm.
      insertions: the number of steps that insert the canary.
      lipschitz: the Lipschitz constant of a training step without canary and noise, as a map from a model to
        the next: a number, or one for each of the insertions * k steps. It is 1 for a convex loss and a
        learning rate of at most 2 / smoothness, and 1 - learning rate * weight decay with an L2 penalty
        (`audit/methods/README.md` lists the models). The bound does not apply to momentum or Adam: with
        momentum 0.9, the example below leaks 18.6 for some convex loss.
      k: the number of steps from one insertion to the next.
      insert: the step of each period of k steps that inserts the canary: "last", "first" or 1 to k.
      step_sizes: the learning rate: a number, or one for each step. Only ratios between steps matter, because
        the learning rate multiplies both the canary and the noise.
      delta: the delta of the bound.

    Raises:
      InputError: a value is out of range.

    >>> round(audit.hidden_state_epsilon(noise_multiplier=4.0, insertions=250, k=5, lipschitz=1.0), 2)
    8.68
    >>> round(audit.hidden_state_epsilon(noise_multiplier=4.0, insertions=250, k=5, lipschitz=0.99), 2)
    3.08
    """
    from audit.claims.accounting import Composition, insert_step
    from audit.claims.hidden_state import Periods, bound_periods
    from audit.errors import number, plain

    # NumPy would read None as NaN.
    require(lipschitz is not None, "`lipschitz=None`: give a number, or one for each step")
    k = number("k", k, int)
    periods = Periods(lipschitz, k=k, insert=insert_step(plain(insert), k))
    sigma = number("noise_multiplier", noise_multiplier, float)
    composition = Composition(sigma, number("insertions", insertions, int))
    return bound_periods(composition, periods, number("delta", delta, float), step_sizes).epsilon
