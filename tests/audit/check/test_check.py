"""Tests that `check` names bugs in steps, batches and accounting, and accepts correct code."""

import collections
import functools
import hashlib
import json
import re
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

import audit
from audit.check import trees
from audit.check.report import (
    CheckOutcome,
    FindingsError,
    find_rejected_tests,
    make_report,
)
from tests.audit.check.bugs import BUGS, EXAMPLES, plant_bug
from tests.audit.check.correct import ENGINES, draw_step
from tests.audit.check.named_bugs import NAMED_BUGS
from tests.cases import firsts_of_each_kind, flatten, mostly_slow

NEEDS = {
    **dict.fromkeys(("torch", "torch_func"), "torch"),
    **dict.fromkeys(("opacus", "lora", "train"), "opacus"),
    "jax_privacy": "jax_privacy",
}
SLOW = ("opacus", "lora", "train", "jax_privacy", "torch", "torch_func", "jax", "dpsgd", "fedavg")
NAMES = sorted(path.stem.removeprefix("check_") for path in EXAMPLES.glob("check_*.py"))


def marked(engine, *values, id):
    return pytest.param(engine, *values, id=id, marks=[pytest.mark.slow] * (engine in SLOW))


def first_of_each(bugs):
    """Marks slow all bugs (engine, name, old, new, what finds it) but the first that each is found by."""
    cases = []
    for engine, name, *values in bugs:
        cases.append(marked(engine, *values, id=f"{engine} {name}"))
    return firsts_of_each_kind(cases, lambda *values: {values[-1]})


def _check_broken(take_step, noise_multiplier):
    """Checks a step (params, sum of rows, calls so far) -> params on a batch of 8 rows of 4 numbers."""
    calls = []

    def step(params, batch, seed):
        calls.append(seed)
        return take_step(params, np.clip(batch, -0.25, 0.25).sum(axis=0), len(calls))

    batch = np.random.default_rng(0).normal(size=(8, 4))
    stated = STATED | {"learning_rate": 0.1, "batch_size": 8, "noise_multiplier": noise_multiplier}
    return audit.check_step(step, np.zeros(4), batch, **stated)


def test_a_step_that_gives_nan_on_the_batch_itself_is_reported():
    report = _check_broken(lambda params, total, calls: params * np.nan, 1.0)
    assert not report.passed and "NaN or infinity" in flatten(report)
    assert {check.result for check in report.checks[1:]} == {"could not be tried"}


@pytest.mark.parametrize("drift", [0.3, 1e150])
def test_a_step_that_keeps_state_without_noise_is_reported(drift):
    """However far two calls are apart: the squares of large distances overflow."""

    def take_step(params, total, calls):
        return params - 0.1 / 8 * (total + drift * calls)

    report = _check_broken(take_step, 0.0)
    assert not report.passed and "a step that keeps state between calls" in flatten(report)


@pytest.mark.parametrize("example", [marked(name, id=name) for name in NAMES])
def test_an_example_passes(example):
    pytest.importorskip(NEEDS.get(example, "numpy"))
    report = audit.check_step(**plant_bug(example))
    assert report.passed, report
    assert {check.result for check in report.checks[:-1]} == {"passed"}


PLANTED = [(*bug, f"\n{check}: ") for *bug, check in BUGS]  # a finding begins with its check
PLANTED += [(engine, *bug) for engine, bugs in NAMED_BUGS.items() for bug in bugs]


SUBTLE = (
    "cut at three deviations",
    "4% too small",
    "clipped to 1.55",
    "in float16",
)  # need many seeds


@pytest.mark.parametrize(("engine", "old", "new", "says"), first_of_each(PLANTED))
def test_a_planted_bug_is_named(engine, old, new, says, request):
    pytest.importorskip(NEEDS.get(engine, "numpy"))
    is_subtle = any(name in request.node.name for name in SUBTLE)
    # A busy machine would lessen the power of NumPy's by default.
    options = {"seeds": 2000 if is_subtle else 200} if engine == "numpy" else {}
    report = audit.check_step(**plant_bug(engine, old, new), **options)
    assert not report.passed and says in f"{report} {flatten(report)}", report
    assert max(map(len, str(report).splitlines())) <= 80


MEAN_OVER_ALL = (
    "np.maximum(is_counted.sum(axis=1), 1)",
    "np.full(len(tokens), max(is_counted.sum(), 1) / max(len(tokens), 1))",
)


