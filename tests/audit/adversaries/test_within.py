"""Tests directions in chosen tensors: null distribution, level, power, and rejected choices."""

import numpy as np
import pytest
from scipy import stats

import audit
from audit.adversaries.base import Knowledge
from audit.adversaries.directions import initial_model
from audit.adversaries.subspace import choose_tensors
from audit.conclusions.concluded import conclude_setting
from audit.laws import cosine_law
from audit.report import bounds_table
from audit.settings.make import setting_of
from audit.tasks.task import Dataset
from audit.training import build, game
from tests.cases import mostly_slow

KERNEL = "Dense_1/kernel"


def play(dataset, runs, model="wide_fcnn", **given):
    """Trains runs of fresh directions on a small data set; returns their scores."""
    setting = setting_of(model, **{"adversary": "sphere", "batch_size": 100, **given})
    table = build.build(setting, dataset)
    (scores,) = game.Player(table, runs).play_all([(0, runs)])
    return scores


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "within", "size"),
    mostly_slow(
        [
            ("momentum", "*bias", 97),
            ("adamw", "*kernel", 2592),
            ("sgd", KERNEL, 2048),
            ("adam", "auto", 2048),
        ]
    ),
)
def test_directions_that_were_not_inserted_follow_the_law_of_their_tensor(
    dataset, optimizer, within, size
):
    canaries = 32
    scores = play(
        dataset,
        160,
        steps=5,
        canaries=canaries,
        coins=True,
        within=within,
        optimizer=optimizer,
        weight_decay=0.1,
    )
    out = scores.scores[~scores.presence]
    assert scores.dimension == size and len(out) > 2400
    distribution = lambda cosines: -np.expm1(cosine_law.log_sf(cosines, size))  # noqa: E731
    assert stats.kstest(out, distribution).pvalue > 0.001
    assert scores.scores[scores.presence].mean() > 3 * out.std() / len(out) ** 0.5


def test_nothing_outside_the_tensor_is_inserted_or_scored(dataset):
    setting = setting_of(
        "wide_fcnn", adversary="sphere", canaries=8, within=KERNEL, steps=1, batch_size=100
    )
    table = build.build(setting, dataset)
    theta = table.init(game.root(0, "theta"))
    state = table.adversary.init(game.root(0, "canary"), theta, 1.0)
    crafted = table.adversary.craft(state, 0, theta)
    sizes = {
        name: one.size for name, one in build.trainee("wide_fcnn", dataset).model.tensors().items()
    }
    start = sum(sizes[name] for name in list(sizes)[: list(sizes).index(KERNEL)])
    assert crafted.within.tolist() == list(range(start, start + 2048))
    changed = theta.at[:start].add(1.0)
    scored = [table.adversary.score(state, (), one, theta) for one in (theta + 1, changed + 1)]
    np.testing.assert_array_equal(*scored)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "tensors"),
    [
        ("wide_fcnn", ["Dense_0/kernel", KERNEL, "*kernel"]),
        ("convnet", ["Convolution_1/kernel", "Dense_0/kernel", KERNEL]),
    ],
)
def test_the_power_is_that_of_all_parameters(dataset, model, tensors):
    given = {"canaries": 16, "steps": 50, "noise_multiplier": 2.0}
    if model == "convnet":
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (64, 32, 32, 3), np.uint8)
        dataset = Dataset(images, rng.integers(0, 10, 64, np.int32), "synthetic", "0" * 64)
        given |= {"batch_size": 16, "steps": 20, "noise_multiplier": 1.3}
    shifts = []
    for within in ("all", *tensors):
        scores = play(dataset, 200, model, within=within, **given)
        shifts.append(scores.scores.mean() * scores.dimension**0.5)
    assert shifts[1:] == pytest.approx([shifts[0]] * 3, rel=0.03)


def test_the_choice_is_the_largest_tensor_that_can_be_used():
    zeros = {"a": np.zeros((4, 100), "f4"), "b": np.zeros((6, 100), "f2"), "c": np.zeros(90, "f4")}
    assert choose_tensors(zeros, 5).names == ("a",)
    assert choose_tensors(zeros, 5, "[ac]") == (("a", "c"), 490, 1090)
    assert choose_tensors(zeros, 5, ["c", "a"]).names == ("a", "c")
    tied = zeros | {"d": zeros["a"]}
    assert choose_tensors(tied, 5).names == ("c",)


@pytest.mark.parametrize(
    ("within", "count", "says"),
    [
        ("dense", 5, "`within=dense` is not a tensor of the model: choose "),
        ("b", 5, "`within=b` is float16, in which rounding hides small updates"),
        ("d", 5, "`within=d` is the same tensor as a, so it would count twice"),
        ("c", 46, "`canaries` must be at most 45, half the parameters of c, got 46"),
        ("c", "many", "canaries"),
    ],
)
def test_what_breaks_the_law_is_refused(within, count, says):
    zeros = {"a": np.zeros((4, 100), "f4"), "b": np.zeros((6, 100), "f2"), "c": np.zeros(90, "f4")}
    with pytest.raises(audit.InputError, match=says):
        choose_tensors(zeros | {"d": zeros["a"]}, count, within)


@pytest.mark.slow
def test_without_insertion_at_most_5_percent_of_audits_prove_anything(dataset):
    """200 audits of eight runs each, of 4 canaries that no step inserts."""
    scores = play(dataset, 1600, steps=5, canaries=32, coins=True, within=KERNEL)
    proven = 0
    for part in np.split(np.arange(1600), 200):
        out = ~scores.presence[part]
        rows = [scores.scores[run][out[i]][:4] for i, run in enumerate(part)]
        evidence = audit.cosines(np.array(rows), scores.dimension, in_order=True)
        proven += audit.bounds(evidence).epsilon > 0
    assert proven <= stats.binom.ppf(0.999, 200, 0.05)


@pytest.mark.parametrize(
    ("given", "reference"),
    mostly_slow(
        [
            ({"noise_multiplier": 4.0}, "that of a rehearsal"),
            ({"noise_multiplier": 90.0}, "the initial model"),
            ({"optimizer": "adamw"}, "the initial model"),
        ],
        quick=2,
    ),
)
def test_one_runs_table_says_from_which_model_its_score_is_measured(
    dataset, monkeypatch, given, reference
):
    fields = {"canaries": 40, "steps": 5, "batch_size": 100, "within": KERNEL, **given}
    setting = setting_of("wide_fcnn", adversary="sphere", **fields)
    rehearsals = []
    monkeypatch.setattr(Knowledge, "rehearsal", lambda self: rehearsals.append(1) or initial_model)
    (scores,) = game.Player(build.build(setting, dataset), 1).play_all([(0, 1)])
    assert len(rehearsals) == (reference == "that of a rehearsal")
    table = bounds_table.bounds_table(conclude_setting(scores, setting))
    assert f"difference between the final model and {reference}" in " ".join(table.split())
