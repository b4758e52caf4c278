"""Runs the commands of the installed package: python -m audit bound, or hidden-state-audit bound."""

import sys

from audit.commands import dispatch


def main() -> None:
    """Runs the command named by the first argument on the command line."""
    program = "hidden-state-audit"
    dispatch.run(program, packages=["audit.commands"], arguments=sys.argv[1:], others={})


if __name__ == "__main__":
    main()
