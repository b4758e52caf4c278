"""Tests that correct batches pass, and that other samplers and loaders are named."""

import numpy as np
import pytest

import audit
from audit.errors import InputError
from tests.audit.check.samplers import (
    BATCHES,
    RATE,
    SIZE,
    cut_at_two_deviations,
    draw_balls_in_bins,
    draw_cyclic_poisson,
    draw_fixed,
    draw_poisson,
    draw_shuffled,
    draw_with_replacement,
    fill_up,
    never_take_a_tenth,
    repeat_last_batch,
    skip_empty_batches,
    take_neighbours,
    take_two_together,
)
from tests.cases import mostly_slow


def explain(report):
    """Returns a report on a single line."""
    assert max(map(len, str(report).splitlines())) <= 80
    return " ".join(str(report).split())


WRONG = {
    "shuffled": (draw_shuffled, RATE, "shuffled batches, not Poisson"),
    "shuffled once": (lambda seed: draw_shuffled(0), RATE, "cyclic batches, not Poisson"),
    "balls in bins": (draw_balls_in_bins, RATE, "balls-in-bins batches, not Poisson"),
    "fixed": (draw_fixed, RATE, "fixed-size batches, not Poisson"),
    "with replacement": (draw_with_replacement, RATE, "an example twice in a batch"),
    "cyclic Poisson": (
        draw_cyclic_poisson,
        RATE,
        "unequally often|neighbours are drawn together|vary",
    ),
    "same each seventh call": (
        lambda seed: draw_poisson(seed % 7),
        RATE,
        "a repeated batch",
    ),
    "last repeated": (repeat_last_batch, RATE, "a repeated batch"),
    "cut": (cut_at_two_deviations, RATE, "No batch has more than 41 examples"),
    "filled": (fill_up, RATE, "No batch has fewer than 25 examples"),
    "together": (take_two_together, RATE, "Examples 7 and 300 are drawn together"),
    "neighbours": (take_neighbours, RATE, "are drawn together"),
    "some never": (never_take_a_tenth, RATE, "unequally often"),
    "empty skipped": (skip_empty_batches, 0.005, "No batch has fewer than 1 examples"),
    "rate 3% off": (
        lambda seed: draw_poisson(seed, rate=1.03 * RATE),
        RATE,
        "30.9 examples on average|a rate of 0.051",
    ),
    "len(loader)": (
        lambda seed: draw_poisson(seed, 2000, 1 / 16, 16),
        0.064,
        "1 / 16 = 0.0625, one over the loader's length",
    ),
    "of a worker": (
        lambda seed: draw_poisson(seed, rate=RATE / 4),
        RATE,
        "the stated rate divided by 4, as for one of 4 workers",
    ),
}


@pytest.mark.parametrize("name", mostly_slow(WRONG, quick=10))
def test_batches_that_the_accountant_does_not_assume_are_named(name):
    draw, rate, expected = WRONG[name]
    examples = 2000 if name == "len(loader)" else SIZE
    text = explain(audit.check_batches(draw, examples, rate))
    assert text.count("FAILED") >= 2 and any(part in text for part in expected.split("|")), text


RIGHT = {
    "cyclic": lambda seed: draw_shuffled(0),
    "poisson": draw_poisson,
    "fixed": draw_fixed,
    "shuffled": draw_shuffled,
    "balls_in_bins": draw_balls_in_bins,
}


@pytest.mark.parametrize("assumed", mostly_slow(RIGHT, quick=2))
def test_each_kind_of_batches_passes_under_its_own_assumption_alone(assumed):
    for kind, draw in RIGHT.items():
        report = audit.check_batches(draw, SIZE, RATE, assumed=assumed)
        assert report.passed == (kind == assumed), report


@pytest.mark.parametrize(
    ("examples", "rate"),
    mostly_slow(
        [(4, 0.9), (30, 0.999), (600, 0.05), (3, 0.3), (5, 0.5), (8, 0.7), (10, 0.3), (20, 0.95)]
        + [(30, 0.3), (100, 0.02), (5000, 0.01), (50_000, 0.002)],
        quick=3,
    ),
)
def test_poisson_batches_pass(examples, rate, request):
    is_slow = request.node.get_closest_marker("slow")
    for start in range(12 if is_slow else 2):
        report = audit.check_batches(
            lambda seed, start=start: draw_poisson([start, seed], examples, rate),
            examples,
            rate,
        )
        assert report.passed, report


@pytest.mark.slow
def test_a_kind_that_is_recognised_is_a_bug_even_where_no_test_sees_it():
    report = audit.check_batches(
        lambda seed: draw_balls_in_bins(seed, 50_000, 15_000), 50_000, 1 / 15_000
    )
    assert report.verdict == "FAILED: balls-in-bins batches, not Poisson"


def cut(size):
    return lambda seed: draw_shuffled(seed, 1000, size)


