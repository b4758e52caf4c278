"""Runs the commands of the installed package: python -m audit bound, or hidden-state-audit bound."""

import sys

from audit.commands import dispatch


def main() -> None:
    """Runs the command named by the first argument."""
    dispatch.run("hidden-state-audit", ["audit.commands"], sys.argv[1:], others={})


if __name__ == "__main__":
    main()
