"""The CANIFE paper: measures rounds of a training run with a frozen model."""
