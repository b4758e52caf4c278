"""Compiled programs, found by the value of what they compute."""

import functools
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
_KEPT = 64


class Programs(Generic[T]):
    """The last programs that were made, by key; whoever gives equal keys must mean the same program."""

    def __init__(self, kept: int = _KEPT) -> None:
        @functools.lru_cache(maxsize=kept)
        def made(once: _Once[T]) -> T:
            return once.make()

        self._made = made

    def get(self, key: Hashable | None, make: Callable[[], T]) -> T:
        """make()'s program, made once for equal keys; made anew each time where the key is None."""
        return make() if key is None else self._made(_Once(key, make))


class _Once(Generic[T]):
    """A key, and how to make what it stands for; equal to another of the same key."""

    def __init__(self, key: Hashable, make: Callable[[], T]) -> None:
        self.key, self.make = key, make

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Once) and self.key == other.key
