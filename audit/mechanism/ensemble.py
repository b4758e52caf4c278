"""Trains many runs at once on all local devices, in chunks that fit into memory and cache.

Each segment of a chunk is one call of a compiled program. The runs of a chunk share data and mini-batches, so
one matrix product computes the first layer of all models.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from audit.mechanism.base import STEP_AXIS, Hardware, Schedule, Tree, local_hardware

SEGMENT_STEPS = 250

# Steps that need more bytes than this do not fit into a CPU core's cache.
_CACHE_BYTES = 32 << 20
_MEMORY_FRACTION = 0.25
# A chunk has at least this many runs, even if they do not fit.
_MIN_CHUNK = 4
_MAX_CHUNK = 8192

# The size of each `lru_cache` of compiled programs.
MAX_PROGRAMS = 64


class Placement(NamedTuple):
    """Places arrays on a mesh of devices: split by run over the first mesh axis, or copied to each device.

    If the mechanism splits steps across devices (`spreads`), those along the second axis share runs.
    """

    mesh: Mesh

    @classmethod
    def local(cls, runs: int | None = None) -> "Placement":
        """Returns a placement that divides runs among all devices of this process.

        By default, every device trains its own runs. For a mechanism with `spreads`, pass `runs`, the number
        of runs to train at once. If there are more devices than runs, the devices in each row of the mesh
        share runs. The number of rows is the largest divisor of the device count that is at most `runs`.
        """
        devices = np.array(jax.local_devices())
        number = len(devices)
        rows = min(runs or number, number)
        while number % rows:
            rows -= 1
        types = (AxisType.Auto, AxisType.Auto)
        return cls(Mesh(devices.reshape(rows, -1), ("runs", STEP_AXIS), axis_types=types))

    def by_run(self, tree: Tree) -> Tree:
        """Splits arrays by run. The number of mesh rows must divide the number of runs."""
        return jax.device_put(tree, NamedSharding(self.mesh, PartitionSpec("runs")))

    def everywhere(self, tree: Tree) -> Tree:
        """Copies arrays to each device."""
        return jax.device_put(tree, NamedSharding(self.mesh, PartitionSpec()))

    def over_runs(
        self,
        function: Callable[..., Tree],
        axes: tuple[int | None, ...],
        donated: tuple[int, ...] = (),
    ) -> jax.stages.Wrapped:
        """Compiles a function of a single run into a function of many runs.

        Every row of the mesh maps the function over its own runs. The function must return the same result on
        all devices of a row. Reuse the result, since another call would recompile the function.

        Args:
          axes: for each argument, 0 if it has a leading axis of runs, or None if all runs share it.
          donated: the positions of the arguments whose buffers the results may reuse.
        """
        specs = {0: PartitionSpec("runs"), None: PartitionSpec()}
        mapped = jax.shard_map(
            jax.vmap(function, axes),
            mesh=self.mesh,
            in_specs=tuple(specs[axis] for axis in axes),
            out_specs=specs[0],
            check_vma=False,  # JAX cannot check that results are equal
        )
        return jax.jit(mapped, donate_argnums=donated)


def segments(schedule: Schedule, longest: int = SEGMENT_STEPS) -> list[Schedule]:
    """Cuts a schedule into equal segments of up to `longest` steps. The last segment may be shorter."""
    steps = len(schedule.mask)
    count = math.ceil(steps / longest)
    length = math.ceil(steps / count)
    cut = []
    for start in range(0, steps, length):
        part = slice(start, start + length)
        cut.append(Schedule(schedule.batches[part], schedule.mask[part]))
    return cut


def chunk_size(runs: int, bytes_per_run: int, hardware: Hardware | None = None) -> int:
    """Returns the number of runs to train at once, for chunks of about the same size.

    Every device trains at least 1 and at most _MAX_CHUNK runs at once. The steps of these runs use at most
    _MEMORY_FRACTION of the device's memory. On a CPU, they must also fit into the cache (_CACHE_BYTES) if
    there are more than _MIN_CHUNK runs. Smaller chunks would share too little computation.

    `bytes_per_run` is the memory that a run's step needs (`base.step_memory`). `hardware` defaults to this
    process's devices.
    """
    devices = hardware or local_hardware()
    budget = _MEMORY_FRACTION * devices.memory
    if devices.is_cpu:
        budget = min(budget, max(_CACHE_BYTES, _MIN_CHUNK * bytes_per_run))
    affordable = int(budget) // max(bytes_per_run, 1)  # the estimate may be 0 bytes
    per_device = min(max(affordable, 1), _MAX_CHUNK)
    chunks = math.ceil(runs / (per_device * devices.number))
    return math.ceil(runs / chunks)