@pytest.mark.parametrize(
    ("draw", "rate", "assumed", "verdict"),
    [
        (lambda seed: draw_balls_in_bins(seed, 1000, 64), 1 / 64, "balls_in_bins", "PASSED"),
        (cut(100), 0.3, "shuffled", "FAILED: a different sampling"),
        (cut(300), 0.3, "shuffled", "PASSED"),
        (cut(300), 0.25, "shuffled", "PASSED"),
        (cut(16), 1 / 64, "shuffled", "FAILED: a different sampling"),
        (
            lambda seed: draw_fixed(seed, 1000, 2, 500),
            0.0015,
            "fixed",
            "FAILED: a different sampling",
        ),
    ],
)
def test_sizes_are_compared_with_the_exact_expected_size(draw, rate, assumed, verdict):
    report = audit.check_batches(draw, 1000, rate, assumed=assumed)
    assert report.verdict.startswith(verdict), report


def cut(seed, examples=1000, size=64, epochs=1, drop_last=False):
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(epochs):
        order = rng.permutation(examples)
        stop = examples // size * size if drop_last else examples
        batches += [order[start : start + size] for start in range(0, stop, size)]
    return batches


def endless(seed):
    for i in range(10**9):
        yield from cut([seed, i], drop_last=True)


@pytest.mark.parametrize(
    ("draw", "examples", "size"),
    [
        pytest.param(lambda seed: cut(seed, 501, 50), 501, 50, id="a last batch of one"),
        pytest.param(lambda seed: cut(seed, 100, 99), 100, 99, id="two batches"),
        pytest.param(lambda seed: cut(seed, epochs=3), 1000, 64, id="three epochs in a pass"),
        pytest.param(endless, 1000, 64, id="endless, incomplete batches dropped"),
    ],
)
def test_shuffled_batches_of_any_size_pass(draw, examples, size):
    report = audit.check_batches(draw, examples, size / examples, assumed="shuffled")
    assert report.passed, report


def repeat_order(seed):
    order = np.random.default_rng(seed).permutation(1000)
    return np.split(np.concatenate([order, np.roll(order, 7)]), 40)


def weigh_second_epoch(seed):
    rng = np.random.default_rng(seed)
    weights = np.where(np.arange(1000) < 100, 20.0, 1.0)
    later = [rng.choice(1000, 50, False, weights / weights.sum()) for _ in range(20)]
    return cut(seed, size=50) + later


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (repeat_order, "an order that is not uniform"),
        (weigh_second_epoch, "fixed-size batches, not shuffled"),
    ],
)
def test_a_bug_in_a_later_epoch_of_a_pass_is_found(draw, name):
    assert name in audit.check_batches(draw, 1000, 0.05, assumed="shuffled").verdict


def test_an_example_that_is_never_drawn_is_found():
    def draw(seed):
        rng = np.random.default_rng(seed)
        return [1 + np.flatnonzero(rng.random(999) < 0.04) for _ in range(25)]

    assert "unequally often" in audit.check_batches(draw, 1000, 0.04).verdict


def test_batches_may_be_columns():
    """As argwhere gives them."""
    draw = lambda seed: [batch[:, None] for batch in draw_poisson(seed)]  # noqa: E731
    assert audit.check_batches(draw, SIZE, RATE).passed


def test_the_power_to_see_another_rate_is_told():
    text = explain(audit.check_batches(draw_poisson, SIZE, RATE))
    assert "a rate 2.5% off would be detected with probability 0.9" in text


