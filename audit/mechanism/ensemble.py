"""Many runs at once: chunks that fit memory and cache, trained in segments, on all local devices.

A chunk is one call of the mapped and compiled segment a segment. Runs of a chunk share the data and the
mini-batches, so that the first layer of all models is one matrix product. Runs are spread over the
local devices and never talk to each other; what they share is copied to each device.
"""

import functools
import math
import resource
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.stages import Compiled
from jax.tree_util import PyTreeDef

from audit.mechanism import base
from audit.mechanism.base import Hardware, StepMemory, local_hardware

T = TypeVar("T")

SEGMENT_STEPS = 250

# What a chunk's step may write on a CPU's core; larger chunks fall out of cache.
_CACHE_BYTES = 32 << 20
_MEMORY_SHARE = 0.25  # of the memory, at most, for a chunk's step
# The least chunk, where memory allows: models of a chunk share what depends on the data alone.
_LEAST_CHUNK = 4
_LARGEST_CHUNK = 8192

_BY_RUN = PartitionSpec("runs")
_EVERYWHERE = PartitionSpec()


# How many compiled programs of a kind stay in memory. A function that makes programs is cached by its
# arguments: they are all that is compiled in, and `==` decides whether a program is used again.
MOST_PROGRAMS = 64


class Placement(NamedTuple):
    """Where arrays live on a mesh of devices: split by run over its first axis, or copied to each device.

    The mesh has a second axis, over whose devices each run's step may be divided.
    """

    mesh: Mesh

    @classmethod
    def local(cls, runs: int | None = None) -> "Placement":
        """Returns a placement on all devices of this process, over which runs are divided.

        Args:
          runs: the number of runs that are trained at once by a mechanism that `spreads`: if they are fewer
            than the devices, several devices share a run. The mesh has as many rows as runs are trained at
            once, the largest divisor of the number of devices that is at most `runs`, and the devices of a
            row share a run. None: no devices share a run.
        """
        devices = np.array(jax.local_devices())
        number = len(devices)
        rows = min(runs or number, number)
        while number % rows:
            rows -= 1
        # Rows are the axis of runs. The compiler places intermediate results on the mesh (AxisType.Auto).
        axes = ("runs", base.PARTS)
        return cls(Mesh(devices.reshape(rows, -1), axes, axis_types=(AxisType.Auto,) * 2))

    def by_run(self, tree: T) -> T:
        """Spreads arrays by their leading axis of runs, whose length the mesh's "runs" axis must divide."""
        spread: T = jax.device_put(tree, NamedSharding(self.mesh, _BY_RUN))
        return spread

    def everywhere(self, tree: T) -> T:
        """Copies arrays to each device."""
        copied: T = jax.device_put(tree, NamedSharding(self.mesh, _EVERYWHERE))
        return copied

    def over_runs(
        self,
        function: Callable[..., base.Tree],
        axes: tuple[int | None, ...],
        donated: tuple[int, ...] = (),
    ) -> jax.stages.Wrapped:
        """Returns a function of a single run, mapped over runs; it is compiled when it is first called.

        Every device maps the function over its own runs. Each call makes another program: keep the result.

        Args:
          function: a function of a single run.
          axes: for each argument, 0 if it has a leading axis of runs, None if all runs share it.
          donated: the positions of the arguments whose buffers the results may reuse.
        """
        specs = tuple(map({None: _EVERYWHERE, 0: _BY_RUN}.__getitem__, axes))
        mapped = jax.shard_map(
            jax.vmap(function, axes),
            mesh=self.mesh,
            in_specs=specs,
            out_specs=_BY_RUN,
            check_vma=False,  # no static check that devices which share a run agree on its results
        )
        return jax.jit(mapped, donate_argnums=donated)


# (adversary's state, presence (K,), the run's own key) -> the canaries of a run
Bind = Callable[[base.Tree, Array, Array], base.Canaries]


