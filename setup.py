"""Has setuptools build in a temporary folder, so that `pip install .` leaves no file in the clone.

All metadata is in setup.cfg. Source distributions are made in place, with the metadata that lies in the tree.
"""

import sys
import tempfile

from setuptools import setup

with tempfile.TemporaryDirectory() as folder:
    options = {}
    if "sdist" not in sys.argv:
        options = {"build": {"build_base": folder}, "egg_info": {"egg_base": folder}}
    setup(options=options)
