"""Upper bounds from Python, as `import audit` offers them: what they need is loaded when they are called."""

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
    """Returns an upper bound on the epsilon of DP-SGD's last model, if nobody sees an earlier one.

    The bound is never above that of composition, which holds if every model is seen. No smaller bound holds
    for every loss with these Lipschitz constants. The function loads no JAX.

    Args:
      noise_multiplier: the noise's standard deviation over the clipping norm.
      insertions: the number of steps that insert the canary.
      lipschitz: the Lipschitz constant of the map from a model to the next, without canary and noise: a
        number, or one for each of the insertions * k steps. It is 1 for a convex loss and a step of at most
        2 / smoothness, and 1 - learning rate * weight decay with an L2 penalty (`audit/methods/README.md`
        says for which models). Not for momentum or Adam.
      k: the number of steps from one insertion to the next.
      insert: which of every k steps inserts the canary, "last", "first" or 1 to k.
      step_sizes: the learning rate, a number or one for each step. Only their ratios count, since the canary
        and the noise are both multiplied by it.
      delta: the delta at which epsilon is bounded.

    Raises:
      InputError: A value is out of range.

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
    steps_per_insertion = number("k", k, int)
    # `plain` turns a NumPy scalar into Python's own; `insert_step` turns "last" and "first" into a number.
    inserting_step = insert_step(plain(insert), steps_per_insertion)
    periods = Periods(lipschitz, steps_per_insertion, inserting_step)
    sigma = number("noise_multiplier", noise_multiplier, float)
    composition = Composition(sigma, number("insertions", insertions, int))
    return bound_periods(composition, periods, number("delta", delta, float), step_sizes).epsilon
