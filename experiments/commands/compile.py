"""Compile all trainings for a TPU that need not be there.

    ./run.sh compile                              all models, of audit and of federated
    ./run.sh compile --models=fcnn,lenet --json   two models, as JSON

Does each training compile for a TPU v5e, and how many bytes does a model take there? Data are zeros of the
real data's shapes, and nothing runs. The extra tpu has the compiler.
"""

import importlib.util

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.json_text import write_json
from audit.report.table import Column, Table
from experiments.engine import ahead
from models.catalogue import FEDERATED_TASKS, TASKS

FLAGS = flags.FLAGS
flags.DEFINE_list("models", None, "Models, of audit and of federated; by default all.")
cli.define_json()


def main() -> None:
    """Compiles the chosen models' training programs for a TPU, and prints the bytes that each model takes.

    A model that can be trained by DP-SGD and by DP-FedAvg has two programs. Raises InputError for an unknown
    model, and where the compiler is not installed.
    """
    # Some models are in both tables; each is a choice once.
    chosen = cli.chosen("models", [*dict.fromkeys([*TASKS, *FEDERATED_TASKS])])
    is_installed = importlib.util.find_spec("libtpu") is not None
    require(is_installed, "libtpu, the TPU's compiler, is not installed: install the extra tpu")

    trainings = [("DP-SGD", model) for model in TASKS if model in chosen]
    trainings += [("DP-FedAvg", model) for model in FEDERATED_TASKS if model in chosen]
    rows = []
    for mechanism, model in tqdm(trainings, desc="compiling", leave=False):
        rows.append(ahead.compile_for_tpu(mechanism, model))
    # A column without a head is in JSON alone, and a column without a key in the table alone.
    columns = (
        Column("mechanism", lambda row: row.mechanism, "training", width=10, left=True),
        Column("model", lambda row: row.model, "model", width=15, left=True),
        Column("bytes", lambda row: row.bytes),
        Column("failure", lambda row: row.failure),
        Column(None, _describe, "bytes a model", width=55, left=True),
    )
    table = Table(columns, rows, gap="")
    if FLAGS.json:
        print(write_json({"programs": table.json()}))
    else:
        print(table.text())


def _describe(row: ahead.CompiledRow) -> str:
    """Returns the bytes that a model takes, or the beginning of why its program does not compile.

    Either fits in the table's column of 55 characters.
    """
    return row.failure[:55] or f"{row.bytes:,}"


if __name__ == "__main__":
    cli.run(main)
