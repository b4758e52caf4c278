"""Makes setuptools build in a temporary folder, so `pip install .` does not leave files in the clone.

The metadata is in setup.cfg. A source distribution is built in place, because it includes generated metadata.
"""

import sys
import tempfile

from setuptools import setup

with tempfile.TemporaryDirectory() as folder:
    options = {}
    if "sdist" not in sys.argv:
        options = {"build": {"build_base": folder}, "egg_info": {"egg_base": folder}}
    setup(options=options)
