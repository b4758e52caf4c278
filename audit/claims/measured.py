"""Values of the flag for measured Lipschitz constants. No imports, so that --help stays fast."""

MEASURED = "measured"  # also the word used in tables
UNMEASURED = "none"
