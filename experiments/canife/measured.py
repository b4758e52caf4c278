"""Stores the measured rounds of a training run. Importing this module does not start JAX."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import plain
from audit.storage.store import Store

Floats = NDArray[np.float64]
Canary = NDArray[np.float32] | str  # normalized pixels, or a text
_ROUND_FILE = "round_{:07d}.npz"


class Measured(NamedTuple):
    """A measured round. Its file has an array for each attribute, under the same name.

    The canary's direction is its gradient, normalized to length 1. Dot products and scores are divided by the
    clipping norm.

    Attributes:
      number: The round number, starting at 1.
      clients: The number of training clients.
      accuracy: The test accuracy of the model before this round.
      health: The fraction of the first sample's penalty that the design removed.
      norm: The norm of the canary's gradient before clipping.
      own: The dot product of the canary's update with its direction.
      known: (M,) the clients' dot products with the canary's direction.
      scores_in, scores_out: The scores of the published estimate with and without the canary.
      exact: The exact epsilon of the score at the setting's delta.
      exact_then: The exact epsilon of the score at the paper's delta, 1/n for n scores.
      proven: An assumption-free lower bound on epsilon from many more mock rounds.
      canary: The canary's normalized pixels, or its text.
      label: The probabilities of the canary's label; empty for a text.
    """

    number: int
    clients: int
    accuracy: float
    health: float
    norm: float
    own: float
    known: Floats
    scores_in: Floats
    scores_out: Floats
    exact: float
    exact_then: float
    proven: float
    canary: Canary
    label: NDArray[np.float32]


def read_rounds(store: Store | None, numbers: Sequence[int]) -> list[Measured]:
    """Returns the stored rounds with the given numbers. Reports damaged files and skips them."""
    measured: list[Measured] = []
    if store is None:
        return measured
    for number in numbers:
        arrays = store.read_arrays(_ROUND_FILE.format(number), fix="measured again")
        if arrays is not None:
            # Numbers and texts are stored as zero-dimensional arrays.
            values = {name: plain(arrays[name]) for name in Measured._fields}
            measured.append(Measured(**values))
    return measured


def save_round(store: Store, measured: Measured) -> None:
    """Stores a measured round."""
    store.write_arrays(_ROUND_FILE.format(measured.number), measured._asdict())