def test_a_mean_over_all_tokens_of_a_batch_is_found():
    assert audit.check_step(**plant_bug("tokens"), seeds=64).passed
    report = audit.check_step(**plant_bug("tokens", *MEAN_OVER_ALL), seeds=64)
    assert "examples change each other's gradients" in report.verdict, report


@pytest.mark.parametrize("engine", [marked(name, id=name) for name in ENGINES])
def test_correct_steps_have_no_finding(engine):
    pytest.importorskip(NEEDS.get(engine, "numpy"))
    for seed in range(10_000, 10_003):
        report = audit.check_step(**draw_step(seed, engine), seeds=400)
        assert not report.findings, (seed, report)


@pytest.mark.parametrize(("seed", "seeds"), [(24, 64), (82, 48)])
def test_hard_steps_have_no_finding(seed, seeds):
    """Step 24 takes 12 rows only; step 82 is in bfloat16, which has few values."""
    report = audit.check_step(**draw_step(seed, "numpy"), seeds=seeds)
    assert not report.findings, report


def test_momentum_in_a_closure_is_state_that_is_named():
    given = plant_bug("numpy")
    plain = given["step"]
    memory = []

    def step(params, batch, seed):
        memory.append(seed)
        after = plain(params, batch, seed)
        return {name: value + 0.3 * (len(memory) > 1) for name, value in after.items()}

    finding = audit.check_step(**given | {"step": step}, seeds=64).findings[0]
    assert finding.check == "replay" and "keeps state" in finding.name


NO_CLIPPING = " / np.maximum(1, np.linalg.norm(gradients, axis=1, keepdims=True) / 1.5)", ""


def of_32(params, batch, seed, step):
    assert len(batch[0]) == 32, "compiled for 32"
    return step(params, batch, seed)


def of_the_first(params, batch, seed, step):
    return step(params, tuple(part[:32] for part in batch), seed)


@pytest.mark.parametrize("only", [of_32, of_the_first])
def test_a_step_that_takes_no_example_more_is_tried_with_others_in_place_of_the_first(only):
    for bug, passes in ((("", ""), True), (NO_CLIPPING, False)):
        given = plant_bug("numpy", *bug)
        step = functools.partial(only, step=given["step"])
        report = audit.check_step(**given | {"step": step}, seeds=64)
        found = {finding.check for finding in report.findings}
        assert ("sensitivity" not in found) == passes, report
        assert "rows were replaced" in flatten(report)


def test_a_row_of_an_embedding_without_noise_and_a_statistic_without_clipping_are_found():
    given = plant_bug("numpy")
    plain = given["step"]
    start = given["params"] | {"mean": np.zeros(8)}

    def keeps_a_mean(params, batch, seed):
        return plain(params, batch, seed) | {"mean": params["mean"] + batch[0].sum(axis=0)}

    report = audit.check_step(**given | {"step": keeps_a_mean, "params": start}, seeds=64)
    assert {finding.name for finding in report.findings} >= {
        "mean left out of the clipping norm, or of clipping",
        "no noise in mean",
    }
    assert re.search(r"by layer: w 1, b [\d.]+, mean 9.54e\+04", flatten(report)), report
    results = {check.name: check.result for check in report.checks}
    assert results["noise and data"] == "passed"

    def silent(params, batch, seed):  # or frozen: both look alike from outside
        after = plain(params, batch, seed)
        return after | {"w": np.where(np.arange(8) == 3, params["w"], after["w"])}

    report = audit.check_step(**given | {"step": silent}, seeds=64)
    assert report.verdict.startswith("INCOMPLETE") and "a part of w never moves" in report.verdict


def test_a_step_that_reads_at_most_40_rows_has_no_finding():
    given = plant_bug("numpy", "x, y = batch\n", "x, y = batch[0][:40], batch[1][:40]\n")
    assert not audit.check_step(**given, seeds=64).findings


