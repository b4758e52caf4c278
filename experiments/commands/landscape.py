"""Solve, simulate and audit crafted loss landscapes.

    ./run.sh landscape                              sigma 1..8, B 1, 2, 4, 8, 16, 25 steps
    ./run.sh landscape --sigmas=4 --steps=50        other landscapes; --runs=1000000 simulates more runs
    ./run.sh landscape --momentum=0.9               only convex landscapes that exploit momentum

With the latch, the last iterate reveals whether any batch of a shuffled training run had a large sum.
"""

import itertools

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import MAX_NOISE, MIN_NOISE, require
from audit.settings.setting import require_runs
from audit.written import show_level

FLAGS = flags.FLAGS
flags.DEFINE_list("sigmas", [str(sigma) for sigma in range(1, 9)], "Noise multipliers.")
flags.DEFINE_list("batch_sizes", ["1", "2", "4", "8", "16"], "Batch sizes B.")
flags.DEFINE_integer("steps", 25, "Steps T.", lower_bound=1, upper_bound=10**5)
cli.define_levels()
flags.DEFINE_enum(
    "momentum", None, ["0.9"], "Only convex losses that exploit this heavy-ball momentum."
)
flags.DEFINE_integer("runs", 5000, "Simulated runs per landscape, half with the canary.")
cli.define_seed("Seed of the simulated runs.")
cli.define_out("Folder for results; figures go to the subfolder landscape.")


def main() -> None:
    """Prints and plots the epsilon of training on two crafted losses.

    On the hidden-state paper's landscape, steps move the parameter away from a threshold. The other loss, the
    latch, records whether any batch had a large sum of gradients. With --momentum, it prints only convex
    landscapes with momentum.
    """
    level = cli.level()
    # Some estimates choose a score threshold on half of the runs and test it on the other half. Each half
    # needs runs with and without the canary.
    require_runs(FLAGS.runs, least=4)
    sigmas = cli.numbers("sigmas", MIN_NOISE, MAX_NOISE)
    batch_sizes = cli.numbers("batch_sizes", least=1, most=10**4)
    for size in batch_sizes:
        require(size.is_integer(), f"--batch_sizes={size:g}: give whole numbers")
    folder = cli.folder() / "landscape"
    from audit.report import style
    from experiments.hidden_state import crafted, landscape, landscape_figures, momentum
    from experiments.hidden_state.landscape import Process, Study

    study = Study(*level, FLAGS.runs, FLAGS.seed)
    contents = {}
    if FLAGS.momentum is not None:  # the only value is 0.9
        tables = {"momentum": momentum.make_table(study)}
    else:
        audits = []
        pairs = list(itertools.product(dict.fromkeys(sigmas), dict.fromkeys(batch_sizes)))
        for sigma, size in tqdm(pairs, desc="landscapes", unit="landscape"):
            audits.append(landscape.audit(Process(sigma, int(size), FLAGS.steps), study))
        tables = {
            "landscape": landscape_figures.make_table(audits),
            "latch": crafted.make_latch_table(level.delta),  # for a fixed list of training runs
        }
        # Run the paper's search for the best threshold on processes whose best threshold is known.
        searches = [landscape.search(process, study) for process in landscape.SEARCHED]
        for name, figure in landscape_figures.draw(audits, searches, study):
            contents[f"{name}.png"] = style.png(figure)
    for name, table in tables.items():
        print(f"{table.text()}\n")
        header = f"# delta={show_level(level.delta)}\n"
        contents[f"{name}.csv"] = header.encode() + table.csv()
    cli.write_files(folder, contents)


if __name__ == "__main__":
    cli.run(main)
