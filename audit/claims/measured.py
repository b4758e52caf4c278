"""Values of the flag for measured Lipschitz constants. Without imports here, help is fast."""

MEASURED = "measured"  # also the word in tables
UNMEASURED = "none"
