"""Cosines between canaries and a model update, after projecting out the other canaries.

audit/methods/README.md ("The exact null") explains why their distribution is still known exactly.
"""

import numpy as np
from scipy import linalg

from audit.errors import InputError, require
from audit.evidence.arrays import Array


def cosines(gram: Array, products: Array, squared_length: float) -> Array:
    """Returns the leave-one-out cosines cos(v_j, u_j), (K,) in [-1, 1], for K directions v_j.

    u is the change in the parameters. u_j is u minus its projection onto the span of the other K - 1
    directions. If the rows of V are the directions and G = V V', then

        cos(v_j, u_j) = (w_j / g_j) / sqrt(r + w_j^2 / g_j), with

        w = G^-1 V u: w_j is the coefficient of v_j in the projection of u onto the span of all directions.
        g = diag(G^-1): 1 / g_j is the squared length of the part of v_j outside the span of the others.
        r = |u|^2 - (V u)' w: the squared length of the part of u outside the span of all directions.

    This follows from v_j' u_j = w_j / g_j and |u_j|^2 = r + w_j^2 / g_j.

    Args:
      gram: G (K, K), the Gram matrix of directions with unit length; K is less than the dimension.
      products: V u (K,), the inner product of each direction with u.
      squared_length: |u|^2, above 0.

    Raises:
      InputError: if a direction is in the span of the others, up to rounding.
    """
    message = "directions must be linearly independent: draw each with a different key"
    try:
        factor = linalg.cho_factor(gram, lower=True)
    except linalg.LinAlgError:
        raise InputError(message) from None
    inverse = linalg.cho_solve(factor, np.eye(len(gram)))
    g = np.diag(inverse)
    # If 1 / g_j is below this limit, v_j may lie in the span of the others, up to rounding.
    require((1 / g > 1e-9 * np.diag(gram)).all(), message)
    w = inverse @ products
    r = max(float(squared_length - products @ w), 0.0)  # rounding may make it negative
    with np.errstate(invalid="ignore"):  # if w_j and r are 0, 0 / 0 is replaced by 0 below
        ratios = (w / g) / np.sqrt(r + w**2 / g)
    return np.where(w == 0, 0.0, np.clip(ratios, -1.0, 1.0))
