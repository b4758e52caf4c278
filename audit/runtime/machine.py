"""The machine that a process runs on, JAX as every command sets it up there, and its progress bar.

Importing this starts nothing.
"""

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from audit.errors import InputError


def cores() -> int:
    """Counts the cores that this process may use.

    Where the platform does not say (macOS), it counts all cores of the machine.
    """
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def prepare_jax(cpu_devices: int = 0) -> None:
    """Sets JAX up, before it touches a device.

    Matrix products are computed in full float32. Compiled programs go into a cache, in a folder that only the
    user can read.

    Args:
      cpu_devices: the number of devices that JAX makes of a CPU, each of which trains its own runs; 0: one
        for each core.

    Raises:
      InputError: JAX finds no device.
    """
    import jax

    count = cpu_devices or cores()
    logging.getLogger("jax").setLevel(logging.WARNING)
    # XLA's own threads for a product are off, since runs are spread over the devices. Vectors have 512 bits
    # where the CPU has such: training takes up to 14% less time than with 256. The user's flags are last: of
    # repeated flags the last wins.
    users_flags = os.environ.get("XLA_FLAGS", "")
    flags = f"--xla_cpu_multi_thread_eigen=false --xla_cpu_prefer_vector_width=512 {users_flags}"
    os.environ["XLA_FLAGS"] = flags
    if "xla_force_host_platform_device_count" not in flags:  # else the user has set the number
        jax.config.update("jax_num_cpu_devices", count)
        # The number of XLA's threads; otherwise there would be one for each core, in every process.
        os.environ.setdefault("NPROC", str(count))
    jax.config.update("jax_default_matmul_precision", "float32")
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):  # which JAX reads itself
        _cache_programs()
    try:
        jax.local_devices()
    # JAX asserts where CUDA is requested and not installed.
    except (RuntimeError, AssertionError) as error:
        platforms = os.environ.get("JAX_PLATFORMS")
        if not platforms:
            raise InputError(f"JAX finds no device: {error}") from None
        problem = f"JAX_PLATFORMS={platforms}: JAX finds no such device here"
        raise InputError(f"{problem}; unset it, or set it to cpu") from None


def _cache_programs() -> None:
    """Makes JAX keep compiled programs on disk, in a folder of the user's cache.

    Programs that took less than 0.2 s to compile are left out; JAX itself would leave out those under 1 s. A
    folder that can't be made is reported on stderr.
    """
    import jax

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "hidden-state-audit" / "jax"
    try:
        # Only for the user: JAX runs the programs that it finds there. `mkdir` leaves a folder that exists
        # as it is: its mode is set apart.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        print(f"no compilation cache: {folder}: {error.strerror}", file=sys.stderr)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)  # however small


# Called with runs as they are trained, parts of runs too.
Progress = Callable[[float], object]
# Called with (0, 0) when all is compiled, and with (runs, steps) after each segment.
SegmentProgress = Callable[[int, int], object]


@contextlib.contextmanager
def bar(
    count: int,
    describe: Callable[[], str] | None = None,
    unit: str = "runs",
    has_stopped: Callable[[], bool] | None = None,
) -> Iterator[Progress]:
    """Shows a progress bar on stderr; yields the function that advances it by a number of runs.

    The words before the bar are "compiling" until the function is called for the first time. Nothing is shown
    if no runs are to be trained.

    Args:
      count: the number of runs to train.
      describe: a function that gives the words before the bar, once all is compiled; by default "training".
      unit: the word for what is counted.
      has_stopped: a function that is asked at the end whether fewer runs were trained. The bar then stays
        where it is; otherwise it is filled.
    """
    from tqdm import tqdm

    layout = (
        "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total} {unit} "
        "[{elapsed}<{remaining}, {rate_fmt}]"
    )
    with tqdm(
        total=count, unit=unit, desc="compiling", bar_format=layout, disable=not count
    ) as line:

        def progress(runs: float) -> None:
            """Advances the bar by a number of runs, but not beyond its end."""
            line.set_description_str(describe() if describe else "training", refresh=False)
            line.update(min(runs, count - line.n))  # `line.n` is how far it is

        yield progress
        line.set_description_str(describe() if describe else "training", refresh=False)
        if has_stopped is None or not has_stopped():
            line.update(count - line.n)  # parts of runs may not add up to all of them
