"""Messages about missing libraries for training."""

import configparser
import re
import sys
from pathlib import Path

import pytest

from audit.errors import InputError
from audit.runtime import installed

ROOT = Path(__file__).resolve().parents[3]


def find_modules_of_extra(name):
    """Returns the modules that an extra of setup.cfg installs."""
    configuration = configparser.ConfigParser()
    configuration.read(ROOT / "setup.cfg")
    lines = configuration["options.extras_require"][name].split("\n")
    return [re.match(r"[\w-]+", line)[0] for line in lines if line]


def test_where_all_is_installed_nothing_is_said():
    assert installed.describe_missing_library("`audit_loss` trains with", installed.TRAIN) == ""
    installed.require_training_libraries("audit_loss")


@pytest.mark.parametrize("module", find_modules_of_extra("train"))
def test_each_library_of_the_extra_is_looked_for(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError) as raised:
        installed.require_training_libraries("audit_loss")
    message = str(raised.value)
    assert message.lower().startswith(f"`audit_loss` trains with {module}, which is not installed")
    assert message.endswith(": pip install 'hidden-state-audit[train]'")
