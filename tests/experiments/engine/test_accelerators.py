"""Accelerators by name, and what is said of those that can't be compiled for."""

import pytest

from audit.errors import InputError
from audit.settings.setting import PRECISIONS
from experiments.engine import accelerators


@pytest.mark.parametrize(("name", "label", "number"), [("v5e:2x2", "TPU v5e", 4), ("h200", "NVIDIA H200", 1)])
def test_a_name_is_a_chip_and_how_many(name, label, number):
    found = accelerators.described(name)
    assert (found.chip.label, found.number) == (label, number)


@pytest.mark.parametrize(
    "name", ["", "v4:2x2", "h100", "h200:2", "v5e", "v5e:", "v5e:0x2", "v6e:3x5", "v5e:2x2x2"]
)
def test_a_name_that_is_none_is_said(name):
    with pytest.raises(InputError, match=f"`device={name}`"):
        accelerators.described(name)


@pytest.mark.parametrize(("name", "package"), [("v5e:2x2", "jax[tpu]=="), ("h200", "jax[cuda12]==")])
def test_a_compiler_that_is_missing_is_said_with_what_brings_it(monkeypatch, name, package):
    monkeypatch.setattr(accelerators, "_is_installed", lambda module: False)
    with pytest.raises(InputError) as caught:
        accelerators.require_compiler(name)
    assert f"device={name}" in str(caught.value) and f"pip install '{package}" in str(caught.value)


def test_a_module_whose_package_is_missing_is_not_installed():
    assert accelerators._is_installed("json.decoder")
    assert not accelerators._is_installed("json.nothing") and not accelerators._is_installed(
        "nothing.nothing"
    )


def test_every_chip_has_a_peak_a_precision_and_the_narrower_is_the_faster():
    for chip in accelerators.CHIPS.values():
        assert [chip.peaks[name] for name in PRECISIONS] == sorted(chip.peaks.values())
        assert 1e9 < chip.memory < chip.bandwidth < min(chip.peaks.values())
