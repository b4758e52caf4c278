"""Custom models are audited like the repository's, or rejected with an error of one line."""

import doctest
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import audit
from audit import audit_model, own
from audit.adversaries.base import Adversary, NullLaw, Observer
from audit.claims.accounting import epsilon_upper_bound
from audit.conclusions import concluded
from audit.errors import InputError
from audit.methods import curves
from audit.settings.make import setting_of
from audit.training import build, game
from models.dense import FCNN, two_logit_cross_entropy
from tests import programs
from tests.cases import mostly_slow

SMALL = {"runs": 20, "steps": 4, "batch_size": 10, "noise_multiplier": 1.0, "adversary": "gc_r"}
# Work that a second call must not repeat.
WORK = [(game, "train"), (build, "build"), (own, "_find_strategy")]
HEAVY = {"jax", "flax", "optax", "tensorflow", "numpy", "scipy", "matplotlib", "torch"}
CROSS_ENTROPY = optax.softmax_cross_entropy_with_integer_labels


class Net(nn.Module):
    kind: str = ""
    factor: float = 1.0

    @nn.compact
    def __call__(self, x):
        x = self.factor * nn.relu(nn.Dense(3)(x))
        if self.kind == "parameter":
            x = x * self.param("scale", nn.initializers.ones, (3,))
        return nn.Dense(2)(x)


def rows(dataset, **changes):
    return {"features": dataset.features[:60], "labels": dataset.labels[:60], **changes}


def page(result):
    return result.folder / "report.html"


@pytest.mark.slow
def test_a_model_of_ours_gets_our_scores_and_its_report(dataset, tmp_path, plain, play, capsys):
    audit = audit_model(FCNN(), two_logit_cross_entropy, **rows(dataset), out=tmp_path, **SMALL)
    setting = setting_of("fcnn", **{name: value for name, value in SMALL.items() if name != "runs"})
    part = dataset._replace(features=dataset.features[:60], labels=dataset.labels[:60])
    scores = play(build.build(setting, part), [(0, 20)], 20)
    worlds = audit.conclusion.worlds
    for ours, theirs in zip(concluded.read_coins(scores).pooled(), worlds, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    config = json.loads((audit.folder / "config.json").read_text())
    assert config["model"] == "FCNN"
    assert page(audit).read_text().startswith("<!DOCTYPE html>") and "if_gaussian" in str(audit)


@pytest.mark.slow
def test_what_is_kept_is_not_trained_again_and_another_model_is_another_folder(
    dataset, tmp_path, plain, monkeypatch
):
    def audit(module):
        return audit_model(module, CROSS_ENTROPY, **rows(dataset), out=tmp_path, **SMALL)

    first = audit(Net())
    with monkeypatch.context() as patched:
        for place, name in WORK:
            patched.setattr(place, name, lambda *_, name=name: pytest.fail(f"{name} once more"))
        second = audit(Net())
    assert second.folder == first.folder and str(second) == str(first)
    assert audit(Net(factor=2.0)).folder != first.folder


class Mixed(nn.Module):
    """Two dense layers with a function between them that would mix examples in one array."""

    mix: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(self.mix(nn.Dense(6)(x))))


class Tied(nn.Module):
    """An autoencoder whose decoder reuses the kernel, which book-keeping does not notice."""

    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(3)
        hidden = jnp.tanh(layer(x))
        return hidden @ layer.variables["params"]["kernel"].T


def _reconstruct(output, label):
    return 1e-4 * jnp.sum(output**2 + label * output)


def _small_cross_entropy(output, label):
    return 1e-4 * CROSS_ENTROPY(output, label)


@pytest.mark.parametrize(
    ("module", "criterion", "expected"),
    mostly_slow(
        [
            (Net(), _small_cross_entropy, "book_keeping"),
            (Net("parameter"), CROSS_ENTROPY, "per_example"),
            (Mixed(lambda h: h - h.mean()), CROSS_ENTROPY, "unfolded"),
            (Tied(), _reconstruct, "per_example"),
            (Mixed(lambda h: h[..., ::-1]), CROSS_ENTROPY, "unfolded"),
        ],
        quick=4,
    ),
)
def test_the_fastest_strategy_that_clips_rightly_is_chosen(
    dataset, capsys, module, criterion, expected
):
    model = own.wrap_module(module, criterion, dataset.features, dataset.labels).model
    assert own._find_strategy(model, dataset) == expected
    assert ("slower" in capsys.readouterr().err) == (expected == "per_example")


def doubled():
    """Returns the example's adversary with doubled scores."""
    adversary = own_direction()
    return adversary._replace(score=lambda *seen: 2 * adversary.score(*seen))


