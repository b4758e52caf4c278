"""Each canary's cosine with what a model moved by, after the other canaries are projected out.

The adversary knows the other K - 1 directions, and in the world without canary j they are independent of it.
The cosine of v_j and u_j = u projected off the others has therefore the exact law of `cosine_law` in all d
dimensions, as that with u has; the others' signals, which would be noise of variance K mu^2 / d, are gone.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from audit.errors import InputError, require
from audit.evidence.arrays import floats

Array = NDArray[np.float64]
# The least share of a direction's squared length that lies outside of the span of the others.
_LEAST_OUTSIDE = 1e-9


def cosines(gram: ArrayLike, products: ArrayLike, squared_length: float, dimension: int) -> Array:
    """Returns the leave-one-out cosines cos(v_j, u_j) (K,) of all K directions v_j, in [-1, 1].

    u is the movement of the parameters. u_j is u less its projection on the span of the other K - 1
    directions. Let V have the directions as rows, let G = V V', w = G^-1 V u, and let g be the diagonal of
    G^-1. Let r = |u|^2 - (V u)' w, which is the squared length of the part of u outside the span of all
    directions. Then

        cos(v_j, u_j) = (w_j / g_j) / sqrt(r + w_j^2 / g_j).

    Here 1 / g_j is the squared length of the part of v_j outside the span of the other directions, and w_j is
    the coefficient of v_j in the projection of u on the span of all. So v_j' u_j = w_j / g_j, and
    |u_j|^2 = r + w_j^2 / g_j.

    Args:
      gram: G = V V' (K, K), the Gram matrix of the directions, which are the rows of V and of unit length.
      products: V u (K,), the inner products of directions and movement.
      squared_length: |u|^2.
      dimension: d, the length of u.

    Raises:
      InputError: for shapes that do not fit, u = 0, K >= d, or a direction in the span of the others.
    """
    gram_matrix = floats("the Gram matrix", gram)
    vu = floats("the products", products)
    canaries = vu.size
    fits = vu.ndim == 1 and canaries > 0 and gram_matrix.shape == (canaries, canaries)
    require(
        fits,
        f"the Gram matrix {gram_matrix.shape} and the products {vu.shape} must be (K, K) and (K,)",
    )
    finite = bool(
        np.isfinite(gram_matrix).all() and np.isfinite(vu).all() and np.isfinite(squared_length)
    )
    require(finite, "the Gram matrix, the products or the squared length are not finite")
    require(squared_length > 0, f"the squared length is {squared_length:g}: nothing moved")
    require(
        canaries < dimension,
        f"{canaries} canaries in {dimension} dimensions: give fewer canaries than dimensions",
    )
    inverse = _invert(gram_matrix)
    w = inverse @ vu
    g = np.diag(inverse)
    r = max(float(squared_length - vu @ w), 0.0)  # rounding may make it negative
    with np.errstate(invalid="ignore"):  # 0 / 0 where w_j = 0 and r = 0: replaced by 0 below
        ratios = (w / g) / np.sqrt(r + w**2 / g)
    return np.where(w == 0, 0.0, np.clip(ratios, -1.0, 1.0))


def _invert(gram: Array) -> Array:
    """Returns the inverse of a Gram matrix (K, K) of directions, by Cholesky decomposition.

    Raises InputError if directions are linearly dependent, up to rounding.
    """
    dependent = "canaries' directions depend on each other linearly: draw each by a key of its own"
    try:
        factor = linalg.cho_factor(gram, lower=True)
    except linalg.LinAlgError:
        raise InputError(dependent) from None
    inverse = np.asarray(linalg.cho_solve(factor, np.eye(len(gram))))
    # 1 / g_j, with g the diagonal of the inverse, is the squared length of direction j outside the span of
    # the others. A share of 1e-9 or less of its own squared length is taken for rounding.
    independent = bool((1 / np.diag(inverse) > _LEAST_OUTSIDE * np.diag(gram)).all())
    require(independent, dependent)
    return inverse
