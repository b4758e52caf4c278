"""Tests the claims for samplers, in Python and as a command."""

import functools
import json
import math

import numpy as np
import pytest

import audit
from audit.claims import accounting, samplers
from audit.claims.brackets import compute_shuffled_epsilon
from audit.claims.sampler_claims import SAMPLERS, find_noise_multiplier
from audit.errors import InputError
from audit.laws.conversions import epsilon_from_mu
from audit.report.claims_table import show_claims
from tests.cases import mostly_slow

SMALL = {"noise_multiplier": 1.0, "batches": 6, "epochs": 3}
LOADERS = """
import numpy as np
examples = 600
class Owner:
    dataset = range(600)
    def __iter__(self):
        return iter(cyclic(0))
def shuffled(seed):
    return np.random.default_rng(seed).permutation(600).reshape(20, 30)
def cyclic(seed):
    return np.arange(600).reshape(20, 30)
def fixed(seed):
    rng = np.random.default_rng(seed)
    return [rng.choice(600, 30, replace=False) for _ in range(20)]
def fixed_end(seed):
    order = np.random.default_rng(seed).permutation(580)
    return np.split(np.concatenate([order, np.arange(580, 600)]), 20)
def endless(seed):
    while True:
        yield from cyclic(seed)
def failing(seed):
    raise OSError("no disk")
owner = Owner()
"""
FEW = {"noise_multiplier": 1.0, "batches": 4, "epochs": 2, "tail": 1}
compute_claims = functools.cache(audit.sampler_claims)


@pytest.mark.parametrize(
    ("sigma", "batches", "epochs", "delta", "least"),
    [
        (1.0, 100, 10, 1e-5, 9.36),
        (1.0, 100, 30, 1e-5, 15.6),
        (0.8, 100, 3, 1e-5, 9.78),
        (0.5, 10_000, 1, 1e-6, 10.994),  # Figure 1 of Chua et al.
    ],
)
def test_shuffled_batches_leak_what_chua_and_others_found(sigma, batches, epochs, delta, least):
    epsilon = compute_shuffled_epsilon(sigma, batches, epochs, delta)
    assert epsilon == pytest.approx(least, rel=0.01)


def test_shuffled_batches_have_a_bracket_and_a_smaller_bound_for_the_last_model():
    claims = compute_claims("shuffled", **SMALL, tail=2)
    yours, poisson = claims.rows
    assert yours.yours and yours.sampler == "shuffled" and not poisson.yours
    bounds = yours.every_model
    assert poisson.every_model.upper < bounds.lower < bounds.upper
    assert bounds.upper == pytest.approx(8.3854, abs=1e-3)
    assert yours.last_model.upper == pytest.approx(4.5703, abs=1e-4)
    assert yours.last_model.tail < yours.last_model.upper
    assert "draw Poisson batches, or raise the noise multiplier to 1.45" in yours.advice
    assert "release the last model alone" in yours.advice and "zero-out" in show_claims(claims)


def test_the_advised_noise_and_noise_only_steps_are_enough():
    training = {"noise_multiplier": 1.0, "batches": 20, "epochs": 6, "tail": 10}
    yours, poisson = audit.sampler_claims("shuffled", **training).rows
    words = yours.advice.split()
    sigma = float(words[words.index("multiplier") + 2].rstrip(","))
    assert accounting.epsilon_upper_bound(sigma, 6, 1e-5) <= poisson.every_model.upper
    assert ("release the last model alone" in yours.advice) == (
        yours.last_model.tail <= poisson.every_model.upper
    )


def test_the_advice_names_the_noise_only_steps_that_its_epsilon_needs():
    training = {"noise_multiplier": 1.0, "batches": 98, "epochs": 10, "tail": 1}
    yours, poisson = audit.sampler_claims("shuffled", **training).rows
    last_model = yours.last_model
    assert poisson.every_model.upper < last_model.tail < last_model.upper
    assert "after the noise-only steps, you may claim 2.32" in yours.advice


