"""What a check's page draws of the noise."""

from typing import Any

import numpy as np

from audit.check.noise import DrawnNoise


def make_noise_pictures(drawn: DrawnNoise) -> dict[str, Any]:
    """Returns what the page draws of the noise: a sample, and its deviations by layer and by batch."""
    values = drawn.given.values.ravel()
    rng = np.random.default_rng(0)
    sample = rng.choice(values, min(5000, values.size), replace=False)
    layers = {}
    for i in np.flatnonzero(drawn.given.freedom > 0):
        layers[drawn.layer_names[i]] = float(drawn.given.deviations[i])
    batches = {"the batch as given": drawn.compute_deviation()}
    for batch in drawn.others:
        batches[batch] = drawn.compute_deviation(batch)
    return {"sample": sample, "layers": layers, "batches": batches}
