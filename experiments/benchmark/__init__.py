"""Every estimator of epsilon, ours and others', on the same scores of mechanisms whose truth is known."""
