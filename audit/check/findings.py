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
_CLIP = "clip every example's whole gradient, all layers together, to norm C before summing"
_CONSTANT = "divide by the stated batch size, a constant, not by the number of examples that are there"
_FIGURE = "One example moves the step by {units:.4g} times eta C / B, with {example}."

NOT_FINITE = CheckFinding("{check}", "NaN or infinity",
    "The step gives NaN or infinity with {where}: an example, or its absence, is seen in the model.",
    "clip with C / max(C, norm), replace gradients that are not finite by 0, never divide by a size")
UNSEEDED = CheckFinding("replay", "noise that does not follow the seed",
    "Two calls with one seed are as far apart as two draws of the noise: the seed does not fix it.",
    "draw the noise from a generator made of `seed`; only statistical checks were run")
STATEFUL = CheckFinding("replay", "a step that keeps state between calls",
    "Two calls with one seed and one batch are {far:.3g} eta C / B apart, which is not the noise alone.",
    "restore parameters, optimizer and generators before each call, and leave out dropout")

MOVING_NOISE = CheckFinding("sensitivity", "noise that depends on the batch's size",
    "With one example more and the same seed all numbers change by sqrt(2) sigma: it is another noise.",
    "draw the noise from a generator of its own, made of the seed alone, that neither dropout nor the batch "
    "moves; until then one example's effect can only be estimated")
MOVES_THE_MEAN = CheckFinding("sensitivity", "an example that is not clipped",
    "The mean over many seeds moves by more than C with {example}.", _CLIP)
DIVIDED_TWICE = CheckFinding("sensitivity", "divided by the batch size twice",
    "Clipped examples move the step by {units:.4g} C instead of C: 1 / {divisor}.",
    "divide once: a loss that is a mean and a sum of gradients divided by B divide twice")
ACTUAL_SIZE = CheckFinding("{check}", "normalised by the batch's actual size",
    "One example changes how much all the others, and the noise, count: {figure}.", _CONSTANT)
BY_NUMBER = CheckFinding("sensitivity", "clipped number by number",
    f"{_FIGURE} No number moves by more than C, together they do.", _CLIP)
BY_A_FACTOR = CheckFinding("sensitivity", "{factor}",
    f"{_FIGURE} All extreme examples move it by {{level:.4g}}.", "{mend}")
LEFT_OUT = CheckFinding("sensitivity", "{layers} left out of clipping",
    f"{_FIGURE} It does so in {{layers}}; the other layers together move by at most C.",
    "count every trained layer in an example's norm")
BY_LAYER = CheckFinding("sensitivity", "layers clipped by themselves, or one left out",
    f"{_FIGURE} No layer alone moves by more than C, {{count}} layers together do.",
    "clip the whole gradient with one norm, or every layer to C / sqrt({count})")
UNCLIPPED = CheckFinding("sensitivity", "no clipping of single examples",
    f"{_FIGURE} The larger its features or label, the farther it moves it.", _CLIP)
WHOLE_BATCH = CheckFinding("sensitivity", "the batch is clipped, not its examples",
    f"{_FIGURE} It changes what the others do.", _CLIP)
TOO_FAR = CheckFinding("sensitivity", "an example that moves the step by more than C", _FIGURE, _CLIP)
ANOTHER_SIZE = CheckFinding("sensitivity", "a step of another size than stated",
    "Movements and noise are both {ratio:.3g} times what eta C / B says: no privacy is lost by it. {why}",
    "state the learning rate and the batch size that the step has, or divide by the stated one")
MIXED = CheckFinding("separation", "examples change each other's gradients",
    "Two parts together move the step by {far:.3g} C more than each alone does ({parts}).",
    "look for what mixes examples: batch norm, division by the actual size, a clipping norm or weights taken "
    "from the batch, microbatches clipped as one, a loss over pairs")

SILENT = CheckFinding("noise", "no noise {where}", "{count} of {all} trained layers have no noise.",
    "add noise of deviation sigma C to the sum of gradients of every trained layer")
SILENT_IN_PART = CheckFinding("noise", "no noise in a part of {layer}",
    "{missing:,} of {size:,} numbers of {layer} are the same for every seed: whose row moves was there.",
    "add noise to all numbers, also to rows of an embedding that no example of the batch uses")
WRONG_NOISE = CheckFinding("noise", "noise of {figure} times the stated deviation",
    "It is {figure} times eta sigma C / B{where}. {why}",
    "add noise of deviation sigma C once, to the sum of clipped gradients, before dividing by B")
