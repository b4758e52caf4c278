"""The bugs that a check names, in engineers' words: what each means and how to fix it.

C, sigma, eta and B are the clipping norm, noise multiplier, learning rate and batch size that are stated.
Braces are filled with what was measured. Where `check` itself is in braces, several checks can find the bug.
"""

from typing import Any, NamedTuple


class CheckFinding(NamedTuple):
    """A bug, in words.

    Attributes:
      check: the row of the report that shows it.
      name: its name, as engineers call it.
      meaning: a sentence on what was seen and what it means for privacy.
      fix: an instruction on what to do about it.
    """

    check: str
    name: str
    meaning: str
    fix: str

    def fill(self, **measurements: Any) -> "CheckFinding":
        """Returns the finding with measurements in place of the names in braces in its texts.

        Args:
          **measurements: the value of every name that stands in braces in one of the texts, by this name. An
            empty text as value may leave a space at the end, which is cut.
        """
        return CheckFinding(*(part.format(**measurements).strip() for part in self))


# Of a step: how it replays, and how far a single example moves it.

NOT_FINITE = CheckFinding(
    check="{check}",
    name="NaN or infinity",
    meaning="The step gives NaN or infinity with {where}: an example, or its absence, is seen in the model.",
    fix="clip with C / max(C, norm), replace gradients that are not finite by 0, never divide by a size",
)
UNSEEDED = CheckFinding(
    check="replay",
    name="noise that does not follow the seed",
    meaning="Two calls with the same seed differ as much as two draws of the noise: the seed does not "
    "determine it.",
    fix="draw the noise from a generator made of `seed`; until then only the noise can be checked",
)
STATEFUL = CheckFinding(
    check="replay",
    name="a step that keeps state between calls",
    meaning="Two calls with the same seed and batch differ by {distance:.3g} eta C / B, which the noise "
    "alone does not explain.",
    fix="restore parameters, optimizer and generators before each call; with Adam return the private "
    "gradient, `p.grad` after clipping and noise, with learning_rate=1",
)
MOVING_NOISE = CheckFinding(
    check="sensitivity",
    name="noise that depends on the batch's size",
    meaning="With one more example and the same seed all numbers change by sqrt(2) sigma, as between two "
    "draws of the noise.",
    fix="draw it from a generator of its own, made of the seed alone, that neither dropout nor the batch "
    "moves",
)
TOO_FAR = CheckFinding(
    check="sensitivity",
    name="{name}",
    meaning="One example moves the step by {norm:.4g} times eta C / B, with {example}. {why}",
    fix="clip every example's whole gradient, all layers together, to norm C, sum, divide by the stated B "
    "once",
)
ANOTHER_SIZE = CheckFinding(
    check="sensitivity",
    name="a step of another size than stated",
    meaning="Movements and noise are both {ratio:.4g} times what eta C / B says: no privacy is lost by "
    "it{unless}. {why}",
    fix="state the learning rate, clipping norm and batch size that the step has, or divide by the stated "
    "one; all else is checked at this size",
)
LOST_SIGNAL = CheckFinding(
    check="sensitivity",
    name="{name}",
    meaning="Extreme examples stop at {plateau:.4g} times eta C / B, where the stated noise is for 1: no "
    "privacy is lost by it, but the gradient drowns. {why}",
    fix="divide the clipped sum by the stated B once, and by nothing else",
)
ACTUAL_SIZE = CheckFinding(
    check="{check}",
    name="normalised by the batch's actual size",
    meaning="One example changes how much all the others, and the noise, count: {figure}.",
    fix="divide by the stated batch size, a constant, not by the number of examples that are there",
)
EXAMPLES_INTERACT = CheckFinding(
    check="separation",
    name="examples change each other's gradients",
    meaning="Two parts of a batch together do not move the step by the sum of what each does alone: it "
    "differs by {distance:.3g} eta C / B.",
    fix="look for what mixes examples: batch norm, division by the actual size, a clipping norm or weights "
    "taken from the batch, microbatches clipped as one, a loss over pairs",
)

# What is asked where a step can't be judged.

