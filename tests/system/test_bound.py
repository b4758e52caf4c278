"""Tests the files that ./run.sh bound writes, and its messages about them."""

import html
import json
import re
import shlex

import numpy as np
import pytest

from tests.cases import mostly_slow

IN, OUT = np.random.default_rng(0).normal(1, 1, 60), np.random.default_rng(1).normal(0, 1, 70)
MATRIX = np.random.default_rng(3).normal(size=(60, 8)) + 2


@pytest.fixture
def bound(forked, tmp_path):
    """bound(*flags) -> Ended, in tmp_path, which holds scores.npz."""
    np.savez(tmp_path / "scores.npz", **{"in": IN, "out": OUT})
    return lambda *argv: forked("bound", "--scores=scores.npz", *argv, folder=tmp_path)


@pytest.mark.parametrize(
    ("scores", "flags"),
    mostly_slow(
        [
            ("cosines.npy", ("--dimension=500", "--leave_one_out", "--in_order")),
            ("a b.csv", ("--columns=score:loss drop,presence:member", "--claim=3")),
        ]
    ),
)
def test_the_command_on_the_page_draws_the_same_conclusion(forked, tmp_path, scores, flags):
    rows = [f"{i},{score:.6f},{i % 2}" for i, score in enumerate(np.ravel(MATRIX))]
    (tmp_path / "a b.csv").write_text("\n".join(["id,loss drop,member", *rows]) + "\n")
    np.save(tmp_path / "cosines.npy", np.random.default_rng(4).normal(0, 500**-0.5, (20, 4)))
    ended = forked("bound", f"--scores={scores}", *flags, "--report=page.html", folder=tmp_path)
    assert ended.status == 0, ended.stderr
    page = (tmp_path / "page.html").read_text()
    (shown,) = re.findall("<dt>Command</dt><dd>(.*?)</dd>", page)
    program, *argv = shlex.split(html.unescape(shown))
    assert program == "./run.sh" and set(flags) < set(argv)
    argv.remove("--report=page.html")
    assert forked(*argv, folder=tmp_path).stdout == ended.stdout


def test_methods_that_need_more_canaries_are_left_out(bound, tmp_path):
    np.savez(tmp_path / "scores.npz", **{"in": MATRIX, "out": OUT})
    ended = bound("--json")
    assert "lidp_wilson_2" not in ended.stdout and "lidp_wilson_1" in ended.stdout
    assert max(map(len, bound().stdout.splitlines())) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize(("upper", "status"), [("0.1", 3), ("9", 0), ("inf", None)])
def test_a_violation_is_a_status_where_that_is_asked_for(bound, form, upper, status):
    """What is proven at n = 60, 70 and mu = 1 lies above 0.1; the same is printed whatever the status."""
    if status is None:
        flags, status = ("--noise_multiplier=0", "--insertions=3"), 0  # an infinite upper bound
    else:
        flags = (f"--claim={upper}",)
    usual, asked = bound(*flags, *form), bound(*flags, *form, "--fail_if_violated")
    assert (usual.status, asked.status) == (0, status), asked.stderr
    assert asked.stdout == usual.stdout != "" and asked.stderr == usual.stderr


def test_scores_with_the_wrong_sign_are_no_answer_to_whether_a_claim_is_violated(bound, tmp_path):
    np.savez(tmp_path / "scores.npz", **{"in": MATRIX - 2, "out": MATRIX[:, ::-1] + 2})
    for flags in ((), ("--claim=9",), ("--claim=9", "--fail_if_violated")):
        ended = bound(*flags)
        assert ended.status == 2 and "rejected" not in ended.stdout
        assert ended.stderr.endswith(
            "error: scores are lower with the canary: if lower means in, negate the score, as "
            "--columns=score:-loss does\n"
        )
    assert "claim:      not tested: scores are reversed" in ended.stdout
    found = json.loads(bound("--claim=9", "--json").stdout)
    assert found["verdict"] == "reversed scores" and "claim_test" not in found
    assert bound("--claim=9", "--columns=in:-in,out:-out").status == 0


def test_a_single_run_with_the_wrong_sign_is_no_answer_either(bound, tmp_path):
    """All canaries are in, and their cosines are held against the law of a cosine."""
    rng = np.random.default_rng(0)
    for mean, status in ((-0.003, 2), (0, 0)):
        np.savez(tmp_path / "scores.npz", observed=mean + rng.normal(size=(1, 400)) / 100)
        ended = bound("--claim=9", "--fail_if_violated", "--dimension=10000")
        assert ended.status == status


@pytest.mark.slow
def test_the_hidden_state_bound_is_the_one_that_is_held_against(bound, tmp_path):
    flags = ("--noise_multiplier=4", "--insertions=250", "--k=5", "--lipschitz=0.99")
    scores = [
        np.random.default_rng(seed).normal(shift, 1, 2000) for seed, shift in ((0, 4.0), (1, 0.0))
    ]
    np.savez(tmp_path / "scores.npz", **dict(zip(("in", "out"), scores, strict=True)))
    ended, found = bound(*flags, "--fail_if_violated"), json.loads(bound(*flags, "--json").stdout)
    assert (
        found["last_model"]["epsilon"] == pytest.approx(3.0756, abs=1e-4)
        and found["verdict"] == "violated"
    )
    assert 3.1 < found["epsilon"] < found["upper_bound"] == pytest.approx(23.9954, abs=1e-4)
    assert ended.status == 3 and "state bound allows 3.076." in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 80
