"""Fixtures of all tests. They import JAX only if needed, since most tests do not need it."""

import contextlib
import ctypes
import gc
import hashlib
import os
import platform
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from absl import flags

from tests.forks import forked, forks, homes, run_command  # noqa: F401 - fixtures

ROOT = Path(__file__).resolve().parents[1]
HOUSING = "MedInc,HouseAge,AveRooms,AveBedrms,Population,AveOccup,Latitude,Longitude,MedHouseVal"
LARGE_BYTES = 2**30  # by which a process grows before it lets go of what it compiled
CACHE_BYTES = 2**30  # beyond these the compiled programs are thrown away when tests begin


def _machine():
    """The processor's model and instructions: programs compiled for one do not run on every other."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "".join(
            sorted({one for one in lines if one.startswith(("model name", "flags", "Features"))})
        )
    return platform.platform() + platform.processor()


def _keep_programs():
    """Lets JAX keep compiled programs between runs, for these tests and all processes that they start.

    Two thirds of the JAX tests' processor time is compiling. A folder is for one lock and one processor's
    instructions. JAX writes its files in place: one that a kill left empty is removed.
    """
    base = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "hidden-state-audit"
        / "tests"
    )
    lock = (ROOT / "requirements.lock").read_text()
    folder = base / hashlib.sha256((lock + _machine()).encode()).hexdigest()[:16]
    if "PYTEST_XDIST_WORKER" not in os.environ and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        sizes = {path: path.stat().st_size for path in folder.glob("*-cache")}
        if sum(sizes.values()) > CACHE_BYTES:
            shutil.rmtree(folder)
        for path in (path for path, size in sizes.items() if not size):
            path.unlink(missing_ok=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def _keep_bytecode():
    """Lets Python keep what it compiled: tests start hundreds of processes, and pytest rewrites tests."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


_keep_programs()  # before JAX is imported
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of each worker: threads that wait take time
_keep_bytecode()


def pytest_addoption(parser):
    parser.addoption("--kills", type=int, default=5, help="of audits and of those who share one")
    parser.addoption(
        "--ray_kills", type=int, default=1, help="of each kind of process in test_on_ray"
    )
    parser.addoption("--convnet_audits", type=int, default=2, help="of each k")
    parser.addoption(
        "--kills_out", help="an empty folder for its audits; by default a temporary one"
    )
    parser.addoption(
        "--share", type=_share, default=(0, 1), help="I/N: that part of the slow tests"
    )


def _share(text):
    """(I modulo N, N)."""
    place, count = map(int, text.split("/"))
    return place % count, count


def pytest_ignore_collect(collection_path, config):
    """Leaves out a file whose tests are all slow if no slow test runs: some load PyTorch."""
    if config.option.markexpr != "not slow" or not collection_path.name.startswith("test_"):
        return None
    return (
        bool(re.search(r"^pytestmark\b.*\bslow\b", collection_path.read_text(), re.MULTILINE))
        or None
    )


def pytest_collection_modifyitems(config, items):
    """The longest files, which start processes, come first: workers then end together. Of the slow tests only
    the chosen share stays."""
    items.sort(key=lambda item: item.nodeid.split("/")[1:2], reverse=True)
    place, count = config.getoption("--share")
    slow = sorted(item.nodeid for item in items if item.get_closest_marker("slow"))
    others = {nodeid for number, nodeid in enumerate(slow) if number % count != place}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in others])
    items[:] = [item for item in items if item.nodeid not in others]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Gives a worker tests that follow each other: they share what fixtures made and JAX compiled."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_collection_finish():
    """What collecting made stays; a twentieth of the time went into looking for garbage in it."""
    gc.collect()
    gc.freeze()


def pytest_configure(config):
    """Mains define flags of the same names; tests import several into one process: the last one counts.

    Without slow tests most of the time is compiling, so XLA optimizes little.
    """
    if config.option.markexpr == "not slow":
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    define = flags.FlagValues.__setitem__

    def redefine(values, name, flag):
        if name in values:
            delattr(values, name)
        define(values, name, flag)

    flags.FlagValues.__setitem__ = redefine


def _resident_bytes():
    """Of this process; 0 where the platform does not say."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


class _Memory:
    """A process lets go of what it compiled as soon as it has grown by so much."""

    limit = LARGE_BYTES


_rng_states = {}  # of modules' RNG before their first tests


@pytest.fixture(autouse=True)
def same_draws(request):
    """Each test draws the same numbers, whichever tests ran before it."""
    rng = getattr(request.module, "RNG", None)
    if isinstance(rng, np.random.Generator):
        state = rng.bit_generator.state
        rng.bit_generator.state = _rng_states.setdefault(request.module, state)


@pytest.fixture(autouse=True)
def small_processes():
    """After a test its figures are closed; a process that has grown drops its compiled programs and gives
    free memory back to the system."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
    if _resident_bytes() > _Memory.limit:
        if "jax" in sys.modules:
            sys.modules["jax"].clear_caches()
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # no glibc
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        _Memory.limit = _resident_bytes() + LARGE_BYTES


