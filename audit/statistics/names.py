"""The methods' names in results, for those who read results without SciPy."""

IN_SAMPLE, HELD_OUT, IF_GAUSSIAN, ASSUMPTION_FREE = "in_sample", "held_out", "if_gaussian", "assumption_free"
LIFTED, LIFTED_GAUSSIAN, CLUSTERED = "lifted", "lifted_gaussian", "clustered"
ONE_SHOT_FITTED, ONE_SHOT_EQUAL_VARIANCE = "one_shot_fitted", "one_shot_equal_variance"
ONE_SHOT_THRESHOLD = "one_shot_threshold"
ONE_SHOT_JEFFREYS, ONE_SHOT_CLOPPER_PEARSON = "one_shot_jeffreys", "one_shot_clopper_pearson"
ONE_RUN, ONE_RUN_GUESSES, ONE_RUN_GAUSSIAN = "one_run", "one_run_guesses", "one_run_gaussian"
