"""Cores, JAX setup for commands, and the progress bar. Importing this module does not load JAX."""

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from audit.errors import InputError, shown


def cores() -> int:
    """Counts the cores that this process may use; on macOS, all of the machine's cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def prepare_jax(cpu_devices: int = 0) -> None:
    """Configures JAX before it uses a device: full float32 precision, and a cache of compiled programs.

    Args:
      cpu_devices: the number of devices into which JAX divides the CPU; 0 for one per core.

    Raises:
      InputError: JAX finds no device.
    """
    import jax

    device_count = cpu_devices or cores()
    logging.getLogger("jax").setLevel(logging.WARNING)
    # Each device trains its own runs, so a matrix product needs only one thread. 512-bit vectors save up to
    # 14% of the time. The user's flags come last and take precedence.
    users_flags = os.environ.get("XLA_FLAGS", "")
    flags = f"--xla_cpu_multi_thread_eigen=false --xla_cpu_prefer_vector_width=512 {users_flags}"
    os.environ["XLA_FLAGS"] = flags
    if "xla_force_host_platform_device_count" not in flags:
        jax.config.update("jax_num_cpu_devices", device_count)
        # The number of XLA threads, by default one per core.
        os.environ.setdefault("NPROC", str(device_count))
    jax.config.update("jax_default_matmul_precision", "float32")
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        _cache_programs()
    try:
        jax.local_devices()
    # JAX raises AssertionError if CUDA is requested but not installed.
    except (RuntimeError, AssertionError) as error:
        problem = f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}"
        reason = shown(str(error)) or "JAX found no such device"
        raise InputError(f"{problem}: {reason}; unset it, or set it to cpu") from None


def _cache_programs() -> None:
    """Lets JAX store compiled programs in the user's cache folder; prints a line to stderr on failure."""
    import jax

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "hidden-state-audit" / "jax"
    try:
        # Only the user may write to the folder, because JAX runs the programs in it.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # even if it already existed
    except OSError as error:
        print(f"no compilation cache: {folder}: {error.strerror}", file=sys.stderr)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Cache programs of any size that take at least 0.2 s to compile.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


# The argument is the (possibly fractional) number of runs trained since the last call.
Progress = Callable[[float], object]


@contextlib.contextmanager
def bar(
    count: int,
    describe: Callable[[], str] = lambda: "training",
    unit: str = "runs",
) -> Iterator[Progress]:
    """Shows a progress bar on stderr and yields a function that advances the bar by a number of runs.

    Args:
      count: the number of runs to train; 0 hides the bar.
      describe: () -> the text before the bar, shown instead of "compiling" once the bar advances.
      unit: a plural noun for the counted items.
    """
    from tqdm import tqdm

    layout = (
        "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total} {unit} "
        "[{elapsed}<{remaining}, {rate_fmt}]"
    )
    with tqdm(
        total=count, unit=unit, desc="compiling", bar_format=layout, disable=count == 0
    ) as line:

        def progress(runs: float) -> None:
            """Advances the bar by a number of runs, but not beyond its end."""
            line.set_description_str(describe(), refresh=False)
            line.update(min(runs, count - line.n))

        yield progress
        line.set_description_str(describe(), refresh=False)
