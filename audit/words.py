"""Texts that must fit, and words that follow a number; importing this starts nothing."""

import textwrap


def shortened(text: str, width: int) -> str:
    """The text where it fits, else its first words, or of a long word its beginning, and an ellipsis."""
    words = textwrap.shorten(text, width, placeholder=" ...")
    return f"{text[: width - 3]}..." if words == "..." else words


def counted(number: int, noun: str) -> str:
    """1 cell, 2 cells."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
