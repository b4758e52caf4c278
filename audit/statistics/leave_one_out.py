"""Each canary's cosine with what a model moved by, once the other canaries are taken out of that.

The adversary knows the other K - 1 directions, and in the world without canary j they are independent of it.
The cosine of v_j and u_j = u projected off the others has therefore the exact law of `cosine_law` in all d
dimensions, as that with u has; the others' signals, which would be noise of variance K mu^2 / d, are gone.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from audit.errors import require
from audit.statistics.arrays import floats

Array = NDArray[np.float64]
_LEAST_APART = 1e-9  # of a direction's squared length, outside of the span of the others


def cosines(gram: ArrayLike, products: ArrayLike, squared_length: float, dimension: int) -> Array:
    """cos(v_j, u_j) for all K directions (rows of V, unit length) at once.

    gram: V V' (K, K). products: V u (K,). squared_length: |u|^2. With w = G^-1 V u and rr = |u|^2 - (V u)' w,
    the squared length of u outside of all directions, cos_j = (w_j / g_j) / sqrt(rr + w_j^2 / g_j) for the
    diagonal g of G^-1. Raises InputError for shapes that do not fit, for u = 0, for K >= d, and where a
    direction lies in the span of the others.
    """
    g, vu = floats("the Gram matrix", gram), floats("the products", products)
    canaries = vu.size
    fits = vu.ndim == 1 and canaries > 0 and g.shape == (canaries, canaries)
    require(fits, f"the Gram matrix {g.shape} and the products {vu.shape} must be (K, K) and (K,)")
    finite = bool(np.isfinite(g).all() and np.isfinite(vu).all() and np.isfinite(squared_length))
    require(finite, "the Gram matrix, the products or the squared length are not finite")
    require(squared_length > 0, f"the squared length is {squared_length:g}: nothing moved")
    few = f"{canaries} canaries in {dimension} dimensions: give fewer canaries than dimensions"
    require(canaries < dimension, few)
    inverse = _inverse(g)
    weights, diagonal = inverse @ vu, np.diag(inverse)
    outside = max(float(squared_length - vu @ weights), 0.0)
    with np.errstate(invalid="ignore"):
        found = (weights / diagonal) / np.sqrt(outside + weights**2 / diagonal)
    return np.where(weights == 0, 0.0, np.clip(found, -1.0, 1.0))


def _inverse(gram: Array) -> Array:
    """Raises InputError for a singular matrix."""
    dependent = "canaries' directions depend on each other linearly: draw each by a key of its own"
    try:
        factor = linalg.cho_factor(gram, lower=True)
    except linalg.LinAlgError:
        factor = None
    require(factor is not None, dependent)
    inverse = np.asarray(linalg.cho_solve(factor, np.eye(len(gram))))
    apart = bool((1 / np.diag(inverse) > _LEAST_APART * np.diag(gram)).all())
    require(apart, dependent)
    return inverse
