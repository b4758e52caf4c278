"""The bugs that a check names, as engineers call them: what each means and how to mend it.

A record's braces are filled with what was measured; where its check is in braces, several checks find it.
"""

from typing import Any, NamedTuple


class CheckFinding(NamedTuple):
    """A bug by its name, the check that found it, what it means and how to mend it."""

    check: str
    name: str
    meaning: str
    mend: str

    def of(self, **figures: Any) -> "CheckFinding":
        """The record with its braces filled."""
        return CheckFinding(*(part.format(**figures).strip() for part in self))


# fmt: off
NOT_FINITE = CheckFinding("{check}", "NaN or infinity",
    "The step gives NaN or infinity with {where}: an example, or its absence, is seen in the model.",
    "clip with C / max(C, norm), replace gradients that are not finite by 0, never divide by a size")
UNSEEDED = CheckFinding("replay", "noise that does not follow the seed",
    "Two calls with one seed are as far apart as two draws of the noise: the seed does not fix it.",
    "draw the noise from a generator made of `seed`; until then only the noise can be checked")
STATEFUL = CheckFinding("replay", "a step that keeps state between calls",
    "Two calls with one seed and one batch are {far:.3g} eta C / B apart, which is not the noise alone.",
    "restore parameters, optimizer and generators before each call, and leave out dropout")
MOVING_NOISE = CheckFinding("sensitivity", "noise that depends on the batch's size",
    "With one example more and the same seed all numbers change by sqrt(2) sigma: it is another noise.",
    "draw it from a generator of its own, made of the seed alone, that neither dropout nor the batch moves")
TOO_FAR = CheckFinding("sensitivity", "{name}",
    "One example moves the step by {units:.4g} times eta C / B, with {example}. {why}",
    "clip every example's whole gradient, all layers together, to norm C, sum, divide by the stated B once")
ANOTHER_SIZE = CheckFinding("sensitivity", "a step of another size than stated",
    "Movements and noise are both {ratio:.3g} times what eta C / B says: no privacy is lost by it. {why}",
    "state the learning rate and the batch size that the step has, or divide by the stated one")
ACTUAL_SIZE = CheckFinding("{check}", "normalised by the batch's actual size",
    "One example changes how much all the others, and the noise, count: {figure}.",
    "divide by the stated batch size, a constant, not by the number of examples that are there")
MIXED = CheckFinding("separation", "examples change each other's gradients",
    "Two parts of a batch together move the step by {far:.3g} C more than each alone does.",
    "look for what mixes examples: batch norm, division by the actual size, a clipping norm or weights taken "
    "from the batch, microbatches clipped as one, a loss over pairs")

SILENT = CheckFinding("noise", "no noise {where}", "{count:,} of {all:,} {what} are the same for every seed.",
    "add noise of deviation sigma C to all numbers of the sum, also to an embedding's rows without examples")
WRONG_NOISE = CheckFinding("noise", "noise of {figure} times the stated deviation",
    "It is {figure} times eta sigma C / B{where}. {why}",
    "add noise of deviation sigma C once, to the sum of clipped gradients, before dividing by B")
REPEATED = CheckFinding("independence", "one noise for {which}",
    "{again} of {seeds} seeds give exactly the noise of another: steps that are compared reveal all.",
    "make the generator once, before training, or from the whole of the step's seed")
RELATED_STEPS = CheckFinding("independence", "noise of consecutive steps is related",
    "Differences of steps are known better than the accountant assumes.",
    "a generator made once, or a key folded for a step")
SHARED = CheckFinding("independence", "noise shared by several numbers",
    "Sums or differences are known better than the accountant assumes; seen in {tests}.",
    "draw a number for every parameter, from another key in every layer, another generator on every worker")
NOT_NORMAL = CheckFinding("shape", "noise that is not normal",
    "Its law is not the Gaussian that the accountant assumes.",
    "draw it by normal(), not uniform() or laplace(), not truncated, and do not clip after adding it")
CHANGES = CheckFinding("{check}", "noise that depends on the batch",
    "At {batch} it is {ratio:.3g} times as large as at the batch as given.",
    "take the noise's deviation from sigma, C and B alone, and add it once a step, not once a batch part")
SKIPPED = CheckFinding("empty batch", "steps with an empty batch are skipped",
    "With an empty batch nothing moves: whoever sees the step knows that the batch was empty.",
    "add the noise to a sum of zero too")

DOUBLED = CheckFinding("indices", "an example twice in a batch",
    "{count} batches hold an example twice, which then counts twice: its sensitivity is 2 C or more.",
    "draw without replacement, or clip the sum of an example's copies")
ANOTHER_RATE = CheckFinding("batch size", "another sampling rate than stated",
    "Batches hold {mean:.4g} examples on average where the rate says {expected:.4g}.",
    "give the accountant the rate at which batches are drawn, examples in a batch / all examples")
ANOTHER_KIND = CheckFinding("every example", "{kind} batches, not {assumed}",
    "The accountant assumes {assumed} batches, these are {kind}. {dropped}", "{mend}account for {kind} ones")
SAME_BATCHES = CheckFinding("indices", "the same batches in every pass",
    "Passes are cut into the same batches: an example always meets the same others.",
    "shuffle anew in every pass, or sample every batch")
ODD_BATCHES = CheckFinding("{check}", "{name}", "The accountant assumes {assumed} batches.",
    "take every example by a coin of its own, in every batch: do not cut, pad or skip any")

TOO_LOW = CheckFinding("epsilon", "a claim that is too low",
    "{claimed:.4g} is claimed, accounting gives {epsilon:.4g} at delta {delta:g}. {why}",
    "claim {epsilon:.4g}, or train with more noise or fewer steps")
SHUFFLED_LEAK = CheckFinding("epsilon", "shuffled batches leak more than is claimed",
    "{claimed:.4g} is claimed; at least {least:.4g} leaks from some data (Chua et al., 2024).",
    "draw Poisson batches, or account for every epoch without amplification by sampling")
IDLE_DELTA = CheckFinding("delta", "a delta that allows anything",
    "delta {delta:g} times {size:,} examples is above 1: releasing one example whole would do.",
    "claim at {least:.1g}")
