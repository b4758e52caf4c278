"""Makes the page of a sweep: its figures, and a section for every cell that is done."""

from audit.errors import InputError, require
from audit.methods.level import USUAL_LEVEL
from audit.report import audit_page, page, style, subjects
from audit.report.subjects import RequestedLevels, Subject
from audit.settings.setting import identity
from audit.storage.index import Holdings
from experiments.cells.cell import Audited
from experiments.sweeps import points, registry
from experiments.sweeps.sweep import Sweep


def sweep_page(
    sweep: Sweep, scale: str, held: Holdings, requested: RequestedLevels
) -> tuple[bytes, list[str]]:
    """Returns the HTML page of a sweep: its figures, and a section for each audit whose runs are all stored.

    Args:
      sweep: The sweep.
      scale: The sweep's scale.
      held: What the store holds.
      requested: The requested delta and confidence of the bounds. Where either is None, all sections and
        figures have the usual value, whatever that of an audit's last conclusion: the page compares them.

    Returns:
      (the page, messages that say why damaged cells are left out)

    Raises:
      InputError: The sweep has no audits of trained models, or none that is finished and undamaged.
    """
    cells = sweep.audits()
    require(cells, f"--sweep={sweep.name} holds no audits of trained models: see ./run.sh figures")
    levels = requested.complete(*USUAL_LEVEL)
    sections: list[Subject] = []
    finished: list[Audited] = []
    messages: list[str] = []
    for audited in cells:
        try:
            store = held.open(identity(audited.setting))
            if store is None or store.missing(audited.runs):
                continue
            subject = subjects.describe_setting(store.path, RequestedLevels(*levels), audited.runs)
        except InputError as error:  # a damaged cell is left out
            messages.append(str(error))
            continue
        # The scale "smoke" has too few runs to prove anything.
        sections.append(subject._replace(title=_title(sweep, audited), proves=scale != "smoke"))
        finished.append(audited)
    # Without a section, a damaged cell's message says best what to do.
    problem = f"--out={held.root} holds no finished cell of {sweep.name} at scale {scale}"
    hint = f"run ./run.sh sweep --name={sweep.name} --scale={scale}"
    if messages:
        hint = messages[0]
    require(sections, f"{problem}: {hint}")

    # The sweep's figures, from the audits that have a section.
    drawn = registry.draw(sweep, points.evidence(held, finished, levels))
    alternative_text = f"{sweep.title}. The numbers are in the table of audits."
    figures = []
    for _, figure in drawn.figures:
        figures.append(page.figure(style.svg(figure), alternative_text, sweep.title, "wide"))
    share = f"{len(sections)} of the sweep's {len(cells)} cells at scale {scale} are done."
    content = audit_page.report(
        f"{sweep.name}: {sweep.title}", sections, page.macros.paragraph(share), *figures
    )
    return content, messages


def _title(sweep: Sweep, audited: Audited) -> str:
    """Returns the title of an audit's section: panel, series, x and seed, without those that are empty."""
    parts = [audited.panel, audited.series]
    if sweep.axis:
        parts.append(f"{sweep.axis.name} {audited.x:g}")
    parts.append(f"seed {audited.setting.seed}")
    return ", ".join(part for part in parts if part)
