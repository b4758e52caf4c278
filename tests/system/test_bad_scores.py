"""Bad files of scores, for `bound`: each is one line that names the file and the mend."""

import numpy as np
import pytest

from tests.system.bad import (
    FORTY,
    HUGE,
    Bad,
    assert_refused,
    firsts_of_a_kind,
    holding,
    named,
    odd_places,
    rows,
    two_worlds,
)
from tests.system.damaged import archive, claiming, flipped, npy, npz

BOUND, STEPS = ("bound", "--scores=scores.npz"), ("--noise_multiplier=1", "--insertions=10")


def patched(content, changes, mark=b"PK\x01\x02"):
    """An archive with bytes of its first local and first central header changed, by their local offsets."""
    whole = bytearray(content)
    central = whole.index(mark)
    for at, value in changes.items():
        whole[at] = whole[central + at + 2] = value
    return bytes(whole)


RARE = np.random.default_rng(1).random((60, 8)) < 0.25
BITS = (np.random.default_rng(0).random((60, 8)) < 0.5).astype(int)
# fmt: off
BAD_CSV = {
    "empty": (b"", "score,in"), "blank": (b"\n\n\n", "score,in"),
    "no header": (b"1.5,1\n0.5,0\n", "score,in"), "another header": (b"a,b\n1,2\n", "score,in"),
    "one column": (b"score\n1\n", "score,in"), "torn UTF-16": ("score,in\n1".encode("utf-16")[:-1], "UTF-8"),
    "UTF-16 without a mark": ("score,in\n1,1\n".encode("utf-16-le"), "score,in"),
    "Latin-1": ("score,in,who\n1,1,Zoë\n".encode("latin-1"), "UTF-8"),
    "binary": (bytes(range(256)) * 64, "UTF-8"), "zeros": (bytes(4096), "score,in"),
    "an npz": (archive(), "UTF-8"), "JSON": (b'{"in": [1], "out": [2]}', "score,in"),
    "HTML": (b"<!DOCTYPE html><p>score,in", "score,in"),
    "a large field": (b"score,in\n" + b"1" * 200_000 + b",1\n", "damaged"),
    "a large first line": (b"x" * 300_000 + b"\n1,1\n", "damaged"),
    "a quote that never ends": (b'score,in\n"1,1\n' + b"1,0\n" * 50_000, "damaged"),
    "a label of no world": (b"score,in\n1,maybe\n", "line 2: 'maybe'"),
    "a label of 2": (b"score,in\n1,1\n1,2\n", "line 3: '2'"),
    "no label": (b"score,in\n1\n", "line 2: the row has 1 cell: write 2"),
    "a label NaN": (b"score,in\n1,nan\n", "line 2: 'nan'"),
    "a score of words": (b"score,in\n1,0\nhigh,1\n", "line 3: score 'high'"),
    "comments alone": (b"# score\n" * 200, "score,in"),
    "words below comments": (b"# a\n# b\nscore,in\nhigh,1\n", "line 4: score 'high'"),
    "no score": (b"score,in\n,1\n", "line 2: the score is empty"),
    "commas of thousands": (b"score;in\n1,000,5;1\n", "line 2: score '1,000,5'"),
    "a gap in a column": (b"in,out\n1,2\n,3\n4,5\n", "line 4"),
    "a gap in the other": (b"in,out\n1,\n2,3\n", "line 3"),
    "words in a column": (b"in,out\n1,x\n", "line 2: score 'x'"),
    "both worlds' columns": (b"score,in,out\n1,1,0\n", "columns score,in,out can be read in several ways"),
    "two labels": (b"score,in,presence\n1,1,0\n", "columns score,in,presence can be read in several ways"),
    "a label twice": (b"score,in,in\n1,1,0\n", "columns score,in,in can be read"),
    "scores twice": (b"Score;in;score\n1;1;0\n", "columns score,in,score can be read"),
    "a world twice": (b"in,out,out\n1,1,0\n", "columns in,out,out can be read"),
    "both plural": (b"score,scores,presence\n1,1,0\n", "can be read in several ways: keep score,in"),
    "a long word": (b"score,in\n" + b"z" * 9999 + b",1\n", "..."),
}
BAD_NPZ = {
    "empty": (b"", "damaged"), "text": (b"not a zip", "damaged"), "an npy": (npy(np.arange(9.0)), "damaged"),
    "torn": (archive()[:300], "damaged"), "torn in its directory": (archive()[:-9], "damaged"),
    "damaged inside": (flipped(archive(), 40, 120), "damaged"),
    "encrypted": (patched(archive(), {6: 1}), "encrypted"),
    "an unknown method": (patched(archive(), {8: 77}), "damaged"),
    "bzip2 that is none": (patched(archive(), {8: 12}), "damaged"),
    "lzma that is none": (patched(archive(), {8: 14}), "damaged"),
    "no npy inside": (archive(b"text"), "damaged"), "an empty member": (archive(b""), "damaged"),
    "a header of no dict": (archive(b"\x93NUMPY\x01\x00\x05\x00((((("), "damaged"),
    "a header of code": (archive(claiming((3,), "<f8").replace(b"False", b"f(1) ")), "damaged"),
    "a header of 4 GB": (archive(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 200_000), "damaged"),
    "a version of its own": (archive(claiming((3,)).replace(b"NUMPY\x01", b"NUMPY\x09")), "damaged"),
    "400 GB claimed": (archive(claiming((50_000_000_000,))), "more than 10,000,000"),
    "more claimed than there is": (archive(claiming((3000,))), "damaged"),
    "a small file of many zeros": (archive(claiming((30_000_000,))[:-16] + bytes(1_000_000)),
        "the scores of s.npz are 30,000,000, more than 10,000,000"),
    "a negative size": (archive(claiming((-3,))), "damaged"),
    "nothing times too much": (archive(claiming((0, 10**30))), "damaged"),
    "one array": (npz(**{"in": np.arange(9.0)}), "has arrays in: give score,in"),
    "other arrays": (npz(a=np.arange(9.0)), "has arrays a: give score,in (1 or 0), or in,out"),
    "a member of another folder": (archive(name="../in.npy"), "has arrays ../in, out: give"),
    "structured": (npz(**{"in": np.zeros(9, "f8,i4"), "out": np.arange(9.0)}), "plain numbers"),
    "objects": (npz(**{"in": np.array([1.0, None]), "out": np.arange(9.0)}), "plain numbers"),
    "complex": (npz(**{"in": np.arange(9) * 1j, "out": np.arange(9.0)}), "plain numbers"),
    "dates": (npz(**{"in": np.arange(9).astype("M8[s]"), "out": np.arange(9.0)}), "plain numbers"),
    "durations": (npz(**{"in": np.arange(9.0), "out": np.arange(9).astype("m8[s]")}), "plain numbers"),
    "words": (npz(scores=np.array(["1", "2"]), presence=np.arange(2)), "plain numbers"),
    "raw bytes": (npz(**{"in": np.zeros(9, "V8"), "out": np.arange(9.0)}), "plain numbers"),
    "presence of 2": (npz(scores=np.arange(4.0), presence=np.arange(4)), "presence must be"),
    "presence of NaN": (npz(scores=np.arange(2.0), presence=[1, np.nan]), "presence must be"),
    "presence of another length": (npz(scores=np.arange(4.0), presence=[0, 1]), "must both be (runs,)"),
    "one world": (npz(scores=np.ones((4, 2)), presence=np.ones((4, 2))), "both are needed"),
    "few runs of canaries": (npz(scores=np.eye(4), presence=np.eye(4)), "give at least 8"),
    "a cube": (npz(scores=np.ones((4, 2, 2)), presence=np.ones((4, 2, 2))), "must both be (runs,)"),
    "fewer coins": (npz(scores=BITS, presence=BITS[:5]), "scores (60, 8) and presence (5, 8)"),
    "coins of 2": (npz(scores=BITS, presence=BITS * 2), "presence must be 1 (in) or 0 (out)"),
    "7 runs": (npz(scores=BITS[:7], presence=BITS[:7]), "7 runs of a kind: give at least 8"),
    "7 runs out": (npz(**{"in": BITS, "out": BITS[:7]}), "7 runs of a kind: give at least 8"),
    "rare coins": (npz(scores=BITS, presence=RARE),
        "116 of 480 canaries are in: fair coins would give 240 +- 11; presence has to be drawn by fair"),
    "the coins of one run": (npz(scores=BITS, presence=np.tile(BITS[:1], (60, 1))),
        "60 of 60 runs have the same 8 coins, or their complement; presence has to be"),
    "sorted coins": (npz(scores=BITS, presence=np.arange(480).reshape(60, 8) < 240),
        "has to be drawn by fair"),
    "turns": (npz(scores=BITS, presence=np.arange(480).reshape(60, 8) % 2), "presence has to be drawn"),
    "pasted coins": (npz(scores=BITS, presence=np.repeat(BITS[:10], 6, 0)), "only 9 different rows"),
    "masses": (npz(**{"in": BITS * 1e307, "out": BITS - 1e300}), "divide all by one number"),
    "a cube out": (npz(**{"in": BITS, "out": BITS[None]}), "the scores out have shape (1, 60, 8)"),
}
BAD_PAIRS = {
    "a.npy": "two .npy files", "a.npy,b.npy,c.npy": "two .npy files", "a.npz,b.npz": "two .npy files",
    "missing.npy,out.npy": "missing.npy: No such file", "out.npy,missing.npy": "missing.npy: No such file",
    "text.npy,out.npy": "text.npy: it is damaged", "archive.npy,out.npy": "archive.npy: it is damaged",
    "table.npy,out.npy": "at least 8", "objects.npy,out.npy": "objects.npy: array objects holds no plain",
    "claims.npy,out.npy": "claims.npy: it is damaged", "much.npy,out.npy": "more than 10,000,000",
    "second.npy,out.npy": "second.npy: it is damaged",
}
BAD_PLACES = {
    "": "--scores is missing: name a .npz", ".": "--scores=.: give a .npz", "s": "give a .npz, .csv",
    "s.txt": "give a .npz, .csv", "s.json": "it is no JSON", "s.pt": "give a .npz, .csv",
    "missing.csv": "missing.csv: No such file", "missing.npz": "missing.npz: No such file",
    "folder.npz": "folder.npz: it is no file", "folder.csv": "folder.csv: it is no file",
    "pipe.csv": "pipe.csv: it is no file", "loop.npz": "loop.npz: Too many levels of symbolic links",
    "dangling.csv": "dangling.csv: No such file", "device.csv": "device.csv: it is no file",
    "large.npz": "larger than 1 GiB", "large.csv": "larger than 1 GiB", "file.txt/s.csv": "Not a directory",
    "n" * 300 + ".csv": "File name too long", "\udcff.csv": r"\udcff.csv: No such file",
    "a\nb.csv": "No such file", "\x1b[2J.csv": r"\x1b[2J.csv: No such file",
}
WORTHLESS = {
    "NaN": ([1.0, np.nan], [np.nan, np.nan], "3 of 4 scores are NaN"),
    "all equal": ([1.0, 1.0], [1.0, 1.0], "equal"),
    "none in": ([], [1.0, 2.0], "no in scores"), "none out": ([1.0, 2.0], [], "no out scores"),
    "a table": ([[1.0, 2.0]], [1.0, 2.0], "at least 8"), "a cube in": ([[[1.0]]], [1.0, 2.0], "shape"),
    "no axis": (1.0, [1.0, 2.0], "shape"),
}
SEVERAL = np.random.default_rng(5).normal(size=(20, 5)) / 10
COSINES, COINS = np.linspace(-0.1, 0.2, 50), BITS.ravel()[:50]
BAD_RUNS = {
    "no cosines": ({"a": COSINES}, "it has no array observed: save observed="),
    "a world out": ({"in": COSINES, "out": COSINES}, "drop out, or save scores= and presence="),
    "few": ({"observed": COSINES[:9]}, "there are 9 observed cosines: give at least 10"),
    "none": ({"observed": COSINES[:0]}, "there are 0 observed cosines"),
    "out of a single run": ({"observed": COSINES, "out": COSINES}, "drop out, or save scores="),
    "two names": ({"observed": SEVERAL, "in": SEVERAL}, "drop in, or save scores="),
    "out beside bits": ({"scores": COSINES, "presence": COINS, "out": COSINES}, "drop out, or save"),
    "few unobserved": ({"observed": COSINES, "unobserved": COSINES[:3]}, "there are 3 unobserved cosines"),
    "a cube": ({"observed": COSINES.reshape(5, 5, 2)}, "have shape (5, 5, 2): give (runs,)"),
    "a number": ({"observed": np.float64(0.1)}, "have shape (): give (runs,) or (runs, canaries)"),
    "sorted runs": ({"observed": COSINES.reshape(5, 10)}, "directions look the same in every run"),
    "runs beyond 1": ({"in": 20 * SEVERAL}, "is no cosine: divide by both lengths"),
    "most runs failed": ({"in": np.where(SEVERAL > -0.1, np.nan, SEVERAL)}, "cosines are NaN"),
    "unobserved of runs": ({"observed": SEVERAL, "unobserved": COSINES}, "drop unobserved, or save scores="),
    "few trained in runs": ({"observed": 3 * SEVERAL}, "--dimension=100: cosines spread by 2."),
    "runs of no bits": ({"scores": SEVERAL, "presence": SEVERAL}, "presence must be 1 (in) or 0 (out)"),
    "fewer bits": ({"scores": SEVERAL, "presence": np.ones((20, 3))}, "one bit each"),
    "all out": ({"scores": SEVERAL, "presence": 0 * SEVERAL}, "presence puts all canaries out"),
    "beyond 1": ({"observed": COSINES + 1}, "is no cosine: divide by both lengths"),
    "unobserved beyond 1": ({"observed": COSINES, "unobserved": 9 * COSINES}, "unobserved: 1.8 is no cosine"),
    "NaN": ({"observed": np.where(COSINES > 0, np.nan, COSINES)}, "observed cosines are not finite"),
    "infinite": ({"observed": np.where(COSINES > 0, np.inf, COSINES)}, "observed cosines are not finite"),
    "equal": ({"observed": np.zeros(50)}, "all 50 observed cosines equal 0"),
    "words": ({"observed": np.array(["a"] * 50)}, "plain numbers"),
    "other shapes": ({"scores": COSINES, "presence": COINS[:9]}, "presence has shape (1, 9)"),
    "no bits": ({"scores": COSINES, "presence": COINS * 2}, "presence must be 1 (in) or 0 (out)"),
    "one world": ({"scores": COSINES, "presence": np.ones(50)}, "50 of 50 canaries are in: fair coins"),
    "few coins": ({"scores": COSINES[:39], "presence": COINS[:39]}, "there are 39 canaries with coins"),
    "sorted coins": ({"scores": COSINES, "presence": np.arange(50) < 25}, "1 canary apart differ 1 times"),
    "turns": ({"scores": COSINES, "presence": np.arange(50) % 2}, "1 canary apart differ 49 times of 49"),
    "coins in fours": ({"scores": COSINES, "presence": np.arange(50) // 2 % 2}, "2 canaries apart differ"),
    "few trained": ({"observed": COSINES * 4}, "--dimension=100: cosines spread by 3.5"),
    "coins beyond 1": ({"scores": 9 * COSINES, "presence": COINS}, "is no cosine"),
    "coins of NaN": ({"scores": np.nan * COSINES, "presence": COINS}, "not finite"),
}
# fmt: on


BAD_JSON = {
    "empty": (b"", "it is no JSON; give {"),
    "cut": (b'{"in": [1', "it is no JSON; give {"),
    "deep": (b"[" * 100_000, "it is no JSON; give {"),
    "list": (b"[1, 2]", "is no JSON object of lists, and no list of records: give {"),
    "no UTF-8": (b'{"in": "\xff"}', "it is not text in UTF-8"),
    "other names": (b'{"a": [1], "b": [2]}', "s.json has columns a, b: give score,in"),
    "twice": (
        b'{"in": [1], "in": [2], "out": [3]}',
        "has the name 'in' twice: keep one of the two",
    ),
    "two readings": (
        b'{"scores": [1, 2], "presence": [1, 0], "in": [1]}',
        "its columns scores,presence,in can be read in several ways",
    ),
    "label": (
        b'{"score": [1, 2], "in": ["in", "maybe"]}',
        "s.json row 2: 'maybe' says neither in nor out: give 1 or 0, yes or no, true or false, in or out",
    ),
    "number for a label": (
        b'{"score": [1, 2], "in": [1, 2]}',
        "s.json row 2: '2' says neither in nor out",
    ),
    "words": (b'{"in": [1, "x"], "out": [0]}', "s.json row 2: score 'x' is not a number"),
    "null": (b'{"in": [null, 1], "out": [0]}', "s.json row 2: a score below an empty cell of in"),
    "objects": (b'{"in": {"a": {"b": 1}}, "out": [1]}', "s.json row 1: score"),
    "ragged": (
        b'{"in": [[1, 2], [1]], "out": [1]}',
        "s.json: in are no numbers in rows of one length",
    ),
    "infinite": (b'{"in": [NaN, NaN], "out": [NaN, 2]}', "3 of 4 scores are NaN"),
    "huge": (b'{"in": [%s, 2], "out": [1, 2]}' % (b"9" * 400), "s.json row 1: score '999"),
    "shapes": (
        b'{"scores": [[1, 2]], "presence": [1, 0]}',
        "must both be (runs,) or (runs, canaries)",
    ),
}


RANKED = np.random.default_rng(2)
HIGH, FRESH = RANKED.normal(2, 1, (6, 4)), RANKED.normal(0, 1, (6, 50))
PLACES = RANKED.integers(1, 20, (6, 4))
SHAPES = "give (runs, canaries) and (runs, fresh draws)"
NO_RANKS = "values are no ranks: give whole numbers from 1, the highest score, to 51"
NO_DRAWS = "save one whole number, 1 to 1,000,000,000"
NO_SEED = "save one whole number, 0 to 4,294,967,295"


def ranked(says, **changes):
    """A file of scores and fresh ones with changes, of which None leaves an array out; and what is said."""
    return {"scores": HIGH, "fresh": FRESH, **changes}, says


def placed(says, **changes):
    """A file of ranks and how many draws there were, likewise."""
    return {"ranks": PLACES, "fresh_draws": 50, **changes}, says


BAD_RANKS = {
    "one run flat": ranked(SHAPES, scores=HIGH[0], fresh=FRESH[0]),
    "three axes": ranked(SHAPES, scores=HIGH[None]),
    "other runs": ranked(SHAPES, fresh=FRESH[:5]),
    "no draws": ranked("give at least one of each", fresh=FRESH[:, :0]),
    "no canaries": ranked("give at least one of each", scores=HIGH[:, :0]),
    "too many draws": ranked("more than 10,000,000", fresh=np.zeros((6, 2 * 10**6), np.int8)),
    "NaN here and there": ranked(
        "are NaN: score canaries", scores=np.where(HIGH > 2, np.nan, HIGH)
    ),
    "NaN of fresh draws": ranked(
        "are NaN: score canaries", fresh=np.where(FRESH > 2, np.nan, FRESH)
    ),
    "all runs failed": ranked("24 of 24 ranks are NaN", scores=np.nan * HIGH, fresh=np.nan * FRESH),
    "words": ranked("array fresh holds no plain numbers", fresh=np.array([["a"] * 9] * 6)),
    "fresh alone": ranked("has no array scores: save it beside fresh", scores=None),
    "scores and ranks": ranked("has scores and ranks: save one of them", ranks=PLACES),
    "fresh counted too": ranked("save the former alone", fresh_draws=7),
    "bits of one run": ranked("presence has shape", presence=np.ones(4)),
    "bits of 2": ranked("presence must be 1 (in) or 0 (out)", presence=2 * np.ones((6, 4))),
    "bits NaN": ranked("presence must be 1 (in) or 0 (out)", presence=np.nan * HIGH),
    "all out": ranked("presence puts all canaries out", presence=np.zeros((6, 4))),
    "a seed below 0": ranked(f"seed is -1: {NO_SEED}", seed=-1),
    "half a seed": ranked(f"seed is 0.5: {NO_SEED}", seed=0.5),
    "a large seed": ranked(f"seed is 1e+30: {NO_SEED}", seed=1e30),
    "a seed NaN": ranked(f"seed is nan: {NO_SEED}", seed=np.nan),
    "two seeds": ranked(f"seed holds 2 numbers: {NO_SEED}", seed=[1, 2]),
    "no seed in it": ranked(f"seed holds 0 numbers: {NO_SEED}", seed=[]),
    "ranks alone": placed("has no array fresh_draws: save ranks=", fresh_draws=None),
    "draws alone": placed("has no array ranks: save ranks=", ranks=None),
    "rank 0": placed(NO_RANKS, ranks=PLACES - PLACES.min()),
    "ranks below 0": placed(NO_RANKS, ranks=-PLACES),
    "half ranks": placed(NO_RANKS, ranks=PLACES + 0.5),
    "ranks above M + 1": placed(NO_RANKS, ranks=PLACES + 51),
    "infinite ranks": placed(NO_RANKS, ranks=np.where(PLACES > 9, np.inf, PLACES)),
    "ranks NaN": placed("24 of 24 ranks are NaN", ranks=np.nan * PLACES),
    "flat ranks": placed("the ranks have shape (4,): give (runs, canaries)", ranks=PLACES[0]),
    "0 draws": placed(f"fresh_draws is 0: {NO_DRAWS}", fresh_draws=0),
    "-1 draws": placed(f"fresh_draws is -1: {NO_DRAWS}", fresh_draws=-1),
    "half a draw": placed(f"fresh_draws is 0.5: {NO_DRAWS}", fresh_draws=0.5),
    "NaN draws": placed(f"fresh_draws is nan: {NO_DRAWS}", fresh_draws=np.nan),
    "infinitely many draws": placed(f"fresh_draws is inf: {NO_DRAWS}", fresh_draws=np.inf),
    "two counts of draws": placed(f"fresh_draws holds 2 numbers: {NO_DRAWS}", fresh_draws=[50, 50]),
}


def archive_of(arrays):
    """Returns the bytes of a .npz of those arrays that are not None."""
    return npz(**{name: values for name, values in arrays.items() if values is not None})


def pairs(folder):
    contents = {
        "out": npy(FORTY),
        "text": b"1 2 3",
        "archive": archive(),
        "table": npy(np.ones((4, 2))),
    }
    contents |= {"objects": npy(np.array([1, None])), "claims": claiming((3000,))}
    contents |= {"much": claiming((10**12,)), "second": claiming((3000,), version=2)}
    for name, content in contents.items():
        (folder / f"{name}.npy").write_bytes(content)


def cosines(folder):
    np.savez(folder / "scores.npz", observed=COSINES)


def several(folder):
    np.savez(folder / "scores.npz", observed=SEVERAL)


def one(says, *argv, note="", lay=two_worlds):
    return named(Bad(("bound", *argv), says, lay), note)


def files(kind, contents):
    for note, (content, says) in contents.items():
        yield one(says, f"--scores=s.{kind}", lay=holding(content, f"s.{kind}"), note=f": {note}")


FILES = [
    *files("csv", BAD_CSV),
    *files("npz", BAD_NPZ),
    *files("json", BAD_JSON),
    one("standard input is empty: give score,in lines, or JSON", "--scores=-"),
    *files("npz", {n: (npz(**{"in": x, "out": y}), says) for n, (x, y, says) in WORTHLESS.items()}),
    *files("npz", {n: (archive_of(arrays), says) for n, (arrays, says) in BAD_RANKS.items()}),
    *(one(says, f"--scores={names}", lay=pairs) for names, says in BAD_PAIRS.items()),
    *(one(says, f"--scores={place}", lay=odd_places) for place, says in BAD_PLACES.items()),
    one("--scores is missing"),
]


def bound(more, flag, says, *values):
    return rows((*BOUND, *more), flag, says, *values, lay=two_worlds)


NOISE = "--noise_multiplier={}: give 0, or 1e-6 to 1e9"
FLAGS = [
    *bound(
        STEPS[1:], "noise_multiplier", NOISE, "nan", "inf", "-1.0", "1e-300", "5e-324", "1e+300"
    ),
    *bound(STEPS[1:], "noise_multiplier", "give 0, or 1e-6 to 1e9", "1e12"),
    *bound(STEPS[1:], "noise_multiplier", "--noise_multiplier={}: give a number", "many", ""),
    *bound(STEPS[:1], "insertions", "--insertions={}: give", -1, 10**13, 2**70, HUGE),
    *bound(STEPS[:1], "insertions", "--insertions", "9" * 5000),
    *bound(STEPS, "sampling_rate", "--sampling_rate={}: give", "nan", "inf", "0.0", "1.5", "-1.0"),
    *bound((*STEPS, "--delta=1e-100"), "sampling_rate", "--delta=1e-100: with", "0.5"),
    *bound((*STEPS, "--noise_multiplier=20000"), "sampling_rate", "at most 10,000", "0.5"),
    *bound((*STEPS, "--insertions=1000001"), "sampling_rate", "at most 1,000,000", "0.5"),
    *bound((), "claim", "--claim={}: give", "nan", "-1.0"),
    *bound((), "claim", "--claim={}: give a number", "many", ""),
    *bound(
        (),
        "figure",
        "--figure={}: end it in .png, .pdf, .svg",
        "",
        "f",
        "f.jpg",
        ".png",
        "/dev/null",
    ),
    *bound((), "figure", "name another file with --figure", "scores.npz/f.png"),
    *bound((), "report", "--report={}: name an HTML file", "", "-"),
    *bound((), "figure", "--figure={}: name a .png", "-"),
    *bound((), "columns", "only scores can be negated", "score:a,in:-b"),
    one("--one_run does not go with --dimension", *BOUND[1:], "--one_run", "--dimension=9"),
    one("--one_run goes with flat scores", *BOUND[1:], "--one_run"),
    *bound((), "report", "name another file with --report", "/", "scores.npz/p.html"),
    *bound((), "report", "No space left on device): name another file with --report", "/dev/full"),
    *bound((), "report", "File name too long): name another file with --report", "n" * 300),
    *(
        one("go together: give both or none", *BOUND[1:], flag)
        for flag in ("--noise_multiplier=1", STEPS[1])
    ),
    one("--sampling_rate goes with", *BOUND[1:], "--sampling_rate=0.1"),
    one("goes with none of", *BOUND[1:], "--sampling_rate=0.1", "--claim=3"),
    one("goes with none of", *BOUND[1:], *STEPS, "--claim=3"),
    one("go together", *BOUND[1:], "--insertions=1", "--claim=3"),
]
DIMENSION = "--dimension=100"
ONE_RUN, UNOBSERVED = ("--scores=scores.npz", DIMENSION), npz(observed=COSINES, unobserved=COSINES)
RUNS = [
    *(
        one(says, *ONE_RUN, lay=holding(npz(**x), "scores.npz"), note=n)
        for n, (x, says) in BAD_RUNS.items()
    ),
    *rows(
        BOUND,
        "dimension",
        "--dimension={}: give 2 to 10,000,000,000,000",
        1,
        0,
        -5,
        HUGE,
        lay=cosines,
    ),
    one("--looks does not go with --dimension", *ONE_RUN, "--looks=10", lay=cosines),
    one("name another file with --report", *ONE_RUN, "--report=scores.npz/p.html", lay=cosines),
    *rows(
        ("bound", *ONE_RUN),
        "upper_bound",
        "{}: give epsilon, at least 0",
        "nan",
        "-1.0",
        lay=cosines,
    ),
    one("delta is 0", *ONE_RUN, "--delta=0", lay=cosines),
    one("confidence is 1", *ONE_RUN, "--confidence=1", lay=cosines),
    one("missing.npz: No such file", "--scores=missing.npz", "--dimension=9"),
    one("give a .npz, .npy or .json file of cosines", "--scores=s.csv", "--dimension=9"),
    one("with --dimension give one file", "--scores=a.npy,b.npy", "--dimension=9"),
    one(
        "save (runs, canaries), or a .npz",
        "--scores=c.npy",
        DIMENSION,
        lay=holding(npy(COSINES), "c.npy"),
    ),
    one("is no JSON", "--scores=c.json", DIMENSION, lay=holding(b"[[0.1]]", "c.json")),
    one(
        "c.json: it has no array",
        "--scores=c.json",
        DIMENSION,
        lay=holding(b'{"a": [[1]]}', "c.json"),
    ),
    one(
        "rows of one length",
        "--scores=c.json",
        DIMENSION,
        lay=holding(b'{"in": [[1], [0, 1]]}', "c.json"),
    ),
    one("--leave_one_out goes with --dimension", *BOUND[1:], "--leave_one_out"),
    one("drop unobserved", *ONE_RUN, "--leave_one_out", lay=holding(UNOBSERVED, "scores.npz")),
    one("--figure=f.jpg: end it in", *ONE_RUN, "--figure=f.jpg", lay=several),
    one("go together", *ONE_RUN, "--insertions=3", lay=several),
    one("goes with none of", *ONE_RUN, *STEPS, "--claim=3", lay=several),
    one("damaged", "--scores=scores.npz", "--dimension=9", lay=holding(b"no", "scores.npz")),
    one("has arrays observed: give score,in", "--scores=scores.npz", lay=cosines),
]


@pytest.mark.parametrize("case", firsts_of_a_kind([*FILES, *FLAGS, *RUNS]))
def test_bad_scores_are_one_line_and_nothing_else_happens(forked, homes, tmp_path, case):
    assert_refused(case, forked, homes, tmp_path)
