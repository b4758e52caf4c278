"""Matrix products in less than float32: what TF32 and bfloat16 do to a training, on any device.

A product's two operands are rounded, to nearest even, to the significand of the format; they are
multiplied exactly and added up in float32, as tensor cores do. Rounding is written into the program and
not left to the device: CPUs refuse JAX's names for such products or compute them in float32 unasked. A
device that has such products is allowed to use them, which loses nothing more. What is no product (sums,
norms, noise, and the short products that `clipping` writes out as sums) stays float32.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Literal

_CALLS = ("jit", "pjit", "closed_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call")


class Operands(NamedTuple):
    """The format of a product's operands: explicit significand bits, of eight exponent bits; the type of that
    format, where there is one, in which accelerators take them; and how far a device may round."""

    significand_bits: int
    dtype: Any
    allowed: jax.lax.Precision


TF32 = Operands(10, None, jax.lax.Precision.HIGH)
BF16 = Operands(7, jnp.bfloat16, jax.lax.Precision.DEFAULT)


def with_operands(function: Callable[..., Any], operands: Operands) -> Callable[..., Any]:
    """The function with such operands of float32 products; map and compile it, differentiate before."""

    def rounded(*arguments: Any) -> Any:
        program, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        results = _evaluate(program, jax.tree.leaves(arguments), operands)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return rounded


def _evaluate(program: ClosedJaxpr, arguments: Sequence[Any], operands: Operands) -> list[Any]:
    jaxpr = program.jaxpr
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, program.consts, strict=True))
    values |= zip(jaxpr.invars, arguments, strict=True)

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        results = _apply(equation, [read(atom) for atom in equation.invars], operands)
        values |= zip(equation.outvars, results, strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def _apply(equation: Any, inputs: list[Any], operands: Operands) -> Sequence[Any]:
    primitive, params = equation.primitive, dict(equation.params)
    if primitive.name in _CALLS:
        inner = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
        closed = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
        return _evaluate(closed, inputs, operands)
    if primitive.name in ("scan", "while", "cond"):
        params = {name: _rewritten(value, operands) for name, value in params.items()}
    if primitive.name in ("dot_general", "conv_general_dilated") and all(
        x.dtype == jnp.float32 for x in inputs
    ):
        return [_product(primitive, inputs, params, operands)]
    results = primitive.bind(*inputs, **primitive.get_bind_params(params))
    return results if primitive.multiple_results else [results]


def _product(primitive: Any, inputs: list[Any], params: dict[str, Any], operands: Operands) -> Array:
    """The product of rounded operands: of a type of their own, but on CPUs, which have no such product."""
    params["precision"] = (operands.allowed, operands.allowed)
    params["preferred_element_type"] = jnp.dtype(jnp.float32)

    def rounded(*factors: Array) -> Array:
        narrow = (jax.lax.reduce_precision(x, 8, operands.significand_bits) for x in factors)
        product: Array = primitive.bind(*narrow, **params)
        return product

    def cast(*factors: Array) -> Array:
        product: Array = primitive.bind(*(x.astype(operands.dtype) for x in factors), **params)
        return product

    if operands.dtype is None:
        return rounded(*inputs)
    product: Array = jax.lax.platform_dependent(*inputs, cpu=rounded, default=cast)
    return product


def _rewritten(value: Any, operands: Operands) -> Any:
    if isinstance(value, tuple):
        return tuple(_rewritten(one, operands) for one in value)
    if not isinstance(value, ClosedJaxpr):
        return value
    return jax.make_jaxpr(lambda *inputs: _evaluate(value, inputs, operands))(*value.in_avals)
