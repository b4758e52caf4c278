"""What a fresh process has: no compiled program."""

from audit import own
from audit.mechanism import ensemble, expansion, joining
from audit.settings import build
from audit.training import game


def forget():
    """Empties the caches by which games share functions and compiled programs."""
    for module in (ensemble, expansion, joining, build, game, own):
        for function in vars(module).values():
            if hasattr(function, "cache_clear"):
                function.cache_clear()
