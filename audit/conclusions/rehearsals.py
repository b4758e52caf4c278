"""Whether an audit's steps are measured, and along how many rehearsed runs.

Importing this starts no JAX; `audit.conclusions.measuring` measures.
"""

from audit.claims.measured import MEASURED, UNMEASURED
from audit.conclusions import lipschitz
from audit.conclusions.lipschitz import Steps
from audit.errors import InputError, require
from audit.settings.setting import Setting
from audit.storage.store import Store
from audit.tasks import zoo

USUAL = 0  # rehearsals: as many as are usual for the model's size
FEWEST = 2  # rehearsals, one of them in each world


def count_rehearsals(
    setting: Setting, requested: str | None = None, rehearsals: int | None = None
) -> int | None:
    """Returns along how many runs to measure the steps of a model of the zoo, or `USUAL`.

    None says not to measure. Without a request, smooth models of which nothing is proven are measured where
    canaries come at every k-th step alone and the adversary sees the last model alone.

    Args:
      setting: Of the audit.
      requested: "measured" or "none", where a caller requests either.
      rehearsals: The number of runs that a caller requests.

    Raises:
      InputError: For other words, for too few runs, and for a setting whose last model has no bound, whatever
        is measured.
    """
    is_word = requested is None or isinstance(requested, str)
    require(
        is_word and requested in (None, MEASURED, UNMEASURED),
        f"`lipschitz={requested!r}`: give {MEASURED} or {UNMEASURED}, or drop it",
    )
    require_rehearsals(requested, rehearsals)
    if requested == MEASURED:
        require_measurable(setting)
    is_wanted = requested == MEASURED or (requested is None and _is_measured_unasked(setting))
    if not is_wanted or _is_proven(setting):
        return None
    return USUAL if rehearsals is None else rehearsals


def require_rehearsals(requested: object, rehearsals: int | None) -> None:
    """Raises InputError for a number of rehearsals that is too small, or that nothing is measured along."""
    if rehearsals is None:
        return
    is_measured = isinstance(requested, str) and requested == MEASURED
    require(is_measured, f"`rehearsals` goes with `lipschitz={MEASURED}`: give it, or drop it")
    require(
        rehearsals >= FEWEST,
        f"`rehearsals={rehearsals}`: give at least {FEWEST}, one of them in each world",
    )


def require_measurable(setting: Setting) -> None:
    """Raises InputError for a setting whose last model has no bound, whatever is measured."""
    # Whether there is a bound does not depend on delta, nor on what the constants are.
    reason = lipschitz.hidden_state(setting, 1e-5, Steps(1.0, ""))
    if isinstance(reason, str):
        message = f"`lipschitz={MEASURED}` bounds what the last model leaks, and {reason}: drop it"
        raise InputError(message)


def find_measured(store: Store, rehearsals: int) -> Steps | None:
    """Returns the measured steps of a store; None where they are along fewer runs, or another version's."""
    steps = lipschitz.find_current(store)
    if steps is None:
        return None
    # `USUAL` is 0: any measurement will do.
    return steps if steps.runs >= max(rehearsals, FEWEST) else None


def _is_proven(setting: Setting) -> bool:
    """Returns whether it is proven how Lipschitz a setting's steps are."""
    row = zoo.task(setting.model)
    return row.convex is not None or row.curved is not None


def _is_measured_unasked(setting: Setting) -> bool:
    """Returns whether a setting's steps are measured although nobody requests it."""
    if not zoo.task(setting.model).smooth or setting.schedule.periodicity == 1:
        return False
    state = lipschitz.hidden_state(setting, 1e-5, Steps(1.0, ""))  # any delta and constants
    return not isinstance(state, str)
