"""The bugs that a check names: the meaning and the fix of each.

C, sigma, eta and B are the stated clipping norm, noise multiplier, learning rate and batch size. Names in
braces are filled with measurements. If `check` itself is in braces, several checks can find the bug.
"""

from typing import Any, NamedTuple


class CheckFinding(NamedTuple):
    """A bug, in words.

    Attributes:
      check: the row of the report that shows it.
      name: its name.
      meaning: a sentence on the observation and its effect on privacy.
      fix: an instruction.
    """

    check: str
    name: str
    meaning: str
    fix: str

    def fill(self, **measurements: Any) -> "CheckFinding":
        """Returns the finding with the names in braces replaced by measurements."""
        return CheckFinding(*(part.format(**measurements).strip() for part in self))


# Of the batches.

EXAMPLE_TWICE = CheckFinding(
    check="indices",
    name="an example twice in a batch",
    meaning="{count} an example twice, which then counts twice: its sensitivity is 2 C or more.",
    fix="draw without replacement, or clip the sum of an example's copies",
)
REPEATED_BATCH = CheckFinding(
    check="indices",
    name="a batch that comes again",
    meaning="{count} just the examples of another batch.",
    fix="draw every batch afresh: look for a last batch that is repeated, padding, or a cache",
)
ANOTHER_RATE = CheckFinding(
    check="batch size",
    name="another sampling rate than stated",
    meaning="Batches have {mean} instead of {expected:.4g} as stated: a rate of {rate:.4g}, not "
    "{stated:.4g}. {why}",
    fix="give the accountant the rate at which batches are drawn, {rate:.4g}, or draw them at the stated one",
)
CUT_BATCHES = CheckFinding(
    check="spread of sizes",
    name="batches cut or filled at a size",
    meaning="No batch has {side} than {edge} examples, {count} exactly {edge}; Poisson batches would.",
    fix="do not cut, fill or skip batches, or account for truncated Poisson batches",
)
TOGETHER = CheckFinding(
    check="together",
    name="examples that come together",
    meaning="{seen}",
    fix="sample every example independently: look for groups, buckets or blocks that are drawn together",
)
ANOTHER_KIND = CheckFinding(
    check="every example",
    name="{kind} batches, not {assumed}",
    meaning="The accountant assumes {assumed} batches, these are {kind}. {why}",
    fix="sample {assumed} batches, or account for {kind} batches: claim "
    "(audit.sampler_claims) prints the epsilon of them",
)
NOT_UNIFORM = CheckFinding(
    check="{check}",
    name="an order that is not uniform",
    meaning="{seen} Whoever guesses the step of an example learns more than from a uniform order.",
    fix="draw a uniform permutation of all examples anew in every pass (no buffer, shards or groups by "
    "length), or account for any order: claim (audit.sampler_claims) bounds it as any_order",
)
ODD_SIZES = CheckFinding(
    check="spread of sizes",
    name="sizes that vary otherwise",
    meaning="The accountant assumes {assumed} batches.",
    fix="sample every example independently in every batch: do not cut, pad or skip batches",
)
UNEQUALLY_OFTEN = ODD_SIZES._replace(
    check="every example", name="examples that come unequally often"
)

# Of the accounting.

CLAIM_TOO_LOW = CheckFinding(
    check="epsilon",
    name="a claim that is too low",
    meaning="{claimed:.4g} is claimed, accounting gives {epsilon} at delta {delta:g}. {why}",
    fix="claim {epsilon}, or train with more noise or fewer steps",
)
DELTA_TOO_LARGE = CheckFinding(
    check="delta",
    name="a delta that allows anything",
    meaning="delta {delta:g} is {released:.3g} / n of {examples}: releasing one example whole "
    "would do.",
    fix="claim at {advised}",
)
