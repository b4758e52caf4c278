"""What the one-shot paper prints."""

import math
from typing import NamedTuple


class Printed(NamedTuple):
    """A cell of Table 1: the exact epsilon of its row, sigma, dimension, mean and deviation over
    50 simulations with sqrt(d) canaries."""

    epsilon: float
    sigma: float
    dimension: int
    mean: float
    deviation: float


class PrintedRun(NamedTuple):
    """A row of Table 2 or 5: noise multiplier, analytical epsilon, and by observation eps_lo and eps_est."""

    noise: float
    analytical: float
    lower_all: float
    all: float
    lower_final: float
    final: float


_DIMENSIONS = (10**4, 10**5, 10**6, 10**7)
_ROWS = (
    (10.0, 0.541, ((9.89, 0.71), (10.1, 0.41), (10.0, 0.23), (10.0, 0.10))),
    (3.0, 1.54, ((3.00, 0.46), (3.00, 0.31), (2.96, 0.15), (3.00, 0.08))),
    (1.0, 4.22, ((0.98, 0.41), (1.05, 0.23), (0.99, 0.14), (1.00, 0.07))),
)
TABLE_1 = tuple(
    Printed(epsilon, sigma, dimension, *cell)
    for epsilon, sigma, cells in _ROWS
    for dimension, cell in zip(_DIMENSIONS, cells, strict=True)
)
DELTA, SIMULATIONS = 1e-6, 50

TABLE_2 = (
    PrintedRun(0.0, math.inf, 6.240, 45800, 2.88, 4.60),
    PrintedRun(0.0496, 300, 6.238, 382, 1.11, 1.97),
    PrintedRun(0.0986, 100, 5.05, 89.4, 0.688, 1.18),
    PrintedRun(0.2317, 30, 0.407, 2.693, 0.311, 0.569),
)
TABLE_5 = (
    PrintedRun(0.0, math.inf, 6.25, 48300, 3.86, 5.72),
    PrintedRun(0.16, 33.8, 2.87, 17.9, 1.01, 1.20),
    PrintedRun(0.18, 28.1, 2.32, 12.0, 0.788, 1.15),
    PrintedRun(0.195, 24.8, 2.02, 8.88, 0.723, 1.08),
    PrintedRun(0.25, 16.9, 0.896, 3.86, 0.550, 0.818),
    PrintedRun(0.315, 12.0, 0.315, 1.50, 0.216, 0.737),
)
PRINTED = {"StackOverflow": TABLE_2, "EMNIST": TABLE_5}
