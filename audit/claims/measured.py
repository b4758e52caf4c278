"""Words by which a user asks for measured Lipschitz constants; loads nothing, so that help stays quick."""

MEASURED = "measured"  # of constants that are no proof: the word in tables too
UNMEASURED = "none"  # what a user asks for where nothing is to be measured
