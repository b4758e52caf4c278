"""Time to proof: what each way of auditing proves in how long.

    ./run.sh proof                                ConvNet, 5 minutes for each of our ways
    ./run.sh proof --model=fcnn --minutes=0.2     a smaller network, quickly

DP-SGD with a canary in every step, audited on one machine by one clock, which runs from the start of a
process: imports, data and compilation count. Ours train what `audit` trains. Opacus and jax_privacy, where
they are installed, are timed as by `throughput`, in rounds with the product of matrices that is shown beside
them. What a user of theirs would prove after as long follows from that speed (their start-up is not counted)
by the estimators that are published for them, on scores of the same mechanism. Opacus has none of its own.
"""

import os

from absl import flags

from audit.commands import cli
from audit.errors import require

FLAGS = flags.FLAGS
_MODELS = ("convnet", "fcnn")
flags.DEFINE_string("model", "convnet", f"{' or '.join(_MODELS)}.")
flags.DEFINE_float(
    "minutes", 5.0, "Minutes for each of our ways; none begins a training after that."
)
flags.DEFINE_list(
    "engines", ["jax_privacy", "opacus"], "Of jax_privacy, opacus: beside ours; empty: none."
)
flags.DEFINE_integer("rounds", 3, "Rounds; each times every engine once.")
flags.DEFINE_float("seconds", 3.0, "Seconds a measurement of an engine, at least.")
cli.define_seed("Seed of all trainings.")
cli.define_levels()
cli.define_sources()
cli.define_out("Folder for the figure and its numbers; they go into its folder proof.")


def main() -> None:
    """Parses the flags, audits a model in several ways, and prints and draws what each proves over time."""
    from audit.storage import files

    require(FLAGS.model in _MODELS, f"--model={FLAGS.model}: choose of {', '.join(_MODELS)}")
    # Up to a day.
    require(0.01 <= FLAGS.minutes <= 1440, f"--minutes={FLAGS.minutes}: give 0.01 to 1,440")
    require(1 <= FLAGS.rounds <= 1000, f"--rounds={FLAGS.rounds}: give 1 to 1,000")
    require(0 < FLAGS.seconds < 3600, f"--seconds={FLAGS.seconds}: give more than 0, up to an hour")
    cli.require_seed()
    cli.require_levels()
    out = cli.folder() / "proof"
    from audit.report import style
    from experiments.benchmark import proof

    for name in FLAGS.engines:
        require(
            name in proof.PEERS,
            f"--engines: {name!r} is unknown: choose of {', '.join(proof.PEERS)}",
        )
    how = proof.How(
        model=FLAGS.model,
        limit=60 * FLAGS.minutes,
        peers=tuple(FLAGS.engines),
        rounds=FLAGS.rounds,
        seconds=FLAGS.seconds,
        seed=FLAGS.seed,
        delta=FLAGS.delta,
        confidence=FLAGS.confidence,
        sources=cli.sources(),
    )
    proofs = proof.measured(how)
    table = proof.proof_table(how, proofs)
    written = [
        files.write_whole(out / "proof.csv", table.csv()),
        files.write_whole(out / "proof.json", proof.as_json(how, proofs).encode()),
        files.write_whole(out / "proof.png", style.png(proof.proof_figure(how, proofs))),
    ]
    print(table.text())
    print()
    for path in written:
        print(os.fspath(path))


if __name__ == "__main__":
    cli.run(main)
