"""The exception that a user's mistake raises, so that a main can tell it from a bug, and a kind of it."""


class InputError(ValueError):
    """Raised for a user's mistake; its message is one line that names the value and the fix."""


class OutdatedError(InputError):
    """Raised for stored scores that another version of this program made and that are to be trained again."""


def require(condition: object, message: str) -> None:
    """Raises InputError(message) unless the condition holds."""
    if not condition:
        raise InputError(message)
