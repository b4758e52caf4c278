"""The CANIFE paper: measures rounds of a training run while the model is frozen."""
