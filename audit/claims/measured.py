"""The words for the flag that measures Lipschitz constants. Without imports, --help stays fast."""

MEASURED = "measured"  # also the word used in tables
UNMEASURED = "none"
