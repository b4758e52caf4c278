"""The one exception that a user's mistake raises, so that a main can tell it from a bug."""


class InputError(ValueError):
    """Raised for a user's mistake; its message is one line that names the value and the fix."""


def require(condition: object, message: str) -> None:
    """Raises InputError(message) unless the condition holds."""
    if not condition:
        raise InputError(message)
