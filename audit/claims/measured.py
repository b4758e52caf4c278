"""Values of the flag for measured Lipschitz constants. This file imports nothing, so help is fast."""

MEASURED = "measured"  # also the word in tables
UNMEASURED = "none"
