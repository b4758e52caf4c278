"""The picture of the first page: a step checked, what training runs prove and refute, and the bracket.

    ./run.sh python experiments/examples/three_questions.py

It takes half an hour on two cores, and a few minutes once `./run.sh sweep --name=bracket` has trained
the third panel's network. Audits are kept in results/; the picture is results/three_questions.png.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import audit
from audit.errors import require
from audit.methods.exact_null import EXACT_NULL, EXACT_NULL_GDP
from audit.methods.level import USUAL_LEVEL
from audit.report import style
from audit.settings.setting import Setting
from audit.settings.stored import holdings
from audit.storage import files
from experiments.cells.cell import DataSets
from experiments.cells.work import Workplace, do_all, is_done
from experiments.hidden_state import bracket
from experiments.hidden_state.bracket import BracketRow
from experiments.hidden_state.sweep import sweeps
from experiments.sweeps import points
from models.catalogue import task

CLIPPING_NORM = 1.5
NOISE_MULTIPLIER = 1.1
LEARNING_RATE = 0.5
BATCH_SIZE = 32
FEATURES = 8
STATED: dict[str, Any] = {
    "clipping_norm": CLIPPING_NORM,
    "noise_multiplier": NOISE_MULTIPLIER,
    "learning_rate": LEARNING_RATE,
    "batch_size": BATCH_SIZE,
}
RESULTS = Path("results")
BRACKETED = "GELU ConvNet"  # the third panel's network, by its label in the catalogue
STATED_NOISE_MULTIPLIER = 4.0  # of the audited network's claim
INSERTIONS = 250  # of a canary in each training run of that network
PLANTED_NOISE = (
    0.9,
    0.5,
)  # the real noise in audits that should refute it, as multiples of the stated noise
MOST_PLANTED_RUNS = 60  # of those audits


def sum_clipped(gradients: Any) -> Any:
    """Returns the sum (p,) of gradients (examples, p), each clipped to norm C."""
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return (gradients / np.maximum(1, norms / CLIPPING_NORM)).sum(axis=0)


def sum_clipped_by_layer(gradients: Any) -> Any:
    """Returns the sum (p,) of gradients (examples, p), with a bug: each layer's part is clipped on its own.

    The weights' part and the bias's part may each have norm C, so that a gradient's norm may reach sqrt(2) C.
    """
    weights = sum_clipped(gradients[:, :FEATURES])
    bias = sum_clipped(gradients[:, FEATURES:])
    return np.concatenate([weights, bias])


def sum_clipped_twice(gradients: Any) -> Any:
    """Returns the sum (p,) of clipped gradients (examples, p), with a bug: each example counts twice."""
    return 2 * sum_clipped(gradients)


def sum_unclipped(gradients: Any) -> Any:
    """Returns the sum (p,) of gradients (examples, p), with a bug: they are not clipped."""
    return gradients.sum(axis=0)


def step(
    params: Any,
    batch: Any,
    seed: int,
    *,
    sum_gradients: Callable[[Any], Any] = sum_clipped,
    noise_norm: float = CLIPPING_NORM,
) -> Any:
    """Returns the parameters after a step of DP-SGD for logistic regression, in NumPy alone.

    With the defaults the step is right. Another sum or another norm of the noise plants a bug.

    Args:
      params: (FEATURES + 1,), the weights and the bias.
      batch: Features (B, FEATURES) and labels (B,), 0 or 1.
      seed: The seed of the noise.
      sum_gradients: A function from per-example gradients (B, p) to the sum (p,) that the noise is added to.
      noise_norm: The norm to which the noise is scaled: its deviation is NOISE_MULTIPLIER * noise_norm.
    """
    x, y = batch
    weights = params[:FEATURES]
    bias = params[FEATURES]
    # The loss's derivative by the logit: the predicted probability less the label.
    residual = 1 / (1 + np.exp(-x @ weights - bias)) - y
    gradients = np.column_stack([residual[:, None] * x, residual])  # (B, FEATURES + 1)
    draws = np.random.default_rng(seed).normal(size=FEATURES + 1)
    total = sum_gradients(gradients) + NOISE_MULTIPLIER * noise_norm * draws
    return params - LEARNING_RATE / BATCH_SIZE * total


STEPS: dict[str, Callable[..., Any]] = {
    "right": step,
    "clipped layer by layer": partial(step, sum_gradients=sum_clipped_by_layer),
    "each example twice": partial(step, sum_gradients=sum_clipped_twice),
    "noise without C": partial(step, noise_norm=1.0),
    "noise divided by B twice": partial(step, noise_norm=CLIPPING_NORM / BATCH_SIZE),
    "not clipped": partial(step, sum_gradients=sum_unclipped),
}


def draw_steps(axes: Axes) -> None:
    """Draws a bar for each step of STEPS: how far a single example moves it at most, divided by its noise.

    The movement is in units of C and the noise in units of sigma C, so that accounting assumes a ratio of 1.
    A bar is green where `audit.check_step` passes the step.
    """
    rng = np.random.default_rng(0)
    features = rng.normal(size=(BATCH_SIZE, FEATURES))
    labels = rng.integers(0, 2, BATCH_SIZE)
    batch = features, labels
    for place, checked_step in enumerate(STEPS.values()):
        report = audit.check_step(checked_step, np.zeros(FEATURES + 1), batch, **STATED)
        # How far each tried example moves the step, in units of C; the largest counts.
        movement = max(report.pictures["movements"].values())
        # The noise's standard deviation in each layer, in units of sigma C.
        noise = np.mean(list(report.pictures["layers"].values()))
        ratio = movement / noise
        digits = 2 if ratio < 3 else 0  # after the point
        color = style.GREEN if report.passed else style.VERMILION
        axes.barh(place, ratio, color=color)
        axes.text(ratio, place, f" {ratio:.{digits}f}", va="center", fontsize=8)
    axes.axvline(1, color=style.UPPER, ls=":")
    axes.set_yticks(range(len(STEPS)), STEPS)
    axes.invert_yaxis()
    axes.set(xscale="log", xlim=(0.5, 2000), title="Is my DP-SGD right?")
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    axes.set_xlabel("one example's movement over the noise")


def draw_proof(axes: Axes, runs: int) -> None:
    """Draws the epsilon that an audit proves after 1, 2, ..., `runs` runs, and when it refutes false claims.

    In each run the canaries are fresh random directions. A claim is false where training has less noise than
    stated. A cross stands at the number of runs after which an audit of such training refutes the claim. To
    save time, such an audit has at most MOST_PLANTED_RUNS runs.

    Args:
      axes: The panel.
      runs: The number of training runs of the audit.
    """
    result = audit.audit("wide_fcnn", adversary="sphere", canaries="auto", runs=runs)
    # By label: a method of the audit, and the color of its curve.
    curves = {
        "proven, nothing assumed": (EXACT_NULL, style.FREE),
        "no GDP guarantee below": (EXACT_NULL_GDP, style.BLUE),
    }
    for label, (method, color) in curves.items():
        path = result.conclusion.bound(method).path  # the bound on epsilon after each run
        axes.step(range(1, len(path) + 1), path, where="post", color=color, label=label)
    upper_bound = result.upper_bound or 0  # never None here: the mechanism is known
    axes.axhline(upper_bound, color=style.UPPER, ls=":", label="claimed (accounting)")

    for noise in PLANTED_NOISE:
        needed = count_runs_until_refuted(noise, min(runs, MOST_PLANTED_RUNS))
        if needed is None:  # so many runs do not refute it
            continue
        axes.plot(needed, upper_bound, "x", color=style.VERMILION, ms=8, mew=2, clip_on=False)
        axes.text(needed, upper_bound + 1, f"noise of {noise:g}\nrefuted", ha="left", fontsize=8)
    axes.set(
        xscale="log",
        xlabel="training runs of a network with 2,689 parameters",
        ylim=(0, 34),  # as in the third panel, whose y axis is epsilon too
        title="What does it leak? Is the claim true?",
    )
    axes.set_xticks([1, 10, 100], ["1", "10", "100"])
    axes.set_ylabel("epsilon at delta 1e-05")
    axes.legend(loc="lower right", fontsize=8)


def count_runs_until_refuted(noise: float, runs: int) -> int | None:
    """Returns after how many training runs an audit refutes the claim of a network with too little noise.

    Args:
      noise: The real noise, as a multiple of the stated noise.
      runs: The largest number of training runs.

    Returns:
      The number of runs; None where `runs` of them do not refute the claim.
    """
    planted = noise * STATED_NOISE_MULTIPLIER
    less_noisy = audit.audit(
        "wide_fcnn", adversary="sphere", canaries="auto", runs=runs, noise_multiplier=planted
    )
    # The scores of these runs are tested against the claim of the stated noise.
    claim = audit.DpSgd(noise_multiplier=STATED_NOISE_MULTIPLIER, insertions=INSERTIONS)
    test = audit.bounds(less_noisy.conclusion.evidence, claim=claim).claim_test
    # None where the scores are in doubt, so that they cannot refute a claim.
    if test is None or not test.refuted:
        return None
    return test.runs


def train_bracket(scale: str, network: str) -> list[BracketRow]:
    """Returns bounds on what a network's last model leaks: a row for each k, the steps for each insertion.

    The sweep `bracket` consists of cells, each of which is an audit, or a measurement of how much steps
    stretch distances. Only the network's cells count. Those that the folder `results` lacks are computed
    first, and stored there.

    Args:
      scale: The scale of the sweep, such as "laptop": it decides how much is audited.
      network: The network's label in the catalogue, which is also the name of its panel in the sweep.

    Returns:
      The rows, in the order of the sweep. Each has upper bounds on epsilon, and what audits prove.

    Raises:
      InputError: A cell fails.
    """
    audits = []
    cells = []
    for cell in sweeps(scale)["bracket"].cells:
        if cell.audited is not None and cell.audited.panel == network:
            audits.append(cell.audited)
            cells.append(cell)
        elif isinstance(cell.request, Setting) and task(cell.request.model).label == network:
            cells.append(cell)  # a measurement, whose request is the setting

    place = Workplace(RESULTS, DataSets({}))  # the folder, and no data of the user's own
    missing = [cell for cell in cells if not is_done(cell, place)]
    if missing:
        failed = do_all(missing, place).failed
        require(
            not failed, f"{len(failed)} cells failed: fix what is reported above, and start again"
        )
    # Conclusions from the stored scores. Audits at the same k and of the same kind are grouped into points.
    evidence = points.evidence(holdings(RESULTS), audits, USUAL_LEVEL)
    return bracket.make_rows(points.points(audits, evidence.audits), cells, evidence)


def draw_bracket(axes: Axes, rows: list[BracketRow], network: str) -> None:
    """Draws what the last model of a network leaks: between what is proven and what is possible.

    The x axis is k, the steps for each insertion. Composition bounds what all models leak, the hidden-state
    bound the last model alone. The interval of an audit assumes normal scores; not every k has one.

    Args:
      axes: The panel.
      rows: The network's rows in the order of k, each with an upper bound and with what is proven.
      network: The network's label.
    """
    k = [row.x for row in rows]
    composed = [row.composition for row in rows]
    proven = []
    possible = []
    audited_k = []
    intervals = []
    for row in rows:
        assert row.proven is not None and row.at_most is not None  # every k is audited and bounded
        proven.append(row.proven)
        possible.append(row.at_most)
        if row.interval_low is not None and row.interval_high is not None:
            audited_k.append(row.x)
            intervals.append((row.interval_low, row.interval_high))
    axes.plot(k, composed, ":", color=style.UPPER, label="upper bound, every model seen")
    axes.plot(k, possible, "--", color=style.UPPER, label="upper bound, last model (measured)")
    axes.plot(k, proven, "o-", color=style.FREE, label="proven, nothing assumed")
    axes.fill_between(k, proven, possible, color=style.FREE, alpha=0.2, lw=0)
    # `errorbar` takes the middle of each interval, and how far it reaches down and up from there.
    lower_and_upper = np.reshape(intervals, (-1, 2)).T  # (2, audited k), also where no k has one
    middles = lower_and_upper.mean(axis=0)
    reaches = np.abs(lower_and_upper - middles)
    label = "best audit's interval, if Gaussian"
    axes.errorbar(audited_k, middles, reaches, label=label, ls="none", color=style.BLUE, capsize=3)
    # The limits of y as in the second panel.
    axes.set(xscale="log", ylim=(0, 34), title="What could it leak at most?")
    axes.set_xticks(k, [f"{steps:g}" for steps in k])
    axes.minorticks_off()
    axes.set_xlabel(f"{network}, a canary in every k-th step")
    axes.legend(loc="upper right", fontsize=8)


def picture(runs: int = 400, scale: str = "laptop", network: str = BRACKETED) -> Figure:
    """Returns the figure of three panels: steps checked, what runs prove, and what a last model could leak.

    Args:
      runs: The number of training runs in the second panel.
      scale: The scale of the sweep from which the third panel takes its cells.
      network: The label of the third panel's network, which has to be measured or proven at this scale.
    """
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(11, 3.6))
        draw_steps(axes[0])
        draw_proof(axes[1], runs)
        draw_bracket(axes[2], train_bracket(scale, network), network)
        return figure


if __name__ == "__main__":
    path = RESULTS / "three_questions.png"
    print(files.write_whole(path, style.png(picture())))
