"""How canaries come to the steps of a training run, as the text of a setting's field `sampler`.

    every               all steps of the schedule that insert take all canaries that are in
    poisson:0.01        each of these steps takes each canary with probability 0.01, by a coin
    shuffled:98         canaries are shuffled in every epoch of 98 steps, and each comes in one of these
    balls_in_bins:98    each canary comes in a single step of every epoch of 98, by a die of its own
    random_allocation:98  the same
    known:30            each canary comes in 30 steps drawn beforehand, the same in all runs

The adversary knows which steps take a canary with `every` and `known`, and with no other.
"""

from typing import NamedTuple

from audit.errors import InputError, require
from audit.values import plain_digits

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
    """How it is decided which steps of a training run take a canary that is in.

    Attributes:
      name: one of NAMES.
      rate: with `poisson` the probability with which a step takes a canary; else 1.
      batches: with samplers by epochs the number of steps in an epoch, one of which takes the canary; else 0.
      times: with `known` the number of steps that take a canary; else 0.
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
        """The probability with which a step takes a canary that is in, if it is a step that may take it."""
        return 1 / self.batches if self.batches else self.rate

    def __str__(self) -> str:
        """Returns the text from which `read_sampler` makes this sampler."""
        if self.name == EVERY:
            return EVERY
        if self.name == POISSON:
            return f"{POISSON}:{self.rate!r}"
        # Samplers by epochs have batches, and `known` has times; the other number is 0.
        return f"{self.name}:{self.batches or self.times}"


def read_sampler(text: str, batches: int = 0) -> Sampling:
    """Returns the sampler that a text describes, such as "every", "poisson:0.01" or "shuffled:98".

    The number is the rate of `poisson`, the number of steps of `known`, and the number of batches in an epoch
    of each other sampler; `every` has none.

    Args:
      text: a sampler's name, or its name, a colon and its number.
      batches: the number of batches in an epoch of the data; 0 where it is unknown. It is used where the text
        lacks a number: `poisson` then has the rate 1 / batches. `known` always needs its number.

    Raises:
      InputError: the text describes no sampler.
    """
    name, colon, number_text = text.partition(":")
    message = _FORM.format(text, ", ".join(BY_EPOCHS))
    # A colon without a number is refused: to leave the number out is to leave the colon out.
    require(name in NAMES and (bool(colon) == bool(number_text)), message)
    if name == EVERY:
        require(not colon, message)
        return Sampling()
    if not number_text:
        # The data's batches stand in. An epoch of 1 batch would leave nothing to sample.
        require(batches >= 2 and name != KNOWN, message)
        if name == POISSON:
            return Sampling(name, rate=1 / batches)
        return Sampling(name, batches=batches)
    if name == POISSON:
        return _make_poisson(_read_rate(number_text, message))
    # Nine digits or more are above any number of steps that a setting may have.
    is_plain = number_text.isascii() and number_text.isdecimal()
    require(is_plain and len(number_text) < 9, message)
    number = int(number_text)
    if name == KNOWN:
        return make_known(number)
    require(number >= 2, f"`sampler={text}`: give at least 2 batches an epoch")
    return Sampling(name, batches=number)


def _read_rate(text: str, message: str) -> float:
    """Returns a text as a sampling rate; raises InputError unless it is above 0 and at most 1.

    Args:
      text: the text of the number.
      message: the error's message, or its beginning.
    """
    try:
        rate = float(plain_digits(text))
    except ValueError:
        raise InputError(message) from None
    # Infinity and NaN, which `float` reads too, fail this comparison.
    require(0 < rate <= 1, f"{message}; a rate is above 0, at most 1")
    return rate


def _make_poisson(rate: float) -> Sampling:
    """Returns Poisson sampling with a rate; `every` for the rate 1, at which all steps take all canaries."""
    return Sampling() if rate == 1 else Sampling(POISSON, rate=rate)


def make_known(times: int) -> Sampling:
    """Returns `known`, with which each canary comes in `times` steps drawn beforehand; `every` for 0."""
    return Sampling(KNOWN, times=times) if times else Sampling()


def find_identity(sampler: Sampling) -> dict[str, object]:
    """Returns the entries about the sampler in a setting's identity in the store; none for `every`.

    For `poisson` and `known` the entry is their number, under a key of its own. For samplers by epochs it is
    the sampler's text.
    """
    if sampler.name == EVERY:
        return {}
    if sampler.name == POISSON:
        return {"sampling_rate": sampler.rate}
    if sampler.name == KNOWN:
        return {"repetitions": sampler.times}
    return {"sampler": str(sampler)}
