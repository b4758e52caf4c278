"""Names of stored results depend only on fields that decide the scores: golden names."""

import json
from pathlib import Path

import numpy as np
import pytest

from audit.errors import InputError
from audit.settings import make
from audit.settings import make as settings
from audit.settings.adversaries import ADVERSARIES
from audit.settings.make import from_identity, setting_of
from audit.settings.setting import identity, validate
from audit.storage.store import Scores, Store
from audit.tasks.task import Dataset

RECORDED = json.loads((Path(__file__).parents[2] / "system" / "golden" / "scores.json").read_text())
NAMES = {  # of the recorded settings on data of checksum 0
    **{
        "gc_s": "2df5ec68627af02c",
        "gc_s noisy final model": "de0f9ebe286c5b9b",
        "gc_r": "8f85a815eee8809d",
    },
    **{"cots": "854903f2db3595fc", "loss": "9a36da5d01b1a4a2"},
    "convnet": "128bcaa2364c1b21",
}
DATA = Dataset(np.zeros((1, 8), np.float32), np.zeros(1, np.int32), "made up", "0" * 64)
CHUNK = Scores(0, np.arange(4.0)[:, None], np.array([[0], [1], [0], [1]], bool))


@pytest.mark.parametrize(("name", "expected"), NAMES.items())
def test_names_are_the_golden_ones(name, expected, tmp_path):
    recorded = dict(RECORDED["settings"][name]["fields"])
    usual = {name: recorded[name] for name in ("learning_rate", "batch_size")}
    setting = settings.make_setting(recorded.pop("model"), usual, recorded)
    assert (
        Store(tmp_path, {**identity(setting), "data_sha256": DATA.checksum}).path.name == expected
    )


def test_what_decides_nothing_is_no_part_of_a_name():
    name = identity(setting_of("fcnn", adversary="gc_r"))
    nothing = {"fresh": 8, "gc_s": "noisy_per_step", "precision": "float32"}
    for field, value in nothing.items():
        assert identity(setting_of("fcnn", adversary="gc_r", **{field: value})) == name
    numbers = {
        "learning_rate": 0.1,
        "clipping_norm": 1.0,
        "noise_multiplier": 4.0,
        "batch_size": 400,
    }
    assert identity(setting_of("fcnn")) == {
        **{"experiment": "audit", "model": "fcnn"},
        "mechanism": {"name": "dp_sgd", **numbers},
        **{"adversary": {"name": "gc_s"}, "schedule": {"steps": 250, "periodicity": 1}, "seed": 0},
    }


def test_a_step_of_a_period_has_one_name():
    def at(insert, **more):
        return setting_of("fcnn", insert=insert, **{"k": 5, "steps": 12, **more})

    assert at("5") == at(5) == at("last") == setting_of("fcnn", k=5, steps=12) and at(1) == at(
        "first"
    )
    assert at("first", k=1) == at(1, k=1) == at("last", k=1)
    places = [at(step).schedule.place for step in (1, 2, 3, 4, 5)]
    assert places == [1, 2, 3, 4, 5] and [at(step).insertions for step in places] == [3, 3, 2, 2, 2]
    for wrong in (0, 6, "middle"):
        with pytest.raises(
            InputError, match=f"^`insert={wrong}`: give last, first or a number from 1 to 5"
        ):
            at(wrong)


CHANGES = {  # a field's owner, and a value that is not its default
    "model": ("", "convnet"),
    "adversary": ("", "gc_r"),
    "gc_s": ("gc_s", "noisy_per_step"),
    "cots_score": ("cots", "weights"),
    "first_direction": ("poisoned", 500),
    "end_direction": ("poisoned", 700),
    "as_printed": ("poisoned", True),
    "learning_rate": ("", 0.2),
    "clipping_norm": ("", 2.0),
    "noise_multiplier": ("", 1.0),
    "batch_size": ("", 3),
    "optimizer": ("", "adam"),
    "precision": ("", "tf32"),
    "steps": ("", 7),
    "periodicity": ("", 2),
    "seed": ("", 1),
    "canaries": ("", 8),
    "weight_decay": ("", 0.01),
    "insert": ("", "first"),
    "unknown_initialisation": ("", True),
    "sampler": ("", "shuffled:5"),
    "observe": ("one_shot", "all"),
    "coins": ("sphere", True),
    "afresh": ("gc_r", True),
    "fresh": ("examples", 1000),
}


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_that_decides_is_part_of_it(field):
    owner, value = CHANGES[field]
    base = {"model": "fcnn", "k": 5} if field == "insert" else {"model": "fcnn"}
    if owner:
        base["adversary"] = owner
    assert identity(setting_of(**{**base, field: value})) != identity(setting_of(**base))


