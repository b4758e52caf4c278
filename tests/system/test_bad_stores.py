"""Bad stores, as `list`, `report`, `figures` and `sweep` meet them. What is documented to leave something out
and go on (`list`, `report --setting=all`, `figures`) ends with status 0 and says what."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from audit.settings.make import setting_of
from audit.settings.setting import identity
from audit.storage import store
from audit.storage.store import Scores, Store
from experiments.hidden_state import sweep as sweeps
from tests.system.bad import (
    FORTY,
    KINDS,
    Bad,
    assert_refused,
    firsts_of_a_kind,
    lines,
    looping,
    named,
    nothing,
    odd_places,
    rows,
)
from tests.system.damaged import archive, claiming, flipped, npy, npz

SETTING = setting_of("fcnn", adversary="gc_r", noise_multiplier=1.0, insertions=4)
OTHER = setting_of("fcnn", adversary="gc_r", noise_multiplier=1.0, insertions=4, seed=1)
BOUND_ROW = {"method": "assumption_free", "epsilon": 1.5, "delta": 1e-5, "confidence": 0.95}
CONCLUDED = {"bounds": [BOUND_ROW], "upper_bound": 9.75, "runs": 40, "provenance": {"jax": "0"}}
MIXED = np.arange(40)[:, None] % 2 == 1


def audited(root, setting=SETTING, runs=40, **more):
    """A setting's folder with made-up scores and their conclusion, named r/<hash>."""
    store = Store(root, {**identity(setting), "data_sha256": "0" * 64, **more})
    presence = np.arange(runs)[:, None] % 2 == 1
    store.save(Scores(0, FORTY[:runs, None] + presence, presence))
    store.write_text("audit.json", json.dumps(CONCLUDED))
    return store.path


def scores_of(store):
    (path,) = store.glob("scores_*")
    return path


def stored(change, beside=False):
    """Lays a store r of an audit that `change` damages, given its folder, and of a good one beside it."""
    return lambda folder: (change(audited(folder / "r")), beside and audited(folder / "r", OTHER))


def writing(name, content):
    return lambda audit: (audit / name).write_bytes(content)


def concluding(**changes):
    return writing("audit.json", json.dumps(CONCLUDED | changes).encode())


def configured(**changes):
    """Another config, under the name that is its own; None drops a field."""

    def change(audit):
        config = json.loads((audit / "config.json").read_text()) | changes
        shutil.rmtree(audit)
        store = Store(
            audit.parent, {name: value for name, value in config.items() if value is not None}
        )
        store.save(Scores(0, FORTY[:, None], MIXED))

    return change


def scored(damage):
    return lambda audit: scores_of(audit).write_bytes(damage(scores_of(audit).read_bytes()))


def replaced(name, make):
    path = scores_of if name == "scores" else lambda audit: audit / name
    return lambda audit: [do(at) for at in [path(audit)] for do in (Path.unlink, make)]


def saved(first, scores, presence):
    def change(audit):
        if first == 0:
            scores_of(audit).unlink()
        Store.at(audit).save(Scores(first, scores, presence))

    return change


