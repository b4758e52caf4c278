"""The values of the flag for measured Lipschitz constants. This module has no imports, which keeps --help fast."""

MEASURED = "measured"  # also the word used in tables
UNMEASURED = "none"
