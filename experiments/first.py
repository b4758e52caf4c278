"""Prove epsilon without assumptions, then audit as the paper does.

    ./run.sh                    fresh directions in a wider network until 18.5 is proven, then 5,000 models

Flags are those of audit; the model, the adversary, its canaries and the runs of the first audit are set here.
"""

from absl import flags

from audit.commands import cli
from experiments.commands import audit

FLAGS = flags.FLAGS
_PROOF_TITLE = "Fresh directions in a wider network, 2,689 parameters: nothing is assumed.\n"
_PAPER_TITLE = "\nThe hidden-state paper's adversary in its network, 68 parameters.\n"


def main() -> None:
    """Does two audits, and prints the second below the first.

    The first stops as soon as it proves an epsilon of 18.5. The accountant allows 24, and some 60 of at most
    400 runs suffice. The second audit is the command `audit` with the flags of this command.
    """
    from audit.training.driver import until_epsilon  # loads SciPy

    _print_title(_PROOF_TITLE)
    proof = cli.setting(model="wide_fcnn", adversary="sphere", canaries="auto")
    audit.run(proof, runs=400, until=until_epsilon(18.5))
    _print_title(_PAPER_TITLE)
    audit.main()


def _print_title(text: str) -> None:
    """Prints the title of an audit, unless JSON is asked for."""
    if not FLAGS.json:
        print(text, flush=True)


if __name__ == "__main__":
    cli.run(main, keeps=True)
