"""What is said while programs compile and while runs are trained, and texts that fit their place."""

import numpy as np

from audit.progress import bar
from audit.settings.make import setting_of
from audit.words import counted, shortened
from experiments.cells import progress
from experiments.cells.audits import audit_cell, compiling_seconds
from experiments.cells.cell import Audited
from experiments.hidden_state import sweep as sweeps

CELL = audit_cell(Audited("", "GC-R", 1, setting_of("fcnn"), 40))


def test_compiling_is_said_until_all_is_compiled(capsys):
    with bar(10) as hears:
        before = capsys.readouterr().err
        hears(0.0)
        hears(4.0)
    after = capsys.readouterr().err
    assert before.strip().startswith("compiling:") and "training" not in before
    assert after.rpartition("\r")[2].startswith("training: 100%")


def test_a_sweep_says_compiling_of_each_cell(capsys):
    line = progress.SweepProgress([CELL])
    hears = line.begin(CELL)
    line._bar.refresh()
    assert "compiling" in capsys.readouterr().err
    hears(0.0)
    hears(20.0)
    line._bar.refresh()
    assert "compiling" not in capsys.readouterr().err.rpartition("\r")[2]
    line.end(CELL)
    line.close()


def test_a_game_is_told_that_all_is_compiled_before_any_run(empty_game):
    from audit import game

    heard = []
    next(game.play(empty_game(), [(0, 4)], 4, lambda runs, steps: heard.append((runs, steps))))
    assert heard[0] == (0, 0) and np.all(np.array(heard[1:]) > 0)


def test_a_text_is_cut_between_words():
    for width, fits in {17: "three short words", 16: "three short ...", 9: "three ..."}.items():
        assert shortened("three short words", width) == fits and len(fits) <= width
    assert shortened("m" * 40, 10) == "mmmmmmm..."


def test_one_is_no_plural():
    assert [counted(number, "cell") for number in (0, 1, 2)] == ["0 cells", "1 cell", "2 cells"]


def test_cells_of_one_shape_are_compiled_once():
    every = sweeps.sweeps("laptop")
    assert compiling_seconds([CELL, CELL]) == compiling_seconds([CELL]) > 0
    one, two = every["figure_1c"].cells, every["landscape"].cells
    assert compiling_seconds(one) == 2 * compiling_seconds([CELL])  # a crafted gradient, and a label flipped
    assert compiling_seconds([*one, *two]) == 3 * compiling_seconds([CELL])
