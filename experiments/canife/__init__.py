"""The CANIFE paper: a frozen round measured again and again over a training."""
