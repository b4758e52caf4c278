"""The exact landscape's table, kept: sigma 1 to 8, B 1 to 16, 25 steps, at delta 1e-5."""

import csv
import math
from pathlib import Path

import pytest

from experiments.hidden_state import landscape_solve
from experiments.hidden_state.landscape import ADVERSARIES, ExactLaw, LandscapeCell

GOLDEN = Path(__file__).resolve().parent / "golden" / "landscape.csv"
COLUMNS = ("epsilon_gaussian", "epsilon_exact", "epsilon_upper")


def golden():
    """(sigma, B, steps, adversary) -> its row, of the table's lines below its comment."""
    with open(GOLDEN, newline="") as file:
        assert next(file) == "# delta=1e-05 clipping_norm=1\n"
        rows = list(csv.DictReader(file))
    keys = [(float(x["sigma"]), int(x["batch_size"]), int(x["steps"]), x["adversary"]) for x in rows]
    return dict(zip(keys, rows, strict=True))


def is_near(value, text):
    """Whether a number is the table's to 1e-6 of itself, beside the table's rounding to six digits."""
    kept = float(text)
    rounding = 0.5 * 10.0 ** (math.floor(math.log10(kept)) - 5)
    return abs(value - kept) <= 1e-6 * kept + rounding


def differences(keys):
    rows = golden()
    for key in keys:
        found = landscape_solve.solve(ExactLaw(LandscapeCell(*key[:3], 1e-5), key[3]))
        values = (found.epsilon_gaussian[-1], found.epsilon_exact[-1], found.epsilon_upper)
        yield from ((key, n, v) for n, v in zip(COLUMNS, values, strict=True) if not is_near(v, rows[key][n]))


def test_the_table_has_every_cell():
    cells = {(float(sigma), size, 25) for sigma in range(1, 9) for size in (1, 2, 4, 8, 16)}
    assert set(golden()) == {(*cell, name) for cell in cells for name in ADVERSARIES}


@pytest.mark.parametrize(
    ("value", "near"), [(0.915234, True), (0.9152335, True), (0.915232, False), (0.9153, False)]
)
def test_a_number_is_near_within_rounding_and_a_millionth(value, near):
    assert is_near(value, "0.915234") == near


@pytest.mark.parametrize("cell", [(1.0, 1, 25), (4.0, 2, 25), (1.0, 16, 25)])
def test_three_cells_are_the_tables(cell):
    assert not list(differences((*cell, name) for name in ADVERSARIES))


@pytest.mark.slow
def test_every_number_is_the_tables():
    assert not list(differences(golden()))