@pytest.mark.parametrize("sampler", mostly_slow(SAMPLERS, quick=2))
def test_every_sampler_has_a_complete_row(sampler):
    claims = compute_claims(sampler, **FEW)
    rows = json.loads(claims.to_json())["rows"]
    assert rows[0]["sampler"] == sampler
    assert set(rows[0]["every_model"]) == {"lower", "upper", "accountant"}
    assert set(rows[0]["last_model"]) == {"upper", "tail", "assumes"}
    last_model = claims.rows[0].last_model
    assert 0 < last_model.tail <= last_model.upper <= claims.rows[0].every_model.upper
    assert claims.rows[0].advice.endswith(".")


def test_a_cyclic_order_leaks_its_composition():
    row = audit.sampler_claims("cyclic", **SMALL).rows[0]
    exact = accounting.epsilon_upper_bound(1.0, 3, 1e-5)
    assert row.every_model.lower == row.every_model.upper == exact
    assert row.last_model.tail is None and row.last_model.upper <= 5.1748 + 1e-4


def test_poisson_batches_have_the_claim_of_dp_accounting():
    row = compute_claims("poisson", **FEW).rows[0]
    composition = accounting.Composition(1.0, 8, 0.25)
    assert row.every_model.upper == accounting.participant_upper_bound(composition, 1e-5)
    assert row.last_model.upper <= row.every_model.upper


def test_truncated_poisson_batches_leak_more_the_more_they_are_truncated():
    training = {"noise_multiplier": 1.0, "batches": 4, "epochs": 1}
    loose = audit.sampler_claims(audit.TruncatedPoisson(1000, 400), **training).rows
    tight = audit.sampler_claims(audit.TruncatedPoisson(1000, 250), **training).rows
    poisson = loose[1].every_model.upper
    assert loose[0].every_model.upper == pytest.approx(poisson, rel=0.01)
    assert tight[0].every_model.upper > 1.1 * poisson
    without = audit.sampler_claims("truncated_poisson", **training).rows[0].every_model
    assert without.upper > tight[0].every_model.upper and "TruncatedPoisson" in without.accountant


@pytest.fixture
def claim(forked, tmp_path):
    """Runs the command in a folder that holds mine.py and bare.py."""
    (tmp_path / "mine.py").write_text(LOADERS)
    (tmp_path / "bare.py").write_text("loader = [[1, 2], [3, 4]]")

    def run(*words):
        return forked("claim", "--noise_multiplier=1", *words, folder=tmp_path)

    return run


@pytest.mark.parametrize("sampler", mostly_slow(["cyclic", "shuffled", "owner"]))
def test_a_loader_is_named_and_claimed_for(claim, sampler):
    words = (f"--batches=mine.py:{sampler}", "--epochs=2")
    table = claim(*words).stdout
    name = sampler.replace("owner", "cyclic")
    assert max(map(len, table.splitlines())) <= 80 and f"{name} (yours)" in table
    assert json.loads(claim(*words, "--json").stdout)["rows"][0]["sampler"] == name


def test_the_noise_for_a_stated_epsilon_is_the_smallest():
    sigma = find_noise_multiplier(0.5, 4, 2, 1e-5)
    leaks = functools.partial(compute_claims, "poisson", batches=4, epochs=2)
    assert leaks(noise_multiplier=sigma).rows[0].every_model.upper <= 0.5
    assert leaks(noise_multiplier=0.999 * sigma).rows[0].every_model.upper > 0.5
    with pytest.raises(InputError, match="no sigma from 0.05"):
        find_noise_multiplier(1e-9, 4, 2, 1e-5)


def test_stated_lipschitz_constants_are_an_assumption_of_the_last_models_bound():
    claims = compute_claims("cyclic", **SMALL, lipschitz=0.9)
    assert "Lipschitz with constants up to 0.9" in claims.rows[0].last_model.assumes
    assert (
        claims.rows[0].last_model.upper < compute_claims("cyclic", **SMALL).rows[0].last_model.upper
    )


@pytest.mark.slow
def test_a_stated_epsilon_without_sigma_is_judged_at_poissons_sigma(forked, tmp_path):
    words = ("--sampler=cyclic", "--batches=20", "--epochs=5")
    done = forked("claim", "--claim=8", *words, "--json", folder=tmp_path)
    answer = json.loads(done.stdout)
    cyclic, poisson = answer["rows"]
    assert poisson["every_model"]["upper"] == pytest.approx(8, rel=1e-3)
    assert poisson["every_model"]["upper"] <= 8
    sigma = answer["noise_multiplier"]
    composed = accounting.epsilon_upper_bound(sigma, 5, 1e-5)
    assert cyclic["every_model"]["upper"] == composed > 8


