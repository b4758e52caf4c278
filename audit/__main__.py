"""The commands that need no repository: python -m audit bound, or hidden-state-audit bound."""

from audit.commands import dispatch
from audit.runtime import started


def main() -> None:
    """Runs the command that the first argument names."""
    call = started.program() or started.MODULE
    elsewhere = f"a clone's {started.RUN_SH} has more"
    dispatch.run(dispatch.Program(call, ["audit.commands"], elsewhere=elsewhere))


if __name__ == "__main__":
    main()
