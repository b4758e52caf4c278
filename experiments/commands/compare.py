"""Audit one mechanism with fresh directions and with the methods of four papers.

    ./run.sh compare                            a two-layer network on Fashion-MNIST
    ./run.sh compare --model=linear --steps=20 --many_runs=40 --design_steps=200  half a minute
    ./run.sh compare --noise=bsr:16 --noise_multiplier=40   correlated noise, without CANIFE

The mechanism is DP-SGD, and every step inserts the canary. Results are stored under --out and reused.
"""

from absl import flags

from audit.commands import cli
from experiments.compare.compared import Compared, validate
from models.catalogue import task

FLAGS = flags.FLAGS
cli.define_setting(Compared)
cli.define_sources()
cli.define_out("Folder for results; the table and figure go into the subfolder compare.")


def main() -> None:
    """Audits the mechanism with each method, and prints and plots the results next to the upper bound."""
    from audit.claims.matrix import MatrixMechanism

    compared = Compared(**cli.values(Compared))
    validate(compared)
    out = cli.folder()
    cli.prepare_jax()
    from audit.report import style
    from experiments.cells.cell import DataSets
    from experiments.cells.work import Workplace
    from experiments.compare import rows

    data = DataSets({task(compared.model).data.file: FLAGS.data})
    data.load(compared.model)  # reports a bad --data before training
    all_rows = rows.find_rows(compared, Workplace(out, data))
    mechanism = MatrixMechanism(compared.noise, compared.noise_multiplier, compared.steps)
    upper_bound = mechanism.epsilon(compared.delta)
    figure = rows.draw(all_rows, upper_bound, compared.delta)
    table = rows.make_table(compared, all_rows, upper_bound)
    print(f"{table.text()}\n")
    cli.write_files(out / "compare", {"compare.csv": table.csv(), "compare.png": style.png(figure)})


if __name__ == "__main__":
    cli.run(main)