@pytest.mark.slow
def test_an_adversary_of_ones_own_is_scored_kept_listed_and_drawn_like_ours(dataset, tmp_path):
    def audit(adversary, **changes):
        settings = {**SMALL, "noise_multiplier": 0.01, **changes, "adversary": adversary}
        return audit_model(Net(), CROSS_ENTROPY, **rows(dataset), out=tmp_path, **settings)

    first = audit(own_direction())
    assert first.conclusion.worlds[0].min() > first.conclusion.worlds[1].max()  # hardly any noise
    text = page(first).read_text()
    assert "own_direction" in text and "sees only the final model" in text
    again = audit(own_direction())
    assert again.folder == first.folder and audit(doubled()).folder != first.folder
    argv = [sys.executable, "-m", "audit", "list", f"--out={tmp_path}"]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert listed.returncode == 0 and "own" in listed.stdout, listed.stderr


@pytest.mark.slow
@pytest.mark.parametrize("reads", ["score", "craft"])
def test_an_adversary_that_reads_what_changes_is_audited_anew(dataset, tmp_path, reads):
    """Its functions are the same objects but now compute something else."""
    factors = {"score": 1.0, "craft": 1.0}
    ones = own_direction()
    adversary = ones._replace(
        score=lambda *given: factors["score"] * ones.score(*given),
        craft=lambda *given: factors["craft"] * ones.craft(*given),
    )

    def audit(folder):
        settings = {**SMALL, "adversary": adversary, "out": tmp_path / folder}
        conclusion = audit_model(Net(), CROSS_ENTROPY, **rows(dataset), **settings).conclusion
        return np.concatenate(conclusion.worlds)

    first = audit("shared")
    factors[reads] = 0.5
    second = audit("shared")
    assert np.abs(second - first).max() > 1e-4
    programs.forget()
    np.testing.assert_array_equal(audit("alone"), second)


ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)
IN, OUT = RNG.normal(size=400) + 2, RNG.normal(size=400)
X = RNG.normal(size=(60, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


def fresh(code, *options):
    argv = [sys.executable, *options, "-c", code]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def test_bounds_load_no_jax_and_no_matplotlib_and_the_door_itself_nothing():
    code = """import sys, audit
print(*sys.modules, sep="\\n")
print("then")
assert "if_gaussian" in audit.bounds(range(60), range(60)).bounds
print(*sys.modules, sep="\\n")"""
    loaded = fresh(code)
    before, after = loaded[: loaded.index("then")], loaded[loaded.index("then") :]
    assert HEAVY.isdisjoint(before) and "scipy" in after
    assert {"jax", "flax", "matplotlib", "audit.commands.cli"}.isdisjoint(after)


def test_a_result_becomes_a_dict_a_figure_and_a_page(tmp_path):
    found = audit.bounds(list(IN), list(OUT), name="<mine>")
    told = found.to_dict()
    assert told["auc"] == found.auc.value > 0.9
    rate = curves.true_positive_rate(IN, OUT, 0.01)
    assert told["attack"]["found_at_1_percent"] == rate
    assert {row["method"] for row in told["bounds"]} > set(found.bounds)
    path = found.report(tmp_path / "page.html")
    assert "&lt;mine&gt;" in path.read_text() and "<mine>" not in path.read_text()
    assert len(found.figure().axes) == 3


def test_a_fingerprint_tells_constants_and_initialisations_apart():
    class Scaled(nn.Module):
        table: tuple
        start: nn.initializers.Initializer = nn.initializers.lecun_normal()

        @nn.compact
        def __call__(self, x):
            return nn.Dense(2, kernel_init=self.start)(x * jnp.asarray(np.array(self.table)))

    modules = [Scaled((0.0, 1.0, 2.0)), Scaled((2.0, 1.0, 0.0))]
    modules.append(Scaled((0.0, 1.0, 2.0), nn.initializers.zeros_init()))
    first, again = (
        [own.wrap_module(module, CROSS_ENTROPY, X, Y).fingerprint for module in modules]
        for _ in "12"
    )
    assert len(set(first)) == 3 and first == again


def cross_entropy(params, example):
    return -jax.nn.log_softmax(params["w"].T @ example[0] + params["b"])[example[1]]


PARAMS = {"w": jnp.zeros((3, 2)), "b": np.zeros(2)}


@pytest.mark.slow
def test_a_loss_over_a_tree_is_audited_with_flags_names_and_not_twice(tmp_path, capsys):
    before = {
        name: getattr(jax.config, name)
        for name in ("jax_default_matmul_precision", "jax_platforms")
    }
    given = (cross_entropy, PARAMS, X, Y)
    found = audit.audit_loss(*given, out=tmp_path, k=2, **SMALL)
    assert found.upper_bound == epsilon_upper_bound(1.0, 2, 1e-5) and before == {
        name: getattr(jax.config, name) for name in before
    }
    assert found.folder.name.startswith("cross_entropy-gc_r-k2-")
    again = audit.audit_loss(*given, out=tmp_path, k=2, **SMALL)
    np.testing.assert_array_equal(again.conclusion.worlds[0], found.conclusion.worlds[0])
    assert (found.folder / "report.html").exists() and capsys.readouterr().out == ""
    page = found.report(tmp_path / "page.html").read_text()
    title = "cross_entropy, gc_r, 20 runs, 2 insertions in 4 steps"
    assert (
        "Hidden state" in page and title in page and found.figure().get_suptitle().startswith(title)
    )


@pytest.mark.parametrize(
    ("loss", "params", "more", "says"),
    [
        (cross_entropy, {"w": np.zeros((3, 2), int)}, {}, "only float arrays"),
        (
            cross_entropy,
            {"w": np.zeros((4, 2)), "b": np.zeros(2)},
            {},
            "fails on one example of shape",
        ),
        (lambda params, example: params["b"], PARAMS, {}, r"shape \(2,\)"),
        (
            cross_entropy,
            PARAMS,
            {"kk": 3},
            "kk is not a field of a setting: choose from .*insertions, k,",
        ),
        (
            cross_entropy,
            PARAMS | {"name": "net"},
            {},
            "params have a leaf of type <class 'str'>: pass only",
        ),
    ],
)
def test_a_loss_that_does_not_fit_is_one_line(tmp_path, loss, params, more, says):
    with pytest.raises(InputError, match=says) as caught:
        audit.audit_loss(loss, params, X, Y, out=tmp_path, **{**SMALL, **more})
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_built_in_model_is_audited_as_by_the_command(tmp_path):
    rows = np.random.default_rng(0).normal(size=(500, 9))
    columns = (
        "MedInc,HouseAge,AveRooms,AveBedrms,Population,AveOccup,Latitude,Longitude,MedHouseVal"
    )
    file = tmp_path / "housing.csv"
    np.savetxt(file, rows, delimiter=",", header=columns, comments="")
    flags = {"adversary": "gc_r", "k": 2, "insertions": 3, "batch_size": 20}
    found = audit.audit("fcnn", runs=40, out=tmp_path / "out", data=str(file), **flags)
    assert found.upper_bound == epsilon_upper_bound(4.0, 3, 1e-5)
    assert (found.folder / "audit.json").exists() and len(found.conclusion.worlds[0]) == 20
    assert "California Housing" in found.report(tmp_path / "page.html").read_text()
    with pytest.raises(InputError, match="`k=0`|periodicity"):
        audit.audit(runs=40, out=tmp_path / "out", data=str(file), k=0)


WITHOUT_EXAMPLES = {"Indices", "InputError", "__version__"}  # `Indices` is the built-in `range`
EXAMPLES = [name for name in audit.__all__ if name not in WITHOUT_EXAMPLES]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_in_its_docstring_gives_what_it_says(name, tmp_path):
    if name == "TorchStep":
        pytest.importorskip("torch")
    globs = {"audit": audit, "folder": tmp_path}
    tests = doctest.DocTestFinder().find(getattr(audit, name), name, globs=globs)
    (example,) = [test for test in tests if test.examples]
    assert doctest.DocTestRunner().run(example).failed == 0


def own_direction(draw=None, observer=None, **facts):
    """Returns an adversary along a direction that each run draws by `draw`, if given."""

    def init(key, theta_0, clipping_norm):
        return jnp.full_like(theta_0, clipping_norm / theta_0.size**0.5)

    def craft(state, step, theta):
        return state[None]

    def score(state, seen, theta_t, theta_0):
        return jnp.vdot(state, theta_0 - theta_t)[None]

    return Adversary(init, craft, score, observer=observer, draw=draw, **facts)


def test_what_an_adversary_draws_begins_with_and_says_of_itself_names_its_store():
    def observe(state, seen, step, theta):
        return seen + theta[0]

    adversaries = [
        own_direction(),
        own_direction(lambda state, key: state * jax.random.rademacher(key, ())),
        own_direction(lambda state, key: state * 1e-3 * jax.random.rademacher(key, ())),
        own_direction(observer=Observer(lambda state, theta: jnp.float32(0), observe)),
        own_direction(observer=Observer(lambda state, theta: jnp.float32(1), observe)),
        own_direction(null=NullLaw(all_in=True)),
        own_direction(null=NullLaw(dimension=5)),
        own_direction(crafts_constant=True),
        own_direction(null=NullLaw(draws=5)),
    ]
    names = [own._prepare_adversary(adversary, 12)[0].computes for adversary in adversaries]
    assert len(set(names)) == len(names)
    again = [own._prepare_adversary(adversary, 12)[0].computes for adversary in adversaries]
    assert names == again
