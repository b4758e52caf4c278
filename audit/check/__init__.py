"""Is this DP-SGD right? One step, its batches and its accounting, each checked by itself."""
