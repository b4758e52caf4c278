"""The CANIFE paper: measures selected rounds of a training run with a frozen model."""
