"""Many runs at once: chunks that fit memory and cache, trained in segments, on all local devices.

A chunk is one call of the mapped and compiled segment a segment. Runs of a chunk share the data and the
mini-batches, so that the first layer of all models is one matrix product. Runs are spread over the
local devices and never talk to each other; what they share is copied to each device.
"""

import functools
import math
import os
import resource
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from audit.mechanism import dpsgd

_CPU_BYTES = 128 << 20  # what a chunk's step may write on a core; larger chunks fall out of cache
_MEMORY_SHARE = 0.25  # of the memory, at most, for a chunk's step
_LARGEST_CHUNK = 8192
_BY_RUN, _EVERYWHERE = PartitionSpec("runs"), PartitionSpec()
_LEAST_CHUNK = 4  # where memory allows: models of a chunk share what depends on the data alone
_SEGMENT_STEPS = 250
_PROGRAMS = 64  # compiled programs that are kept


class Placement(NamedTuple):
    """Where arrays live: by run over a mesh of devices, or copied to each."""

    mesh: Mesh

    @classmethod
    def local(cls) -> "Placement":
        """All devices of this process."""
        return cls(Mesh(np.array(jax.local_devices()), ("runs",), axis_types=(AxisType.Auto,)))

    def round_up(self, runs: int) -> int:
        """The least multiple of the number of devices that is at least `runs`."""
        return -(-runs // self.mesh.size) * self.mesh.size

    def by_run(self, tree: Any) -> Any:
        """Arrays with a leading axis of runs, which the number of devices must divide, spread."""
        return jax.device_put(tree, NamedSharding(self.mesh, _BY_RUN))

    def everywhere(self, tree: Any) -> Any:
        """Arrays copied to each device."""
        return jax.device_put(tree, NamedSharding(self.mesh, _EVERYWHERE))

    def over_runs(
        self, one: Callable[..., Any], axes: tuple[int | None, ...], donated: tuple[int, ...] = ()
    ) -> jax.stages.Wrapped:
        """A function of one run, mapped over the leading axis of the arguments whose axis is 0 and
        compiled; every device maps its own runs, and nothing passes between devices."""
        specs = tuple(_EVERYWHERE if axis is None else _BY_RUN for axis in axes)
        mapped = jax.shard_map(
            jax.vmap(one, axes), mesh=self.mesh, in_specs=specs, out_specs=_BY_RUN, check_vma=False
        )
        return jax.jit(mapped, donate_argnums=donated)


def compile_segment(
    mechanism: dpsgd.Mechanism, craft: Callable[[Any, Array, Array], Array], placement: Placement
) -> jax.stages.Wrapped:
    """The compiled segment of a chunk of runs:

    run(hyper, states, data, schedule, adversary_state, presence (R,), run_keys (R,)) -> states

    where states is a State with a leading axis of runs; the old states' buffers are reused.
    """

    def one(
        hyper: dpsgd.Hyperparameters,
        state: dpsgd.State,
        data: tuple[Array, Array],
        schedule: dpsgd.Schedule,
        adversary_state: Any,
        presence: Array,
        run_key: Array,
    ) -> dpsgd.State:
        def bound(step: Array, theta: Array) -> Array:
            return craft(adversary_state, step, theta)

        return dpsgd.segment(mechanism, hyper, state, data, schedule, bound, presence, run_key)

    return placement.over_runs(one, (None, 0, None, None, None, 0, 0), donated=(1,))


def compiled_segment(
    mechanism: dpsgd.Mechanism,
    craft: Callable[[Any, Array, Array], Array],
    placement: Placement,
    arguments: tuple,
) -> jax.stages.Compiled:
    """compile_segment's program for arguments of these shapes and places, compiled once for all of them."""
    leaves, structure = jax.tree.flatten(arguments)
    return _compiled(mechanism, craft, placement, structure, tuple(map(_shape, leaves)))


@functools.lru_cache(maxsize=_PROGRAMS)
def _compiled(
    mechanism: dpsgd.Mechanism,
    craft: Callable[[Any, Array, Array], Array],
    placement: Placement,
    structure: Any,
    leaves: tuple[jax.ShapeDtypeStruct, ...],
) -> jax.stages.Compiled:
    """The same for the arguments' shapes."""
    arguments = jax.tree.unflatten(structure, leaves)
    return compile_segment(mechanism, craft, placement).lower(*arguments).compile()


def _shape(leaf: Array) -> jax.ShapeDtypeStruct:
    """What a program is compiled for."""
    weak = jax.typeof(leaf).weak_type
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding, weak_type=weak)


def segments(schedule: dpsgd.Schedule) -> list[dpsgd.Schedule]:
    """The schedule cut into segments of one length, the last of which may be shorter."""
    steps = len(schedule.mask)
    length = math.ceil(steps / math.ceil(steps / _SEGMENT_STEPS))
    return [
        dpsgd.Schedule(schedule.batches[i : i + length], schedule.mask[i : i + length])
        for i in range(0, steps, length)
    ]


def chunk_size(runs: int, bytes_per_run: int) -> int:
    """Runs a chunk: as many as cache (CPU, but at least 4) or memory (GPU) hold on every local device, in
    chunks of equal size."""
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / len(devices)
        budget = min(max(_CPU_BYTES, _LEAST_CHUNK * bytes_per_run), _MEMORY_SHARE * memory)
    else:
        budget = _MEMORY_SHARE * (devices[0].memory_stats() or {}).get("bytes_limit", 4 << 30)
    each = int(min(max(budget // max(bytes_per_run, 1), 1), _LARGEST_CHUNK))
    return math.ceil(runs / math.ceil(runs / (each * len(devices))))


def peak_memory() -> int:
    """Bytes held at most so far, of the first device, or of the process where that is a CPU."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def bytes_per_run(
    mechanism: dpsgd.Mechanism, theta_0: Array, data: tuple[Array, Array], batch_size: int
) -> int:
    """What one run's clipped sum writes, as an estimate: the bytes of every intermediate result."""
    shapes = (jax.ShapeDtypeStruct((batch_size, *part.shape[1:]), part.dtype) for part in data)
    return _bytes_of_sum(mechanism.clipped_sum, jax.typeof(theta_0), *shapes) + 4 * theta_0.nbytes


@functools.lru_cache(maxsize=_PROGRAMS)
def _bytes_of_sum(clipped_sum: Any, theta: Any, *batch: jax.ShapeDtypeStruct) -> int:
    """The bytes of every intermediate result of a clipped sum of such arguments."""
    one = jax.ShapeDtypeStruct((), jnp.float32)
    return _bytes(jax.make_jaxpr(clipped_sum)(theta, batch, one).jaxpr)


def _bytes(jaxpr: Any) -> int:
    """The bytes of every result in a program, those of its inner programs instead of their calls'."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [p for p in equation.params.values() if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
        if inner:
            total += sum(_bytes(getattr(p, "jaxpr", p)) for p in inner)
        else:
            total += sum(v.aval.size * v.aval.dtype.itemsize for v in equation.outvars)
    return total
