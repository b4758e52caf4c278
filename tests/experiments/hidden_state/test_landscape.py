"""The crafted landscape's study: its names in the store; reading, computing and drawing, each by itself."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from audit.errors import InputError
from audit.storage import index
from audit.storage.store import Store
from experiments.hidden_state import landscape, landscape_solve
from experiments.hidden_state.cells import landscape_cell
from experiments.hidden_state.landscape import (
    Exact,
    ExactLaw,
    LandscapeCell,
    SimulatedAudit,
    Simulation,
)
from experiments.hidden_state.landscape_process import Process
from tests.cases import mostly_slow

ROOT = Path(__file__).resolve().parents[3]
CELL = LandscapeCell(4.0, 2, 3, 1e-5)
GRID = landscape.Grid((2.0, 4.0), (1, 2), 3, 40)
STUDY = landscape.study(GRID, 1e-5, 0.95)
SIMULATION = Simulation(80, 0, 0.95)
METHODS = ("in_sample", "if_gaussian", "assumption_free")


def make_result(request, epsilon=0.5):
    """Makes up the result of a request."""
    steps = request.cell.steps
    if isinstance(request, ExactLaw):
        exact = [1.0] * (steps - 1) + [epsilon]
        return Exact([0.5] * (steps - 1), exact, [1.0] * steps, 1.0)
    if isinstance(request, landscape.ThresholdSearch):
        return landscape.Search([epsilon] * len(request.thresholds()))
    bounds = [{"method": method, "assumes": "", "epsilon": epsilon} for method in METHODS]
    return landscape.Simulated([epsilon] * steps, bounds, bounds)


def fill(root, study, epsilon=0.5):
    """Stores made-up results of all requests of a study; returns the stores by request."""
    stores = {}
    for request in [*study.all_laws(), *study.simulations()]:
        stores[request] = Store(root, request.setting())
        stores[request].write_text(landscape.RESULT, landscape.text(make_result(request, epsilon)))
    return stores


def test_the_store_knows_each_by_a_setting_that_does_not_change(tmp_path):
    cell = LandscapeCell(4.0, 1, 25, 1e-5)
    simulated = SimulatedAudit(cell, 0.5, Simulation(5000, 0, 0.95))
    requests = ExactLaw(cell, "optimal"), ExactLaw(cell, 0.25), simulated
    names = [Store(tmp_path, request.setting()).path.name for request in requests]
    assert names == ["d90cc0161b0e146f", "0b244d2ae8b2017b", "63bdb283ecae308b"]


def test_a_search_is_known_by_its_thresholds_too():
    cell = LandscapeCell(4.0, 4, 2, 1e-5)
    values = landscape.ThresholdSearch(cell, Simulation(5000, 0, 0.95)).setting()
    thresholds = values.pop("thresholds")
    simulation = {"runs": 5000, "seed": 0, "confidence": 0.95}
    assert values == {"kind": "landscape_search", **simulation, **cell._asdict()}
    assert len(thresholds) == 49 and np.sum(thresholds) == pytest.approx(49 / 2)
    assert thresholds[-1] == pytest.approx(1.15 * (0.5 + 16 * 0.9265), rel=1e-3)


def test_a_grids_study_asks_for_every_cell_and_algorithm_6():
    cells = [(cell.noise_multiplier, cell.batch_size, cell.steps) for cell in STUDY.cells]
    assert cells == [(sigma, size, 3) for sigma in (2.0, 4.0) for size in (1, 2)]
    assert len(STUDY.all_laws()) == 4 * 3 + 2 * 49 and len(STUDY.simulations()) == 4 + 2


def test_a_threshold_of_no_adversary_is_a_law_of_its_own():
    adversaries = list(landscape.ADVERSARIES)
    for threshold, more in ((0.5, []), (0.7, [0.7])):
        laws = STUDY._replace(threshold=threshold).laws(CELL)
        assert [law.thresholds for law in laws] == adversaries + more


@pytest.mark.parametrize("name", landscape.ADVERSARIES)
def test_a_solved_law_is_its_adversarys(name):
    assert tuple(landscape_solve.ADVERSARIES) == landscape.ADVERSARIES
    exact = landscape_solve.solve(ExactLaw(CELL, name))
    adversary = landscape_solve.ADVERSARIES[name](Process(4.0, 2, 3), 1e-5)
    assert exact.thresholds == adversary.values.tolist()
    assert exact.epsilon_exact[-1] == pytest.approx(adversary.epsilon, rel=1e-4)
    assert exact.epsilon_exact[0] == exact.epsilon_upper
    assert len(exact.epsilon_gaussian) == 3
    half = landscape_solve.solve(ExactLaw(CELL, 0.5))
    assert (half == exact) == (name == "half")


def test_reading_counts_what_is_missing_a_cell_at_a_time_and_makes_nothing(tmp_path):
    def read(study=STUDY):
        return landscape.results(index.holdings(tmp_path), study)

    assert read() == ([], [], 4 + 2)
    assert not list(tmp_path.iterdir())
    stores = fill(tmp_path, STUDY, epsilon=0.25)
    before = sorted(tmp_path.rglob("*"))
    cells, searches, missing = read()
    assert [results.cell for results in cells] == list(STUDY.cells)
    assert cells[0].at_threshold is cells[0].exact["half"]
    assert cells[0].simulated.in_sample == [0.25] * 3
    assert [results.cell for results in searches] == [search.cell for search in STUDY.searches()]
    assert len(searches[0].thresholds) == len(searches[0].exact) == len(searches[0].claimed) == 49
    assert missing == 0
    assert read(STUDY._replace(simulation=SIMULATION)).missing == 4 + 2

    first = STUDY.cells[0]
    for request in (ExactLaw(first, "optimal"), STUDY.audit(first)):
        (stores[request].path / landscape.RESULT).unlink()
        assert read().missing == 1
    (stores[STUDY.searches()[1]].path / landscape.RESULT).unlink()
    remaining = read()
    assert [results.cell for results in remaining.cells] == list(STUDY.cells[1:])
    assert remaining.searches == []
    assert remaining.missing == 1 + 2
    assert len(list(tmp_path.rglob("*"))) == len(before) - 3


def solve_made_up(laws):
    """Makes up the results of laws, in place of solving them."""
    return [(law, make_result(law)) for law in laws]


def altered(text):
    changed = text.replace('"epsilon_upper": 1.0', '"epsilon_upper": 99.9')
    assert changed != text
    return changed


TORN = ["", "[1]", '{"claimed": []}', "null", "[" * 100_000]
WRONG = [{"thresholds": 3, "epsilon_exact": [], "epsilon_gaussian": [], "epsilon_upper": 1.0}]
DAMAGES = [*(lambda text, torn=torn: torn for torn in [*TORN, *map(json.dumps, WRONG)])]
DAMAGES += [
    altered,
    lambda text: text[:40],
    lambda text: text.replace("sha256", "sha265"),
]


@pytest.mark.parametrize("damage", mostly_slow(DAMAGES, quick=2))
def test_a_damaged_result_is_missing_for_readers_and_computed_again(
    tmp_path, capsys, monkeypatch, damage
):
    study = small()
    stores = fill(tmp_path, study)
    request = ExactLaw(CELL, "optimal")
    path = stores[request].path / landscape.RESULT
    whole = path.read_text()
    path.write_text(damage(whole))
    files = sorted(tmp_path.rglob("*"))
    held = index.holdings(tmp_path)
    assert landscape.results(held, study).missing == 1
    assert not landscape_solve.simulates(held, study)
    assert landscape.results(held, study).cells == []
    assert landscape.read(held, request, Exact) is None
    assert set(capsys.readouterr().err.splitlines()) == {f"{path} is damaged: it counts as missing"}
    assert sorted(tmp_path.rglob("*")) == files
    monkeypatch.setattr(landscape_solve, "_solve_all", solve_made_up)
    landscape_solve.keep(tmp_path, study)
    assert capsys.readouterr().err == f"{path} is damaged: set aside, it is computed again\n"
    assert path.read_text() == whole
    assert len(list(path.parent.glob("*.damaged-*"))) == 1
    assert landscape.results(held, study).missing == 0
    landscape_solve.keep(tmp_path, study)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_results_without_a_checksum_are_read_as_they_were_written(tmp_path):
    for request, store in fill(tmp_path, STUDY).items():
        values = dataclasses.asdict(make_result(request))
        store.write_text(landscape.RESULT, json.dumps(values) + "\n")
    cells, searches, missing = landscape.results(index.holdings(tmp_path), STUDY)
    assert (len(cells), len(searches), missing) == (4, 2, 0)


REQUESTS = [STUDY.all_laws()[0], *STUDY.simulations()[-2:], STUDY.audit(CELL)]


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_stored_result_comes_back_and_a_value_more_or_less_is_seen(tmp_path, request_):
    store = Store(tmp_path, request_.setting())
    result = make_result(request_)
    store.write_text(landscape.RESULT, landscape.text(result))
    held = index.holdings(tmp_path)
    assert landscape.read(held, request_, type(result)) == result
    assert landscape.is_stored(held, request_)
    values = json.loads(landscape.text(result))
    for name in set(values) - {"sha256"}:
        other = values[name] + 1e-15 if isinstance(values[name], float) else values[name][:-1]
        store.write_text(landscape.RESULT, json.dumps(values | {name: other}))
        assert not landscape.is_stored(held, request_), name


def test_a_result_that_can_not_be_read_now_is_an_error_and_stays(tmp_path):
    path = fill(tmp_path, STUDY)[STUDY.audit(STUDY.cells[0])].path / landscape.RESULT
    path.unlink()
    path.symlink_to(path.name)
    held = index.holdings(tmp_path)
    with pytest.raises(InputError, match=f"cannot read {path}"):
        landscape.results(held, STUDY)
    with pytest.raises(InputError, match=f"cannot read {path}"):
        landscape_solve.keep(tmp_path, STUDY)
    assert path.is_symlink()


def small(threshold=0.5):
    """Returns a study of one cell."""
    return landscape.Study((CELL,), threshold, Simulation(40, 0, 0.95))


@pytest.mark.slow
def test_what_is_missing_is_computed_and_kept_once(tmp_path, monkeypatch):
    computed = []
    calls = []
    study = small(threshold=0.7)
    fill(
        tmp_path, STUDY
    )  # others' results are left alone, and what Algorithm 6 shares is not computed again

    def solve_all(laws):
        for law in laws:
            computed.append(law)
            yield law, make_result(law)

    monkeypatch.setattr(landscape_solve, "_solve_all", solve_all)
    landscape_solve.keep_laws(tmp_path, study, lambda: calls.append(1))
    assert computed == [ExactLaw(CELL._replace(steps=3), 0.7)]
    assert len(calls) == len(study.all_laws())
    assert landscape_solve.simulates(index.holdings(tmp_path), study)
    landscape_solve.keep_simulations(tmp_path, study)
    held = landscape.holdings(tmp_path)
    assert not landscape_solve.simulates(held, study)
    (results,) = landscape.results(held, study).cells
    assert results.at_threshold == make_result(computed[0])
    assert len(results.simulated.in_sample) == 3
    scores = held.scores(study.audit(CELL).setting(), 40)
    assert scores.presence.sum() == 20
    assert scores.scores.shape == (40, 1)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    landscape_solve.keep(tmp_path, study)
    assert len(computed) == 1
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times


def test_cells_have_a_folder_of_their_own_and_older_ones_are_used_where_they_are(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(landscape_solve, "_solve_all", solve_made_up)
    older = ExactLaw(CELL, "optimal")
    newer = ExactLaw(CELL, "half")
    in_root = Store(tmp_path, older.setting())
    in_root.write_text(landscape.RESULT, landscape.text(make_result(older, 0.125)))
    landscape_solve.keep_laws(tmp_path, small())
    assert {path.name for path in tmp_path.iterdir()} == {
        in_root.path.name,
        "landscape",
    }
    held = landscape.holdings(tmp_path)
    assert landscape.read(held, older, Exact) == make_result(older, 0.125)
    assert held.open(newer.setting()).path.parent == tmp_path / "landscape" / "cells"
    assert landscape.results(held, small()).missing == 1 + 2  # the simulations
    marker = landscape_cell(GRID).open(tmp_path, None)
    assert marker.path.parent == tmp_path / "landscape" / "cells"
    roots = []
    monkeypatch.setattr(landscape_solve, "keep", lambda out, *_, **__: roots.append(out))
    landscape_cell(GRID).do(marker, None, print)
    assert roots == [tmp_path]


@pytest.mark.slow
def test_laws_are_solved_by_processes_as_they_are_here(tmp_path):
    laws = [ExactLaw(LandscapeCell(1.0, 16, 3, 1e-5), name) for name in ("half", "best_constant")]
    assert dict(landscape_solve._solve_all(laws)) == {
        law: landscape_solve.solve(law) for law in laws
    }


@pytest.mark.slow
def test_simulated_audits_do_not_depend_on_their_batches(monkeypatch):
    simulation = Simulation(40, 3, 0.95)
    cells = [LandscapeCell(sigma, 1, 3, 1e-5) for sigma in (1.0, 2.0, 4.0)]
    audits = [SimulatedAudit(cell, 0.5, simulation) for cell in cells]
    whole = list(landscape_solve.simulate(audits))
    assert [audit for audit, _, _ in whole] == audits
    monkeypatch.setattr(landscape_solve, "_LARGEST_BATCH", 2 * 3 * 40)
    batched = list(landscape_solve.simulate(audits))
    for (_, scores, result), (_, expected_scores, expected) in zip(batched, whole, strict=True):
        np.testing.assert_allclose(scores.scores, expected_scores.scores, rtol=1e-5)
        np.testing.assert_array_equal(scores.presence[:, 0], np.arange(40) % 2 == 1)
        assert result.in_sample == pytest.approx(expected.in_sample, rel=1e-3)


def cell_texts(figure):
    return [[text.get_text() for text in axis.texts] for axis in figure.axes]


def test_figures_and_rows_take_results_alone(tmp_path):
    from experiments.hidden_state.figures import landscape_figures, landscape_rows

    fill(tmp_path, STUDY, epsilon=0.25)
    cells, searches, _ = results = landscape.results(index.holdings(tmp_path), STUDY)
    drawn = dict(landscape_figures(results, 40, 1.0))
    of_cells = ["figure_3a", "figure_14", "figure_3b", "figure_6b", "figure_10"]
    assert list(drawn) == [*of_cells, "algorithm_6"]
    claimed, _, _, exact, *_ = cell_texts(drawn["figure_3b"])
    assert claimed == ["1.00"] * 4
    assert exact == ["0.25"] * 4
    for part, names in (((cells, []), of_cells), (([], searches), ["algorithm_6"])):
        some = landscape.StudyResults(*part, 0)
        assert [name for name, _ in landscape_figures(some, 40, 1.0)] == names
    rows = landscape_rows("landscape", cells, 40)
    shown = [
        (row.panel, row.series, row.epsilons["if_gaussian"].mean, row.predicted) for row in rows
    ]
    assert shown[:2] == [("sigma = 2", "B = 1", 0.25, 0.25), ("sigma = 2", "B = 2", 0.25, 0.25)]

    nothing = Exact([0.5] * 2, [0.0] * 3, [0.0] * 3, 0.0)
    lossless = cells[0]._replace(exact=dict.fromkeys(cells[0].exact, nothing), at_threshold=nothing)
    some = landscape.StudyResults([lossless, *cells[1:]], [], 0)
    texts = cell_texts(dict(landscape_figures(some, 40, 1.0))["figure_3b"])
    assert [texts[panel][0] for panel in (1, 3, 4, 5)] == ["-"] * 4  # no rate of nothing


@pytest.mark.parametrize(
    ("modules", "unknown"),
    [
        pytest.param("landscape, cells", {"jax", "scipy", "matplotlib"}, marks=pytest.mark.slow),
        pytest.param("landscape_solve", {"jax", "matplotlib"}, marks=pytest.mark.slow),
        pytest.param("figures", {"jax"}, marks=pytest.mark.slow),
        ("landscape_law, landscape_optimal, landscape_process", {"jax"}),
    ],
)
def test_what_is_done_is_known_without_heavy_libraries(modules, unknown):
    code = f"import sys; from experiments.hidden_state import {modules}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = process.stdout.split()
    assert f"experiments.hidden_state.{modules.split(',')[0]}" in loaded
    assert unknown.isdisjoint(loaded)
