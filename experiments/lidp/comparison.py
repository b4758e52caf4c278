"""An entry of the LiDP paper's Table 1."""

from typing import NamedTuple

from experiments.cells.cell import Audited


class Comparison(NamedTuple):
    """Audits with one canary and with several, of one attack at one epsilon."""

    single: Audited
    several: Audited
    epsilon: float