# fmt: off
BAD_CONCLUSIONS = {
    "empty": writing("audit.json", b""), "torn": writing("audit.json", json.dumps(CONCLUDED).encode()[:60]),
    "binary": writing("audit.json", bytes(range(256))),
    "UTF-16": writing("audit.json", json.dumps(CONCLUDED).encode("utf-16")[:99]),
    "a list": writing("audit.json", b"[]"), "null": writing("audit.json", b"null"),
    "a number": writing("audit.json", b"3"), "brackets": writing("audit.json", b"[" * 100_000),
    "a number of 5,000 digits": writing("audit.json", b'{"runs": ' + b"9" * 5000 + b"}"),
    "bounds of nothing": concluding(bounds=[{}]), "runs of words": concluding(runs="x"),
    "upper bound NaN": concluding(upper_bound=float("nan")),
    **{kind: replaced("audit.json", make) for kind, make in KINDS.items()},
    "a loop": replaced("audit.json", looping),
}
NAMED = "is not the setting that its folder is named after"
BAD_CONFIGS = {
    "empty": (writing("config.json", b""), NAMED), "altered": (writing("config.json", b"{}"), NAMED),
    "binary": (writing("config.json", bytes(range(256))), NAMED),
    **{kind: (replaced("config.json", make), "config.json: it is no file") for kind, make in KINDS.items()},
    "a loop": (replaced("config.json", looping), "config.json (Too many levels of symbolic links)"),
}
FOREIGN_CONFIGS = {  # test_identity.py has all kinds
    "another experiment": configured(experiment="canary_norms"), "no mechanism": configured(mechanism=None),
    "an unknown adversary": configured(adversary={"name": "nobody"}), "a seed of words": configured(seed="0"),
}
LACKS = "lacks runs 0 to 39"
BAD_SCORES = {
    "empty": (scored(lambda x: b""), LACKS), "torn": (scored(lambda x: x[:200]), LACKS),
    "torn at its end": (scored(lambda x: x[:-1]), LACKS),
    "a score flipped": (scored(lambda x: flipped(x, 300, 304)), LACKS),
    "its directory flipped": (scored(lambda x: flipped(x, -22, -18)), LACKS),
    "text": (scored(lambda x: b"scores"), LACKS), "an npy": (scored(lambda x: npy(FORTY)), LACKS),
    "an npz of others": (scored(lambda x: npz(a=FORTY)), LACKS),
    "without a checksum": (scored(lambda x: npz(scores=FORTY, presence=FORTY > 0)), LACKS),
    "another checksum":
        (scored(lambda x: npz(scores=FORTY, presence=FORTY > 0, sha256=np.array("0" * 64))), LACKS),
    "of words": (scored(lambda x: npz(scores=["a"], presence=[1], sha256=["b"])), "lacks runs"),
    "of objects": (scored(lambda x: npz(scores=np.array([{}]), presence=np.array([1]), sha256=["b"])),
        "lacks runs"),
    "400 GB claimed": (scored(lambda x: archive(claiming((50_000_000_000,)), "scores.npy")), LACKS),
    **{kind: (replaced("scores", make), ".npz: it is no file") for kind, make in KINDS.items()},
    "a loop": (replaced("scores", looping), "(Too many levels of symbolic links)"),
    "not finite": (saved(0, np.full((40, 1), np.nan), MIXED), "not finite"),
    "one world": (saved(0, FORTY[:, None], np.ones((40, 1), bool)), "both are needed"),
    "two canaries": (saved(40, np.zeros((4, 2)), np.zeros((4, 2), bool)),
        "mixes scores of 1 and 2 canaries a run"),
    "fewer than concluded": (concluding(runs=41), "lacks runs 40 to 40"),
}
# fmt: on
OUT = ("list", "report", "figures", "sweep --list", "sweep --name=figure_4", "landscape")
LIST, REPORT, ALL = (
    ("list", "--out=r"),
    ("report", "--out=r"),
    ("report", "--out=r", "--setting=all"),
)
ELSEWHERE = {  # a folder that is none, and what is said
    "": "--out=: name a folder",
    "s.txt": "s.txt (Not a directory)",
    "n" * 300: "File name too long",
    "device.csv": "device.csv (Not a directory)",
    "loop.npz": "loop.npz (Too many levels of symbolic links)",
}


def damaged(argv, says, changes, status=0):
    """A case a change of a store's only audit, or of one of two where the command goes on."""
    for what, change in changes.items():
        yield named(Bad(argv, says, stored(change, beside=not status), status), f": {what}")


