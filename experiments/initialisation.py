"""Figure 12: GC-R where the initialisation is unknown.

    ./run.sh initialisation                   ConvNet, k = 1, 200 runs each way: about 15 minutes
    ./run.sh initialisation --model=fcnn --runs=5000 --k=1,5,25

Known: one theta_0 for all runs, which the adversary subtracts. Unknown: every run draws its own, and the
adversary subtracts one more draw. Interrupted, the same command goes on; finished runs are kept.
"""

from pathlib import Path
from typing import Any

from absl import flags

from audit import files
from audit.errors import InputError, require
from audit.statistics import accounting, conversions, estimate
from experiments import cli, drawing

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "convnet", "A model of ./run.sh audit that is trained whole.")
flags.DEFINE_list("k", ["1"], "Periodicities, comma-separated.")
flags.DEFINE_integer("insertions", 250, "Insertions; training takes insertions * k steps.")
flags.DEFINE_integer("runs", 200, "Models to train a cell, half with the canary.")
flags.DEFINE_float("delta", 1e-5, "delta of the bounds.")
flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")
flags.DEFINE_integer("seed", 0, "Seed of everything drawn.")
flags.DEFINE_string("out", "results", "Folder for results; the figure goes into its folder initialisation.")


def main() -> None:
    """Parse, train, bound, draw, print."""
    conversions.require_delta(FLAGS.delta)
    conversions.require_confidence(FLAGS.confidence)
    cli.prepare_jax()
    from experiments import auditing

    require(FLAGS.model in auditing.TASKS, f"--model={FLAGS.model}: choose of {', '.join(auditing.TASKS)}")
    task = auditing.TASKS[FLAGS.model]
    periods = [_whole(text) for text in FLAGS.k]
    require(FLAGS.insertions >= 1, f"--insertions={FLAGS.insertions}: give at least 1")
    cells = {
        (unknown, k): auditing.Setting(
            model=FLAGS.model,
            adversary="gc_r",
            learning_rate=task.learning_rate,
            batch_size=task.batch_size,
            steps=FLAGS.insertions * max(k, 1),
            periodicity=k,
            clipping=task.clipping[0],
            unknown_initialisation=unknown,
            seed=FLAGS.seed,
        )
        for unknown in (False, True)
        for k in periods
    }
    for setting in cells.values():
        auditing.validate(setting, FLAGS.runs)
    dataset = task.load(file=None, tfds_dir=None)
    bounds = {cell: _bound(auditing, setting, dataset) for cell, setting in cells.items()}
    upper = [
        accounting.epsilon_upper_bound(cells[False, k].noise_multiplier, FLAGS.insertions, FLAGS.delta)
        for k in periods
    ]
    series = [
        drawing.Series(label, periods, [[bounds[unknown, k].epsilon] for k in periods])
        for label, unknown in (("known initialisation", False), ("unknown initialisation", True))
    ]
    title = f"GC-R on {FLAGS.model}, {FLAGS.runs} runs a point"
    drawn = drawing.panel_figure(series, "periodicity k", title, FLAGS.delta, (periods, upper))
    folder = Path(FLAGS.out) / "initialisation"
    figure = files.write_whole(folder / "initialisation.png", drawn)
    lines = [f"{'initialisation':<16}{'k':>4}{'epsilon':>10}{'mu':>8}"]
    for (unknown, k), bound in bounds.items():
        name = "unknown" if unknown else "known"
        lines.append(f"{name:<16}{k:>4}{bound.epsilon:>10.3f}{bound.mu:>8.3f}")
    print("\n".join(lines) + f"\ncertified lower bounds; Gaussian curve assumed\n\n{figure}")


def _whole(text: str) -> int:
    """A whole number of --k."""
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--k: {text!r} is no whole number") from None


def _bound(auditing: Any, setting: Any, dataset: Any) -> estimate.Bound:
    """The certified bound of a setting, trained as far as its store lacks."""
    table = auditing.build(setting, dataset)
    store = auditing.open_store(Path(FLAGS.out), setting, dataset)
    scores_in, scores_out = auditing.train(table, store, FLAGS.runs, 0).scores.worlds()
    bounds = estimate.all_bounds(scores_in, scores_out, FLAGS.delta, FLAGS.confidence)
    return next(bound for bound in bounds if bound.method == "certified")


if __name__ == "__main__":
    cli.run(main)
