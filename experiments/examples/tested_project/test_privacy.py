"""Privacy tests of training.py: the step, its batches, its accounting, and a short audit."""

import numpy as np
import training

import audit

RUNS = 400


def test_the_step_clips_and_adds_noise() -> None:
    batch = training.FEATURES[:32], training.LABELS[:32]
    report = audit.check_step(
        training.take_step,
        np.zeros(64),
        batch,
        clipping_norm=training.CLIPPING_NORM,
        noise_multiplier=training.NOISE_MULTIPLIER,
        learning_rate=training.LEARNING_RATE,
        batch_size=training.BATCH_SIZE,
    )
    report.raise_for_findings()


def test_batches_are_poisson() -> None:
    rate = training.BATCH_SIZE / training.EXAMPLES
    report = audit.check_batches(training.draw_epoch, training.EXAMPLES, rate)
    report.raise_for_findings()


def test_the_stated_epsilon_is_what_accounting_gives() -> None:
    report = audit.check_accounting(
        training.EPSILON,
        training.DELTA,
        noise_multiplier=training.NOISE_MULTIPLIER,
        steps=training.STEPS,
        sampling_rate=training.BATCH_SIZE / training.EXAMPLES,
        examples=training.EXAMPLES,
    )
    report.raise_for_findings()


def test_the_last_model_leaks_no_more_than_claimed() -> None:
    """Half of the runs insert a gradient of norm C in every step. Scores measure the movement against it."""
    canary = np.zeros(64)
    canary[0] = training.CLIPPING_NORM
    scores_in = [-training.train(seed, canary)[0] for seed in range(RUNS // 2)]
    scores_out = [-training.train(seed)[0] for seed in range(RUNS // 2, RUNS)]
    claim = audit.DpSgd(training.NOISE_MULTIPLIER, training.STEPS)
    result = audit.bounds(scores_in, scores_out, claim, training.DELTA)
    assert result.claim_test is not None and not result.claim_test.refuted, str(result)
    assert result.epsilon > 1, "the audit does not detect the canary: check that it is inserted"
