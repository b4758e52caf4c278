"""The methods' names in results, for those who read results without SciPy."""

IN_SAMPLE, HELD_OUT, IF_GAUSSIAN, ASSUMPTION_FREE = "in_sample", "held_out", "if_gaussian", "assumption_free"
FORMER_NAMES = {"certified": IF_GAUSSIAN}  # in JSON and CSV, for this version
LIFTED, LIFTED_GAUSSIAN, CLUSTERED = "lifted", "lifted_gaussian", "clustered"
