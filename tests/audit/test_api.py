"""The front door: audits from Python, without flags and without touching what is the caller's."""

import doctest
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import audit
from audit.errors import InputError
from audit.statistics.accounting import epsilon_upper_bound

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)
IN, OUT = RNG.normal(size=400) + 2, RNG.normal(size=400)
SMALL = {"runs": 20, "steps": 4, "batch_size": 10, "noise_multiplier": 1.0, "adversary": "gc_r"}
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
    assert "numpy" not in before and "scipy" in after
    assert {"jax", "flax", "matplotlib", "audit.commands.cli"}.isdisjoint(after)


def test_bounds_are_those_of_the_command():
    found = audit.bounds(IN, OUT, noise_multiplier=1.0, insertions=4, name="<mine>")
    assert found.upper_bound == epsilon_upper_bound(1.0, 4, 1e-5)
    assert 0 < found.bounds["assumption_free"].epsilon < found.bounds["if_gaussian"].epsilon
    assert set(found.estimates) == {"in_sample"} and "in_sample" not in found.bounds
    assert "if_gaussian" in str(found)
    assert "This training leaks" in found._repr_html_() and "<table" in found._repr_html_()
    assert audit.bounds(IN, OUT, 1e-3, 0.9).conclusion.confidence == 0.9


def test_a_result_becomes_a_dict_a_figure_and_a_page(tmp_path):
    found = audit.bounds(list(IN), list(OUT), name="<mine>")
    told = found.to_dict()
    assert told["auc"] == found.auc.value > 0.9
    assert told["true_positive_rates"]["0.01"] == found.true_positive_rate(0.01)
    assert {row["method"] for row in told["bounds"]} > set(found.bounds)
    path = found.report(tmp_path / "page.html")
    assert "&lt;mine&gt;" in path.read_text() and "<mine>" not in path.read_text()
    assert len(found.figure().axes) == 4


def test_scores_that_are_none_half_a_mechanism_and_what_the_door_lacks_are_said():
    for scores_in, scores_out, says in (
        ([1, 2], ["a"], "`scores_out` are no numbers"),
        ([[1], [2, 3]], [1], "`scores_in` are no numbers"),
        (np.zeros((2, 2, 2)), [1], r"shape \(2, 2, 2\)"),
    ):
        with pytest.raises(InputError, match=says) as caught:
            audit.bounds(scores_in, scores_out)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="go together"):
        audit.bounds(IN, OUT, insertions=3)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        audit.nothing  # noqa: B018
    functions = {"audit", "audit_loss", "audit_model", "bounds"}
    assert set(audit.__all__) == functions | {"InputError", "Result", "__version__"}
    found = audit.bounds(RNG.normal(size=(80, 8)) + 2, RNG.normal(size=(80, 7)))
    assert found.bounds["lifted_gaussian"].epsilon > 0


def cross_entropy(params, example):
    logits = params["w"].T @ example[0] + params["b"]
    return -jax.nn.log_softmax(logits)[example[1]]


PARAMS = {"w": jnp.zeros((3, 2)), "b": np.zeros(2)}


def test_a_loss_over_a_tree_is_audited_with_flags_names_and_not_twice(tmp_path, capsys):
    before = {name: getattr(jax.config, name) for name in ("jax_default_matmul_precision", "jax_platforms")}
    given = (cross_entropy, PARAMS, X, Y)
    found = audit.audit_loss(*given, out=tmp_path, k=2, **SMALL)
    assert found.upper_bound == epsilon_upper_bound(1.0, 2, 1e-5)
    assert before == {name: getattr(jax.config, name) for name in before}
    assert found.folder.name.startswith("cross_entropy-gc_r-k2-")
    again = audit.audit_loss(*given, out=tmp_path, k=2, **SMALL)
    np.testing.assert_array_equal(again.conclusion.scores_in, found.conclusion.scores_in)
    assert (found.folder / "report.html").exists() and capsys.readouterr().out == ""
    page = found.report(tmp_path / "page.html").read_text()
    title = "cross_entropy, gc_r, 20 runs, 2 insertions in 4 steps"
    assert "Hidden state" in page and title in page and found.figure().get_suptitle().startswith(title)


