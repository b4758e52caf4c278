"""The crafted landscape's study: what the store knows it by, and reading, computing and drawing apart."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from audit.errors import InputError
from audit.landscape import optimal
from audit.landscape.process import Process
from audit.storage import index
from audit.storage.store import Store
from experiments.hidden_state import landscape, landscape_solve
from experiments.hidden_state.cells import landscape_cell
from experiments.hidden_state.landscape import Exact, ExactLaw, LandscapeCell, SimulatedAudit, Simulation

ROOT = Path(__file__).resolve().parents[3]
CELL = LandscapeCell(4.0, 2, 3, 1e-5)
GRID = landscape.Grid((2.0, 4.0), (1, 2), 3, 40)
STUDY = landscape.study(GRID, 1e-5, 0.95)
SIMULATION = Simulation(80, 0, 0.95)
METHODS = ("in_sample", "if_gaussian", "assumption_free")


def made_up(asked, epsilon=0.5):
    if isinstance(asked, ExactLaw):
        steps = asked.cell.steps
        return Exact([0.5] * (steps - 1), [1.0] * (steps - 1) + [epsilon], [1.0] * steps, 1.0)
    if isinstance(asked, landscape.ThresholdSearch):
        return landscape.Search([epsilon] * len(asked.thresholds()))
    bounds = [{"method": method, "assumes": "", "epsilon": epsilon} for method in METHODS]
    return landscape.Simulated([epsilon] * asked.cell.steps, bounds, bounds)


def fill(root, study, epsilon=0.5):
    """A made-up answer to all that a study asks for; the stores by what is asked."""
    asked = {one: Store(root, one.setting()) for one in [*study.all_laws(), *study.simulations()]}
    for one, store in asked.items():
        store.write_text(landscape.RESULT, landscape.text(made_up(one, epsilon)))
    return asked


def test_the_store_knows_each_by_a_setting_that_does_not_change(tmp_path):
    cell = LandscapeCell(4.0, 1, 25, 1e-5)
    simulated = SimulatedAudit(cell, 0.5, Simulation(5000, 0, 0.95))
    asked = ExactLaw(cell, "optimal"), ExactLaw(cell, 0.25), simulated
    names = [Store(tmp_path, one.setting()).path.name for one in asked]
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
    study = STUDY._replace(threshold=0.7)
    assert [law.thresholds for law in study.laws(CELL)] == ["half", "best_constant", "optimal", 0.7]
    assert [law.thresholds for law in STUDY.laws(CELL)] == ["half", "best_constant", "optimal"]


@pytest.mark.parametrize("name", landscape.ADVERSARIES)
def test_a_solved_law_is_its_adversarys(name):
    assert tuple(landscape_solve.ADVERSARIES) == landscape.ADVERSARIES
    found = landscape_solve.solve(ExactLaw(CELL, name))
    adversary = landscape_solve.ADVERSARIES[name](Process(4.0, 2, 3), 1e-5)
    assert found.thresholds == adversary.values.tolist()
    assert found.epsilon_exact[-1] == pytest.approx(adversary.epsilon, rel=1e-4)
    assert found.epsilon_exact[0] == found.epsilon_upper and len(found.epsilon_gaussian) == 3


def test_a_constant_threshold_of_one_half_is_the_papers_adversary():
    assert landscape_solve.solve(ExactLaw(CELL, 0.5)) == landscape_solve.solve(ExactLaw(CELL, "half"))


def test_what_is_missing_is_counted_a_cell_at_a_time(tmp_path):
    assert landscape.results(index.holdings(tmp_path), STUDY).missing == 4 + 2
    stores = fill(tmp_path, STUDY)
    assert landscape.results(index.holdings(tmp_path), STUDY).missing == 0
    cell = STUDY.cells[1]
    for asked in (ExactLaw(cell, "optimal"), STUDY.audit(cell)):
        (stores[asked].path / landscape.RESULT).unlink()
        assert landscape.results(index.holdings(tmp_path), STUDY).missing == 1
    (stores[STUDY.searches()[1]].path / landscape.RESULT).unlink()
    assert landscape.results(index.holdings(tmp_path), STUDY).missing == 1 + 2
    assert landscape.results(index.holdings(tmp_path), STUDY._replace(simulation=SIMULATION)).missing == 4 + 2


def test_reading_gives_the_cells_that_lack_nothing_and_makes_nothing(tmp_path):
    assert landscape.results(index.holdings(tmp_path), STUDY)[:2] == ([], []) and not list(tmp_path.iterdir())
    stores = fill(tmp_path, STUDY, epsilon=0.25)
    held = index.holdings(tmp_path)
    cells, searches, _ = landscape.results(held, STUDY)
    assert [one.cell for one in cells] == list(STUDY.cells)
    assert cells[0].at_threshold is cells[0].exact["half"] and cells[0].simulated.in_sample == [0.25] * 3
    assert [one.cell for one in searches] == [one.cell for one in STUDY.searches()]
    assert len(searches[0].thresholds) == len(searches[0].exact) == len(searches[0].claimed) == 49
    before = sorted(tmp_path.rglob("*"))
    (stores[STUDY.audit(STUDY.cells[0])].path / landscape.RESULT).unlink()
    (stores[STUDY.searches()[0]].path / landscape.RESULT).unlink()
    assert [one.cell for one in landscape.results(held, STUDY).cells] == list(STUDY.cells[1:])
    assert landscape.results(held, STUDY).searches == [] and len(list(tmp_path.rglob("*"))) == len(before) - 2


def altered(text):
    changed = text.replace('"epsilon_upper": 1.0', '"epsilon_upper": 99.9')
    assert changed != text
    return changed


TORN = ["", "[1]", '{"claimed": []}', "null", "[" * 100_000]
WRONG = [{"thresholds": 3, "epsilon_exact": [], "epsilon_gaussian": [], "epsilon_upper": 1.0}]
DAMAGES = [*(lambda text, torn=torn: torn for torn in [*TORN, *map(json.dumps, WRONG)])]
DAMAGES += [altered, lambda text: text[:40], lambda text: text.replace("sha256", "sha265")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_result_is_missing_for_readers_and_computed_again(tmp_path, capsys, monkeypatch, damage):
    stores, study = fill(tmp_path, small()), small()
    asked = ExactLaw(CELL, "optimal")
    path = stores[asked].path / landscape.RESULT
    whole = path.read_text()
    path.write_text(damage(whole))
    files, held = sorted(tmp_path.rglob("*")), index.holdings(tmp_path)
    assert landscape.results(held, study).missing == 1 and not landscape_solve.simulates(held, study)
    assert landscape.results(held, study).cells == [] and landscape.read(held, asked, Exact) is None
    assert set(capsys.readouterr().err.splitlines()) == {f"{path} is damaged: it counts as missing"}
    assert sorted(tmp_path.rglob("*")) == files
    monkeypatch.setattr(landscape_solve, "_solve_all", lambda laws: [(law, made_up(law)) for law in laws])
    landscape_solve.keep(tmp_path, study)
    assert capsys.readouterr().err == f"{path} is damaged: set aside, it is computed again\n"
    assert path.read_text() == whole and len(list(path.parent.glob("*.damaged-*"))) == 1
    assert landscape.results(held, study).missing == 0
    landscape_solve.keep(tmp_path, study)
    assert capsys.readouterr().err == ""


def test_results_without_a_checksum_are_read_as_they_were_written(tmp_path):
    for one, store in fill(tmp_path, STUDY).items():
        store.write_text(landscape.RESULT, json.dumps(dataclasses.asdict(made_up(one))) + "\n")
    cells, searches, missing = landscape.results(index.holdings(tmp_path), STUDY)
    assert (len(cells), len(searches), missing) == (4, 2, 0)


@pytest.mark.parametrize("asked", [STUDY.all_laws()[0], *STUDY.simulations()[-2:], STUDY.audit(CELL)])
def test_a_kept_result_comes_back_and_one_value_more_or_less_is_seen(tmp_path, asked):
    store, found = Store(tmp_path, asked.setting()), made_up(asked)
    store.write_text(landscape.RESULT, landscape.text(found))
    held = index.holdings(tmp_path)
    assert landscape.read(held, asked, type(found)) == found and landscape.is_stored(held, asked)
    values = json.loads(landscape.text(found))
    for name in set(values) - {"sha256"}:
        other = values[name] + 1e-15 if isinstance(values[name], float) else values[name][:-1]
        store.write_text(landscape.RESULT, json.dumps(values | {name: other}))
        assert not landscape.is_stored(held, asked), name


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
    return landscape.Study((CELL,), threshold, Simulation(40, 0, 0.95))


@pytest.mark.slow
def test_what_is_missing_is_computed_and_kept_once(tmp_path, monkeypatch):
    computed, heard, study = [], [], small(threshold=0.7)
    fill(tmp_path, STUDY)  # others' results are left alone, and what Algorithm 6 shares is not computed again

    def solved(laws):
        for law in laws:
            computed.append(law)
            yield law, made_up(law)

    monkeypatch.setattr(landscape_solve, "_solve_all", solved)
    landscape_solve.keep_laws(tmp_path, study, lambda: heard.append(1))
    assert computed == [ExactLaw(CELL._replace(steps=3), 0.7)] and len(heard) == len(study.all_laws())
    assert landscape_solve.simulates(index.holdings(tmp_path), study)
    landscape_solve.keep_simulations(tmp_path, study)
    held = landscape.holdings(tmp_path)
    assert not landscape_solve.simulates(held, study)
    (one,) = landscape.results(held, study).cells
    assert one.at_threshold == made_up(computed[0]) and len(one.simulated.in_sample) == 3
    scores = held.scores(study.audit(CELL).setting(), 40)
    assert scores.presence.sum() == 20 and scores.scores.shape == (40, 1)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    landscape_solve.keep(tmp_path, study)
    assert len(computed) == 1 and {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == kept


def test_cells_have_a_folder_of_their_own_and_older_ones_are_used_where_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(landscape_solve, "_solve_all", lambda laws: [(law, made_up(law)) for law in laws])
    older, newer = ExactLaw(CELL, "optimal"), ExactLaw(CELL, "half")
    kept = Store(tmp_path, older.setting())
    kept.write_text(landscape.RESULT, landscape.text(made_up(older, 0.125)))
    landscape_solve.keep_laws(tmp_path, small())
    assert {path.name for path in tmp_path.iterdir()} == {kept.path.name, "landscape"}
    held = landscape.holdings(tmp_path)
    assert landscape.read(held, older, Exact) == made_up(older, 0.125)
    assert held.open(newer.setting()).path.parent == tmp_path / "landscape" / "cells"
    assert landscape.results(held, small()).missing == 1 + 2  # the simulations
    marker = landscape_cell(GRID).open(tmp_path, None)
    assert marker.path.parent == tmp_path / "landscape" / "cells"
    asked = []
    monkeypatch.setattr(landscape_solve, "keep", lambda out, *_, **__: asked.append(out))
    landscape_cell(GRID).do(marker, None, print)
    assert asked == [tmp_path]


def test_laws_are_solved_by_processes_as_they_are_here(tmp_path):
    asked = [ExactLaw(LandscapeCell(1.0, 16, 3, 1e-5), name) for name in ("half", "best_constant")]
    assert dict(landscape_solve._solve_all(asked)) == {law: landscape_solve.solve(law) for law in asked}


@pytest.mark.slow
def test_simulated_audits_do_not_depend_on_their_batches(monkeypatch):
    simulation, sigmas = Simulation(40, 3, 0.95), (1.0, 2.0, 4.0)
    asked = [SimulatedAudit(LandscapeCell(sigma, 1, 3, 1e-5), 0.5, simulation) for sigma in sigmas]
    whole = list(landscape_solve.simulate(asked))
    assert [one for one, _, _ in whole] == asked
    monkeypatch.setattr(landscape_solve, "_LARGEST_BATCH", 2 * 3 * 40)
    for (_, scores, found), (_, others, expected) in zip(landscape_solve.simulate(asked), whole, strict=True):
        np.testing.assert_allclose(scores.scores, others.scores, rtol=1e-5)
        np.testing.assert_array_equal(scores.presence[:, 0], np.arange(40) % 2 == 1)
        assert found.in_sample == pytest.approx(expected.in_sample, rel=1e-3)


def test_figures_and_rows_take_results_alone(tmp_path):
    from audit.report.style import png
    from experiments.hidden_state.figures import landscape_figures, landscape_rows

    fill(tmp_path, STUDY, epsilon=0.25)
    cells, searches, _ = results = landscape.results(index.holdings(tmp_path), STUDY)
    drawn = dict(landscape_figures(results, 40, 1.0))
    assert list(drawn) == ["figure_3a", "figure_14", "figure_3b", "figure_6b", "figure_10", "algorithm_6"]
    texts = [[text.get_text() for text in axis.texts] for axis in drawn["figure_3b"].axes]
    assert (texts[0], texts[3]) == (["1.00"] * 4, ["0.25"] * 4)  # 0.25 at every step is claimed
    for part, names in (((cells, []), [*drawn][:5]), (([], searches), ["algorithm_6"])):
        some = landscape.StudyResults(*part, 0)
        assert [name for name, _ in landscape_figures(some, 40, 1.0)] == names
    rows = landscape_rows("landscape", cells, 40)
    shown = [(row.panel, row.series, row.epsilons["if_gaussian"].mean, row.predicted) for row in rows]
    assert shown[:2] == [("sigma = 2", f"B = {size}", 0.25, 0.25) for size in (1, 2)]
    assert png(drawn["algorithm_6"]).startswith(b"\x89PNG")


def test_a_step_that_loses_nothing_has_no_rate(tmp_path):
    from experiments.hidden_state.figures import landscape_figures

    fill(tmp_path, STUDY)
    cells = landscape.results(index.holdings(tmp_path), STUDY).cells
    nothing = Exact([0.5] * 2, [0.0] * 3, [0.0] * 3, 0.0)
    cells[0] = cells[0]._replace(exact={name: nothing for name in cells[0].exact}, at_threshold=nothing)
    drawn = dict(landscape_figures(landscape.StudyResults(cells, [], 0), 40, 1.0))
    texts = [[text.get_text() for text in axis.texts] for axis in drawn["figure_3b"].axes]
    assert [panel[0] for panel in (texts[1], texts[3], texts[4], texts[5])] == ["-"] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "unknown"),
    [
        ("landscape, cells", {"jax", "scipy", "matplotlib"}),
        ("landscape_solve", {"jax", "matplotlib"}),
        ("figures", {"jax"}),
    ],
)
def test_what_is_done_is_known_without_heavy_libraries(modules, unknown):
    code = f"import sys; from experiments.hidden_state import {modules}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert unknown.isdisjoint(found.stdout.split())


def test_the_laws_are_known_without_jax():
    code = "import sys; from audit.landscape import law, optimal, process; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "jax" not in found.stdout.split() and optimal.__name__ in found.stdout.split()
