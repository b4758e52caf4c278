"""Separate checks of a DP-SGD step, its batches and its accounting."""