def map_segment(mechanism: base.Mechanism, bind: Bind, placement: Placement) -> jax.stages.Wrapped:
    """Returns the program that trains a chunk of R runs through a segment, compiled when it is first called.

    It is called as

        program(hyper, states, data, schedule, adversary_state, (presence (R, K), noise_keys, own_keys))

    and returns states, a State with a leading axis of runs. The buffers of the states passed in are reused.

    Args:
      mechanism: what trains.
      bind: makes the canaries of a run from the adversary's state, the same for all runs.
      placement: the devices over which the runs are spread.
    """

    def segment_of_run(
        hyper: base.Hyperparameters,
        state: base.State,
        data: base.Data,
        schedule: base.Schedule,
        adversary_state: base.Tree,
        drawn: tuple[Array, Array, Array],
    ) -> base.State:
        """Returns the state of a single run after a segment of its steps."""
        presence, noise_key, own_key = drawn
        canaries = bind(adversary_state, presence, own_key)
        return mechanism.segment(hyper, state, data, schedule, canaries, noise_key)

    # Runs differ in their states and draws, and share all else.
    return placement.over_runs(segment_of_run, (None, 0, None, None, None, 0), donated=(1,))


def compiled_for(arguments: base.Tree, program: jax.stages.Wrapped) -> Compiled:
    """Returns a program compiled for arguments of these shapes, dtypes and places on devices, once for all.

    Args:
      arguments: a sequence of arguments, pytrees of arrays; only shapes, dtypes and places are read.
      program: the program to compile.
    """

    leaves, structure = jax.tree.flatten(arguments)
    shapes = []
    for leaf in leaves:
        weak = jax.typeof(leaf).weak_type
        properties = {"sharding": leaf.sharding, "weak_type": weak}
        shapes.append(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, **properties))
    return _compile(program, structure, tuple(shapes))  # type: ignore[arg-type]


@functools.lru_cache(MOST_PROGRAMS)
def _compile(
    program: jax.stages.Wrapped, structure: PyTreeDef, shapes: tuple[jax.ShapeDtypeStruct, ...]
) -> Compiled:
    """Returns a program compiled for arguments of this structure, whose leaves have these shapes."""
    return program.lower(*jax.tree.unflatten(structure, shapes)).compile()


def segments(schedule: base.Schedule, longest: int = SEGMENT_STEPS) -> list[base.Schedule]:
    """Cuts a schedule into segments of equal length, at most `longest` steps; the last may be shorter."""
    steps = len(schedule.mask)
    count = math.ceil(steps / longest)
    length = math.ceil(steps / count)
    cut = []
    for start in range(0, steps, length):
        part = slice(start, start + length)
        cut.append(base.Schedule(schedule.batches[part], schedule.mask[part]))
    return cut


def chunk_size(runs: int, step: StepMemory, hardware: Hardware | None = None) -> int:
    """Returns how many runs to train at once, so that all chunks have about the same size.

    Every device takes as many runs as its budget of bytes allows, at least 1 and at most _LARGEST_CHUNK:

    - On a CPU the budget is for what a step of these runs writes. It is _CACHE_BYTES, or what _LEAST_CHUNK
      runs write if that is more; but never more than _MEMORY_SHARE of the memory.
    - Elsewhere the budget is for what a step of these runs holds at once. It is _MEMORY_SHARE of the memory.

    Args:
      runs: the number of runs in all.
      step: the memory of a single run's step.
      hardware: the devices; by default those of this process.
    """
    devices = hardware or local_hardware()
    bytes_per_run = step.held
    budget = _MEMORY_SHARE * devices.memory
    if devices.is_cpu:
        bytes_per_run = step.written
        budget = min(max(_CACHE_BYTES, _LEAST_CHUNK * bytes_per_run), budget)
    # A step that takes no bytes counts as 1, since the budget is divided by it.
    per_device = int(min(max(budget // max(bytes_per_run, 1), 1), _LARGEST_CHUNK))
    chunks = math.ceil(runs / (per_device * devices.number))
    return math.ceil(runs / chunks)


def peak_memory() -> int:
    """Returns the peak memory in bytes: of the first device, or, if that is a CPU, of this process."""
    stats = jax.local_devices()[0].memory_stats() or {}
    in_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return stats.get("peak_bytes_in_use") or in_kib * 1024
