"""Compares public estimators of epsilon on the same scores from mechanisms with known epsilon."""
