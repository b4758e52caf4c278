"""Ray on this machine: who hears it, who reads its folder, what a killed driver leaves, and taken ports."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.cells import local_ray
from experiments.cells.reaper import find_descendants

ROOT = Path(__file__).resolve().parents[3]
ARGV = [sys.executable, "-P", "-m", "experiments"]
LISTENS = "0A"
needs_ray = pytest.mark.skipif(
    not importlib.util.find_spec("ray"), reason="the extra `ray` is not installed"
)
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Of a user who has nothing set, at home in an empty folder."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    home = tmp_path_factory.mktemp("home")
    return own | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "HOME": str(home)}


@linux
@needs_ray
@pytest.mark.slow
def test_a_cluster_of_one_machine_is_heard_there_alone_and_leaves_no_token(
    environment, housing_file, tmp_path
):
    """A token in the home folder is one that Ray's next head would ask for, and other nodes not know."""
    small = (
        "--runs=8",
        "--insertions=2",
        "--batch_size=8",
        "--engine=ray",
        f"--data_file={housing_file}",
    )
    argv, heard, names = [*ARGV, "audit", *small, f"--out={tmp_path / 'out'}"], set(), set()
    with subprocess.Popen(
        argv, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    ) as driver:
        while driver.poll() is None:
            found = find_descendants(driver.pid) | {driver.pid}
            heard |= addresses(found)
            names |= {name_of(pid) for pid in found}
            time.sleep(0.2)
        assert driver.returncode == 0, driver.stderr.read()
    assert {"gcs_server", "raylet", "ray::train"} <= names
    assert heard and heard <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert not Path(environment["HOME"], ".ray").exists()
    folder = Path("/tmp", f"ray-{os.getuid()}")
    assert folder.stat().st_mode & 0o777 == 0o700 and list(folder.glob("ray/session_*"))
    if os.getuid() == 0:  # as whom one can ask
        asked = subprocess.run(["ls", folder / "ray"], user=65534, capture_output=True)
        assert asked.returncode != 0 and b"Permission denied" in asked.stderr


DRIVER = """
import time
from experiments.cells import cluster
with cluster.join("local") as joined:
    joined.start(None, lambda devices: time.sleep(99))
    print("begun", flush=True)
    time.sleep(99)
"""


@linux
@needs_ray
@pytest.mark.slow
def test_a_killed_driver_leaves_no_process(environment):
    pipes = {"stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-P", "-c", DRIVER], env=environment, **pipes) as driver:
        assert driver.stdout.readline() == "begun\n"
        wait_until(
            lambda: any(name_of(pid) == "ray::<lambda>" for pid in find_descendants(driver.pid))
        )
        begun = {pid: started(pid) for pid in find_descendants(driver.pid)}
        driver.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(started(pid) == when for pid, when in begun.items()))


def wait_until(done, seconds=20):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


def name_of(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def started(pid):
    """When a process that lives was started; None where there is none."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else rest[18]


def addresses(pids):
    """Where processes listen."""
    own = set()
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                own.add(os.readlink(path))
            except OSError:
                continue
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in own:
                words = bytes.fromhex(fields[1].partition(":")[0])
                packed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                found.add(socket.inet_ntop(family, packed))
    return found


@linux
def test_where_processes_listen_is_found():
    with socket.create_server(("127.0.0.1", 0)):
        assert "127.0.0.1" in addresses([os.getpid()]) and "0.0.0.0" not in addresses([os.getpid()])
        with socket.create_server(("", 0)):
            assert "0.0.0.0" in addresses([os.getpid()])


def ray_start(*flags):
    done = subprocess.run([*ARGV, "ray", "start", *flags], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("write", ["--port={}", "--port {}", "--dashboard-port={}"])
def test_a_taken_port_is_a_line(write):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flag = write.format(taken.getsockname()[1])
        said = ray_start("--head", *flag.split())
        assert said.startswith(f"error: {flag.replace(' ', '=')} is taken: ") and "ray stop" in said
    assert "65536" in ray_start("--head", "--port=65536")


def test_where_no_head_answers_a_line_says_so():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        assert ray_start(f"--address={address}").startswith(
            f"error: --address={address}: no Ray cluster there"
        )


def test_sessions_lie_where_no_other_user_reads_them(tmp_path, monkeypatch):
    folder = local_ray._own_folder(tmp_path)
    folder.chmod(0o777)
    assert local_ray._own_folder(tmp_path) == folder and folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    (tmp_path / "ray-12345").symlink_to(folder)
    with pytest.raises(ValueError, match="is another user's: name a folder of yours in RAY_TMPDIR"):
        local_ray._own_folder(tmp_path)
