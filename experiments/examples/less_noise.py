"""How soon the claim of a real ConvNet is refuted where a part of the stated noise is missing.

    ./run.sh python experiments/examples/less_noise.py 0.9 10     # ten audits with 0.9 of the stated noise
    ./run.sh python experiments/examples/less_noise.py 1 40       # forty of training runs that do as they say

Every audit has a seed of its own: initialisation, batches, directions and noise are others. It claims noise
multiplier 4 in 250 steps, mu 3.953, and looks after every training run of 64 fresh directions, 20 at most.
A third argument is the first seed.
"""

import sys
import time

import numpy as np

from audit.claims.claim import DpSgd
from audit.commands import cli
from audit.methods import claimed_curve, exact_null
from audit.methods.claimed_curve import ClaimTest
from audit.settings import build
from audit.settings.make import setting_of
from audit.tasks.task import Dataset, Sources
from audit.training import game
from models.catalogue import task

MODEL = "convnet"
CANARIES = 64
BATCH_SIZE = 32
RUNS = 20  # of an audit, at most
RUNS_AT_ONCE = 4
CONFIDENCE = 0.95


def examine(dataset: Dataset, noise: float, seed: int) -> ClaimTest:
    """Audits a claim with less noise than it states, until a run refutes the claim or RUNS are done.

    Args:
      dataset: what the model trains on.
      noise: the real noise, as a multiple of the stated noise.
      seed: of the audit.

    Returns:
      The test of the claim after the last run.
    """
    setting = setting_of(
        MODEL, adversary="sphere", canaries=CANARIES, batch_size=BATCH_SIZE, seed=seed
    )
    claim = DpSgd(*setting.composition)
    honest = build.build(setting, dataset)
    sigma = noise * honest.hyper.noise_multiplier
    planted = honest._replace(hyper=honest.hyper._replace(noise_multiplier=sigma))

    parts = []
    for part in game.play(planted, [(0, RUNS)], RUNS_AT_ONCE):  # of runs 0 to RUNS - 1
        parts.append(part)
        # All runs so far, as one record.
        scores = parts[0]._replace(
            scores=np.concatenate([part.scores for part in parts]),
            presence=np.concatenate([part.presence for part in parts]),
        )
        counted = exact_null.count_exceedances(scores.directions())
        test = claimed_curve.examine_claim(counted, claim.power, CONFIDENCE)
        if test.refuted:
            break
    return test


def main(noise: str, audits: str, first_seed: str = "0") -> None:
    """Prints a line for each audit, and how many of them refuted the claim."""
    cli.prepare_jax()
    dataset = task(MODEL).data.load(Sources())
    refuted = 0
    seeds = range(int(first_seed), int(first_seed) + int(audits))
    for seed in seeds:
        began = time.monotonic()
        test = examine(dataset, float(noise), seed)
        refuted += test.refuted
        verdict = "refuted" if test.refuted else "not refuted"
        seconds = time.monotonic() - began
        print(
            f"seed {seed}: {verdict} after {test.runs} runs, e-value {test.e_value:.3g}, "
            f"{seconds:.0f} s",
            flush=True,
        )
    print(f"{refuted} of {len(seeds)} refuted with {noise} times the stated noise")


if __name__ == "__main__":
    main(*sys.argv[1:4])