@pytest.mark.slow
@pytest.mark.parametrize("own", [64, 1])
def test_what_a_small_layer_shares_is_seen_beside_a_large_one(own):
    given = plant_bug("numpy")
    plain = given["step"]
    deviation = given["learning_rate"] * given["noise_multiplier"]
    deviation *= given["clipping_norm"] / given["batch_size"]

    def step(params, batch, seed):
        rng = np.random.default_rng([seed, 1])
        noise = {"large": rng.normal(size=30_000), "small": np.resize(rng.normal(size=own), 64)}
        more = {name: params[name] + deviation * value for name, value in noise.items()}
        return plain(params, batch, seed) | more

    start = given["params"] | {"large": np.zeros(30_000), "small": np.zeros(64)}
    report = audit.check_step(**given | {"step": step, "params": start})
    expected = ["independence"] if own == 1 else []
    assert [finding.check for finding in report.findings] == expected, report


@pytest.mark.parametrize("has_noise", [True, False])
def test_a_layer_whose_noise_lies_below_its_rounding_is_not_passed_with_the_others(has_noise):
    """The layer `o` is 3,000 in float32: gradients move it, and noise of sigma 0.01 does not."""
    rng = np.random.default_rng(3)
    batch = rng.normal(size=(32, 12)), rng.integers(0, 2, 32)

    def step(params, batch, seed):
        x, y = batch
        w = np.concatenate([params["w"], params["o"].astype(float) - 3000])
        gradients = (1 / (1 + np.exp(-np.clip(x @ w, -50, 50))) - y)[:, None] * x
        clipped = gradients / np.maximum(1, np.linalg.norm(gradients, axis=1, keepdims=True))
        noise = 0.01 * np.random.default_rng(seed).normal(size=12)
        if not has_noise:
            noise[8:] = 0
        update = -0.5 * (clipped.sum(axis=0) + noise) / 32
        return {"w": params["w"] + update[:8], "o": params["o"] + update[8:].astype(np.float32)}

    start = {"w": np.zeros(8), "o": np.full(4, 3000, np.float32)}
    report = audit.check_step(step, start, batch, **STATED | {"noise_multiplier": 0.01}, seeds=64)
    results = {check.name: check.result for check in report.checks}
    assert results["noise"] == "could not be tried" and not report.findings, report
    assert "the noise is below the rounding of o: use float64" in flatten(report)


STATED = {
    "clipping_norm": 1.0,
    "noise_multiplier": 1.0,
    "learning_rate": 0.5,
    "batch_size": 32,
}


def make_logistic_step(squash=lambda x: x, cast=lambda noise: noise, bound=1.0):
    """Returns a step of logistic regression, and its batch, with these functions of features and noise."""
    rng = np.random.default_rng(3)

    def step(w, batch, seed):
        x, y = batch
        gradients = (1 / (1 + np.exp(-x @ w)) - y)[:, None] * squash(x)
        clipped = gradients / np.maximum(
            1, np.linalg.norm(gradients, axis=1, keepdims=True) / bound
        )
        noise = cast(np.random.default_rng(seed).normal(size=8))
        return w - 0.5 * (clipped.sum(axis=0) + noise) / 32

    return step, (rng.normal(size=(32, 8)), rng.integers(0, 2, 32))


def check_logistic(step, batch, **stated):
    return audit.check_step(step, np.zeros(8), batch, **STATED | stated)


@pytest.mark.parametrize("sigma", mostly_slow([0.1, 0.3]))
def test_few_numbers_with_little_noise_are_not_taken_for_noise_that_the_batch_changes(sigma):
    step, batch = make_logistic_step(cast=lambda noise: sigma * noise)
    assert check_logistic(step, batch, noise_multiplier=sigma).passed


@pytest.mark.parametrize("stated", [0.8, 1.25])
def test_wrong_noise_may_be_stated(stated):
    step, batch = make_logistic_step()
    (finding,) = check_logistic(step, batch, noise_multiplier=stated, seeds=400).findings
    assert finding.check == "noise"
    assert ("Excess noise does not weaken privacy" in finding.meaning) == (stated < 1)
    assert float(finding.fix.split()[-1]) == pytest.approx(1, rel=0.1)


def test_wrong_noise_where_clipping_is_not_seen_may_be_of_a_step_of_another_size():
    step, batch = make_logistic_step(divide_by_norm, lambda noise: 0.5 * noise, bound=np.inf)
    report = check_logistic(step, batch, seeds=400)
    assert "noise of 0." in report.verdict and "or the whole step has a different size" in flatten(
        report
    )


