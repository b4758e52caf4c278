"""One corpus of scores, every door, one answer: Python and `bound` print the same table, byte for byte."""

import json

import numpy as np
import pytest

import audit
from audit.errors import InputError

RNG = np.random.default_rng(51)
DIMENSION = 10_000
BITS = RNG.random((40, 8)) < 0.5
ONE_RUN_BITS = RNG.random((1, 300)) < 0.5
SCORES_IN, SCORES_OUT = RNG.normal(2, 1, 300), RNG.normal(0, 1, 250)
COINS = RNG.normal(2.0 * BITS, 1.0)
LOSSES = -RNG.exponential(
    np.where(ONE_RUN_BITS, 0.05, 1.0)
)  # of one run: a membership attack by the loss
COSINES = RNG.normal(3, 1, (12, 60)) / DIMENSION**0.5
ONE_RUN = RNG.normal(3, 1, (1, 300)) / DIMENSION**0.5
ONE_RUN_COINS = RNG.normal(3.0 * ONE_RUN_BITS, 1.0) / DIMENSION**0.5


def cosines(values, **more):
    return audit.cosines(values, DIMENSION, **more)


# name -> (arrays of a file, flags beside --scores, what Python calls)
FORMS = {
    "two worlds": (
        {"in": SCORES_IN, "out": SCORES_OUT},
        [],
        lambda: audit.bounds(SCORES_IN, SCORES_OUT),
    ),
    "two worlds of several canaries": (
        {"in": COINS[:20], "out": COINS[20:]},
        [],
        lambda: audit.bounds(COINS[:20], COINS[20:]),
    ),
    "coins of several runs": (
        {"scores": COINS, "presence": BITS.astype(int)},
        [],
        lambda: audit.bounds(audit.coins(COINS, BITS)),
    ),
    "coins of one run, any scores": (
        {"scores": LOSSES, "presence": ONE_RUN_BITS.astype(int)},
        [],
        lambda: audit.bounds(audit.coins(LOSSES, ONE_RUN_BITS)),
    ),
    "cosines": (
        {"in": COSINES},
        [f"--dimension={DIMENSION}"],
        lambda: audit.bounds(cosines(COSINES)),
    ),
    "cosines in the order of runs": (
        {"in": COSINES},
        [f"--dimension={DIMENSION}", "--in_order"],
        lambda: audit.bounds(cosines(COSINES, in_order=True)),
    ),
    "cosines of one run": (
        {"observed": ONE_RUN[0]},
        [f"--dimension={DIMENSION}"],
        lambda: audit.bounds(cosines(ONE_RUN)),
    ),
    "cosines of one run by coins": (
        {"scores": ONE_RUN_COINS[0], "presence": ONE_RUN_BITS[0].astype(int)},
        [f"--dimension={DIMENSION}"],
        lambda: audit.bounds(cosines(ONE_RUN_COINS, presence=ONE_RUN_BITS)),
    ),
}


@pytest.mark.parametrize("kind", ["npz", "json"])
@pytest.mark.parametrize("form", FORMS)
def test_a_file_and_arrays_give_the_same_table(form, kind, tmp_path, run_command):
    arrays, flags, call = FORMS[form]
    if kind == "npz":
        np.savez(tmp_path / "scores.npz", **arrays)
    else:
        lists = {name: values.tolist() for name, values in arrays.items()}
        (tmp_path / "scores.json").write_text(json.dumps(lists))
    ended = run_command("bound", f"--scores=scores.{kind}", *flags, folder=tmp_path)
    assert (ended.status, ended.stderr) == (0, "")
    assert ended.stdout == f"{call()}\n"


@pytest.mark.parametrize("form", FORMS)
def test_a_result_says_the_same_in_every_way(form):
    result = FORMS[form][2]()
    values = result.to_dict()
    rows = {row["method"]: row["epsilon"] for row in values["bounds"]}
    assert rows and all(rows[bound.method] == bound.epsilon for bound in result.bounds.values())
    assert repr(result) == str(result)
    assert result.verdict in ("leaks", "leaks, if Gaussian", "nothing proven")
    assert result.epsilon in {
        bound.epsilon for bound in result.bounds.values() if not bound.assumes.gaussian
    }


def test_a_claim_is_the_same_through_both_doors(tmp_path, run_command):
    np.savez(tmp_path / "scores.npz", **{"in": SCORES_IN, "out": SCORES_OUT})
    flags = ["--noise_multiplier=4", "--insertions=250", "--k=5", "--lipschitz=1"]
    claims = {
        tuple(flags[:2]): audit.DpSgd(4, 250),
        tuple(flags): audit.DpSgd(4, 250, k=5, lipschitz=1.0),
        ("--upper_bound=3",): audit.EpsilonDelta(3, 1e-5),
    }
    for given, claim in claims.items():
        ended = run_command("bound", "--scores=scores.npz", *given, folder=tmp_path)
        assert ended.stdout == f"{audit.bounds(SCORES_IN, SCORES_OUT, claim)}\n"


def test_what_no_door_takes_is_one_line():
    with pytest.raises(InputError, match=r"give \(runs, canaries\), or \(1, canaries\) of one run"):
        audit.coins(LOSSES[0], ONE_RUN_BITS[0])
    with pytest.raises(
        InputError, match="`scores_out` goes with scores of runs with the canary: drop it"
    ):
        audit.bounds(audit.coins(COINS, BITS), SCORES_OUT)
