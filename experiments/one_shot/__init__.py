"""The one-shot paper: the Gaussian mechanism, simulated."""