def divide_by_norm(x):
    """Returns rows of norm 1.86, whose gradients are 0.93 long where every probability is a half."""
    return 1.86 * x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def clamp_norm(x):
    """Returns rows of norm 1, whose gradients grow with features up to a hundredth and stop at a half."""
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-2)


@pytest.mark.parametrize(
    ("squash", "largest"),
    [(lambda x: np.tanh(x) / 4, "0.35"), (clamp_norm, "0.5"), (divide_by_norm, "0.93")],
)
def test_gradients_below_the_norm_show_no_clipping(squash, largest):
    step, batch = make_logistic_step(squash, bound=np.inf)
    report = check_logistic(step, batch, seeds=64)
    assert f"the largest movement was {largest} C" in report.verdict
    with pytest.raises(FindingsError, match="INCOMPLETE"):
        report.raise_for_findings()


def test_a_sum_that_is_rounded_to_the_grid_of_its_noise_is_right():
    step, batch = make_logistic_step(cast=lambda noise: np.round(8 * noise) / 8)

    def round_all(w, batch, seed):
        total = (w - step(w, batch, seed)) * 32 / 0.5
        return w - 0.5 / 32 * np.round(8 * total) / 8

    report = check_logistic(step, batch, seeds=400)
    assert "grid, added to a sum that is not" in report.verdict
    rounded = check_logistic(round_all, batch, seeds=400)
    assert "grid" not in rounded.verdict


def test_each_layer_clipped_by_itself_with_noise_for_all_is_a_step_of_another_size():
    step, batch = make_logistic_step(bound=np.inf)
    start = [np.zeros(3), np.zeros(5)]

    def clip_layers(params, batch, seed):
        x, y = batch
        gradients = (1 / (1 + np.exp(-x @ np.concatenate(params))) - y)[:, None] * x
        rng = np.random.default_rng(seed)
        after = []
        for w, part in zip(params, np.split(gradients, [3], axis=1), strict=True):
            norms = np.linalg.norm(part, axis=1, keepdims=True)
            noise = 2**0.5 * rng.normal(size=len(w))
            after.append(w - 0.5 * ((part / np.maximum(1, norms)).sum(axis=0) + noise) / 32)
        return after

    report = audit.check_step(clip_layers, start, batch, **STATED, seeds=64)
    assert [finding.name for finding in report.findings] == [
        "a step of a different size than stated"
    ]
    assert "C sqrt(2) of 2 layers, each clipped to C" in flatten(report)


def test_a_step_that_ends_the_program_is_refused():
    def ends(w, batch, seed):
        sys.exit(0)

    with pytest.raises(audit.InputError, match="SystemExit"):
        check_logistic(ends, make_logistic_step()[1])


def test_an_extreme_example_in_the_batch_is_tried():
    given = plant_bug(
        "numpy",
        "clipped = gradients",
        "gradients = gradients * (1 + 9 * (x[:, :1] > 50))\n    clipped = gradients",
    )
    plain = given["step"]

    def step(params, batch, seed):
        unclipped = np.sum(batch[0] == 77.0)
        after = plain(params, batch, seed)
        return {name: value + unclipped for name, value in after.items()}

    given["step"] = step
    assert audit.check_step(**given, seeds=64).passed
    features, labels = given["batch"]
    given["batch"] = np.vstack([np.full((1, 8), 77.0), features[1:]]), labels
    report = audit.check_step(**given, seeds=64)
    assert "with the first example" in report.findings[0].meaning


def test_a_report_is_json_a_page_and_an_exception(tmp_path):
    report = audit.check_step(**plant_bug("numpy", "1.1 * 1.5 * np", "1.1 * np"), seeds=64)
    values = json.loads(report.to_json())
    assert (
        values["passed"] is False
        and values["findings"][0]["check"] == "noise"
        and values["p_values"]
    )
    text = report.page(tmp_path / "page.html").read_text()
    assert "<img" in text and "Fix: " in text and "Check of a step of DP-SGD" in text
    with pytest.raises(FindingsError, match=r"C is\s+left out"):
        report.raise_for_findings()
    audit.check_step(**plant_bug("numpy"), seeds=400).raise_for_findings()


def test_what_is_infinite_is_null_in_json():
    step, batch = make_logistic_step()

    def overflow(w, batch, seed):
        after = step(w, batch, seed)
        return np.where(np.abs(batch[0]).max() > 100, np.inf, after)

    report = check_logistic(overflow, batch, seeds=12)
    seen = report.figures["movements"].values()
    kept = json.loads(report.to_json())["figures"]["movements"].values()
    assert np.inf in seen and [norm is None for norm in kept] == [norm == np.inf for norm in seen]


