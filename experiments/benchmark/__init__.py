"""Compares public estimators of epsilon on the same scores, simulated with a known epsilon."""
