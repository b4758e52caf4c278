"""Compare the speed of our engine, jax_privacy, Opacus and torch.func.

    ./run.sh throughput                                 all models, all engines
    ./run.sh throughput --models=fcnn --rounds=3        one model, quickly
    ./run.sh throughput --engines=ours,opacus           two engines

All engines take DP-SGD steps with the same model, data and mini-batches. The batch size is the default of
`audit`, or 8 for resnet18. Ratios compare rates from the same round. Our engine also inserts canaries.
torch_func uses all cores. jax_privacy and Opacus run one single-threaded process per core.
"""

import importlib.util
import sys

from absl import flags

from audit.commands import cli
from audit.errors import require
from audit.runtime.installed import pip_install
from experiments.benchmark import throughput
from experiments.sweeps.records import Record

FLAGS = flags.FLAGS
flags.DEFINE_list("models", list(throughput.MODELS), f"Any of {', '.join(throughput.MODELS)}.")
flags.DEFINE_list("engines", list(throughput.ENGINES), f"Any of {', '.join(throughput.ENGINES)}.")
flags.DEFINE_integer("rounds", 5, "Number of rounds.", 1, 1000)
cli.define_sources()


def main() -> None:
    """Times the engines on each model, and prints their rates."""
    models = cli.choose_names("models", throughput.MODELS)
    engines = cli.choose_names("engines", throughput.ENGINES)
    require(
        FLAGS.data is None or len(models) == 1,
        "--data requires a single model in --models",
    )

    installed = list(filter(_is_installed, engines))
    require(installed, "--engines: no engine is installed: install one of the packages above")
    timings: list[Record] = []
    for model in models:
        timings += throughput.measure(model, installed, FLAGS.rounds, FLAGS.data)
    print(throughput.make_table(timings).text())


def _is_installed(engine: str) -> bool:
    """Returns True if the engine's package is installed; otherwise reports how to install it."""
    package = throughput.ENGINES[engine].package
    if importlib.util.find_spec(package.replace("-", "_")):
        return True
    print(f"{engine} is skipped: {pip_install(package)}", file=sys.stderr)
    return False


if __name__ == "__main__":
    cli.run(main)
