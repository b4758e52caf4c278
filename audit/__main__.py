"""The commands that need no repository: python -m audit bound, or hidden-state-audit bound."""

from audit import started
from audit.commands import dispatch


def main() -> None:
    """Runs the command that the first argument names."""
    dispatch.run(started.program() or started.MODULE, ["audit.commands"])


if __name__ == "__main__":
    main()
