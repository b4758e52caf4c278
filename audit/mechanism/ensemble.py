"""Trains many runs at once, in chunks that fit memory and cache, on all local devices.

Each segment of a chunk is one call of a mapped and compiled program. Runs of a chunk share the data and the
mini-batches, so the first layer of all models is a single matrix product. Runs are spread over the local
devices and do not communicate. Shared arrays are copied to each device.
"""

import functools
import math
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

# The maximum that a chunk's step writes on a CPU's core. Larger chunks do not fit the cache.
_CACHE_BYTES = 32 << 20
_MEMORY_SHARE = 0.25  # the maximum share of the memory for a chunk's step
# The smallest chunk if memory allows: models of a chunk share computations that depend only on the data.
_MIN_CHUNK = 4
_MAX_CHUNK = 8192

_BY_RUN = PartitionSpec("runs")
_EVERYWHERE = PartitionSpec()


# The number of compiled programs of a kind that stay in memory. Functions that make programs are cached by
# their arguments, compared by `==`.
MAX_PROGRAMS = 64


class Placement(NamedTuple):
    """A placement of arrays on a mesh of devices: split by run over its first axis, or copied to each device.

    The mesh has a second axis of devices that may share each run's step.
    """

    mesh: Mesh

    @classmethod
    def local(cls, runs: int | None = None) -> "Placement":
        """Returns a placement that divides runs over all devices of this process.

        Args:
          runs: the number of runs that train at once, for a mechanism that `spreads`. If there are fewer runs
            than devices, several devices share a run: the mesh has one row per run that trains at once, the
            largest divisor of the number of devices that is at most `runs`. None: devices do not share runs.
        """
        devices = np.array(jax.local_devices())
        number = len(devices)
        rows = min(runs or number, number)
        while number % rows:
            rows -= 1
        # Rows are the axis of runs. The compiler places intermediate results on the mesh (AxisType.Auto).
        axes = ("runs", base.PARTS)
        types = (AxisType.Auto, AxisType.Auto)
        mesh = Mesh(devices.reshape(rows, -1), axes, axis_types=types)
        return cls(mesh)

    def by_run(self, tree: T) -> T:
        """Spreads arrays by their leading axis of runs. The mesh's "runs" axis must divide its length."""
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
        """Returns a function of a single run, mapped over runs. It is compiled at its first call.

        Every device maps the function over its own runs. Each call makes another program, so keep the result.

        Args:
          function: a function of a single run.
          axes: for each argument, 0 if it has a leading axis of runs, None if all runs share it.
          donated: the positions of arguments with buffers that the results may reuse.
        """
        specs = tuple(_EVERYWHERE if axis is None else _BY_RUN for axis in axes)
        mapped = jax.shard_map(
            jax.vmap(function, axes),
            mesh=self.mesh,
            in_specs=specs,
            out_specs=_BY_RUN,
            check_vma=False,  # devices that share a run agree on its results
        )
        return jax.jit(mapped, donate_argnums=donated)


# (adversary's state, presence (K,), the run's own key) -> the canaries of a run
Bind = Callable[[base.Tree, Array, Array], base.Canaries]


def map_segment(mechanism: base.Mechanism, bind: Bind, placement: Placement) -> jax.stages.Wrapped:
    """Returns the program that trains a chunk of R runs through a segment, compiled at its first call.

    It is called as

        program(hyper, states, data, schedule, adversary_state, (presence (R, K), noise_keys, own_keys))

    and returns states, a State with a leading axis of runs. It reuses the buffers of the given states.

    Args:
      mechanism: the training algorithm.
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

    # Runs differ only in their states and draws.
    axes = (None, 0, None, None, None, 0)
    return placement.over_runs(segment_of_run, axes, donated=(1,))


def compiled_for(arguments: base.Tree, program: jax.stages.Wrapped) -> Compiled:
    """Returns a program compiled for arguments of these shapes, dtypes and devices, from a cache.

    Args:
      arguments: a sequence of arguments, pytrees of arrays. Their values do not matter.
      program: the program to compile.
    """

    leaves, structure = jax.tree.flatten(arguments)
    shapes = []
    for leaf in leaves:
        weak = jax.typeof(leaf).weak_type
        shape = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding, weak_type=weak)
        shapes.append(shape)
    return _compile(program, structure, tuple(shapes))  # type: ignore[arg-type]


@functools.lru_cache(MAX_PROGRAMS)
def _compile(
    program: jax.stages.Wrapped, structure: PyTreeDef, shapes: tuple[jax.ShapeDtypeStruct, ...]
) -> Compiled:
    """Returns a program compiled for arguments of this structure and of leaves with these shapes."""
    arguments = jax.tree.unflatten(structure, shapes)
    return program.lower(*arguments).compile()


def segments(schedule: base.Schedule, longest: int = SEGMENT_STEPS) -> list[base.Schedule]:
    """Cuts a schedule into segments of equal length, at most `longest` steps; the last may be shorter."""
    steps = len(schedule.mask)
    count = math.ceil(steps / longest)
    length = math.ceil(steps / count)
    cut = []
    for start in range(0, steps, length):
        part = slice(start, start + length)
        batches = schedule.batches[part]
        cut.append(base.Schedule(batches, schedule.mask[part]))
    return cut


def chunk_size(runs: int, step: StepMemory, hardware: Hardware | None = None) -> int:
    """Returns the number of runs to train at once. All chunks then have about the same size.

    Every device takes at least 1 and at most _MAX_CHUNK runs, up to a budget of bytes:

    - On a CPU, the bytes that a step of these runs writes are at most _CACHE_BYTES, or those of _MIN_CHUNK
      runs if that is more, but at most _MEMORY_SHARE of the memory.
    - On other devices, the bytes that a step of these runs has in use at once are at most _MEMORY_SHARE of
      the memory.

    Args:
      runs: the total number of runs.
      step: the memory of a single run's step.
      hardware: the devices; by default those of this process.
    """
    devices = hardware or local_hardware()
    bytes_per_run = step.held
    budget = _MEMORY_SHARE * devices.memory
    if devices.is_cpu:
        bytes_per_run = step.written
        smallest_chunk = _MIN_CHUNK * bytes_per_run
        budget = min(max(_CACHE_BYTES, smallest_chunk), budget)
    affordable = budget // max(bytes_per_run, 1)
    per_device = int(min(max(affordable, 1), _MAX_CHUNK))
    chunks = math.ceil(runs / (per_device * devices.number))
    return math.ceil(runs / chunks)
