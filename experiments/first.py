"""Prove a bound without assumptions, then audit as the paper does.

    ./run.sh              fresh directions in a wider network until epsilon >= 18.5, then 5,000 models

The flags are the same as for audit. The first audit has a fixed model, adversary and number of runs.
"""

from absl import flags

from audit.commands import cli
from experiments.commands import audit

FLAGS = flags.FLAGS


def main() -> None:
    """Runs two audits.

    The first audit stops once it proves epsilon >= 18.5, which takes about 60 of at most 400 runs. The
    accountant's epsilon is 24. The second audit runs the command `audit` with the given flags.
    """
    from audit.training.driver import until_epsilon  # loads SciPy

    _print_title("Fresh directions in a wider network, 2,689 parameters: no assumptions.\n")
    proof = cli.setting(model="wide_fcnn", adversary="sphere", canaries="auto")
    audit.run(proof, runs=400, until=until_epsilon(18.5))
    _print_title("\nThe hidden-state paper's adversary on its 68-parameter network.\n")
    audit.main()


def _print_title(text: str) -> None:
    """Prints an audit's title unless --json is given."""
    if not FLAGS.json:
        print(text, flush=True)


if __name__ == "__main__":
    cli.run(main)
