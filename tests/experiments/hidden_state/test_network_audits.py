"""Tests that audits of networks do not exceed the bound on the last model, and that the best are close to it.

Small models have 40 audits, each with a different seed. The ConvNet has `--convnet_audits` with one seed,
since measuring its steps takes a minute. Audits have 10 insertions, and a noise multiplier with the same
composed epsilon as 250 insertions at 4. The best audits have 250 insertions at 4. The bounds are valid for
any data, so data are random.
"""

import numpy as np
import pytest

from audit.adversaries.biased import GcS
from audit.adversaries.sphere import SphereFields
from audit.conclusions import concluded, lipschitz, measuring
from audit.evidence.canaries import Fresh
from audit.methods import exact_null
from audit.settings.make import setting_of
from audit.tasks.task import Dataset
from audit.training import build
from audit.training import game as games
from audit.training.rehearsal import Effort
from models.catalogue import task

EFFORT = Effort(runs=2, steps=25, secant_steps=5, reach=1)
CONVNET_EFFORT = EFFORT._replace(steps=10)
SMALL_MODELS = ("tanh_fcnn", "mobilenet_softmax_head")
AUDITS = 40
RUNS = 10  # in each audit
BATCH = 20


def make_data(model: str) -> Dataset:
    row = task(model)
    rng = np.random.default_rng(0)
    shape = (10 * BATCH, *row.data.shape)
    features = rng.normal(size=shape).astype(np.float32)
    if len(shape) == 4:  # images of bytes
        features = rng.integers(0, 256, shape).astype(np.uint8)
    labels = rng.integers(0, row.classes, len(features)).astype(np.int32)
    return Dataset(features, labels, "made up", "0" * 64)


def make_setting(model, k, seed, adversary, **more):
    fields = {"insertions": 10, "noise_multiplier": 0.8, "batch_size": BATCH, "seed": seed, **more}
    return setting_of(model, k=k, adversary=adversary.name, **vars(adversary), **fields)


def bound_last_model(setting, dataset, effort=EFFORT):
    steps = None
    if lipschitz.count_rehearsals(setting) is not None:
        trainee = build.trainee(setting.model, dataset)
        clipped_sum = build.make_dpsgd(setting, trainee).clipped_sum
        game = build.build(setting, dataset)
        steps = measuring.measure_steps(setting, game, clipped_sum, effort, kinks=False)
    state = lipschitz.hidden_state(setting, 1e-5, steps)
    assert not isinstance(state, str), state
    return state.bound.mu


def play(setting, dataset, runs, audits=1):
    """Returns the scores of each of `audits` audits of the same setting, with `runs` runs each."""
    game = build.build(setting, dataset)
    parts = list(games.Player(game, runs).play_all([(0, runs * audits)]))
    assert len(parts) == audits
    return parts


def compare(setting, dataset, mu, audits=1):
    """Returns each audit's lower bound on any GDP guarantee, divided by the upper bound mu."""
    ratios = []
    for scores in play(setting, dataset, RUNS, audits):
        design = concluded.read_directions(scores)
        assert isinstance(design, Fresh)
        ratios.append(exact_null.bound_gdp(design, 1e-5, 0.95).mu / mu)
    return ratios


@pytest.mark.slow
@pytest.mark.parametrize("k", [5, 25])
@pytest.mark.parametrize("model", SMALL_MODELS)
def test_no_gdp_limit_is_above_the_bound_on_the_last_model(model, k):
    dataset = make_data(model)
    ratios = []
    for seed in range(AUDITS):
        setting = make_setting(model, k, seed, SphereFields(), canaries="auto")
        ratios += compare(setting, dataset, bound_last_model(setting, dataset))
    assert len(ratios) == AUDITS and max(ratios) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("k", [5, 25])
def test_no_gdp_limit_of_a_convnet_is_above_the_bound_on_its_last_model(k, pytestconfig):
    audits = pytestconfig.getoption("convnet_audits")
    dataset = make_data("gelu_convnet")
    setting = make_setting("gelu_convnet", k, 0, SphereFields(), canaries="auto")
    mu = bound_last_model(setting, dataset, CONVNET_EFFORT)
    ratios = compare(setting, dataset, mu, audits)
    assert len(ratios) == audits and max(ratios) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("k", "fraction"), [(5, 0.9), (25, 0.7)])
def test_the_best_audit_of_the_fcnn_is_near_the_bound(k, fraction):
    """Uses 250 insertions: with few, the last one, which nothing hides, is most of the bound.

    At k = 25, this variant of GC-S shows 0.72 of the bound, and the default 0.63.
    """
    dataset = make_data("tanh_fcnn")
    adversary = GcS("noisy_final_model")
    setting = make_setting("tanh_fcnn", k, 0, adversary, insertions=250, noise_multiplier=4.0)
    mu = bound_last_model(setting, dataset)
    runs = 4000
    [scores] = play(setting, dataset, runs)
    world_in, world_out = concluded.read_coins(scores).pooled()
    deviation = np.sqrt((world_in.var() + world_out.var()) / 2)
    audited = (world_in.mean() - world_out.mean()) / deviation
    error = np.sqrt(4 / runs * (1 + audited**2 / 8))
    assert fraction * mu <= audited <= mu + 4 * error
