"""Audit DP-FedAvg from one run with many canary clients.

    ./run.sh federated                            Fashion-MNIST dealt to 600 clients
    ./run.sh federated --observe=all              canaries seen in every round's move
    ./run.sh federated --repetitions=5            each canary takes part in five rounds
    ./run.sh federated --observe=fresh --runs=10  canaries of each run's own: runs prove together
    ./run.sh federated --quantile=0.5             clipping adapts to the updates' norms
    ./run.sh federated --model=character_lstm     Shakespeare's roles
    ./run.sh federated --report=page.html         a page; later ./run.sh report makes one too

Models: linear, two_layer, mlp and lenet (Fashion-MNIST), convnet (CIFAR-10), character_lstm (Shakespeare),
emnist_cnn and word_lstm (files that --data_file names). A run that is kept under --out is never trained
again; an interrupted one goes on where it was.
"""

import dataclasses
import hashlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from absl import flags

from audit.commands import cli
from audit.errors import InputError, require
from audit.settings import federated
from audit.settings.federated import FederatedSetting
from audit.task import Federation
from models.catalogue import federated_task

if TYPE_CHECKING:
    from audit.game import Game, Midway
    from audit.settings.build_federated import Participation
    from audit.storage.store import Store

FLAGS = flags.FLAGS
cli.define_setting(FederatedSetting)
flags.DEFINE_string("cohorts", None, "Whose rounds: a CSV file of lines round,client, in place of --cohort.")
flags.DEFINE_integer("runs", 1, "Trainings, each with coins and noise of its own.")
flags.DEFINE_float("delta", 1e-5, "delta of estimates and bounds.")
flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")
cli.define_sources()
flags.DEFINE_string("out", "results", "Folder for scores and results.")
flags.DEFINE_string("report", None, "Also write a report into this HTML file.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of a table.")

MOST_RUNS = 1_000_000
_LOOK_SECONDS = 5.0


class _Audited(NamedTuple):
    """What is audited: a setting, its clients and their rounds, and how many parameters are trained."""

    setting: FederatedSetting
    federation: Federation
    rounds: "Participation"
    dimension: int


def main() -> None:
    """Parse, build, train, estimate, print."""
    from audit.statistics import conversions

    conversions.require_delta(FLAGS.delta)
    conversions.require_confidence(FLAGS.confidence)
    require(FLAGS.report != "", "--report=: name an HTML file")
    require(1 <= FLAGS.runs <= MOST_RUNS, f"`runs={FLAGS.runs}`: give 1 to {MOST_RUNS:,}")
    setting = FederatedSetting(**cli.values(FederatedSetting))
    federated.validate_federated(setting)
    goes = (setting.participation == "listed") == (FLAGS.cohorts is not None)
    require(goes, "--cohorts and --participation=listed go together: give both, or none")
    out = cli.folder()
    cli.prepare_jax()
    from audit.settings import build_federated
    from audit.storage.store import Store

    listed = None
    if FLAGS.cohorts is not None:
        listed = build_federated.read_rounds(Path(FLAGS.cohorts))
        setting = build_federated.with_rounds(setting, listed)
    task = federated_task(setting.model)
    federation = task.load(setting, cli.sources())
    build_federated.require_clients(federation.clients)
    who = build_federated.rounds(setting, federation.clients, listed)
    played = build_federated.build(setting, federation.clients, who)
    digest = None if listed is None else hashlib.sha256(who.clients.tobytes()).hexdigest()
    config = federated.federated_identity(setting, build_federated.checksum(federation.clients), digest)
    audited = _Audited(setting, federation, who, task.make().n_parameters)
    _audit(audited, played, Store(out, config, f"federated-{setting.model}"))


def _audit(audited: _Audited, played: "Game", store: "Store") -> None:
    from audit import training
    from audit.concluded import of_each_run, of_runs_together
    from audit.report import one_run_page, one_run_table, subjects
    from audit.storage import files
    from experiments.cells.federated import accuracies as stored_accuracies
    from experiments.cells.federated import keep_lost_accuracies

    watch = _Watch(audited, store)
    scores = training.train(played, store, FLAGS.runs, watch=watch).scores
    keep_lost_accuracies(played, store, FLAGS.runs, watch)
    accuracies, setting, data = stored_accuracies(store), audited.setting, audited.federation.clients.source
    leaks = federated.leaks(setting, audited.federation.clients.number, audited.rounds.most)
    known = setting.observe in federated.FINAL
    levels = FLAGS.delta, FLAGS.confidence
    runs, together = of_each_run(scores, audited.dimension, known, *levels), of_runs_together(scores, *levels)
    shown = [accuracies[str(run)] for run in range(len(runs)) if str(run) in accuracies]
    found = one_run_table.FederatedAudit(runs, leaks.canary, leaks.client, shown, together)
    about = {"setting": dataclasses.asdict(setting), "data": data, "accuracy": accuracies}
    text = one_run_table.federated_json(found, {**about, "out": str(store.path)})
    result = store.write_text(one_run_table.RESULT, text + "\n")
    print(text if FLAGS.json else f"{one_run_table.federated_table(found)}\n\nresult: {result}")
    if FLAGS.report is not None:
        subject = subjects.of_federated(setting, found, data, store.path.name, store.text)
        content = one_run_page.one_run_report(f"Audit: {subject.title}", [subject])
        written = files.write_whole(Path(FLAGS.report), content, "name another file with --report")
        print(f"report: {written}", file=sys.stderr)


class _Watch:
    """Says on stderr how far training is, the accuracy and the running estimate, every few seconds; keeps the
    accuracy at the end. Raises InputError where a model is no longer finite."""

    def __init__(self, audited: _Audited, store: "Store") -> None:
        from audit.settings import build_federated

        federation = audited.federation
        self._audited, self._store = audited, store
        self._measure = build_federated.accuracy(audited.setting, federation.clients, federation.test)
        self._due, self._begin = 0.0, time.monotonic()

    def __call__(self, midway: "Midway") -> None:
        import numpy as np

        from audit import game
        from audit.statistics import one_shot
        from experiments.cells.federated import keep_accuracies

        rounds = len(self._audited.rounds.clients)
        if not np.isfinite(np.asarray(midway.thetas)).all():
            mend = "lower `client_learning_rate` or `learning_rate`"
            raise InputError(f"the model diverged by round {midway.steps}: {mend}")
        if time.monotonic() < self._due and midway.steps < rounds:
            return
        measured = np.asarray(self._measure(midway.thetas), np.float64)
        if midway.steps == rounds:
            keep_accuracies(self._store, midway.first, measured)
        elapsed = time.monotonic() - self._begin
        line = f"round {midway.steps} of {rounds}, {elapsed:.0f} s: accuracy {measured.mean():.3f}"
        scores = np.asarray(midway.scores(), np.float64)[0]  # of the first run
        setting, dimension = self._audited.setting, self._audited.dimension
        present = game.presence(np.array([midway.first]), setting.canaries, setting.seed)[0]
        null, seen = (one_shot.fit(scores[bits], dimension) for bits in (~present, present))
        value = float(one_shot.equal_variance(null, seen, FLAGS.delta))
        print(f"{line}, estimate {value:.2f} (no bound)", file=sys.stderr)
        self._due = time.monotonic() + _LOOK_SECONDS


if __name__ == "__main__":
    cli.run(main)
