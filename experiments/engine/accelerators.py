"""Accelerators that need not be there: their published numbers, and how JAX is told of them.

Sources, read in November 2026:

    v5e, v6e   Google Cloud TPU documentation, "TPU v5e" and "TPU v6e": peak compute (bf16), HBM capacity and
               bandwidth of a chip; JAX's jax.experimental.pallas.tpu.get_tpu_info: VMEM
    H200       NVIDIA H200 datasheet, SXM: without sparsity half of the 1,979 TFLOP/s that it prints for BF16
               and of the 989 for TF32; 67 for FP32

A TPU multiplies bfloat16 only: JAX makes a float32 product of six of them, a tf32 one of three. Importing
this starts no JAX.
"""

import importlib.util
import os
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

from audit.errors import require

if TYPE_CHECKING:
    import jax

_H200 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98  threads_per_warp: 32
  threads_per_block_limit: 1024  threads_per_core_limit: 2048
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448  shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  l2_cache_size: 52428800  memory_bandwidth: 4800000000000  device_memory_size: 141000000000
}
platform_name: "CUDA"
device_description_str: "NVIDIA H200"
runtime_version { major: 12 minor: 9 }
dnn_version_info { major: 9 minor: 10 }
"""
_WITHOUT_ONE = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"  # both would time kernels


class Chip(NamedTuple):
    """An accelerator's published numbers: products' operations a second by precision, bytes of memory, bytes
    a second between it and the arithmetic, and bytes of scratch memory in which XLA keeps what fits."""

    label: str
    peaks: Mapping[str, float]
    memory: float
    bandwidth: float
    scratch: int = 0


class Described(NamedTuple):
    """Devices as a user names them, `v5e:2x2`: a chip and how many."""

    name: str
    chip: Chip
    number: int


_VMEM = 128 << 20
_BF16 = {"v5e": 197e12, "v6e": 918e12}
_TPU = {  # passes of bfloat16 that a product takes
    kind: {"float32": peak / 6, "tf32": peak / 3, "bf16": peak} for kind, peak in _BF16.items()
}
CHIPS = {
    "v5e": Chip("TPU v5e", _TPU["v5e"], 16e9, 819e9, _VMEM),
    "v6e": Chip("TPU v6e", _TPU["v6e"], 32e9, 1638e9, _VMEM),
    "h200": Chip("NVIDIA H200", {"float32": 67e12, "tf32": 494.5e12, "bf16": 989.5e12}, 141e9, 4.8e12),
}
_GRIDS = {"1x1": 1, "2x2": 4, "2x4": 8, "4x4": 16, "4x8": 32, "8x8": 64, "8x16": 128, "16x16": 256}


def described(name: str) -> Described:
    """The devices of a name; raises InputError for one that is unknown."""
    kind, _, shape = name.partition(":")
    known = "choose of v5e:2x2, v6e:2x2 (or another grid) and h200"
    require(kind in CHIPS, f"`device={name}` is unknown: {known}")
    if kind == "h200":
        require(not shape, f"`device={name}`: an H200 is compiled for alone; write h200")
        return Described(name, CHIPS[kind], 1)
    require(shape in _GRIDS, f"`device={name}`: give {kind} with a grid of chips, of {', '.join(_GRIDS)}")
    return Described(name, CHIPS[kind], _GRIDS[shape])


def require_compiler(name: str) -> None:
    """Raises InputError where the compiler of a device's kind is not installed."""
    needs, extra = ("jax_plugins.xla_cuda12", "cuda12") if name == "h200" else ("libtpu", "tpu")
    wanted = f"jax[{extra}]=={metadata.version('jax')}"
    require(
        _is_installed(needs),
        f"`device={name}` wants {needs.partition('.')[2] or needs}, which is not installed: "
        f"{sys.executable} -m pip install '{wanted}' brings it",
    )


def _is_installed(module: str) -> bool:
    """Whether a module, whose package need not be there, can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def prepare_for(name: str) -> None:
    """Sets this process's environment so that JAX can compile for the devices, and starts none of their kind.
    To be called before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    if name == "h200":
        os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_WITHOUT_ONE}"
        return
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # nobody holds a chip
    os.environ["TPU_ACCELERATOR_TYPE"] = {"v5e": "v5litepod-4", "v6e": "v6e-4"}[name.partition(":")[0]]


def devices(name: str) -> "list[jax.Device]":
    """Devices that JAX compiles for, in a process that `prepare_for` prepared."""
    from jax.experimental.topologies import get_topology_desc

    if name != "h200":
        bounds = (1, 1, 1) if name.endswith(":1x1") else (2, 2, 1)
        return list(get_topology_desc(name, "tpu", chips_per_host_bounds=bounds).devices)
    return list(get_topology_desc(name, "cuda", topology="1x1x1", target_config=_H200).devices)
