"""Values of the flag for measured Lipschitz constants. Without imports, to keep help fast."""

MEASURED = "measured"  # also the word in tables
UNMEASURED = "none"