@pytest.fixture(scope="session")
def image_file(tmp_path_factory):
    """An .npz file of random images in the form of Fashion-MNIST, 200 and 20 to test on."""
    path, rng = tmp_path_factory.mktemp("images") / "images.npz", np.random.default_rng(0)
    arrays = {}
    for name, count in (("train", 200), ("test", 20)):
        arrays[f"{name}_images"] = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        arrays[f"{name}_labels"] = rng.integers(0, 10, count).astype(np.int32)
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="session")
def housing_file(tmp_path_factory):
    """A CSV of 500 rows with California Housing's columns."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "housing.csv"
    table = rng.normal(size=(500, 9))
    table[:, 8] = table[:, 0] + 0.5 * table[:, 1] + 0.1 * rng.normal(size=500)
    np.savetxt(path, table, delimiter=",", header=HOUSING, comments="")
    return path


@pytest.fixture(scope="session")
def dataset():
    """200 examples of 8 features whose labels follow a noisy linear rule."""
    from audit.tasks.task import Dataset

    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 8)).astype(np.float32)
    labels = (features @ rng.normal(size=8) + rng.normal(size=200) > 0).astype(np.int32)
    return Dataset(features, labels, "synthetic", "0" * 64)


@pytest.fixture(scope="session")
def small_dataset():
    """40 examples of 8 features whose labels are the sign of the first."""
    from audit.tasks.task import Dataset

    features = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    return Dataset(features, (features[:, 0] > 0).astype(np.int32), "made up", "0" * 64)


@pytest.fixture(scope="session")
def data(dataset):
    import jax.numpy as jnp

    return jnp.asarray(dataset.features), jnp.asarray(dataset.labels)


@pytest.fixture(scope="session")
def model():
    from models.dense import fcnn

    return fcnn()


@pytest.fixture(scope="session")
def choices(model):
    from audit.mechanism import dpsgd
    from audit.mechanism.clipping import base

    return dpsgd.DPSGD(base.book_keeping(model.module, model.unravel, model.criterion))


@pytest.fixture(scope="session")
def mechanism(choices):
    from audit.mechanism import dpsgd

    return dpsgd.mechanism(choices)


@pytest.fixture(scope="session")
def silent_choices():
    """DP-SGD whose genuine gradients are all zero: what is left is the canary and the noise."""
    import jax.numpy as jnp

    from audit.mechanism import dpsgd

    return dpsgd.DPSGD(lambda theta, batch, clipping_norm: jnp.zeros_like(theta))


@pytest.fixture(scope="session")
def silent(silent_choices):
    from audit.mechanism import dpsgd

    return dpsgd.mechanism(silent_choices)


@pytest.fixture(scope="session")
def slow_clipped_sum():
    """Equation 2's sum as a Python loop: (gradient of one example, theta, batch, C) -> (p,) float64."""

    def clipped_sum(gradient, theta, batch, clipping_norm):
        total = np.zeros(theta.shape)
        for features, label in zip(*batch, strict=True):
            g = np.asarray(gradient(theta, (features, label)), np.float64)
            norm = np.linalg.norm(g)
            total += g if norm <= clipping_norm else g * (clipping_norm / norm)
        return total

    return clipped_sum


@pytest.fixture(scope="session")
def play():
    """play(game, ranges, chunk) -> all Scores as one."""
    from audit.training import game

    def run(table, ranges, chunk, progress=lambda runs: None):
        parts = list(game.Player(table, chunk, progress).play_all(ranges))
        scores = np.concatenate([part.scores for part in parts])
        presence = np.concatenate([part.presence for part in parts])
        return parts[0]._replace(scores=scores, presence=presence)

    return run


@pytest.fixture(scope="session")
def empty_game(silent):
    """A game of 4 parameters and no genuine gradients, whose scores are Gaussian by construction."""
    import jax.numpy as jnp

    from audit.mechanism import base
    from audit.training import game
    from tests import programs

    def build(steps=16, periodicity=1, sigma=2.0, clipping_norm=3.0, batch_size=4, **changes):
        batches, mask = (
            jnp.tile(jnp.arange(batch_size), (steps, 1)),
            base.insertion_mask(steps, periodicity),
        )
        data = jnp.zeros((batch_size, 1)), jnp.zeros(batch_size, int)
        hyper, schedule = (
            base.Hyperparameters(0.5, clipping_norm, sigma),
            base.Schedule(batches, mask),
        )
        adversary, start = programs.fixed_dimension(2), lambda key: jnp.zeros(4)
        return game.Game(silent, adversary, start, data, hyper, schedule, seed=0)._replace(
            **changes
        )

    return build
