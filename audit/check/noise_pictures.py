"""What a check's page draws of the noise."""

from typing import Any

import numpy as np

from audit.check.noise import DrawnNoise


def make_noise_pictures(drawn: DrawnNoise) -> dict[str, Any]:
    """Returns what the page draws of the noise, in stated deviations.

    "sample" is at most 5,000 of its values, "layers" the deviation of each layer with noise by its name, and
    "batches" the deviation over all layers by the batch's name, NaN where there is none.
    """
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