ONE_NOISE = CheckFinding("independence", "one noise for every seed",
    "The noise is there, but the same with every seed, so that steps that are compared reveal all.",
    "make the generator once, before training, or from the step's seed")
REPEATED = CheckFinding("independence", "one noise for several seeds",
    "{again} of {seeds} seeds give exactly the noise of another: their difference has none.",
    "make the generator once, or from the whole of the step's seed")
RELATED_STEPS = CheckFinding("independence", "noise of consecutive steps is related",
    "Differences of steps are known better than the accountant assumes.",
    "a generator made once, or a key folded for a step")
SHARED_BY_LAYERS = CheckFinding("independence", "layers that share their noise",
    "Differences of layers are known better than the accountant assumes.",
    "draw every layer's noise from a key of its own")
SHARED = CheckFinding("independence", "noise shared by several numbers",
    "Differences or sums are known better than the accountant assumes; seen in: {tests}.",
    "draw a number for every parameter, in each layer's own shape, from another generator on every worker")
NOT_NORMAL = CheckFinding("shape", "noise that is not normal",
    "Its law is not the Gaussian that the accountant assumes: {tests}.",
    "draw it by normal(), not uniform() or laplace(), not truncated, and do not clip after adding it")
SKIPPED = CheckFinding("empty batch", "steps with an empty batch are skipped",
    "With an empty batch nothing moves: whoever sees the step knows that the batch was empty.",
    "add the noise to a sum of zero too")
OTHER_WHEN_EMPTY = CheckFinding("empty batch", "other noise with an empty batch",
    "With an empty batch it is {ratio:.3g} times as large as usual.", "treat it as any other batch")
CHANGES = CheckFinding("noise and data", "noise that depends on the batch",
    "At {batch} it is {ratio:.3g} times as large as at the batch as given.",
    "take the noise's deviation from sigma, C and B alone, and add it once a step, not once a batch part")

DOUBLED = CheckFinding("indices", "an example twice in a batch",
    "{count} batches hold an example twice, which then counts twice: its sensitivity is 2 C or more.",
    "draw without replacement, or clip the sum of an example's copies")
SAME_BATCHES = CheckFinding("across passes", "the same batches in every pass",
    "Passes are cut into the same batches: an example always meets the same others.",
    "shuffle anew in every pass, or sample every batch")
ANOTHER_RATE = CheckFinding("batch size", "another sampling rate than stated",
    "Batches hold {mean:.4g} examples on average where the rate says {expected:.4g}.",
    "give the accountant the rate at which batches are drawn, examples in a batch / all examples")
ANOTHER_KIND = CheckFinding("{check}", "{kind} batches, not {assumed}",
    "The accountant assumes {assumed} batches, these are {kind}. {dropped}", "{mend}account for {kind} ones")
ODD_BATCHES = {what: CheckFinding(row, name, meaning,
    "take every example by a coin of its own, in every batch; the accountant assumes {assumed} batches")
  for what, row, name, meaning in (
    ("spread of sizes", "spread of sizes", "sizes that vary otherwise", "Are batches cut or padded?"),
    ("empty", "spread of sizes", "no empty batch, or too many", "Are they skipped?"),
    ("every example", "every example", "examples that come unequally often", "Or all too evenly."),
    ("within a pass", "within a pass", "batches of a pass that depend on each other",
     "Who was in one is rarer in the next."),
    ("across passes", "across passes", "passes that resemble each other", "The same ones meet again."),
    ("order", "order", "neighbours come together", "An example's neighbour in the data set comes with it."),
    ("batch size", "batch size", ANOTHER_RATE.name, "The mean size is not the stated one."),
  )
}

TOO_LOW = CheckFinding("epsilon", "a claim that is too low",
    "{claimed:.4g} is claimed, accounting gives {epsilon:.4g} at delta {delta:g}. {why}",
    "claim {epsilon:.4g}, or train with more noise or fewer steps")
SHUFFLED_LEAK = CheckFinding("epsilon", "shuffled batches leak more than is claimed",
    "{claimed:.4g} is claimed; at least {least:.4g} leaks from some data (Chua et al., 2024).",
    "draw Poisson batches, or account for every epoch without amplification by sampling")
IDLE_DELTA = CheckFinding("delta", "a delta that allows anything",
    "delta {delta:g} times {size:,} examples is above 1: releasing one example whole would do.",
    "claim at {least:.1g}")
