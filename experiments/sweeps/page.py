"""A page on a sweep: its figures, and a section for every cell that is done."""

from audit.errors import InputError, require
from audit.report import audit_page, page, style, subjects
from audit.report.subjects import AskedLevels, Subject
from audit.settings.setting import identity
from audit.storage.index import Holdings
from experiments.cells import cell
from experiments.cells.cell import Audited
from experiments.sweeps import points, registry
from experiments.sweeps.sweep import Sweep


def of_sweep(sweep: Sweep, scale: str, held: Holdings, levels: AskedLevels) -> tuple[bytes, list[str]]:
    """The page of a sweep's finished cells, with its figures, and why others are left out.

    Raises InputError where the sweep has no audits of trained models, or none is finished and whole.
    """
    cells = sweep.audits()
    require(cells, f"--sweep={sweep.name} holds no audits of trained models: see ./run.sh figures")
    about, there, messages = list[Subject](), list[Audited](), list[str]()
    for one in cells:
        try:
            store = held.open(identity(one.setting))
            if store is None or store.missing(one.runs):
                continue
            subject = subjects.of_setting(store.path, levels, one.runs)
        except InputError as error:
            messages.append(str(error))
            continue
        x = f"{sweep.axis.name} {one.x:g}" if sweep.axis else ""
        title = ", ".join(filter(None, [one.panel, one.series, x, f"seed {one.setting.seed}"]))
        about.append(subject._replace(title=title, proves=scale != "smoke"))
        there.append(one)
    message = f"--out={held.root} holds no finished cell of {sweep.name} at scale {scale}"
    mend = messages[0] if messages else f"run ./run.sh sweep --name={sweep.name} --scale={scale}"
    require(about, f"{message}: {mend}")
    share = f"{len(about)} of the sweep's {len(cells)} cells at scale {scale} are done."
    usual = cell.Levels()
    at = cell.Levels(levels.delta or usual.delta, levels.confidence or usual.confidence)
    drawn = registry.draw(sweep, points.evidence(held, there, at))
    alternative = f"{sweep.title}. The numbers are in the table of audits."
    images = [style.svg(figure) for _, figure in drawn.figures]
    figures = [page.figure(image, alternative, sweep.title, "wide") for image in images]
    before = page.element("p", share), *figures
    return audit_page.report(f"{sweep.name}: {sweep.title}", about, *before), messages
