"""Matrix products in less than float32: what TF32 and bfloat16 do to a training run, on any device.

A product's two operands are rounded, to nearest even, to the significand of the format; they are
multiplied exactly and added up in float32, as tensor cores do. Rounding is written into the program and
not left to the device: CPUs refuse JAX's names for such products or compute them in float32 silently.
A device that has such products is allowed to use them, which loses nothing more. What is no product (sums,
norms, noise, and the short products that `clipping` writes out as sums) stays float32.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal

_PRODUCTS = ("dot_general", "conv_general_dilated")
_EXPONENT_BITS = 8  # of TF32 and bfloat16, as of float32


class Operands(NamedTuple):
    """The floating-point format of a product's operands.

    Attributes:
      significand_bits: the number of explicit significand bits; the exponent has eight bits.
      allowed: the lowest precision in which a device may compute such products.
    """

    significand_bits: int
    allowed: jax.lax.Precision


TF32 = Operands(10, jax.lax.Precision.HIGH)
BF16 = Operands(7, jax.lax.Precision.DEFAULT)


def with_operands(function: Callable[..., Any], operands: Operands) -> Callable[..., Any]:
    """Returns the same function with the operands of its float32 matrix products and convolutions rounded.

    The result can be mapped and compiled. For a derivative, differentiate first and wrap the gradient: only
    then are the operands of the backward pass rounded too.

    Args:
      function: a function of arrays or pytrees of them.
      operands: the floating-point format to which operands are rounded, such as TF32.
    """

    def rounded(*arguments: Any) -> Any:
        """Traces the function and evaluates its program, with operands rounded."""
        program, result_shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        results = _evaluate(program, jax.tree.leaves(arguments), operands)
        # A program's results are flat: they get back the structure of the function's result.
        return jax.tree.unflatten(jax.tree.structure(result_shapes), results)

    return rounded


def _evaluate(program: ClosedJaxpr, arguments: Sequence[Any], operands: Operands) -> list[Any]:
    """Evaluates a program, equation by equation, with its products' operands rounded.

    Args:
      program: the function as JAX traced it.
      arguments: the function's flattened arguments, arrays or tracers.
      operands: the format to which operands are rounded.

    Returns:
      A value for each of the program's results.
    """
    jaxpr = program.jaxpr
    values: dict[Any, Any] = {}
    values.update(zip(jaxpr.constvars, program.consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        """Returns the value of an input: a literal, a constant, an argument or an earlier result."""
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        results = _apply(equation, inputs, operands)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(equation: Any, inputs: list[Any], operands: Operands) -> Sequence[Any]:
    """Applies one equation of a program to its inputs; the operands of a float32 product are rounded first.

    An equation that calls a program (`jit`, `custom_jvp`) is replaced by that program's evaluation. Programs
    in loops and branches are rewritten to round operands, and then the loop or branch is applied.

    Args:
      equation: an equation of a jaxpr.
      inputs: the values of the equation's inputs, arrays or tracers.
      operands: the format to which operands are rounded.

    Returns:
      A value for each of the equation's results.
    """
    primitive = equation.primitive
    params = {name: _rewrite(value, operands) for name, value in equation.params.items()}

    # A call has its program under one of two names. A scan, too, has a parameter `jaxpr`; that is its body,
    # which runs many times, not once as in a call.
    called = equation.params.get("call_jaxpr", equation.params.get("jaxpr"))
    if called is not None and primitive.name != "scan":
        if not isinstance(called, ClosedJaxpr):
            called = ClosedJaxpr(called, ())  # a program without constants
        return _evaluate(called, inputs, operands)

    # A matrix product or a convolution.
    if primitive.name in _PRODUCTS and all(x.dtype == jnp.float32 for x in inputs):
        bits = operands.significand_bits
        inputs = [jax.lax.reduce_precision(x, _EXPONENT_BITS, bits) for x in inputs]
        # A device that multiplies this format in hardware may do so: operands are rounded already, so that
        # nothing more is lost. The setting is for the left and the right operand. Sums stay float32.
        params["precision"] = (operands.allowed, operands.allowed)
        params["preferred_element_type"] = jnp.dtype(jnp.float32)
    # Any equation that is no call is applied as JAX itself would apply it.
    results = primitive.bind(*inputs, **primitive.get_bind_params(params))
    return results if primitive.multiple_results else [results]


def _rewrite(value: Any, operands: Operands) -> Any:
    """Returns an equation's parameter with the programs in it rewritten to round products' operands.

    The bodies of loops and branches are such programs. Any other parameter is returned as it is.
    """
    # A branch has its programs in a plain tuple. Named tuples are parameters of other kinds.
    if type(value) is tuple:
        return tuple(_rewrite(element, operands) for element in value)
    if not isinstance(value, ClosedJaxpr):
        return value

    def evaluate(*inputs: Any) -> list[Any]:
        """Evaluates the program with operands rounded; traced, this gives the rewritten program."""
        return _evaluate(value, inputs, operands)

    return jax.make_jaxpr(evaluate)(*value.in_avals)
