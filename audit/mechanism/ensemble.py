"""Trains many runs at once on all local devices, in chunks that fit into memory and cache.

Each segment of a chunk is one call of a compiled program. The runs of a chunk share the data and the
mini-batches, so one matrix product computes the first layer of all models. Runs on different devices do not
communicate.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from audit.mechanism import base
from audit.mechanism.base import Hardware, local_hardware

T = TypeVar("T")

SEGMENT_STEPS = 250

# The steps of larger chunks do not fit into a CPU core's cache.
_CACHE_BYTES = 32 << 20
_MEMORY_FRACTION = 0.25
# The models of a chunk share computations that depend only on the data, so a chunk has several.
_MIN_CHUNK = 4
_MAX_CHUNK = 8192

# How an array is laid out on devices, by its axis of runs. None is for an array that all runs share.
_SPECS = {0: PartitionSpec("runs"), None: PartitionSpec()}

# The size of each cache of compiled programs. Their arguments are the key, compared by `==`.
MAX_PROGRAMS = 64


class Placement(NamedTuple):
    """Places arrays on a mesh of devices: split by run over its first axis, or copied to each device.

    The devices along the second axis share the steps of a run, for a mechanism that `spreads`.
    """

    mesh: Mesh

    @classmethod
    def local(cls, runs: int | None = None) -> "Placement":
        """Returns a placement that divides runs over all devices of this process.

        For a mechanism that `spreads`, give the number of `runs` that train at once. If it is less than the
        number of devices, several devices share a run. The number of rows of the mesh is then the largest
        divisor of the number of devices that is at most `runs`. By default, devices do not share runs.
        """
        devices = np.array(jax.local_devices())
        number = len(devices)
        rows = min(runs or number, number)
        while number % rows:
            rows -= 1
        axes = ("runs", base.STEP_AXIS)
        types = (AxisType.Auto, AxisType.Auto)
        mesh = Mesh(devices.reshape(rows, -1), axes, axis_types=types)
        return cls(mesh)

    def by_run(self, tree: T) -> T:
        """Splits arrays by their leading axis of runs. The rows of the mesh must divide its length."""
        spread: T = jax.device_put(tree, NamedSharding(self.mesh, _SPECS[0]))
        return spread

    def everywhere(self, tree: T) -> T:
        """Copies arrays to each device."""
        copied: T = jax.device_put(tree, NamedSharding(self.mesh, _SPECS[None]))
        return copied

    def over_runs(
        self,
        function: Callable[..., base.Tree],
        axes: tuple[int | None, ...],
        donated: tuple[int, ...] = (),
    ) -> jax.stages.Wrapped:
        """Returns a function of a single run as a compiled function of many runs.

        Every device maps it over its own runs. Keep the result, since each call compiles another program.

        Args:
          function: the function of a single run.
          axes: for each argument, 0 if it has a leading axis of runs, None if all runs share it.
          donated: the positions of the arguments whose buffers the results may reuse.
        """
        mapped = jax.shard_map(
            jax.vmap(function, axes),
            mesh=self.mesh,
            in_specs=tuple(map(_SPECS.get, axes)),
            out_specs=_SPECS[0],
            check_vma=False,  # devices that share a run compute the same result
        )
        return jax.jit(mapped, donate_argnums=donated)


def segments(schedule: base.Schedule, longest: int = SEGMENT_STEPS) -> list[base.Schedule]:
    """Cuts a schedule into segments of equal length, at most `longest` steps. The last may be shorter."""
    steps = len(schedule.mask)
    count = math.ceil(steps / longest)
    length = math.ceil(steps / count)
    cut = []
    for start in range(0, steps, length):
        part = slice(start, start + length)
        batches = schedule.batches[part]
        cut.append(base.Schedule(batches, schedule.mask[part]))
    return cut


def chunk_size(runs: int, bytes_per_run: int, hardware: Hardware | None = None) -> int:
    """Returns the number of runs to train at once, such that all chunks have about the same size.

    Every device trains at least 1 and at most _MAX_CHUNK runs at once. Their step takes at most
    _MEMORY_FRACTION of the device's memory. On a CPU it also takes at most _CACHE_BYTES, or the bytes of
    _MIN_CHUNK runs if that is more.

    Args:
      runs: the number of all runs.
      bytes_per_run: the bytes of a run's step (`base.step_memory`).
      hardware: the devices; by default those of this process.
    """
    devices = hardware or local_hardware()
    budget = _MEMORY_FRACTION * devices.memory
    if devices.is_cpu:
        smallest_chunk = _MIN_CHUNK * bytes_per_run
        budget = min(max(_CACHE_BYTES, smallest_chunk), budget)
    affordable = budget // max(bytes_per_run, 1)
    per_device = int(min(max(affordable, 1), _MAX_CHUNK))
    chunks = math.ceil(runs / (per_device * devices.number))
    return math.ceil(runs / chunks)
