"""Values of flags that request measured Lipschitz constants. Imports nothing, so help is quick."""

MEASURED = "measured"  # also the word in tables
UNMEASURED = "none"
