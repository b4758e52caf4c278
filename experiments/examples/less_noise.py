"""How soon an audit refutes the claim of a real ConvNet whose noise is less than the claim states.

    ./run.sh python experiments/examples/less_noise.py 0.9 10     # ten audits with 0.9 of the stated noise
    ./run.sh python experiments/examples/less_noise.py 1 40       # forty of training runs that do as they say

Every audit has a seed of its own for initialisation, batches, directions and noise. The claim is noise
multiplier 4 in 250 steps, that is mu 3.953. The claim is tested after every training run, each with 64 fresh
directions; there are at most 20. A third argument is the first seed.
"""

import sys
import time

import numpy as np

from audit.claims.claim import DpSgd
from audit.commands import cli
from audit.methods import claimed_curve, exact_null
from audit.methods.claimed_curve import ClaimTest
from audit.settings.make import setting_of
from audit.tasks.task import Dataset, Sources
from audit.training import build, game
from models.catalogue import task

MODEL = "convnet"
CANARIES = 64
BATCH_SIZE = 32
RUNS = 20  # the largest number of an audit's training runs
RUNS_AT_ONCE = 4
CONFIDENCE = 0.95


def examine(dataset: Dataset, noise: float, seed: int) -> ClaimTest:
    """Audits training runs with less noise than their claim states.

    Each run has CANARIES canaries, random directions of its own. Runs are trained RUNS_AT_ONCE at a time, and
    the test takes them one by one. Training stops when the claim is refuted, or after RUNS runs.

    Args:
      dataset: the data set on which the model trains.
      noise: the real noise, as a multiple of the stated noise.
      seed: the seed of the audit.

    Returns:
      The test of the claim after the last run.
    """
    setting = setting_of(
        MODEL, adversary="sphere", canaries=CANARIES, batch_size=BATCH_SIZE, seed=seed
    )
    # The claim is for the setting's noise multiplier, insertions and sampling rate.
    claim = DpSgd(*setting.composition)
    honest = build.build(setting, dataset)
    # The same training with another noise multiplier, which breaks the claim where it is smaller.
    sigma = noise * honest.hyper.noise_multiplier
    planted = honest._replace(hyper=honest.hyper._replace(noise_multiplier=sigma))

    chunks = []
    for trained in game.play(planted, [(0, RUNS)], RUNS_AT_ONCE):  # runs 0 to RUNS - 1, in chunks
        chunks.append(trained)
        # All runs so far, as a single record.
        scores = chunks[0]._replace(
            scores=np.concatenate([chunk.scores for chunk in chunks]),
            presence=np.concatenate([chunk.presence for chunk in chunks]),
        )
        # For each run and each of several thresholds, the share of the run's canaries that score above it.
        # The claim allows a share of at most claim.power(alpha) on average, where alpha is the threshold's
        # false-positive rate. Larger shares speak against the claim.
        counted = exact_null.count_exceedances(scores.directions())
        test = claimed_curve.examine_claim(counted, claim.power, CONFIDENCE)
        if test.refuted:
            break
    return test


def main(noise: str, audits: str, first_seed: str = "0") -> None:
    """Prints a line for each audit, and how many of them refuted the claim.

    Args:
      noise: the real noise, as a multiple of the stated noise.
      audits: the number of audits.
      first_seed: the seed of the first audit; the others have the seeds that follow.
    """
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
