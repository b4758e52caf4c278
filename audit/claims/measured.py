"""Values of the flag for measured Lipschitz constants. There are no imports, to keep --help fast."""

MEASURED = "measured"  # also the word used in tables
UNMEASURED = "none"
