"""EMNIST by writer, from TensorFlow Federated's published file; no package carries it."""

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.task import Clients, checksum_of
from models.data.clients import by_name
from models.data.tff import Feature, read_clients

CLASSES, DIGITS = 62, 10
PUBLISHED = (
    "EMNIST by writer is TensorFlow Federated's emnist_all.sqlite, which"
    " tff.simulation.datasets.emnist.load_data() downloads as emnist_all.sqlite.lzma"
)


def load_emnist(
    *, file: str | None = None, only_digits: bool = False, test: bool = False, clients: int | None = None
) -> Clients:
    """Handwritten characters of 3,400 writers, or digits of 3,383 (Caldas et al., 2018; Reddi et al., 2020).

    Args:
      file: emnist_all.sqlite, unpacked.
      only_digits: the split of ten classes; 341,873 training examples instead of 671,585.
      test: each writer's test examples instead of the training examples.
      clients: how many writers to read at most, in the order of their names; None for all.

    Returns:
      Clients with features (N, 28, 28) float32 on [0, 1], 1 being the background, as published, and labels
      (N,): digits, then capitals, then small letters.

    Raises:
      InputError: no file is named, or it is not in that form.
    """
    split = f"{'digits_only' if only_digits else 'all'}_{'test' if test else 'train'}"
    found = read_clients(file, split, _example, what=PUBLISHED, clients=clients)
    parts = {
        name: (np.stack([image for image, _ in examples]), np.array([label for _, label in examples], "<i4"))
        for name, examples in found.items()
        if examples
    }
    source = f"file {file}, {split}"
    written = by_name(parts, source, "")
    classes = DIGITS if only_digits else CLASSES
    strays = written.labels[(written.labels < 0) | (written.labels >= classes)]
    require(not len(strays), f"{source} holds label {strays[:1].tolist()}, not only 0 to {classes - 1}")
    arrays = {"features": written.features, "labels": written.labels, "counts": written.counts}
    return written._replace(checksum=checksum_of(arrays))


def _example(features: dict[str, Feature]) -> tuple[NDArray[np.float32], int]:
    """(pixels (28, 28), label)."""
    pixels = np.asarray(features["pixels"], "<f4").reshape(28, 28)
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise ValueError("a pixel is not on [0, 1]")
    (label,) = features["label"]
    return pixels, int(label)