@pytest.mark.parametrize(
    ("given", "sampler", "named"),
    [
        ({}, "every", {}),
        ({"sampler": "poisson:1"}, "every", {}),
        ({"sampler": "poisson:0.1"}, "poisson:0.1", {"sampling_rate": 0.1}),
        ({"sampler": "known:3"}, "known:3", {"repetitions": 3}),
        ({"sampler": "shuffled:5"}, "shuffled:5", {"sampler": "shuffled:5"}),
        ({"sampler": "balls_in_bins"}, "balls_in_bins:51", {"sampler": "balls_in_bins:51"}),
    ],
)
def test_a_sampler_has_one_text_and_the_name_that_stores_have(given, sampler, named):
    setting = setting_of("fcnn", **given)
    name = identity(setting)
    assert setting.sampler == sampler
    chosen = {"sampler", "sampling_rate", "repetitions"}
    assert {field: name[field] for field in chosen & set(name)} == named
    assert from_identity(json.loads(json.dumps(name))) == setting


@pytest.mark.parametrize("text", ["", "every:2", "poisson:2", "poisson:nan", "known"])
def test_a_text_that_describes_no_sampler_is_refused(text):
    with pytest.raises(InputError, match="^`sampler="):
        setting_of("fcnn", sampler=text)


def test_steps_with_a_sampler_are_whole_epochs():
    assert setting_of("fcnn", sampler="shuffled:40").schedule.steps == 240
    assert setting_of("fcnn", sampler="shuffled:400").schedule.steps == 400
    with pytest.raises(
        InputError, match="`steps=100` is not a whole number of epochs: give a multiple of 40$"
    ):
        validate(setting_of("fcnn", sampler="shuffled:40", steps=100), 2)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_a_setting_comes_back_from_its_identity(adversary):
    for more in ({}, {"unknown_initialisation": True, "precision": "tf32"}):
        setting = setting_of("convnet", adversary=adversary, **more)
        assert from_identity(json.loads(json.dumps(identity(setting)))) == setting


def test_what_is_no_audit_is_left_alone():
    for config in ({}, {"kind": "landscape_exact", "steps": 3}, {"model": "fcnn"}):
        assert make.parse_config(config) is None
    assert make.parse_config({**AUDIT, "adversary": {"name": "unheard of"}}) is None
    assert make.parse_config(identity(setting_of("fcnn"), "canary_norms")) is None


AUDIT = identity(setting_of("fcnn"))


def test_scores_of_an_older_version_are_told_apart(tmp_path):
    setting = setting_of("fcnn", adversary="examples")
    decisive = identity(setting)
    assert decisive["adversary"] == {"name": "examples", "version": 2}
    assert from_identity(decisive) == setting
    Store(tmp_path, {**decisive, "adversary": {"name": "examples"}}).save(CHUNK)
    assert make.open_store(tmp_path, setting, DATA).missing(4) == [(0, 4)]
    assert not make.audits(tmp_path)


def test_audits_are_told_from_what_lies_beside_them(tmp_path):
    stores = [Store(tmp_path, identity(setting_of("fcnn", seed=seed))) for seed in range(3)]
    for store in (*stores, Store(tmp_path, {"kind": "landscape_simulated"})):
        store.save(CHUNK)
    (stores[2].path / "config.json").write_text("{}")
    Store(tmp_path, identity(setting_of("fcnn", seed=9)))  # without scores
    assert set(make.audits(tmp_path)) == {store.path for store in stores}
    with pytest.raises(InputError, match="is not the setting that its folder is named after"):
        make.open_audit(stores[2].path)
    assert make.audits(tmp_path / "nowhere") == []
