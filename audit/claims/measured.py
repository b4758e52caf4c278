"""Values of the flag that measures Lipschitz constants. There are no imports, to keep --help fast."""

MEASURED = "measured"  # also the word used in tables
UNMEASURED = "none"
