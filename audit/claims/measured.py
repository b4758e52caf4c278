"""Values of the flag that measures Lipschitz constants. This file imports nothing, to keep --help fast."""

MEASURED = "measured"  # also the word used in tables
UNMEASURED = "none"
