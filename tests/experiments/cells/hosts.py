"""Simulates hosts on one machine. Each has its own network, processes and files, and a cable to a switch."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
OWN = ("--net", "--mount", "--pid")
EXPERIMENTS = (sys.executable, "-P", "-m", "experiments")


def find_descendants(ancestor):
    """Returns the process numbers of a process's descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    found, generation = set(), {ancestor}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        found |= generation
    return found


class Host:
    """Namespaces that live as long as one process, which waits for the end of this one; `settings` are
    environment variables of all that runs there."""

    def __init__(self, folder, address, **settings):
        self.folder, self.address = folder, address
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        own = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("RAY_", "JAX_", "XDG_"))
        }
        own |= {"HOME": str(self.home), "RAY_TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
        self.environment = own | {"JAX_PLATFORMS": "cpu"} | settings
        argv = [
            "unshare",
            *OWN,
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            "-c",
            "echo; read -r",
        ]
        self._holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._holder.stdout.readline()
        self.init = min(find_descendants(self._holder.pid))
        self._own = os.readlink(f"/proc/{self.init}/ns/pid")
        self.run("ip", "link", "set", "lo", "up")

    def start(self, *command, **pipes):
        """A process there."""
        argv = ["nsenter", f"--target={self.init}", *OWN, *map(str, command)]
        return subprocess.Popen(argv, cwd=ROOT, env=self.environment, text=True, **pipes)

    def run(self, *command, status=0):
        """What a command there says, which ends with that status."""
        with self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            said = process.communicate(timeout=120)[0]
        assert process.returncode == status, said
        return said

    def experiments(self, *command, **given):
        """What a command of this project says there."""
        return self.run(*EXPERIMENTS, *command, **given)

    def processes(self):
        """All that run there, and their names, but for the one that holds the host."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (
                    os.readlink(path / "ns/pid") == self._own
                    and ") Z " not in (path / "stat").read_text()
                ):
                    found[int(path.name)] = (path / "comm").read_text().strip()
        return {pid: name for pid, name in found.items() if pid != self.init}

    def kill(self):
        """Kills all that runs there."""
        while found := self.processes():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def end(self):
        """Ends the host, whose processes the kernel kills."""
        self._holder.stdin.close()
        self._holder.wait()
        self._holder.stdout.close()


class Network(NamedTuple):
    """Two hosts and the switch between them."""

    one: Host
    two: Host
    switch: Host

    def link(self, state):
        """Takes the second host's cable out (down), or puts it in again (up)."""
        self.switch.run("ip", "link", "set", "port2", state)


@contextlib.contextmanager
def two(**settings):
    """Two hosts that hear each other, neither of which sees the other's folder."""
    base, hosts = Path(tempfile.mkdtemp(dir="/tmp")), []  # short: Ray's sockets lie below
    try:
        for name, address in (("one", "10.0.0.1"), ("two", "10.0.0.2"), ("switch", "")):
            hosts.append(Host(base / name, address, **settings))
        network = Network(*hosts)
        network.switch.run("ip", "link", "add", "bridge", "up", "type", "bridge")
        for number, host, other in ((1, network.one, network.two), (2, network.two, network.one)):
            _connect(host, network.switch, f"port{number}")
            host.run("mount", "-t", "tmpfs", "none", other.folder)
        yield network
    finally:
        for host in hosts:
            host.end()
        shutil.rmtree(base)


def _connect(host, switch, port):
    outside = ["nsenter", f"--target={switch.init}", "--net"]  # where the other's number is known
    link = [
        "ip",
        "link",
        "add",
        port,
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "netns",
        str(host.init),
    ]
    subprocess.run([*outside, *link], check=True)
    switch.run("ip", "link", "set", port, "up", "master", "bridge")
    host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
    host.run("ip", "link", "set", "eth0", "up")
    host.run("ip", "route", "add", "default", "dev", "eth0")


def can_be_had():
    """Whether this machine lets us have such hosts, which takes root and a kernel with virtual links."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip", "mount", "bash"))):
        return False
    links = "ip link add eth0 type veth peer name eth1 && ip link add bridge type bridge"
    return not subprocess.run(
        ["unshare", *OWN, "--fork", "sh", "-c", links], capture_output=True
    ).returncode


def wait_until(done, seconds=120):
    """Waits for something to be so."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)
