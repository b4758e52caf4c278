"""Values of the flag for measured Lipschitz constants. Imports nothing, to keep help quick."""

MEASURED = "measured"  # also the word in tables
UNMEASURED = "none"
