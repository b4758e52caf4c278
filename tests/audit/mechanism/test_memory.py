"""The memory of a step: what it writes in all, and the most that it holds at once."""

import jax
import jax.numpy as jnp
import pytest

from audit.mechanism.memory import StepMemory, local_hardware, step_memory

X = jax.ShapeDtypeStruct((100,), jnp.float32)
ONE = 400  # bytes


def chain(x):
    return jnp.exp(jnp.sin(jnp.cos(x)))


def kept(x):
    first = jnp.cos(x)
    return jnp.exp(jnp.sin(first)), first


def branching(x):
    return jax.lax.cond(x[0] > 0, lambda: jnp.sin(jnp.cos(x)), lambda: x)


CASES = {
    **{"a chain": (chain, 3 * ONE, 2 * ONE), "what is needed later": (kept, 3 * ONE, 3 * ONE)},
    **{"in a call": (jax.jit(chain), 3 * ONE, 3 * ONE), "nothing": (lambda x: x, 0, 0)},
}


@pytest.mark.parametrize("case", CASES)
def test_a_programs_memory_is_that_of_its_results(case):
    function, written, held = CASES[case]
    assert step_memory(function, X) == StepMemory(written, held)


def test_what_is_written_and_what_is_held():
    found = step_memory(lambda x, data: x + jnp.sin(jnp.cos(data)), X, X)
    assert found == StepMemory(ONE, 2 * ONE)

    def repeated(x):
        return jax.lax.scan(lambda total, _: (jnp.sin(jnp.cos(total)), None), x, None, length=50)[0]

    found = step_memory(repeated, X)
    assert found == StepMemory(50 * 2 * ONE, 3 * ONE)  # the result, beside the body's two
    assert step_memory(branching, X).held >= 3 * ONE and StepMemory(10, 4).times(3, 5) == StepMemory(35, 17)
    found = local_hardware()
    assert found.number == len(jax.local_devices()) and found.memory > 1 << 20
    assert found.is_cpu == (jax.local_devices()[0].platform == "cpu")
