"""The CANIFE paper: freezes the model at selected rounds of training and measures the leak."""
