"""The number of cores on each platform and version of Python."""

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity")
def test_cores_that_are_taken_away_are_not_counted():
    code = "import os; from audit.runtime import machine; "
    code += "cores = os.sched_getaffinity(0); counted = machine.cores()"
    code += "; os.sched_setaffinity(0, [min(cores)]); print(counted == len(cores), machine.cores())"
    env = {name: value for name, value in os.environ.items() if name != "PYTHON_CPU_COUNT"}
    assert subprocess.check_output([sys.executable, "-c", code], text=True, env=env) == "True 1\n"
