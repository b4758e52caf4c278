"""Many runs at once: chunks that fit memory and cache, trained in segments, on all local devices.

A chunk is one call of the mapped and compiled segment a segment. Runs of a chunk share the data and the
mini-batches, so that the first layer of all models is one matrix product. Runs are spread over the
local devices and never talk to each other; what they share is copied to each device.
"""

import functools
import math
import resource
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.stages import Compiled

from audit.mechanism import base
from audit.mechanism.memory import Hardware, StepMemory, local_hardware

T = TypeVar("T")

_CPU_BYTES = 32 << 20  # what a chunk's step may write on a core; larger chunks fall out of cache
_MEMORY_SHARE = 0.25  # of the memory, at most, for a chunk's step
_LARGEST_CHUNK = 8192
_BY_RUN, _EVERYWHERE = PartitionSpec("runs"), PartitionSpec()
_LEAST_CHUNK = 4  # where memory allows: models of a chunk share what depends on the data alone
_VMEM_SHARE = 2  # of VMEM, for a chunk before it is fused: larger ones move up to ten times the bytes
SEGMENT_STEPS = 250


class Programs(Generic[T]):
    """The last compiled programs, by value: equal keys must mean the same program."""

    def __init__(self, kept: int = 64) -> None:
        self._made: Callable[[_Once[T]], T] = functools.lru_cache(maxsize=kept)(lambda once: once.make())

    def get(self, key: Hashable | None, make: Callable[[], T]) -> T:
        """make()'s program, made once for equal keys; made anew each time where the key is None."""
        return make() if key is None else self._made(_Once(key, make))


@dataclass(frozen=True)
class _Once(Generic[T]):
    """A key, and how to make what it stands for; equal to another of the same key."""

    key: Hashable
    make: Callable[[], T] = field(compare=False)


_COMPILED: Programs[Compiled] = Programs()


class Placement(NamedTuple):
    """Where arrays live: by run over a mesh, or copied to each; a second axis divides a run's step."""

    mesh: Mesh

    @classmethod
    def local(cls) -> "Placement":
        """All devices of this process."""
        return cls.over(jax.local_devices())

    @classmethod
    def over(cls, devices: Sequence[jax.Device]) -> "Placement":
        """These devices."""
        return cls(Mesh(np.array(devices), ("runs",), axis_types=(AxisType.Auto,)))

    @classmethod
    def spread(cls, runs: int, over: Sequence[jax.Device] | None = None) -> "Placement":
        """These devices, or all of this process, of which several share a run where there are fewer runs."""
        devices = np.array(over or jax.local_devices())
        rows = max(n for n in range(1, len(devices) + 1) if len(devices) % n == 0 and n <= max(runs, 1))
        axes = ("runs", base.PARTS)
        return cls(Mesh(devices.reshape(rows, -1), axes, axis_types=(AxisType.Auto,) * 2))

    def round_up(self, runs: int) -> int:
        """The least number of runs that is at least `runs` and goes evenly over the devices."""
        rows: int = self.mesh.shape["runs"]
        return -(-runs // rows) * rows

    def by_run(self, tree: T) -> T:
        """Arrays with a leading axis of runs, which the number of devices must divide, spread."""
        spread: T = jax.device_put(tree, NamedSharding(self.mesh, _BY_RUN))
        return spread

    def everywhere(self, tree: T) -> T:
        """Arrays copied to each device."""
        copied: T = jax.device_put(tree, NamedSharding(self.mesh, _EVERYWHERE))
        return copied

    def described(self, tree: base.Tree, by_run: bool) -> base.Tree:
        """Shapes and types that lie as `by_run` or `everywhere` would lay arrays, to compile for."""
        place = NamedSharding(self.mesh, _BY_RUN if by_run else _EVERYWHERE)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree)

    def over_runs(
        self, one: Callable[..., base.Tree], axes: tuple[int | None, ...], donated: tuple[int, ...] = ()
    ) -> jax.stages.Wrapped:
        """A function of one run, mapped over the leading axis of the arguments whose axis is 0 and
        compiled; every device maps its own runs, and nothing passes between devices."""
        specs = tuple(_EVERYWHERE if axis is None else _BY_RUN for axis in axes)
        mapped = jax.shard_map(
            jax.vmap(one, axes), mesh=self.mesh, in_specs=specs, out_specs=_BY_RUN, check_vma=False
        )
        return jax.jit(mapped, donate_argnums=donated)


