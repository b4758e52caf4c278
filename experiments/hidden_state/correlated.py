"""The noise for the sweep `matrix`, where all models of a run together have epsilon ACCOUNTED_EPSILON."""

STRATEGIES = {  # noise strategy -> label
    "independent": "DP-SGD",
    "lambda:0.9": "lambda-CGD, 0.9",
    "bsr:16": "BSR, 16 bands",
    "bisr:16": "BISR, 16 bands",
}
ACCOUNTED_EPSILON = 24.0  # at delta 1e-5
STEPS = 250
PERIODICITIES = (1, 2, 5, 10, 25, 50)
# One noise multiplier for each of PERIODICITIES, from `MatrixMechanism.with_epsilon`, which sweeps must not
# call because it loads SciPy.
NOISE_MULTIPLIERS = {
    "independent": (3.99943, 2.82802, 1.7886, 1.26473, 0.799885, 0.565604),
    "lambda:0.9": (38.8799, 19.4506, 7.83556, 4.02936, 1.875, 1.1925),
    "bsr:16": (17.6362, 8.90454, 3.78265, 2.09168, 1.08781, 0.749314),
    "bisr:16": (26.341, 13.2346, 5.41462, 2.83525, 1.30635, 0.799126),
}
