"""Audit DP-FedAvg in one run with many canary clients.

    ./run.sh federated                            Fashion-MNIST, divided among 600 clients
    ./run.sh federated --observe=all              the adversary sees the model after every round
    ./run.sh federated --repetitions=5            each canary takes part in five rounds
    ./run.sh federated --observe=fresh --runs=10  new canaries in each run, one bound from all runs
    ./run.sh federated --quantile=0.5             the clipping norm adapts to update norms
    ./run.sh federated --model=character_lstm     roles in Shakespeare's plays
    ./run.sh list --report=page.html              an HTML page about the last run

Models: linear, two_layer and mlp (Fashion-MNIST), convnet (CIFAR-10), character_lstm (Shakespeare),
emnist_cnn and word_lstm (with --data). Trained runs are stored under --out, so you can resume the command.
"""

import dataclasses

from absl import flags

from audit.commands import cli
from audit.runtime import machine
from audit.settings import federated
from audit.settings.federated import FederatedSetting
from models.catalogue import federated_task

FLAGS = flags.FLAGS
cli.define_setting(FederatedSetting)
flags.DEFINE_integer("runs", 1, "Training runs, each with its own coins and noise.", 1, 10**6)
cli.define_levels()
cli.define_sources()
cli.define_out("Folder for scores and results.")
cli.define_json()


def main() -> None:
    """Trains the missing runs, then prints and stores the conclusion from all runs."""
    level = cli.level()
    runs = FLAGS.runs
    setting = FederatedSetting(**cli.values(FederatedSetting))
    federated.validate_federated(setting)
    out = cli.folder()
    cli.prepare_jax()  # the imports below load JAX
    from audit.claims.accounting import Composition
    from audit.claims.claim import DpSgd
    from audit.conclusions.concluded import conclude_each_run, conclude_together
    from audit.report import federated_table
    from audit.storage.store import count_runs
    from audit.training import build_federated
    from experiments.cells.federated import open_store, read_accuracies, train

    task = federated_task(setting.model)
    federation = task.load(setting, FLAGS.data)
    clients = federation.clients
    most_rounds = build_federated.rounds(setting, clients).most  # for any client
    # The noise multiplier covers a whole round. With --quantile, a round also releases a noisy count.
    client_rounds = Composition(setting.noise_multiplier, most_rounds)
    store = open_store(out, setting, federation)
    with machine.bar(count_runs(store.missing(runs))) as progress:
        train([setting], runs, out, federation, progress)
    scores = store.load(runs)

    claim = DpSgd(setting.noise_multiplier, insertions=setting.repetitions)
    each = conclude_each_run(
        scores,
        dimension=task.make().n_parameters,
        # Cosines with the final model have a known distribution. The largest over all rounds do not.
        law_holds=setting.observe in federated.FINAL,
        level=level,
        claim=claim,
    )
    audit = federated_table.FederatedAudit(
        runs=each,
        canary=claim.composition,
        client=client_rounds,
        accuracies=read_accuracies(store, runs),
        together=conclude_together(scores, level, claim),
    )
    circumstances = {
        "setting": dataclasses.asdict(setting),
        "data": clients.source,
        "out": str(store.path),
    }
    text = federated_table.federated_json(audit, circumstances)
    result = store.write_text(federated_table.RESULT, text + "\n")
    if FLAGS.json:
        print(text)
    else:
        print(f"{federated_table.federated_table(audit)}\n\nresult: {result}")


if __name__ == "__main__":
    cli.run(main)
