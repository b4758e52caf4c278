"""Trains many runs at once, in chunks that fit memory and cache, on all local devices.

Each segment of a chunk is one call of a compiled program. Runs of a chunk share the data and the
mini-batches, so the first layer of all models is a single matrix product. Runs on different devices do not
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

# Larger chunks do not fit a CPU core's cache.
_CACHE_BYTES = 32 << 20
_MEMORY_SHARE = 0.25
# Models of a chunk share computations that depend only on the data.
_MIN_CHUNK = 4
_MAX_CHUNK = 8192

# By the axis of runs of an array; None for an array that all runs share.
_SPECS = {0: PartitionSpec("runs"), None: PartitionSpec()}

# The number of compiled programs of a kind in memory, cached by their arguments, compared by `==`.
MAX_PROGRAMS = 64


class Placement(NamedTuple):
    """A placement of arrays on a mesh of devices: split by run over its first axis, or copied to each device.

    Devices of the second axis may share each run's step.
    """

    mesh: Mesh

    @classmethod
    def local(cls, runs: int | None = None) -> "Placement":
        """Returns a placement that divides runs over all devices of this process.

        For a mechanism that `spreads`, `runs` is the number of runs that train at once. If there are fewer
        runs than devices, several devices share a run: the mesh has one row per run that trains at once, the
        largest divisor of the number of devices that is at most `runs`. With None, devices do not share
        runs.
        """
        devices = np.array(jax.local_devices())
        number = len(devices)
        rows = min(runs or number, number)
        while number % rows:
            rows -= 1
        # Rows are the axis of runs.
        axes = ("runs", base.PARTS)
        types = (AxisType.Auto, AxisType.Auto)
        mesh = Mesh(devices.reshape(rows, -1), axes, axis_types=types)
        return cls(mesh)

    def by_run(self, tree: T) -> T:
        """Spreads arrays by their leading axis of runs. The mesh's "runs" axis must divide its length."""
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
        """Returns a function of a single run, mapped over runs and compiled at its first call.

        Every device maps it over its own runs. Each call makes another program, so keep the result.

        Args:
          function: a function of a single run.
          axes: for each argument, 0 if it has a leading axis of runs, None if all runs share it.
          donated: the positions of arguments with buffers that the results may reuse.
        """
        mapped = jax.shard_map(
            jax.vmap(function, axes),
            mesh=self.mesh,
            in_specs=tuple(map(_SPECS.get, axes)),
            out_specs=_SPECS[0],
            check_vma=False,  # devices that share a run agree
        )
        return jax.jit(mapped, donate_argnums=donated)


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


def chunk_size(runs: int, bytes_per_run: int, hardware: Hardware | None = None) -> int:
    """Returns the number of runs to train at once. All chunks then have about the same size.

    Every device takes at least 1 and at most _MAX_CHUNK runs. Their step takes at most _MEMORY_SHARE of the
    device's memory, and on a CPU at most _CACHE_BYTES, or the bytes of _MIN_CHUNK runs if that is more.
    `bytes_per_run` is from `base.step_memory`.
    """
    devices = hardware or local_hardware()
    budget = _MEMORY_SHARE * devices.memory
    if devices.is_cpu:
        smallest_chunk = _MIN_CHUNK * bytes_per_run
        budget = min(max(_CACHE_BYTES, smallest_chunk), budget)
    affordable = budget // max(bytes_per_run, 1)
    per_device = int(min(max(affordable, 1), _MAX_CHUNK))
    chunks = math.ceil(runs / (per_device * devices.number))
    return math.ceil(runs / chunks)