ADAM = (
    "this looks like Adam, or the sign of the gradient (every number moves equally far, whatever the batch): "
    "return the private gradient, `p.grad` after clipping and noise, with learning_rate=1"
)
PRECONDITIONED = (
    "movements and noise are scaled number by number, as by Adam's running means: return the private "
    "gradient, `p.grad` after clipping and noise, with learning_rate=1"
)
SEED_CHANGES_EXAMPLES = (
    "what an example does depends on the seed: is dropout on? Set `m.p = 0.0` in every Dropout (model.eval() "
    "would take away Opacus's hooks); augmentation or sampling before the gradient do it too. Or something "
    "happens after the noise, such as rounding, clamping, projection or top-k: return the noisy sum"
)
BY_NUMBER = (
    "It differs by number: does an optimizer such as Adam divide it? Then return the private gradient, "
    "`p.grad` after clipping and noise, with learning_rate=1."
)
UNLESS_UNCLIPPED = (
    ", unless no clipping stops the examples there, but the model or the gradients' own size: then the noise "
    "is too small"
)
PERHAPS_ANOTHER_SIZE = (
    "Or the whole step is about {factor:.3g} times as large as stated, by which no privacy is lost, and the "
    "noise multiplier is right: clipping is not seen to stop examples at C. {why}"
)

# Of the noise.

SILENT = CheckFinding(
    check="noise",
    name="no noise {where}",
    meaning="{count} the same for every seed.",
    fix="add noise of deviation sigma C to all numbers of the sum, also to an embedding's rows without "
    "examples; leave numbers that are not trained out of `params`",
)
NOISE_NOT_FINITE = CheckFinding(
    check="noise",
    name="NaN or infinity",
    meaning="The step gives NaN or infinity at {count:,} of {seeds:,} seeds with the batch as given, so that "
    "nothing else can be told of the noise.",
    fix="look for a logarithm of 0, a division by 0 or an overflow where the noise is drawn, and for "
    "gradients that are not finite at some seeds",
)
WRONG_NOISE = CheckFinding(
    check="noise",
    name="noise of {figure} times the stated deviation",
    meaning="It is {figure} times eta sigma C / B{where}{equivalent}. {why}",
    fix="{advice}add noise of deviation sigma C once, to the sum of clipped gradients, before dividing by B",
)
REPEATED_NOISE = CheckFinding(
    check="independence",
    name="the same noise for {which}",
    meaning="{repeats} exactly the noise of another: comparing two steps reveals the gradients.",
    fix="make the generator once, before training, or from the whole of the step's seed",
)
RELATED_STEPS = CheckFinding(
    check="independence",
    name="noise of consecutive steps is related",
    meaning="Sums or differences of steps carry less noise than the accountant assumes.",
    fix="make the generator once, or fold the number of the step into the key",
)
SHARED_NOISE = CheckFinding(
    check="independence",
    name="noise shared by several numbers",
    meaning="Sums or differences of numbers carry less noise than the accountant assumes; seen in {tests}.",
    fix="draw a number for every parameter, from another key in every layer, another generator on every "
    "worker",
)
RELEASED_BUFFER = CheckFinding(
    check="noise",
    name="{name} is released with the model and has no noise",
    meaning="The data change this buffer, and it is neither clipped nor noised.",
    fix="switch it off (track_running_stats=False in batch norm), or compute it from public data",
)
MISSING_NOISE = CheckFinding(
    check="noise",
    name="no noise in some steps",
    meaning="{repeats} of {seeds} seeds give the step without noise.",
    fix="add noise at every step: look for a condition, a branch or a skipped call before it",
)
CANCELLING_NOISE = CheckFinding(
    check="independence",
    name="noise that cancels in a sum",
    meaning="The sum of {where} has much less noise than its numbers: it shows the sum of gradients.",
    fix="add the numbers as the generator draws them: do not subtract their mean, and do not pair them",
)
FIXED_LENGTH = CheckFinding(
    check="shape",
    name="noise of one length",
    meaning="The noise of {where} has nearly the same norm at every seed: the norm of a step tells whether "
    "an example took part.",
    fix="do not normalise the noise: add normal numbers as the generator draws them",
)
CHANGING_LENGTH = CheckFinding(
    check="shape",
    name="noise whose size changes from step to step",
    meaning="The norm of the noise of {where} varies more than that of independent normal numbers.",
    fix="draw an independent number for every parameter at every step, all of deviation sigma C",
)
CLAMPED = CheckFinding(
    check="shape",
    name="noise that is clamped",
    meaning="{agreements} exactly in a number, at the largest or smallest draws. {why}",
    fix="draw it by normal() and do not clamp it: a number at the edge shows the sum of gradients",
)
GRID = CheckFinding(
    check="shape",
    name="noise on a grid that the sum is not on",
    meaning="Draws have few values: {agreements} exactly in a number. {why}",
    fix="draw the noise in float32 or float64, and round the sum after adding it, never the noise by itself",
)
NOT_NORMAL = CheckFinding(
    check="shape",
    name="noise that is not normal",
    meaning="Its distribution is not the Gaussian that the accountant assumes.",
    fix="draw it by normal(), not uniform() or laplace(), not truncated, and do not clip after adding it",
)
NOISE_DEPENDS_ON_BATCH = CheckFinding(
    check="{check}",
    name="noise that depends on the batch",
    meaning="Beside the batch as given it is {ratios}.",
    fix="take the noise's deviation from sigma, C and B alone, and add it once a step, not once a batch part",
)
SKIPPED = CheckFinding(
    check="empty batch",
    name="steps with an empty batch are skipped",
    meaning="With an empty batch nothing moves: whoever sees the step knows that the batch was empty.",
    fix="add the noise to a sum of zero too",
)

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
    meaning="Batches hold {mean} instead of {expected:.4g} as stated: a rate of "
    "{rate:.4g}, not {stated:.4g}. {why}",
    fix="give the accountant the rate at which batches are drawn, {rate:.4g}, or draw them at the stated one",
)
CUT_BATCHES = CheckFinding(
    check="largest batch",
    name="batches cut or filled at a size",
    meaning="No batch holds {side} than {edge} examples, {count} just so many; Poisson batches would.",
    fix="let batches be as large as they come, or account for truncated Poisson batches",
)
TOGETHER = CheckFinding(
    check="together",
    name="examples that come together",
    meaning="Examples {first} and {second} come together in {count}, where {expected:.3g} are "
    "expected.",
    fix="toss a coin for every example alone: look for groups, buckets or blocks that are drawn as one",
)
ANOTHER_KIND = CheckFinding(
    check="every example",
    name="{kind} batches, not {assumed}",
    meaning="The accountant assumes {assumed} batches, these are {kind}. {dropped}",
    fix="{remedy}account for {kind} batches: claim (audit.sampler_claims) says what may be claimed for "
    "them",
)
SAME_BATCHES = CheckFinding(
    check="indices",
    name="the same batches in every pass",
    meaning="Passes are cut into the same batches: an example always meets the same others.",
    fix="shuffle anew in every pass, or sample every batch",
)
UNCHANGING = CheckFinding(
    check="every example",
    name="batches that never change, not {assumed} samples",
    meaning="The accountant assumes {assumed} batches, these are the same in every pass. {dropped}",
    fix="{remedy}account for cyclic batches: claim (audit.sampler_claims) says what may be claimed for them",
)
NOT_UNIFORM = CheckFinding(
    check="{check}",
    name="an order that is not uniform",
    meaning="{seen} Whoever guesses the step of an example learns more than from a uniform order.",
    fix="draw a uniform permutation of all examples anew in every pass (no buffer, shards or groups by "
    "length), or account for any order: claim (audit.sampler_claims) bounds it as any_order",
)
ODD_BATCHES = CheckFinding(
    check="{check}",
    name="{name}",
    meaning="The accountant assumes {assumed} batches.",
    fix="take every example by a coin of its own, in every batch: do not cut, pad or skip any",
)

