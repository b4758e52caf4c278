"""Every estimator of epsilon, ours and others', on the same scores of mechanisms of exact epsilon."""