STORES = [
    *damaged(
        LIST, "r/920f8cebe5bfd86a/", {f"a conclusion, {n}": x for n, x in BAD_CONCLUSIONS.items()}
    ),
    *damaged((*LIST, "--json"), "r/920f8cebe5bfd86a/", {n: x for n, (x, _) in BAD_CONFIGS.items()}),
    *damaged(LIST, "skipped: 1 folder holds other", FOREIGN_CONFIGS),
    *damaged(REPORT, "error: r/", dict(list(BAD_CONCLUSIONS.items())[:12:3]), 2),
    *damaged(
        REPORT, "holds no audits", {f"a config, {n}": x for n, (x, _) in BAD_CONFIGS.items()}, 2
    ),
    *damaged(
        REPORT, "no audits (1 with other results): run", dict(list(FOREIGN_CONFIGS.items())[::3]), 2
    ),
    *(
        named(Bad(ALL, says, stored(change)), f": {what}, {n}")
        for what, bad in (("config", BAD_CONFIGS), ("scores", BAD_SCORES))
        for n, (change, says) in bad.items()
    ),
    *rows(REPORT, "setting", "--setting={} is no audit in r", "zzz", "../x", lay=stored(nothing)),
    *rows(REPORT, "setting", "--setting= is no audit in r", "", ",", lay=stored(nothing)),
    named(Bad((*REPORT, "--report="), "--report=: name an HTML file", stored(nothing))),
    named(Bad((*REPORT, "--setting=all", "--delta=2"), "delta is 2.0", stored(nothing))),
    *(
        case
        for place, says in ELSEWHERE.items()
        for case in lines(says, *(f"{argv} --out={place}" for argv in OUT), lay=odd_places)
    ),
    *lines("--out=: name a folder", "audit --out="),
    *lines(
        "--out=missing holds no audits: run ./run.sh audit, or name another", "report --out=missing"
    ),
    *lines("missing holds no finished cell of all at scale laptop", "figures --out=missing"),
    *lines(
        "holds no finished cell of figure_4 at scale laptop",
        "report --sweep=figure_4 --out=missing",
    ),
    *lines(
        "holds no audits", "report --setting=all --out=missing", "report --setting=1f --out=missing"
    ),
]


def smoke_cells(folder):
    """Two cells of figure_7 at scale smoke: one whole, and the folder of the other."""
    cells = sweeps.sweeps("smoke")["figure_7"].audits()[:2]
    return [audited(folder / "r", cell.setting, cell.runs) for cell in cells]


def twice(folder):
    audit = smoke_cells(folder)[1]
    Store(audit.parent, json.loads((audit / "config.json").read_text()) | {"data_sha256": "1" * 64})


SMOKE = ("--scale=smoke", "--out=r")
SWEEPS = [
    named(Bad(("sweep", "--list", *SMOKE), "are one setting on different data", twice)),
    *rows(
        ["sweep", "--name=figure_7", *SMOKE],
        "california_housing",
        "{} cannot be used",
        "missing.csv",
    ),
    *(
        named(
            Bad(
                ("report", "--sweep=figure_7", *SMOKE),
                says,
                lambda f, x=x: [*map(x, smoke_cells(f))],
            ),
            n,
        )
        for n, x, says in (
            (": scores torn", scored(lambda x: x[:99]), "holds no finished cell of figure_7"),
            (": a conclusion torn", writing("audit.json", b"{"), "audit.json cannot be read"),
            (": scores a folder", replaced("scores", Path.mkdir), "it is no file"),
        )
    ),
]


def test_a_name_that_begins_hashes_of_two_kinds_is_refused_with_both(forked, tmp_path):
    federated = Store(tmp_path / "r", {"experiment": "federated", "data_sha256": "0" * 64})
    federated.save(Scores(0, FORTY[:, None], MIXED))
    name = store.hash_of(federated.path)[0]
    for seed in range(200):  # until an audit's hash begins with the same character
        config = identity(setting_of("fcnn", seed=seed))
        audit = Store(tmp_path / "r", {**config, "data_sha256": "0" * 64})
        if store.hash_of(audit.path)[0] == name:
            break
    audit.save(Scores(0, FORTY[:, None], MIXED))
    ended = forked("report", "--out=r", f"--setting={name}", folder=tmp_path)
    both = f"{store.hash_of(federated.path)}, {store.hash_of(audit.path)}"
    told = f"error: --setting={name} begins 2 hashes, {both}: write more of it\n"
    assert (ended.status, ended.stderr) == (2, told)
    assert not list((tmp_path / "r").rglob("*.html"))


@pytest.mark.parametrize("case", firsts_of_a_kind([*STORES, *SWEEPS]))
def test_a_bad_store_is_one_line_and_nothing_else_happens(forked, homes, tmp_path, case):
    assert_refused(case, forked, homes, tmp_path)
