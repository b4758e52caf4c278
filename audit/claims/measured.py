"""Values of the flag that measures Lipschitz constants. To keep --help fast, this module imports no other."""

MEASURED = "measured"  # also the word used in tables
UNMEASURED = "none"
