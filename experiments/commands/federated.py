"""Audit DP-FedAvg from one run with many canary clients.

    ./run.sh federated                            Fashion-MNIST dealt to 600 clients
    ./run.sh federated --observe=all              canaries seen in every round's move
    ./run.sh federated --repetitions=5            each canary takes part in five rounds
    ./run.sh federated --observe=fresh --runs=10  canaries of each run's own: runs prove together
    ./run.sh federated --quantile=0.5             clipping adapts to the updates' norms
    ./run.sh federated --model=character_lstm     Shakespeare's roles
    ./run.sh list --report=page.html              a page on the last run

Models: linear, two_layer and mlp (Fashion-MNIST), convnet (CIFAR-10), character_lstm (Shakespeare),
emnist_cnn and word_lstm (files that --data_file names). A run that is kept under --out is never trained
again; an interrupted one goes on where it was.
"""

import dataclasses
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from absl import flags

from audit.commands import cli
from audit.errors import InputError, require
from audit.settings import federated
from audit.settings.federated import FederatedSetting
from audit.tasks.task import Federation
from models.catalogue import federated_task

if TYPE_CHECKING:
    from audit.report.federated_table import FederatedAudit
    from audit.storage.store import Scores, Store
    from audit.training.build_federated import Participation
    from audit.training.game import Game, Midway

FLAGS = flags.FLAGS
cli.define_setting(FederatedSetting)
flags.DEFINE_integer("runs", 1, "Trainings, each with coins and noise of its own.")
cli.define_levels()
cli.define_sources()
cli.define_out("Folder for scores and results.")
cli.define_json()

MOST_RUNS = 1_000_000
_LOOK_SECONDS = 5.0  # at least, between two lines about a training that is under way


class _AuditedFederation(NamedTuple):
    """What is audited: a setting on its clients.

    Attributes:
      setting: The setting of the training and its canaries.
      federation: The clients, and the data on which accuracies are measured.
      rounds: Which clients and canaries take part in each round.
      dimension: The number of trained parameters.
    """

    setting: FederatedSetting
    federation: Federation
    rounds: "Participation"
    dimension: int


def main() -> None:
    """Parses the flags, makes the game that they describe, and audits it.

    A game says what is trained, and how canaries are inserted and scored; see `audit.training.game`.
    """
    setting = _checked_setting()
    out = cli.folder()
    cli.prepare_jax()
    from audit.claims.accounting import require_sampled
    from audit.storage.store import Store
    from audit.training import build_federated

    task = federated_task(setting.model)
    federation = task.load(setting, cli.sources())
    clients = federation.clients
    build_federated.require_clients(clients)
    participation = build_federated.rounds(setting, clients)
    leaks = federated.leaks(setting, clients.number, participation.most)
    require_sampled(leaks.canary, FLAGS.delta)  # nothing is trained that could not be concluded
    game = build_federated.build(setting, clients, participation)

    config = federated.federated_identity(setting, build_federated.checksum(clients))
    audited = _AuditedFederation(setting, federation, participation, task.make().n_parameters)
    _audit(audited, game, Store(out, config, f"federated-{setting.model}"))


def _checked_setting() -> FederatedSetting:
    """Returns the setting that the flags describe; raises InputError for flags out of range."""
    cli.require_levels()
    require(1 <= FLAGS.runs <= MOST_RUNS, f"`runs={FLAGS.runs}`: give 1 to {MOST_RUNS:,}")
    setting = FederatedSetting(**cli.values(FederatedSetting))
    federated.validate_federated(setting)
    return setting


def _audit(audited: _AuditedFederation, game: "Game", store: "Store") -> None:
    """Trains the runs that the store lacks, and prints and stores the conclusion from all runs.

    Args:
      audited: What is audited.
      game: How a run is trained and its canaries are scored.
      store: The store of the setting, which keeps scores and accuracies.
    """
    from audit.report import federated_table
    from audit.training import game as games
    from experiments.cells.federated import read_accuracies

    # Called between segments of rounds; it stores the test accuracies of models that are final.
    watch = _Watch(audited, store)
    scores = games.train(game, store, FLAGS.runs, watch=watch).scores
    accuracies = read_accuracies(store)
    conclusion = _conclude(audited, scores, accuracies)

    circumstances = {
        "setting": dataclasses.asdict(audited.setting),
        "data": audited.federation.clients.source,
        "accuracy": accuracies,
        "out": str(store.path),
    }
    text = federated_table.federated_json(conclusion, circumstances)
    result = store.write_text(federated_table.RESULT, text + "\n")
    if FLAGS.json:
        print(text)
    else:
        print(f"{federated_table.federated_table(conclusion)}\n\nresult: {result}")


def _conclude(
    audited: _AuditedFederation, scores: "Scores", accuracies: dict[str, float]
) -> "FederatedAudit":
    """Returns what each run shows, what all runs show together, and the most that training can leak.

    Args:
      audited: What was audited.
      scores: The scores of all runs.
      accuracies: The final models' test accuracies, by the run's number as a string; some may be missing.
    """
    from audit.claims.claim import DpSgd
    from audit.conclusions.concluded import conclude_each_run, conclude_together
    from audit.report.federated_table import FederatedAudit
    from audit.written import Level

    setting = audited.setting
    # The compositions of rounds that bound what a canary and what a client leak. A client takes part in at
    # most `rounds.most` rounds.
    leaks = federated.leaks(setting, audited.federation.clients.number, audited.rounds.most)
    sees_final_model = setting.observe in federated.FINAL
    level = Level(FLAGS.delta, FLAGS.confidence)
    claim = DpSgd(*leaks.canary)
    runs = conclude_each_run(scores, audited.dimension, sees_final_model, level, claim)
    together = conclude_together(scores, level, claim)
    # The accuracies of these runs, where they are not missing; the store may have those of further runs.
    numbers = map(str, range(len(runs)))
    measured = [accuracies[number] for number in numbers if number in accuracies]
    return FederatedAudit(runs, leaks.canary, leaks.client, measured, together)


class _Watch:
    """Follows a training: a function that is called between segments, and stores the final accuracies.

    Every few seconds it prints on stderr how far training has come, and the mean accuracy.
    """

    def __init__(self, audited: _AuditedFederation, store: "Store") -> None:
        """Prepares to measure the models' accuracies, and to store those of final models in `store`."""
        from audit.training import build_federated

        federation = audited.federation
        self._rounds = len(audited.rounds.clients)
        self._store = store
        self._measure = build_federated.accuracy(
            audited.setting, federation.clients, federation.test
        )
        self._begin = time.monotonic()
        self._next_line = self._begin

    def __call__(self, midway: "Midway") -> None:
        """Prints a line about a chunk of runs, if one is due, and stores the accuracies of final models.

        Raises InputError if a model is no longer finite.
        """
        import numpy as np

        from experiments.cells.federated import keep_accuracies

        if not np.isfinite(np.asarray(midway.thetas)).all():
            hint = "lower `client_learning_rate` or `learning_rate`"
            raise InputError(f"the model diverged by round {midway.steps}: {hint}")
        now = time.monotonic()
        is_final = midway.steps == self._rounds
        if now < self._next_line and not is_final:
            return
        accuracies = np.asarray(self._measure(midway.thetas), np.float64)
        if is_final:
            keep_accuracies(self._store, midway.first, accuracies)
        place = f"round {midway.steps} of {self._rounds}, {now - self._begin:.0f} s"
        print(f"{place}: accuracy {accuracies.mean():.3f}", file=sys.stderr)
        self._next_line = now + _LOOK_SECONDS


if __name__ == "__main__":
    cli.run(main, keeps=True)
