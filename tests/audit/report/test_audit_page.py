"""Tests that pages are self-contained, escaped, complete, and readable at any width."""

import dataclasses
import json
import os
import re

import numpy as np
import pytest

from audit.claims.claim import DpSgd
from audit.conclusions import concluded, results
from audit.conclusions.concluded import conclude
from audit.evidence.canaries import make_sets
from audit.report import audit_page as report
from audit.report import audit_panels, bounds_table, listing, page, subjects
from audit.settings.make import setting_of
from audit.settings.setting import identity
from audit.storage.store import RESULT, Scores, Store
from audit.written import Level
from tests.audit.report.outline import Outline

pytestmark = pytest.mark.usefixtures("powerful")

HOSTILE = "<script>alert('&\"')</script>"


SETTING = setting_of("fcnn")


def seeded(seed, model="fcnn"):
    return dataclasses.replace(SETTING, model=model, seed=seed)


def stored(root, setting=SETTING, runs=200, audited=True):
    store = Store(root, {**identity(setting), "data_sha256": "0" * 64})
    presence = np.arange(runs)[:, None] % 2 == 1
    scores = np.random.default_rng(setting.seed).normal(size=(runs, 1)) + presence
    scores = Scores(0, scores, presence)
    store.save(scores)
    if audited:
        composition = DpSgd(setting.mechanism.noise_multiplier, setting.insertions)
        found = conclude(
            make_sets(*concluded.read_coins(scores).pooled()), composition, Level(1e-6, 0.9)
        )
        provenance = {"jax": "0", "device": "abacus"}
        store.write_text(RESULT, results.result_json(found, runs=runs, provenance=provenance))
    return store.path


@pytest.fixture
def plain(monkeypatch):
    panels = dict.fromkeys(("scores", "trade_off", "bounds"), b"<svg/>")
    monkeypatch.setattr(audit_panels, "audit_panels", lambda conclusion: panels)


@pytest.mark.slow
def test_a_page_asks_for_nothing(tmp_path):
    folder = stored(tmp_path)
    outline = Outline(report.make_page(subjects.describe_setting(folder)).decode())
    for words in (
        "delta = 1e-06",
        "90%",
        "abacus",
        folder.name,
        "0" * 64,
    ):  # the rest is a golden output
        assert words in outline.text, words
    images = [attributes for tag, attributes in outline.tags if tag == "img"]
    assert len(images) == 3 and all(len(image["alt"]) > 30 for image in images)
    for _, attributes in outline.tags:
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("data:image/", "#"))
    (style,) = re.findall(r"(?s)<style>(.*?)</style>", page.document("A").decode())
    assert not re.search(r"url\(|@import", style)
    assert not {"script", "iframe", "object"} & {tag for tag, _ in outline.tags}
    assert ("meta", "viewport") in [
        (tag, attributes.get("name")) for tag, attributes in outline.tags
    ]


def test_names_are_escaped_everywhere(tmp_path, plain):
    about = subjects.describe_setting(stored(tmp_path, seeded(0, HOSTILE), audited=False))
    outline = Outline(report.make_page(about._replace(title=HOSTILE)).decode())
    assert "script" not in {tag for tag, _ in outline.tags} and HOSTILE in outline.text


@pytest.mark.slow
def test_the_images_are_the_same_bits_each_time():
    rng = np.random.default_rng(0)
    found = conclude(make_sets(rng.normal(size=60) + 1, rng.normal(size=60)))
    panels, again = (audit_panels.audit_panels(found) for _ in range(2))
    assert panels == again and len(set(panels.values())) == 3


@pytest.mark.slow
def test_the_command_writes_the_newest_and_names_what_it_lacks(tmp_path, run_command):
    old, new = (stored(tmp_path, seeded(seed), audited=False) for seed in (1, 2))
    os.utime(next(old.glob("scores*")), (1, 1))
    page = tmp_path / "page.html"
    process = run_command("list", f"--out={tmp_path}", f"--report={page}")
    assert process.returncode == 0, process.stderr
    assert new.name in page.read_text() and old.name not in page.read_text()
    process = run_command("list", f"--out={tmp_path}", f"--report={page}", "--setting=nowhere")
    assert "--setting=nowhere matches 0 audits" in process.stderr


@pytest.mark.slow
def test_damaged_audits_are_left_out_and_named(tmp_path, run_command):
    good, *bad = (stored(tmp_path, seeded(seed)) for seed in range(3))
    (bad[0] / "audit.json").write_text("null")
    (bad[1] / "config.json").write_text("null")
    process = run_command("list", f"--out={tmp_path}", "--json")
    assert process.returncode == 0, process.stderr
    lines = process.stderr.splitlines()
    assert len(lines) == 2 and all(
        line.startswith("left out: ") and "`" not in line for line in lines
    )
    assert all(sum(str(folder) in line for line in lines) == 1 for folder in bad)
    assert [row["folder"] for row in json.loads(process.stdout)] == [str(good)]


def test_a_command_and_a_title_have_all_digits_of_delta_and_confidence():
    """Six digits of such a confidence are 1, which claims certainty and which no flag takes."""
    level = Level(1.2345678e-5, 0.9999999)
    command = listing.make_command(setting_of("fcnn", steps=250, k=3), 40, level)
    assert command.endswith(
        "--k=3 --steps=250 --runs=40 --delta=1.2345678e-05 --confidence=0.9999999"
    )
    rng = np.random.default_rng(0)
    conclusion = conclude(make_sets(rng.normal(size=60) + 1, rng.normal(size=60)), None, level)
    title = bounds_table.bounds_table(conclusion).splitlines()[0]
    assert title == "lower bounds on epsilon at delta 1.2345678e-05, confidence 0.9999999"
