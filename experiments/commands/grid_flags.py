"""The flag --ray_address for the training engine, and grids of audits from --vary."""

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from audit.api import combine
from audit.commands import cli
from audit.errors import InputError, require
from audit.result import Grid, Result
from audit.runtime.machine import prepare_jax
from audit.settings import make
from audit.settings.make import fields
from audit.settings.setting import validate
from audit.storage import files
from audit.written import Level, counted, write_json
from experiments.cells import work
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited, Cell, DataSets
from experiments.cells.work import Workplace
from models.catalogue import task

FLAGS = flags.FLAGS
flags.disclaim_key_flags()
_EXAMPLE = "write --vary=FIELD=VALUE,VALUE, such as --vary=k=1,5,25"


def define_engine() -> None:
    """Defines the flag --ray_address for `engine`."""
    flags.DEFINE_string(
        "ray_address",
        None,
        "Train on a Ray cluster: host:port, auto, or local to start one. Default: this machine.",
    )


@contextlib.contextmanager
def engine() -> Iterator[work.TrainingEngine]:
    """Yields the training engine: this process, or the Ray cluster in --ray_address.

    Raises InputError if no cluster responds.
    """
    if FLAGS.ray_address is not None:
        from experiments.cells import ray_engine

        with ray_engine.join(FLAGS.ray_address) as joined:
            yield joined
    else:
        prepare_jax()
        from audit.training.driver import LocalTrainer  # loads JAX

        yield work.TrainingEngine(LocalTrainer, work.do_all)


def run(runs: int | None) -> None:
    """Trains the missing audits of the --vary grid, then shows its table and writes the table and figure.

    `runs` is the number of models in each audit, or None for its adversary's default.
    """
    level = cli.level()
    cli.refuse(("until", "lipschitz"), "requires a single audit: drop it or --vary")
    axes = _parse_axes(FLAGS.vary)
    combinations = combine(axes)
    audits = [_make_audit(values, runs) for values in combinations]
    data_sets = {task(audit.setting.model).data.file for audit in audits}
    require(
        FLAGS.data is None or len(data_sets) == 1,
        f"--data={FLAGS.data}: these models use different data sets; drop it",
    )
    data = DataSets(dict.fromkeys(data_sets, FLAGS.data))
    place = Workplace(cli.folder(), data)

    missing = work.find_missing(work.distinct(map(audit_cell, audits)), place)
    if missing:
        complete(missing, place)
    results = [_conclude(audit, place, level) for audit in audits]
    _show(Grid(tuple(axes), tuple(combinations), tuple(results)))


def complete(cells: list[Cell], place: Workplace) -> work.Outcome:
    """Completes cells with the engine chosen by --ray_address; raises InputError at the end if any failed."""
    with engine() as chosen:
        place.data.require_files()  # reports bad files before training
        outcome = chosen.do_all(cells, place)
    failures = f"{len(outcome.failed)} of {counted(len(cells), 'cell')} failed; the others are kept"
    require(not outcome.failed, f"{failures}: fix the errors above and run the command again")
    return outcome


def _parse_axes(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Parses strings such as "k=1,5,25" into the distinct values of each varied flag.

    Raises InputError if a flag is unknown or repeated, or does not accept one of its values.
    """
    known = {field.flag for field in fields().values() if field.has_flag}
    axes: dict[str, list[Any]] = {}
    for text in texts:
        flag, _, listed = text.partition("=")
        require(flag in known, f"--vary={text}: {flag!r} is not a field of an audit: {_EXAMPLE}")
        require(flag not in axes, f"--vary={text}: {flag} is already varied: combine its values")
        try:
            values = map(FLAGS[flag].parser.parse, listed.split(","))
            axes[flag] = list(dict.fromkeys(values))
        except (ValueError, TypeError) as error:
            raise InputError(f"--vary={text}: {flag} cannot be {listed!r}: {error}") from None
    return axes


def _make_audit(values: Mapping[str, Any], runs: int | None) -> Audited:
    """Returns the audit for one combination of values in the grid.

    `values` maps each varied flag to its value. `runs` is the number of models, or None for the adversary's
    default. Raises InputError if the setting is invalid.
    """
    described = ", ".join(f"{flag}={value}" for flag, value in values.items())
    try:
        setting = cli.setting(**values)
        number = runs or setting.adversary.usual_runs
        validate(setting, number, FLAGS.delta)
    except InputError as error:
        raise InputError(f"--vary, {described}: {error}") from None
    # The panel, series and x only identify the audit in messages.
    return Audited(panel=described, series="audit", x=0.0, setting=setting, runs=number)


def _conclude(audit: Audited, place: Workplace, level: Level) -> Result:
    """Returns the result of an audit from its stored scores, at the delta and confidence in `level`."""
    from audit.report import subjects  # loads SciPy

    dataset = place.data.load(audit.setting.model)
    folder = make.open_store(place.out, audit.setting, dataset).path
    # The conclusion, and facts for the audit's page, which `Result` requests with a function.
    facts = subjects.describe_setting(folder, *level, audit.runs)
    return Result(facts.conclusion, subject=lambda: facts, folder=folder)


def _show(grid: Grid) -> None:
    """Prints a grid as a table or as JSON, and writes its table (.csv) and figure (.png)."""
    table = grid.table()
    # A grid's files are named after the varied fields and a hash of its audits' folders.
    digest = hashlib.sha256("".join(table["folder"]).encode()).hexdigest()[:8]
    stem = cli.folder() / "grids" / f"{'_'.join(grid.varied)}-{digest}"
    csv = files.write_whole(stem.with_suffix(".csv"), table.to_csv(index=False).encode())
    png = stem.with_suffix(".png")
    grid.figure(png)
    written = f"table: {csv}\nfigure: {png}"
    if FLAGS.json:
        print(write_json({"audits": table.to_dict("records")}))
        print(written, file=sys.stderr)
    else:
        print(f"{grid}\n\n{written}")
