"""The machine that a process runs on, and JAX as every command sets it up there, before it touches a device.
Importing this starts nothing."""

import functools
import logging
import os
import sys
from pathlib import Path

from audit.errors import InputError

_WITHOUT_TPU = {  # what libtpu, which is installed to compile for TPUs, would look for and complain of
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def cores() -> int:
    """Cores that this process may use; all of the machine's where the platform does not say (macOS)."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def prepare_jax(cpu_devices: int = 0) -> None:
    """Full float32 products; on a CPU so many devices (0: one a core), each of which trains its own runs; and
    a persistent compilation cache in a folder that only the user can read. Raises InputError where JAX finds
    no device.
    """
    import jax

    _configure(cpu_devices or cores())
    _keep_programs()
    try:
        jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # it asserts where CUDA is asked for and not installed
        asked = os.environ.get("JAX_PLATFORMS")
        if not asked:
            raise InputError(f"JAX finds no device: {error}") from None
        mend = "unset it, or set it to cpu"
        raise InputError(f"JAX_PLATFORMS={asked}: JAX finds no such device here; {mend}") from None


def _configure(cpu_devices: int) -> None:
    import jax

    logging.getLogger("jax").setLevel(logging.WARNING)
    vendors = (path.read_text().strip() for path in Path("/sys/bus/pci/devices").glob("*/vendor"))
    if "0x1ae0" not in vendors:  # Google's, as TPUs are
        for name, value in _WITHOUT_TPU.items():
            os.environ.setdefault(name, value)
    own = os.environ.get("XLA_FLAGS", "")  # comes last, and so wins
    os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen=false --xla_cpu_prefer_vector_width=512 {own}"
    if "xla_force_host_platform_device_count" not in os.environ["XLA_FLAGS"]:
        jax.config.update("jax_num_cpu_devices", cpu_devices)
        os.environ.setdefault("NPROC", str(cpu_devices))  # XLA's threads: else one a core, in every process
    jax.config.update("jax_default_matmul_precision", "float32")


def _keep_programs() -> None:
    """Compiled programs on disk; JAX itself reads the variable that names another place for them."""
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    import jax

    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hidden-state-audit" / "jax"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        print(f"no compilation cache: {folder}: {error.strerror}", file=sys.stderr)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
