"""A page on a sweep: its figures, and a section for every cell that is done."""

from audit.errors import InputError, require
from audit.report import audit_page, page, style, subjects
from audit.report.page import Html
from audit.report.subjects import AskedLevels, Subject
from audit.settings.setting import identity
from audit.storage.index import Holdings
from experiments.cells import cell
from experiments.cells.cell import Audited
from experiments.sweeps import points, registry
from experiments.sweeps.sweep import Axis, Sweep


def of_sweep(sweep: Sweep, scale: str, held: Holdings, levels: AskedLevels) -> tuple[bytes, list[str]]:
    """The page of a sweep's finished cells, with its figures, and why others are left out.

    Raises InputError where the sweep has no audits of trained models, or none is finished and whole.
    """
    cells = sweep.audits()
    require(cells, f"--sweep={sweep.name} holds no audits of trained models: see ./run.sh figures")
    proves = scale != "smoke"
    about: list[Subject] = []
    there: list[Audited] = []
    messages: list[str] = []
    for one in cells:
        try:
            found = _of_cell(held, sweep.axis, one, levels)
        except InputError as error:
            messages.append(str(error))
            continue
        about += [subject._replace(proves=proves) for subject in found]
        there += [one] * len(found)
    message = f"--out={held.root} holds no finished cell of {sweep.name} at scale {scale}"
    mend = messages[0] if messages else f"run ./run.sh sweep --name={sweep.name} --scale={scale}"
    require(about, f"{message}: {mend}")
    share = f"{len(about)} of the sweep's {len(cells)} cells at scale {scale} are done."
    before = page.element("p", share), *_figures(sweep, held, there, levels)
    return audit_page.report(f"{sweep.name}: {sweep.title}", about, *before), messages


def _of_cell(held: Holdings, axis: Axis | None, cell: Audited, levels: AskedLevels) -> list[Subject]:
    """A cell's audit, named after its place in the figure; nothing where it is not finished."""
    store = held.open(identity(cell.setting))
    if store is None or store.missing(cell.runs):
        return []
    x = f"{axis.name} {cell.x:g}" if axis else ""
    place = [cell.panel, cell.series, x, f"seed {cell.setting.seed}"]
    about = subjects.of_setting(store.path, levels, cell.runs)
    return [about._replace(title=", ".join(part for part in place if part))]


def _figures(sweep: Sweep, held: Holdings, there: list[Audited], levels: AskedLevels) -> list[Html]:
    """The sweep's figures of those of its cells that are there."""
    usual = cell.Levels()
    at = cell.Levels(levels.delta or usual.delta, levels.confidence or usual.confidence)
    drawn = registry.draw(sweep, points.evidence(held, there, at))
    alternative = f"{sweep.title}. The numbers are in the table of audits."
    images = [style.svg(figure) for _, figure in drawn.figures]
    return [page.figure(image, alternative, sweep.title, "wide") for image in images]
