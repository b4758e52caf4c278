"""Checks of DP-SGD: one step, its batches and its accounting, each by itself."""