@pytest.mark.parametrize(
    ("loss", "params", "more", "says"),
    [
        (cross_entropy, {"w": np.zeros((3, 2), int)}, {}, "float arrays"),
        (cross_entropy, {}, {}, "float arrays"),
        (cross_entropy, {"w": np.zeros((4, 2)), "b": np.zeros(2)}, {}, "fails on one example of shape"),
        (lambda params, example: params["b"], PARAMS, {}, r"shape \(2,\)"),
        (cross_entropy, PARAMS, {"unknown_initialisation": True}, "unknown_initialisation"),
        (cross_entropy, PARAMS, {"clipping": "unfolded"}, "clipping"),
        (cross_entropy, PARAMS, {"kk": 3}, "kk is no field of a setting: choose of .*insertions, k,"),
        (cross_entropy, PARAMS | {"activation": jax.nn.relu}, {}, "of type .*: give float arrays alone"),
        (cross_entropy, PARAMS | {"name": "net"}, {}, "params hold a leaf of type str: give float"),
    ],
)
def test_a_loss_that_does_not_fit_is_one_line(tmp_path, loss, params, more, says):
    with pytest.raises(InputError, match=says) as caught:
        audit.audit_loss(loss, params, X, Y, out=tmp_path, **{**SMALL, **more})
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_an_nnx_module_is_audited(tmp_path):
    from flax import nnx

    graph, params, rest = nnx.split(nnx.Sequential(nnx.Linear(3, 2, rngs=nnx.Rngs(0))), nnx.Param, ...)

    def loss(params, example):
        return -jax.nn.log_softmax(nnx.merge(graph, params, rest)(example[0]))[example[1]]

    found = audit.audit_loss(loss, params, X, Y, out=tmp_path, **SMALL)
    assert list(found.bounds)[-1] == "held_out" and len(found.bounds) == 3
    assert len(found.conclusion.scores_in) == 10


def test_a_linen_module_is_audited(tmp_path):
    import flax.linen as nn
    import optax

    criterion = optax.softmax_cross_entropy_with_integer_labels
    given = {name: value for name, value in SMALL.items() if name != "steps"} | {"insertions": 4}
    found = audit.audit_model(nn.Dense(2), criterion, X, Y, out=tmp_path, **given)
    assert found.upper_bound == epsilon_upper_bound(1.0, 4, 1e-5) and found.folder.is_dir()


def test_a_built_in_model_is_audited_as_by_the_command(tmp_path):
    rows = np.random.default_rng(0).normal(size=(500, 9))
    columns = "MedInc,HouseAge,AveRooms,AveBedrms,Population,AveOccup,Latitude,Longitude,MedHouseVal"
    file = tmp_path / "housing.csv"
    np.savetxt(file, rows, delimiter=",", header=columns, comments="")
    flags = {"adversary": "gc_r", "k": 2, "insertions": 3, "batch_size": 20}
    found = audit.audit("fcnn", runs=40, out=tmp_path / "out", data_file=str(file), **flags)
    assert found.upper_bound == epsilon_upper_bound(4.0, 3, 1e-5)
    assert (found.folder / "audit.json").exists() and len(found.conclusion.scores_in) == 20
    assert "California Housing" in found.report(tmp_path / "page.html").read_text()
    with pytest.raises(InputError, match="`k=0`|periodicity"):
        audit.audit(runs=40, out=tmp_path / "out", data_file=str(file), k=0)


@pytest.mark.parametrize("name", ["bounds", "audit", "audit_model", "audit_loss"])
def test_the_example_in_its_docstring_gives_what_it_says(name, tmp_path):
    found = doctest.DocTestFinder().find(getattr(audit, name), globs={"audit": audit, "folder": tmp_path})
    (example,) = [one for one in found if one.examples]
    assert doctest.DocTestRunner().run(example).failed == 0
