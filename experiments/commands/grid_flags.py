"""The flags that choose what trains and a grid of audits, whose cells workers share."""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from audit.commands import cli
from audit.errors import InputError, require
from audit.settings import make
from audit.settings.make import fields
from audit.settings.setting import validate
from audit.storage import files
from audit.written import Level, write_json
from experiments.cells import work
from experiments.cells.cell import DataSets
from experiments.cells.work import Workplace
from models.catalogue import task

if TYPE_CHECKING:
    from experiments.sweeps.grid import GridAudit
    from experiments.sweeps.records import Record

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from audit.runtime.machine import prepare_jax

if TYPE_CHECKING:
    from experiments.cells.work import TrainingEngine


# Flags of a single audit, which a grid has no use for.
_SINGLE = ("until", "lipschitz")


def define_engine() -> None:
    """Defines the flag --ray_address, which `engine` reads."""
    flags.DEFINE_string(
        "ray_address",
        None,
        "A Ray cluster trains: host:port, auto, or local to start one; by default this machine trains.",
    )


@contextlib.contextmanager
def engine() -> "Iterator[TrainingEngine]":
    """Yields what trains: this process, or a Ray cluster to which this process belongs in the block.

    Raises InputError if there is no cluster.
    """
    address = flags.FLAGS.ray_address
    if address is not None:
        from experiments.cells import ray_engine

        with ray_engine.join(address) as joined:
            yield joined
    else:
        prepare_jax()
        from audit.training.driver import LocalTrainer
        from experiments.cells import work

        yield work.TrainingEngine(LocalTrainer, work.do_all)


def define_vary() -> None:
    """Defines the flag --vary, which describes a grid of audits."""
    flags.DEFINE_multi_string(
        "vary", [], "A grid: --vary=k=1,5,25 --vary=noise_multiplier=1,4 audits all combinations."
    )


def run(runs: int | None) -> None:
    """Trains the audits of the grid that the store lacks, and prints the grid's table.

    Args:
      runs: the number of models to train for each audit; None for the number that is usual for its adversary.
    """
    from experiments.sweeps import grid  # it loads SciPy, which --help does without

    cli.require_levels()
    _require_no_flags_of_single_audits()
    axes = _parse_axes(flags.FLAGS.vary)
    audits = [_make_audit(values, runs) for values in grid.combine(axes)]
    place = Workplace(cli.folder(), _find_data(audits))

    cells = work.distinct([audit.cell() for audit in audits])
    held = make.holdings(place.out)
    missing = [cell for cell in cells if not cell.is_done(held, place.data)]
    if missing:
        with engine() as trains:
            outcome = trains.do_all(missing, place)
        failed = len(outcome.failed)
        message = f"{failed} of {len(cells)} audits failed, the others are kept"
        require(not failed, f"{message}: fix what is reported above, and start again")

    level = Level(flags.FLAGS.delta, flags.FLAGS.confidence)
    _show([grid.conclude(audit, place, level) for audit in audits], list(axes), level)


def _require_no_flags_of_single_audits() -> None:
    """Raises InputError if a flag is given that goes only with a single audit."""
    for name in _SINGLE:
        require(
            not flags.FLAGS[name].present, f"--{name} goes with a single audit: drop --vary or it"
        )


def _parse_axes(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Returns the values of each varied field, each value once, by the name of the field's flag.

    Args:
      texts: the values of --vary, each such as "k=1,5,25".

    Raises:
      InputError: a text has another form, or varies what is no field, or a field that is varied already.
    """
    by_flag = {field.flag: field for field in fields().values() if field.has_flag}
    axes: dict[str, list[Any]] = {}
    for text in texts:
        flag, _, listed = text.partition("=")
        example = "write --vary=FIELD=VALUE,VALUE, as --vary=k=1,5,25"
        require(flag in by_flag, f"--vary={text}: {flag!r} is not a field of an audit: {example}")
        require(listed, f"--vary={text}: give {flag} values: {example}")
        require(flag not in axes, f"--vary={text}: {flag} is varied already: join its values")
        axes[flag] = list(dict.fromkeys(_parse_value(flag, value) for value in listed.split(",")))
    return axes


def _parse_value(flag: str, text: str) -> Any:
    """Returns a text as the flag of a field parses it; raises InputError where the flag does not take it."""
    try:
        return flags.FLAGS[flag].parser.parse(text)
    except (ValueError, TypeError) as error:
        raise InputError(f"--vary={flag}: {text!r} is not a value of it: {error}") from None


def _make_audit(values: Mapping[str, Any], runs: int | None) -> "GridAudit":
    """Returns the audit of one combination of values.

    Args:
      values: the varied fields' values, by flag.
      runs: the number of models to train; None or 0 for the number that is usual for the adversary.

    Raises:
      InputError: the combination is impossible; the message names it.
    """
    from experiments.sweeps import grid

    by_flag = {field.flag: field.name for field in fields().values()}
    try:
        setting = cli.setting(**{by_flag[flag]: value for flag, value in values.items()})
        number = runs or setting.adversary.usual_runs
        validate(setting, number, flags.FLAGS.delta)
    except InputError as error:
        raise InputError(f"--vary, {grid.describe(values)}: {error}") from None
    return grid.GridAudit(values, setting, number)


def _find_data(audits: "Sequence[GridAudit]") -> DataSets:
    """Returns where the data of all audits' models come from.

    Raises InputError for --data_file if the models have several data sets.
    """
    sources = cli.sources()
    data_sets = {task(audit.setting.model).data.file for audit in audits}
    given = flags.FLAGS.data_file
    require(
        given is None or len(data_sets) == 1,
        f"--data_file={given}: these models have several data sets; drop it",
    )
    return DataSets(dict.fromkeys(data_sets, given), sources.tfds_dir)


def _show(results: "Sequence[Record]", varied: Sequence[str], level: Level) -> None:
    """Prints the grid's table, or JSON; writes the table as CSV, and a heat map of two fields as PNG."""
    from experiments.sweeps import grid

    table = grid.make_table(results, varied, level)
    # The files' name has the varied fields and a hash of the audits' folders. So the same grid is written to
    # the same files, and other grids are not.
    identity = json.dumps([result["folder"] for result in results])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    stem = cli.folder() / "grids" / f"{'_'.join(varied)}-{digest}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    table_path = files.write_whole(stem.with_suffix(".csv"), table.csv())
    written = [f"table: {table_path}"]
    if len(varied) == 2:
        from audit.report import style

        figure_path = stem.with_suffix(".png")
        files.write_whole(figure_path, style.png(grid.draw_grid(results, *varied)))
        written.append(f"heat map: {figure_path}")
    if flags.FLAGS.json:
        print(write_json({"audits": table.json()}))
        print("\n".join(written), file=sys.stderr)
    else:
        print("\n".join([table.text(), "", *written]))