# Of the accounting.

CLAIM_TOO_LOW = CheckFinding(
    check="epsilon",
    name="a claim that is too low",
    meaning="{claimed:.4g} is claimed, accounting gives {epsilon} at delta {delta:g}. {why}",
    fix="claim {epsilon}, or train with more noise or fewer steps",
)
FIXED_CLAIM_TOO_LOW = CheckFinding(
    check="epsilon",
    name="a claim that is too low",
    meaning="{claimed:.4g} is claimed; at least {least} leaks where one example is replaced in batches "
    "of a fixed size, at delta {delta:g}. {why}",
    fix="claim {epsilon}, or draw Poisson batches, which are cheaper to account for",
)
SHUFFLED_LEAK = CheckFinding(
    check="epsilon",
    name="shuffled batches leak more than is claimed",
    meaning="{claimed:.4g} is claimed; at least {least} leaks from some data (Chua et al., 2024).",
    fix="draw Poisson batches, or account for every epoch without amplification by sampling: claim {epsilon} "
    "(audit.sampler_claims says what the last model alone leaks)",
)
DELTA_TOO_LARGE = CheckFinding(
    check="delta",
    name="a delta that allows anything",
    meaning="delta {delta:g} is {released:.3g} / n of {examples}: releasing one example whole "
    "would do.",
    fix="claim at {advised}",
)
