"""Audits of DP-SGD: mechanisms, adversaries, the distinguishing game, scores on disk, bounds."""

__version__ = "0.1.0"
