"""Flags for the training engine and for a grid of audits."""

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from audit.api import combine
from audit.commands import cli
from audit.errors import InputError, require
from audit.runtime.machine import prepare_jax
from audit.settings.make import fields
from audit.settings.setting import validate
from audit.storage import files
from audit.written import Level, write_json
from experiments.cells import work
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited, DataSets
from experiments.cells.work import Workplace
from models.catalogue import task

if TYPE_CHECKING:
    from experiments.cells.work import TrainingEngine
    from experiments.sweeps.records import Record

FLAGS = flags.FLAGS
_SINGLE = ("until", "lipschitz")  # flags that require a single audit
_EXAMPLE = "write --vary=FIELD=VALUE,VALUE, such as --vary=k=1,5,25"


def define_engine() -> None:
    """Defines the flag --ray_address for `engine`."""
    flags.DEFINE_string(
        "ray_address",
        None,
        "Train on a Ray cluster: host:port, auto, or local to start one. Default: this machine.",
    )


@contextlib.contextmanager
def engine() -> "Iterator[TrainingEngine]":
    """Yields the training engine: this process, or a Ray cluster that it joins for the block.

    Raises InputError if no cluster answers.
    """
    if FLAGS.ray_address is not None:
        from experiments.cells import ray_engine

        with ray_engine.join(FLAGS.ray_address) as joined:
            yield joined
    else:
        prepare_jax()
        from audit.training.driver import LocalTrainer

        yield work.TrainingEngine(LocalTrainer, work.do_all)


def define_vary() -> None:
    """Defines the flag --vary for a grid of audits."""
    flags.DEFINE_multi_string(
        "vary",
        [],
        "Audit a grid: --vary=k=1,5,25 --vary=noise_multiplier=1,4 for all combinations.",
    )


def run(runs: int | None) -> None:
    """Trains the missing audits of the grid, and prints the grid's table.

    Args:
      runs: The number of models to train for each audit; None for the adversary's default.
    """
    from experiments.sweeps import grid  # loads SciPy

    cli.require_levels()
    for name in _SINGLE:
        require(
            not FLAGS[name].present, f"--{name} requires a single audit: drop --vary or --{name}"
        )
    axes = _parse_axes(FLAGS.vary)
    combinations = combine(axes)
    audits = []
    data_sets = set()
    for values in combinations:
        audit = _make_audit(values, runs)
        audits.append(audit)
        data_sets.add(task(audit.setting.model).data.file)
    sources = cli.sources()
    is_clear = sources.data is None or len(data_sets) == 1
    message = f"--data={sources.data}: these models have several data sets; drop it"
    require(is_clear, message)
    data = DataSets(dict.fromkeys(data_sets, sources.data))
    place = Workplace(cli.folder(), data)

    cells = work.distinct(map(audit_cell, audits))
    missing = work.find_missing(cells, place)
    if missing:
        with engine() as trains:
            failed = len(trains.do_all(missing, place).failed)
        message = f"{failed} of {len(cells)} audits failed, the others are kept"
        require(not failed, f"{message}: fix the errors above and run the command again")

    level = Level(FLAGS.delta, FLAGS.confidence)
    results = []
    for values, audit in zip(combinations, audits, strict=True):
        results.append(grid.conclude(values, audit, place, level))
    _show(results, list(axes), level)


def _parse_axes(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Returns the distinct values of each varied flag, from texts such as "k=1,5,25"."""
    known = {field.flag for field in fields().values() if field.has_flag}
    axes: dict[str, list[Any]] = {}
    for text in texts:
        flag, _, listed = text.partition("=")
        require(flag in known, f"--vary={text}: {flag!r} is not a field of an audit: {_EXAMPLE}")
        require(flag not in axes, f"--vary={text}: {flag} is varied already: join its values")
        try:
            values = map(FLAGS[flag].parser.parse, listed.split(","))
            axes[flag] = list(dict.fromkeys(values))
        except (ValueError, TypeError) as error:
            raise InputError(f"--vary={text}: {listed!r} is not a value of it: {error}") from None
    return axes


def _make_audit(values: Mapping[str, Any], runs: int | None) -> Audited:
    """Returns the audit of one combination of values, by flag; raises InputError if it is invalid.

    The panel and the series are only a name.
    """
    from experiments.sweeps import grid

    given = {}
    for field in fields().values():
        if field.flag in values:
            given[field.name] = values[field.flag]
    try:
        setting = cli.setting(**given)
        number = runs or setting.adversary.usual_runs
        validate(setting, number, FLAGS.delta)
    except InputError as error:
        raise InputError(f"--vary, {grid.describe(values)}: {error}") from None
    return Audited(grid.describe(values), "audit", 0.0, setting, number)


def _show(results: "Sequence[Record]", varied: Sequence[str], level: Level) -> None:
    """Prints the grid's table or JSON, and writes a CSV table and, for two fields, a heat map."""
    from experiments.sweeps import grid

    table = grid.make_table(results, varied, level)
    # Different grids are written to different files.
    folders = json.dumps([result["folder"] for result in results])
    digest = hashlib.sha256(folders.encode()).hexdigest()[:8]
    stem = cli.folder() / "grids" / f"{'_'.join(varied)}-{digest}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = [f"table: {files.write_whole(stem.with_suffix('.csv'), table.csv())}"]
    if len(varied) == 2:
        from audit.report import style

        picture = style.png(grid.draw_grid(results, *varied))
        written.append(f"heat map: {files.write_whole(stem.with_suffix('.png'), picture)}")
    if FLAGS.json:
        print(write_json({"audits": table.json()}))
        print("\n".join(written), file=sys.stderr)
    else:
        print("\n".join([table.text(), "", *written]))
