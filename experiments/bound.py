"""Bound epsilon from the score file of any framework.

./run.sh bound --scores=scores.npz                       arrays `in` and `out`
./run.sh bound --scores=scores.npz                       or `scores` and `presence`
./run.sh bound --scores=scores.csv --json                columns score,in (1 or 0)
./run.sh bound --scores=scores.csv --report=page.html    the page that ./run.sh report writes
"""

from pathlib import Path

from absl import flags

from audit.errors import require
from audit.statistics.accounting import Composition
from audit.statistics.conclusion import conclude
from audit.storage import files, results
from experiments import cli
from experiments.plots import bounds_table
from experiments.settings import score_files

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "scores", None, "The scores: .npz with arrays in, out or scores, presence; .csv with score,in."
)
flags.DEFINE_float("delta", 1e-5, "delta of the bounds.")
flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")
flags.DEFINE_float("noise_multiplier", None, "Noise multiplier, where the upper bound is wanted.")
flags.DEFINE_integer("insertions", None, "Steps with the canary, where the upper bound is wanted.")
flags.DEFINE_string("figure", None, "Also draw the audit into this PNG file.")
flags.DEFINE_string("report", None, "Also write a report into this HTML file.")
flags.DEFINE_string("name", None, "What was audited, for the report; by default the scores' file.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of a table.")


def main() -> None:
    """Read, bound, draw, print."""
    require(FLAGS.scores is not None, "--scores is missing: name a .npz or .csv file")
    path = Path(FLAGS.scores)
    worlds = score_files.read_scores(path)
    composition = _composition()
    conclusion = conclude(worlds, composition, FLAGS.delta, FLAGS.confidence)
    if FLAGS.figure is not None:
        from experiments.plots import audit_panels

        files.write_whole(Path(FLAGS.figure), audit_panels.audit_figure(conclusion))
    if FLAGS.report is not None:
        from experiments.pages import report, subjects

        about = subjects.of_scores(FLAGS.name or path.name, path, composition, conclusion)
        files.write_whole(Path(FLAGS.report), report.report(f"Audit: {about.title}", [about]))
    print(results.bounds_json(conclusion) if FLAGS.json else bounds_table.bounds_table(conclusion))


def _composition() -> Composition | None:
    """The mechanism's steps with the canary, where the flags say."""
    sigma, insertions = FLAGS.noise_multiplier, FLAGS.insertions
    together = (sigma is None) == (insertions is None)
    require(together, "--noise_multiplier and --insertions go together: give both or none")
    return None if sigma is None else Composition(sigma, insertions)


if __name__ == "__main__":
    cli.run(main)
