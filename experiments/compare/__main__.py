"""Audit one mechanism by the methods of all four papers.

    ./run.sh compare                            a two-layer network on Fashion-MNIST
    ./run.sh compare --model=linear --steps=100     half a minute
    ./run.sh compare --noise_multiplier=1           less noise

The mechanism is DP-SGD whose every step takes the canary, so that all methods attack one composition of
Gaussian releases, with the same neighbours and delta. Each method's results are kept under --out and never
made twice.
"""

import dataclasses
import os
import sys
from typing import Any

from absl import flags

from audit.commands import cli
from audit.storage import files
from experiments.compare.compared import Compared, validate

FLAGS = flags.FLAGS
cli.define_fields(Compared)
cli.define_sources()
flags.DEFINE_string("out", "results", "Folder for results; the table goes into its folder compare.")


def main() -> None:
    """Parse, audit by each method, print, draw."""
    given: dict[str, Any] = {field.name: FLAGS[field.name].value for field in dataclasses.fields(Compared)}
    compared = Compared(**given)
    validate(compared)
    out = cli.folder()
    cli.prepare_jax()
    from audit.report import style
    from experiments.compare import figure, methods, table
    from models.catalogue import task

    dataset = task(compared.model).data.load(cli.sources())
    asked, rows = methods.Compare(compared, dataset, out), []
    for method in methods.METHODS:
        print(f"{method.__name__.replace('_', ' ')} ...", file=sys.stderr)
        rows += list(method(asked))
    rows.sort(key=lambda row: row.sees != methods.FINAL)
    upper = methods.upper_bound(compared)
    drawn = figure.comparison_figure(rows, upper, compared.delta)
    written = [
        files.write_whole(out / "compare" / "compare.csv", table.as_csv(rows, upper)),
        files.write_whole(out / "compare" / "compare.png", style.png(drawn)),
    ]
    print(table.as_text(compared, rows, upper))
    print("\n" + "\n".join(map(os.fspath, written)))


if __name__ == "__main__":
    cli.run(main)