class Insertion(NamedTuple):
    """An adversary's part in a training; `observe` None: it sees the last iterate only. draw: (state, the
    run's own key) -> its state in that run."""

    craft: base.Craft
    observe: base.Observe | None = None
    constant: bool = False
    sampled: bool = False
    draw: Callable[[base.Tree, Array], base.Tree] | None = None

    def bind(self, state: base.Tree, presence: Array, keys: tuple[Array, ...] = ()) -> base.Canaries:
        """The canaries of one run; keys: its own, where it draws them."""
        if self.draw is not None:
            state = self.draw(state, *keys)
        observe = None if self.observe is None else functools.partial(self.observe, state)
        return base.Canaries(
            functools.partial(self.craft, state), presence, observe, self.constant, self.sampled
        )


def compile_segment(
    mechanism: base.Mechanism, insertion: Insertion, placement: Placement
) -> jax.stages.Wrapped:
    """The compiled segment of a chunk of runs:

    run(hyper, states, data, schedule, adversary_state, presence (R, K), run_keys (R,), own_keys) -> states

    where states is a State with a leading axis of runs; the old states' buffers are reused. own_keys: ((R,),)
    where runs draw their own canaries, else ().
    """

    def one(
        hyper: base.Hyperparameters,
        state: base.State,
        data: base.Data,
        schedule: base.Schedule,
        adversary_state: base.Tree,
        presence: Array,
        run_key: Array,
        own_keys: tuple[Array, ...],
    ) -> base.State:
        canaries = insertion.bind(adversary_state, presence, own_keys)
        return mechanism.segment(hyper, state, data, schedule, canaries, run_key)

    return placement.over_runs(one, (None, 0, None, None, None, 0, 0, 0), donated=(1,))


def compiled_for(
    arguments: base.Tree, program: Callable[[], jax.stages.Wrapped], key: Hashable | None
) -> Compiled:
    """The program compiled for arguments of these shapes and places, once for all that have an equal key."""

    def shape(leaf: Array) -> jax.ShapeDtypeStruct:
        weak = jax.typeof(leaf).weak_type
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding, weak_type=weak)

    leaves, structure = jax.tree.flatten(arguments)
    shapes = tuple(map(shape, leaves))

    def compile_() -> Compiled:
        return program().lower(*jax.tree.unflatten(structure, shapes)).compile()

    return _COMPILED.get(None if key is None else (key, structure, shapes), compile_)


def segments(schedule: base.Schedule, longest: int = SEGMENT_STEPS) -> list[base.Schedule]:
    """The schedule cut into segments of one length, the last of which may be shorter."""
    steps = len(schedule.mask)
    length = math.ceil(steps / math.ceil(steps / longest))
    cut = (slice(start, start + length) for start in range(0, steps, length))
    return [base.Schedule(schedule.batches[part], schedule.mask[part]) for part in cut]


def chunk_size(runs: int, step: StepMemory, hardware: Hardware | None = None) -> int:
    """Runs a chunk: as many as write into a cache (CPU, but at least 4) or are held by a memory (GPU) or by
    VMEM (TPU) on every device, of this process where no others are named, in chunks of equal size."""
    on = hardware or local_hardware()
    own, budget = step.held, _MEMORY_SHARE * on.memory
    if on.is_cpu:
        own = step.written
        budget = min(max(_CPU_BYTES, _LEAST_CHUNK * own), budget)
    elif on.scratch:
        budget = min(_VMEM_SHARE * on.scratch, budget)
    each = int(min(max(budget // max(own, 1), 1), _LARGEST_CHUNK))
    return math.ceil(runs / math.ceil(runs / (each * on.number)))


def peak_memory() -> int:
    """Bytes held at most so far, of the first device, or of the process where that is a CPU."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