@pytest.mark.parametrize(
    ("words", "message"),
    mostly_slow(
        [
            ("--batches=mine.py:endless", "more than 100,000 batches with seed 0"),
            (
                "--batches=bare.py:loader",
                "bare.py: examples is missing: give the size of the data set",
            ),
            ("--batches=20", "--sampler is missing"),
            ("--batches=mine.py:fixed", "fixed batches"),
            ("--batches=mine.py:failing", "no disk"),
            ("--batches=mine.py:absent", "has no absent"),
            ("--batches=x --sampler=cyclic", "--batches=x"),
        ],
        quick=3,
    ),
)
def test_what_cannot_be_claimed_for_ends_in_one_line(claim, words, message):
    done = claim("--epochs=2", *words.split())
    assert done.status == 2 and message in done.stderr
    assert done.stderr.count("\n") == 1


LARGER_LAST = """
import numpy as np
examples = 1000
def loader(seed):
    order = np.random.default_rng(seed).permutation(examples)
    return np.split(order, range(90, 900, 90))
def dropping(seed):
    return np.random.default_rng(seed).permutation(examples)[:960].reshape(15, 64)
def twice(seed):
    return [*dropping(seed), *dropping(seed + 1000)]
"""


def test_loaders_with_a_larger_last_batch_or_dropped_examples(claim, tmp_path):
    (tmp_path / "larger.py").write_text(LARGER_LAST)
    larger, dropping = (
        json.loads(claim(f"--batches=larger.py:{name}", "--epochs=2", "--json").stdout)
        for name in ("loader", "dropping")
    )
    assert larger["rows"][0]["sampler"] == "any_order"
    assert "later ones may be larger" in larger["order"]
    assert dropping["rows"][0]["sampler"] == "shuffled"
    assert "omits 40 examples" in dropping["order"]
    refused = claim("--batches=larger.py:twice", "--epochs=2")
    assert refused.status == 2 and "several epochs" in refused.stderr


@pytest.mark.slow
def test_a_loader_with_a_fixed_end_has_no_bound_of_a_uniform_order(claim):
    claims = json.loads(
        claim("--batches=mine.py:fixed_end", "--epochs=1", "--tail=10", "--json").stdout
    )
    last_model = claims["rows"][0]["last_model"]
    # The last step moves the model by C, and 1 or 11 steps of noise hide it: mu is 1 or 1 / sqrt(11).
    for name, noises in (("upper", 1), ("tail", 11)):
        truth = epsilon_from_mu(1 / math.sqrt(noises), 1e-5)
        assert -1e-9 <= last_model[name] - truth < 0.01  # dp-accounting searches to within 1e-10
    assert claims["rows"][0]["sampler"] == "any_order"
    assert claims["order"].startswith("not uniform (tested over 64 passes, p ")


@pytest.mark.parametrize("constant", [1.0, 0.9, 1.1])
def test_any_order_is_bounded_by_the_worst_of_all_orders(constant):
    schedule = samplers.make_schedule(1.0, 5, 2, constant, tail=3)
    weights = schedule.weights
    orders = np.array([(i, 5 + j) for i in range(5) for j in range(5)])
    worst = samplers.compute_pattern_mus(weights, orders).max()
    assert samplers.bound_any_order(schedule, 1e-5).mu == pytest.approx(worst)


@pytest.mark.slow
def test_any_order_leaks_more_than_a_uniform_one_and_no_more_than_composition():
    any_order = compute_claims("any_order", **SMALL, tail=2)
    uniform = compute_claims("shuffled", **SMALL, tail=2)
    row = any_order.rows[0]
    assert row.last_model.upper == pytest.approx(5.1748, abs=1e-4)
    assert row.every_model == uniform.rows[0].every_model
    assert uniform.rows[0].last_model.tail < row.last_model.tail < row.last_model.upper
    assert "may be known" in any_order.order and "not checked" in uniform.order
