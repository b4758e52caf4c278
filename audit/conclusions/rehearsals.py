"""Whether an audit's steps are measured, and along how many rehearsed runs.

Importing this starts no JAX; `audit.conclusions.measuring` measures.
"""

from audit.claims.measured import MEASURED, UNMEASURED
from audit.conclusions import lipschitz
from audit.conclusions.lipschitz import Steps
from audit.errors import require
from audit.settings.setting import Setting
from audit.storage.store import Store
from audit.tasks import zoo

USUAL = 0  # rehearsals: as many as are usual for the model's size
FEWEST = 2  # rehearsals, one of them in each world


def count_rehearsals(
    setting: Setting, requested: str | None = None, rehearsals: int | None = None
) -> int | None:
    """Returns the number of runs along which to measure a zoo model's steps, or `USUAL`; None for not at all.

    Models of which constants are proven are not measured. Without a request, another model is measured if it
    is smooth, canaries come only at every k-th step, with k > 1, and the last model can have a bound.

    Args:
      setting: the setting of the audit.
      requested: what a caller requests, "measured" or "none"; None without a request.
      rehearsals: the number of runs that a caller requests; None for the usual number.

    Raises:
      InputError: for other words, for too few runs, and for a request to measure where the last model can
        have no bound, whatever is measured.
    """
    # The type comes first: an array of a caller's gives no single answer to `in`.
    is_word = requested is None or isinstance(requested, str)
    require(
        is_word and requested in (None, MEASURED, UNMEASURED),
        f"`lipschitz={requested!r}`: give {MEASURED} or {UNMEASURED}, or drop it",
    )
    require_rehearsals(requested, rehearsals)
    if requested == MEASURED:
        require_measurable(setting)
    row = zoo.task(setting.model)
    # No bound is stated for a model with kinks. With a canary in every step, the bound is that of composition
    # unless some steps contract. In such cases measuring is left to a request.
    is_usual = (
        row.smooth and setting.schedule.periodicity > 1 and not _explain_unmeasurable(setting)
    )
    is_wanted = requested == MEASURED or (requested is None and is_usual)
    is_proven = row.convex is not None or row.curved is not None
    if is_proven or not is_wanted:
        return None
    if rehearsals is None:
        return USUAL
    return rehearsals


def require_rehearsals(requested: object, rehearsals: int | None) -> None:
    """Raises InputError for a number of rehearsals that is below 2, or comes without `lipschitz=measured`.

    Args:
      requested: the caller's `lipschitz`, a word or numbers.
      rehearsals: the number of runs that the caller requests; None without a request.
    """
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
    reason = _explain_unmeasurable(setting)
    message = f"`lipschitz={MEASURED}` bounds what the last model leaks, and {reason}: drop it"
    require(not reason, message)


def _explain_unmeasurable(setting: Setting) -> str:
    """Returns why the last model has no bound, whatever is measured; empty if it can have one."""
    # Any delta and constants will do: whether there is a bound does not depend on them.
    bound_or_reason = lipschitz.hidden_state(setting, 1e-5, Steps(1.0, ""))
    if isinstance(bound_or_reason, str):
        return bound_or_reason
    return ""


def find_measured(store: Store, rehearsals: int) -> Steps | None:
    """Returns the constants of the steps that were measured along at least `rehearsals` runs.

    None where the store has none of them, or another version measured them. `USUAL` asks for any number.
    """
    steps = lipschitz.find_current(store)
    if steps is None:
        return None
    # `USUAL` is 0, for which any measurement will do. Constants that were not measured have 0 runs as well:
    # `FEWEST` leaves these out.
    if steps.runs >= max(rehearsals, FEWEST):
        return steps
    return None