class TestLoaders:
    """Loaders of torch and Opacus, by their samplers, and whatever yields indices."""

    def check(self, loader, rate=RATE, **options):
        return audit.check_batches(loader, sampling_rate=rate, **options)

    def make_loader(self, batch_size=30, **options):
        torch = pytest.importorskip("torch")
        torch.manual_seed(0)
        dataset = torch.utils.data.TensorDataset(torch.zeros(SIZE, 3), torch.zeros(SIZE))
        return torch.utils.data.DataLoader(dataset, batch_size, **options)

    @pytest.mark.parametrize("assumed", ["poisson", "fixed", "shuffled"])
    def test_batches_that_are_the_same_in_every_pass_are_not_called_shuffled(self, assumed):
        batches = np.arange(SIZE).reshape(BATCHES, 30).tolist()
        (finding,) = self.check(batches, examples=SIZE, assumed=assumed).findings
        assert finding.name.startswith("cyclic batches, not")
        assert "the same in every pass" in finding.meaning

    @pytest.mark.slow
    def test_torch_shuffles(self):
        assert "shuffled batches, not Poisson" in self.check(self.make_loader(shuffle=True)).verdict
        loader = self.make_loader(shuffle=True)
        assert self.check(loader, assumed="shuffled").passed
        loader = type(loader)(range(SIZE), 30, shuffle=True)
        assert self.check(lambda seed: iter(loader), examples=SIZE, assumed="shuffled").passed
        assert "cyclic batches" in self.check(self.make_loader()).verdict

    @pytest.mark.slow
    def test_a_worker_of_torch_has_a_part_of_the_rate(self):
        distributed = pytest.importorskip("torch.utils.data.distributed")
        sampler = distributed.DistributedSampler(range(SIZE), num_replicas=2, rank=0)
        loader = self.make_loader(batch_size=15, sampler=sampler)
        text = explain(self.check(loader))
        assert (
            "the stated rate divided by 2, as for one of 2 workers" in text
            and "shuffled batches" in text
        )

    @pytest.mark.slow
    def test_opacus_draws_poisson_batches(self):
        pytest.importorskip("opacus")
        from opacus.data_loader import DPDataLoader
        from opacus.utils.uniform_sampler import UniformWithReplacementSampler

        loader = self.make_loader()
        assert self.check(DPDataLoader(loader.dataset, sample_rate=RATE)).passed
        assert self.check(DPDataLoader.from_data_loader(loader)).passed
        sampler = UniformWithReplacementSampler(num_samples=SIZE, sample_rate=RATE)
        assert self.check(sampler, examples=SIZE).passed

    @pytest.mark.slow
    def test_opacus_takes_one_over_the_loaders_length(self):
        pytest.importorskip("opacus")
        from opacus.data_loader import DPDataLoader

        loader = self.make_loader(batch_size=32)
        report = self.check(DPDataLoader.from_data_loader(loader), 32 / SIZE)
        assert report.passed  # 1 / 19 is 1.3% below 32 / 600, which needs more batches
        loader = self.make_loader(batch_size=70)
        text = explain(self.check(DPDataLoader.from_data_loader(loader), 70 / SIZE))
        assert "1 / 9 = 0.1111, one over the loader's length" in text

    def test_a_draw_may_give_a_single_batch(self):
        assert self.check(lambda seed: draw_poisson(seed)[0], examples=SIZE).passed
        fixed = lambda seed: list(np.random.default_rng(seed).choice(SIZE, 70, replace=False))  # noqa: E731
        assert "fixed-size batches" in self.check(fixed, 70 / SIZE, examples=SIZE).verdict

    @pytest.mark.parametrize(
        ("loader", "says"),
        [
            (iter([[1, 2]]), "can be iterated only once"),
            (lambda seed: 5, "`draw` gave 5: return batches of indices"),
            (lambda seed: 1 / 0, "`draw` failed with seed 0: ZeroDivisionError"),
            (lambda seed: [[0.5, 1.5]], "not vectors of indices"),
            (lambda seed: [{"x": [1]}], "build the loader on range"),
            (lambda seed: [[1, SIZE]], "indices outside the data set: give 0 to 599"),
            (lambda seed: [[[1], [1, 2]]], "not vectors of indices"),
            (lambda seed: [(np.zeros((2, 3)), np.zeros(2))], "not vectors of indices"),
        ],
    )
    def test_what_is_no_loader_ends_in_a_line(self, loader, says):
        with pytest.raises(InputError, match=says.replace("(", r"\(")) as raised:
            self.check(loader, examples=SIZE)
        assert "\n" not in str(raised.value)


MINE = """
import numpy as np

def draw(seed):
    rng = np.random.default_rng(seed)
    return [np.flatnonzero(rng.random(500) < 0.05) for _ in range(20)]

loader = np.arange(500).reshape(20, 25).tolist()
"""


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("draw", 0, "PASSED"),
        ("loader", 3, "cyclic batches, not Poisson"),
    ],
)
def test_the_command_checks_batches_of_a_file(forked, tmp_path, name, status, says):
    (tmp_path / "mine.py").write_text(MINE)
    flags = f"--batches=mine.py:{name}", "--sampling_rate=0.05", "--examples=500"
    ended = forked("check", *flags, folder=tmp_path)
    assert ended.status == status, ended.stderr
    assert says in " ".join((ended.stdout + ended.stderr).split())


@pytest.mark.slow
def test_a_loader_of_grain_is_read():
    grain = pytest.importorskip("grain")

    def load(seed):
        return grain.MapDataset.source(range(600)).seed(seed).shuffle().batch(30)

    assert audit.check_batches(load, 600, 0.05, assumed="shuffled").passed
    iterators = audit.check_batches(lambda seed: iter(load(seed).to_iter_dataset()), 600, 0.05)
    assert iterators.verdict == "FAILED: shuffled batches, not Poisson"
    unseeded = audit.check_batches(load(0), 600, 0.05)
    assert "cyclic batches" in unseeded.verdict


@pytest.mark.slow
def test_a_loader_of_tensorflow_is_read():
    tensorflow = pytest.importorskip("tensorflow")
    shuffled = tensorflow.data.Dataset.range(600).shuffle(600).batch(30)
    assert audit.check_batches(shuffled, 600, 0.05, assumed="shuffled").passed
    iterators = audit.check_batches(lambda seed: iter(shuffled), 600, 0.05)
    assert iterators.verdict == "FAILED: shuffled batches, not Poisson"

    def draw_poisson(seed):
        for i in range(20):
            numbers = tensorflow.random.stateless_uniform([600], [seed, i])
            yield tensorflow.where(numbers < 0.05)

    assert audit.check_batches(draw_poisson, 600, 0.05).passed
