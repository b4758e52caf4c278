"""What a loader gives: features and labels, where they came from, and their checksum."""

from typing import NamedTuple

import numpy as np


class Dataset(NamedTuple):
    """Labelled examples, as a training takes them.

    Attributes:
      features: (N, ...), float32 or whole numbers (bytes of images, say).
      labels: (N, ...); of a classification int32 from 0.
      source: one line that says where the arrays came from.
      checksum: SHA-256, in hex, of the canonical arrays (see `models.data.sources.checksum_of`).
    """

    features: np.ndarray
    labels: np.ndarray
    source: str
    checksum: str
