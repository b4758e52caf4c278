"""How canaries come to the steps of a training run, as the text of a setting's field `sampler`.

    every               all steps of the schedule that insert take all canaries that are in
    poisson:0.01        each of these steps takes each canary with probability 0.01, by a coin
    shuffled:98         canaries are shuffled in every epoch of 98 steps, and each comes in one of these
    balls_in_bins:98    each canary comes in one step of every epoch of 98, by a die of its own
    random_allocation:98  the same
    known:30            each canary comes in 30 steps drawn beforehand, the same in all runs

The adversary knows which steps take a canary with `every` and `known`, and with no other.
"""

import math
from typing import NamedTuple

from audit.errors import InputError, require

EVERY = "every"
POISSON = "poisson"
SHUFFLED = "shuffled"
BALLS_IN_BINS = "balls_in_bins"
RANDOM_ALLOCATION = "random_allocation"
KNOWN = "known"
BY_EPOCHS = (SHUFFLED, BALLS_IN_BINS, RANDOM_ALLOCATION)
NAMES = (EVERY, POISSON, *BY_EPOCHS, KNOWN)
_FORM = "`sampler={}`: give every, poisson:RATE, {}, each with :BATCHES of an epoch, or known:STEPS"


class Sampling(NamedTuple):
    """How canaries come to steps.

    Attributes:
      name: one of NAMES.
      rate: the probability with which a step takes a canary, with `poisson`; else 1.
      batches: the steps of an epoch, in one of which a canary comes; 0 of other samplers.
      times: the steps in which a canary comes, with `known`; else 0.
    """

    name: str = EVERY
    rate: float = 1.0
    batches: int = 0
    times: int = 0

    @property
    def is_hidden(self) -> bool:
        """Whether the adversary does not know which steps take a canary."""
        return self.name not in (EVERY, KNOWN)

    @property
    def chance(self) -> float:
        """The probability with which a step that may take a canary that is in takes it."""
        return 1 / self.batches if self.batches else self.rate

    def __str__(self) -> str:
        """Returns the text that `read_sampler` reads."""
        if self.name == EVERY:
            return EVERY
        if self.name == POISSON:
            return f"{POISSON}:{self.rate!r}"
        return f"{self.name}:{self.batches or self.times}"


def read_sampler(text: str, batches: int = 0) -> Sampling:
    """Returns the sampler that a text describes.

    Args:
      text: a name, mostly with a number.
      batches: of an epoch of the data, if known: the number for a name without a number.

    Raises:
      InputError: the text describes no sampler.
    """
    name, colon, number_text = text.partition(":")
    message = _FORM.format(text, ", ".join(BY_EPOCHS))
    require(name in NAMES and (bool(colon) == bool(number_text)), message)
    if name == EVERY:
        require(not colon, message)
        return Sampling()
    if not number_text:
        require(batches >= 2 and name != KNOWN, message)
        if name == POISSON:
            return Sampling(name, rate=1 / batches)
        return Sampling(name, batches=batches)
    if name == POISSON:
        return _make_poisson(_read_rate(number_text, message))
    require(number_text.isdecimal() and len(number_text) < 9, message)
    number = int(number_text)
    if name == KNOWN:
        return make_known(number)
    require(number >= 2, f"`sampler={text}`: give at least 2 batches an epoch")
    return Sampling(name, batches=number)


def _read_rate(text: str, message: str) -> float:
    """Returns a sampling rate; raises InputError where the text is no probability above 0."""
    try:
        rate = float(text)
    except ValueError:
        raise InputError(message) from None
    require(math.isfinite(rate) and 0 < rate <= 1, f"{message}; a rate is above 0, at most 1")
    return rate


def _make_poisson(rate: float) -> Sampling:
    """Returns the sampler of a rate; with rate 1 all steps take all canaries."""
    return Sampling() if rate == 1 else Sampling(POISSON, rate=rate)


def make_known(times: int) -> Sampling:
    """Returns the sampler of so many steps that are drawn beforehand; 0 means all steps."""
    return Sampling(KNOWN, times=times) if times else Sampling()


def find_identity(sampler: Sampling) -> dict[str, object]:
    """Returns a sampler's part of an identity: the fields by which stores name it."""
    if sampler.name == EVERY:
        return {}
    if sampler.name == POISSON:
        return {"sampling_rate": sampler.rate}
    if sampler.name == KNOWN:
        return {"repetitions": sampler.times}
    return {"sampler": str(sampler)}
