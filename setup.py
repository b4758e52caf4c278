"""Makes setuptools build in a temporary folder, so `pip install .` does not leave files in the clone.

All metadata is in setup.cfg. A source distribution is made in place, because it includes the tree's metadata.
"""

import sys
import tempfile

from setuptools import setup

with tempfile.TemporaryDirectory() as folder:
    options = {}
    if "sdist" not in sys.argv:
        options = {"build": {"build_base": folder}, "egg_info": {"egg_base": folder}}
    setup(options=options)
