"""Words that request measured Lipschitz constants, without imports to keep help quick."""

MEASURED = "measured"  # also the word in tables
UNMEASURED = "none"
