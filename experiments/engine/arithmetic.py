"""The arithmetic of a program, counted in its trace: multiplications and additions of products."""

import math
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr


def product_flops(jaxpr: Jaxpr, loops: int) -> int:
    """Floating-point operations of all matrix products and convolutions, in loops as often as they repeat; a
    loop whose repetitions the data decide is repeated `loops` times. Sums, norms and noise are not
    counted."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            total += _dot(equation)
        elif equation.primitive.name == "conv_general_dilated":
            total += _convolution(equation)
        else:
            total += _inner(equation, loops)
    return total


def _inner(equation: Any, loops: int) -> int:
    """The operations of an equation's programs; of a branch's, the most; of platforms', those of the default,
    which accelerators run."""
    params = equation.params
    if equation.primitive.name == "cond":
        platforms = params.get("branches_platforms")
        if platforms:
            return product_flops(params["branches"][platforms.index(None)].jaxpr, loops)
        return max(product_flops(branch.jaxpr, loops) for branch in params["branches"])
    times: int = {"scan": params.get("length", 1), "while": loops}.get(equation.primitive.name, 1)
    bodies: list[Any] = [value for value in params.values() if isinstance(value, ClosedJaxpr | Jaxpr)]
    inner: int = sum(product_flops(getattr(body, "jaxpr", body), loops) for body in bodies)
    return times * inner


def _dot(equation: Any) -> int:
    """Of a dot_general."""
    left, (result,) = equation.invars[0].aval, equation.outvars
    contracted, _ = equation.params["dimension_numbers"][0]
    return int(2 * result.aval.size * math.prod(left.shape[axis] for axis in contracted))


def _convolution(equation: Any) -> int:
    """Of a convolution: each output is a sum over a kernel's window and its own channels."""
    kernel, (result,) = equation.invars[1].aval, equation.outvars
    outputs = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
    return int(2 * result.aval.size * kernel.size // outputs)