def test_a_check_loads_neither_jax_nor_torch():
    program = (
        "import sys, numpy as np, audit\n"
        "step = lambda w, batch, seed: w + np.random.default_rng(seed).normal(size=3)\n"
        "audit.check_step(step, np.zeros(3), (np.ones((4, 2)),), clipping_norm=1, noise_multiplier=1,"
        " learning_rate=1, batch_size=1)\n"
        "assert not {'jax', 'torch', 'matplotlib'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


class Pair(NamedTuple):
    first: np.ndarray
    rest: dict


def test_trees_of_any_kind_come_back_as_they_went():
    tree = Pair(np.ones(2), {"a": [np.zeros((2, 3)), None], "b": (np.float32([1]),)})
    assert list(trees.collect_leaves("tree", tree)) == ["first", "rest.a.0", "rest.b.0"]
    again = trees.map_tree(tree, lambda _, leaf: leaf + 1, "tree")
    start = collections.defaultdict(list, {"w": np.zeros(8)})
    copied = trees.map_tree(start, lambda _, leaf: leaf + 1, "tree")
    assert copied["other"] == [] and copied["w"][0] == 1 and "other" not in start
    assert isinstance(again, Pair) and again.rest["a"][1] is None and again.rest["b"][0] == 2


def test_noise_that_is_not_finite_at_some_seeds_is_a_finding():
    """Also where the rest of the noise is wrong, and in a parameter beyond those whose draws are stored."""
    plain, batch = make_logistic_step(cast=lambda noise: 0.1 * noise)

    def step(params, batch, seed):
        after = {"w": plain(params["w"], batch, seed), "o": params["o"]}
        rng = np.random.default_rng([seed, 1])
        noise = 0.1 * rng.normal(size=40_000)
        if seed > 1 and rng.random() < 0.2:
            noise[-1] = np.nan
        return after | {"o": params["o"] + 0.5 * noise / 32}

    start = {"w": np.zeros(8), "o": np.zeros(40_000)}
    report = audit.check_step(step, start, batch, **STATED, seeds=40)
    assert "NaN or infinity" in report.verdict and not report.passed
    (finding,) = [finding for finding in report.findings if finding.check == "noise"]
    assert "of 40 seeds" in finding.meaning
    untried = {check.name for check in report.checks if check.result == "could not be tried"}
    assert {"independence", "shape", "noise and data", "empty batch"} <= untried


def test_a_test_without_a_p_value_is_neither_passed_nor_in_the_way_of_others():
    p_values = {"first": {"it": np.nan}, "second": {"it": 1e-9}, "third": {"it": 0.5}}
    assert find_rejected_tests(p_values) == {"first": [], "second": ["it"], "third": []}
    outcomes = {name: CheckOutcome("", p_values=tests) for name, tests in p_values.items()}
    report = make_report("step", outcomes, needed=("first",))
    results = [check.result for check in report.checks]
    assert results == ["could not be tried", "failed", "passed"]
    assert not report.passed


def test_holms_method_rejects_in_order():
    assert find_rejected_tests({"row": {"a": 4e-4, "b": 1e-5, "c": 0.5}}) == {"row": ["a", "b"]}
    assert find_rejected_tests({"row": {"a": 4e-4}, "other": {"b": 0.5, "c": 0.5}}) == {
        "row": [],
        "other": [],
    }


@pytest.mark.slow
@pytest.mark.parametrize(("examples", "is_bug"), [(95, False), (100, True)])
def test_opacus_as_released_changes_its_divisor_between_neighbours(examples, is_bug):
    """Opacus's issue 819: the expected batch size is int(examples / batches), and batches jump at 100."""
    torch, opacus = pytest.importorskip("torch"), pytest.importorskip("opacus")
    network = torch.nn.Linear(8, 3)

    def step(params, batch, seed):
        data = torch.utils.data.TensorDataset(*batch)
        module = torch.nn.Linear(8, 3)
        model, optimizer, _ = opacus.PrivacyEngine().make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.5),
            data_loader=torch.utils.data.DataLoader(data, batch_size=10),
            noise_multiplier=1.1,
            max_grad_norm=1.5,
        )
        module.load_state_dict(params)
        torch.manual_seed(seed)
        torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
        return module.state_dict()

    batch = torch.randn(examples, 8), torch.randint(3, (examples,))
    size = int(examples / -(-examples // 10))
    stated = STATED | {"clipping_norm": 1.5, "noise_multiplier": 1.1, "batch_size": size}
    report = audit.check_step(step, network.state_dict(), batch, **stated, seeds=20)
    assert ("sensitivity" in {finding.check for finding in report.findings}) == is_bug, report


MINE_SUM = "np.sum(batch[0] / 3**0.5 / np.maximum(1, abs(batch[0])), 0)"
MINE = f"""
import numpy as np
params, batch = np.zeros(3), (np.ones((4, 3)),)
stated = dict(clipping_norm=1, noise_multiplier=1, learning_rate=1, batch_size=4)
def step(params, batch, seed):
    return params + ({MINE_SUM} + NOISE) / 4
"""


@pytest.mark.parametrize(
    ("noise", "status"),
    [
        ("np.random.default_rng(seed).normal(size=3)", 0),
        ("0", 3),
        (f"np.random.default_rng(seed).normal(size=3) - {MINE_SUM}", 4),
    ],
)
def test_the_command_checks_a_step_of_the_users(forked, tmp_path, noise, status):
    (tmp_path / "mine.py").write_text(MINE.replace("NOISE", noise))
    ended = forked("check", "--step=mine.py:step", "--json", "--report=page.html", folder=tmp_path)
    assert ended.status == status, ended.stderr
    assert json.loads(ended.stdout)["passed"] == (status == 0)
    assert ended.stderr == "report: page.html\n"
    # The page says of which file it is, and how to make it again.
    page = (tmp_path / "page.html").read_text()
    checksum = hashlib.sha256((tmp_path / "mine.py").read_bytes()).hexdigest()
    assert checksum in page and "check --step=mine.py:step" in page


@pytest.mark.parametrize("seeds", mostly_slow(range(40, 60)))
def test_layers_that_are_clipped_to_their_shares_are_no_step_of_another_size(seeds):
    """Beside noise that differs from the stated one, by chance."""

    def step(params, batch, seed):
        x, y = batch
        rng = np.random.default_rng(seed)
        errors = 1 / (1 + np.exp(-np.clip(x @ params["w"] + params["b"], -50, 50))) - y
        gradients = {"w": errors[:, None] * x, "b": errors[:, None], "c": 0 * x, "d": 0.001 * x}
        after = {}
        for name, gradient in gradients.items():
            norms = np.linalg.norm(gradient, axis=1, keepdims=True)
            clipped = gradient / np.maximum(1, norms / 0.5)
            noise = rng.normal(size=params[name].shape)
            after[name] = params[name] - (clipped.sum(axis=0) + noise) / 32
        return after

    _, batch = make_logistic_step()
    params = {"w": np.zeros(8), "b": np.zeros(1), "c": np.zeros(8), "d": np.zeros(8)}
    stated = STATED | {"learning_rate": 1}
    assert not audit.check_step(step, params, batch, **stated, seeds=seeds).findings


@pytest.mark.parametrize("share", [0.5**0.5, 1])
def test_layers_that_stop_at_their_shares_of_the_norm_show_clipping(share):
    """One of the two layers never moves by as much as its share of C."""

    def step(params, batch, seed):
        x, y = batch
        rng = np.random.default_rng(seed)
        errors = (1 / (1 + np.exp(-np.clip(x @ params["w"], -50, 50))) - y)[:, None]
        norms = np.linalg.norm(errors * x, axis=1, keepdims=True)
        clipped = errors * x / np.maximum(1, norms / share)
        sums = {"w": clipped.sum(axis=0), "b": (0.4 * np.cos(x[:, :1]) * errors).sum(axis=0)}
        noise = {name: rng.normal(size=value.shape) for name, value in params.items()}
        return {name: params[name] - (sums[name] + noise[name]) / 32 for name in params}

    _, batch = make_logistic_step()
    start = {"w": np.zeros(8), "b": np.zeros(1)}
    report = audit.check_step(step, start, batch, **STATED | {"learning_rate": 1}, seeds=64)
    assert report.passed == (share < 1), report
