"""A compiler for TPUs that is installed where there are none is not heard of."""

import os
import subprocess
import sys

PROGRAM = """
from audit.machine import prepare_jax
prepare_jax()
import jax, os
print(len(jax.devices()), os.environ.get("TPU_WORKER_HOSTNAMES"))
"""


def test_commands_start_quietly_whatever_is_installed(tmp_path):
    hidden = ("JAX_PLATFORMS", "TPU_", "XLA_FLAGS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environment |= {"TPU_WORKER_HOSTNAMES": "mine", "XDG_CACHE_HOME": str(tmp_path)}
    environment |= {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    devices, host = done.stdout.split()
    assert int(devices) >= 1 and host == "mine"  # what a user says stays
