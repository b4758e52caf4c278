"""The picture of the first page: a step checked, what is proven of a training, and the bracket.

    ./run.sh python experiments/examples/three_questions.py

It takes two minutes on two cores. Audits are kept in results/; the picture is results/three_questions.png.
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
from audit.report import style
from audit.storage import files

C, SIGMA, ETA, B, D = 1.5, 1.1, 0.5, 32, 8
STATED: dict[str, Any] = {
    "clipping_norm": C,
    "noise_multiplier": SIGMA,
    "learning_rate": ETA,
    "batch_size": B,
}
PERIODS = (1, 2, 5, 10, 25)


def clipped(rows: Any) -> Any:
    """The sum of rows of norm at most C."""
    return (rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True) / C)).sum(axis=0)


def layers_clipped(rows: Any) -> Any:
    """Weights and bias clipped to C each."""
    return np.concatenate([clipped(rows[:, :D]), clipped(rows[:, D:])])


def step(params: Any, batch: Any, seed: int, *, total: Callable[..., Any] = clipped, noise: float = C) -> Any:
    """A step of DP-SGD for logistic regression; right as it is, and wrong with another sum or noise."""
    x, y = batch
    residual = 1 / (1 + np.exp(-x @ params[:D] - params[D])) - y
    rows = np.column_stack([residual[:, None] * x, residual])
    draws = np.random.default_rng(seed).normal(size=D + 1)
    return params - ETA / B * (total(rows) + SIGMA * noise * draws)


STEPS: dict[str, Callable[..., Any]] = {
    "right": step,
    "clipped layer by layer": partial(step, total=layers_clipped),
    "each example twice": partial(step, total=lambda rows: 2 * clipped(rows)),
    "noise without C": partial(step, noise=1.0),
    "noise divided by B twice": partial(step, noise=C / B),
    "not clipped": partial(step, total=lambda rows: rows.sum(axis=0)),
}


def draw_steps(axes: Axes) -> None:
    """How far one example moves a step, and its noise, in the units that accounting assumes."""
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(B, D)), rng.integers(0, 2, B)
    for place, one in enumerate(STEPS.values()):
        report = audit.check_step(one, np.zeros(D + 1), batch, **STATED)
        moved = max(report.pictures["movements"].values())
        noise = np.mean(list(report.pictures["layers"].values()))
        ratio = moved / noise
        shown = f"{ratio:.2f}" if ratio < 3 else f"{ratio:.0f}"
        axes.barh(place, ratio, color=style.GREEN if report.passed else style.VERMILION)
        axes.text(ratio, place, f" {shown}", va="center", fontsize=8)
    axes.axvline(1, color=style.UPPER, ls=":")
    axes.set_yticks(range(len(STEPS)), STEPS)
    axes.invert_yaxis()
    axes.set(xscale="log", xlim=(0.5, 2000), title="Is my DP-SGD right?")
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    axes.set_xlabel("one example's movement over the noise")


def draw_proof(axes: Axes, runs: int) -> None:
    """What fresh directions prove after so many trainings."""
    found = audit.audit("wide_fcnn", adversary="sphere", canaries="auto", runs=runs)
    path = found.conclusion.path
    axes.step(range(1, len(path) + 1), path, where="post", color=style.FREE, label="proven, nothing assumed")
    axes.axhline(found.upper_bound or 0, color=style.UPPER, ls=":", label="upper bound (accounting)")
    axes.set(xscale="log", xlabel="trainings of 2,689 parameters", ylim=(0, 26), title="What does it leak?")
    axes.set_xticks([1, 10, 100], ["1", "10", "100"])
    axes.set_ylabel("epsilon at delta 1e-05")
    axes.legend(loc="lower right", fontsize=8)


def draw_bracket(axes: Axes, runs: int) -> None:
    """The last model of logistic regression, between what is proven and what is possible."""
    how: dict[str, Any] = {"adversary": "sphere", "canaries": "auto", "runs": runs}
    found = [audit.audit("logistic", k=k, **how) for k in PERIODS]
    proven = [one.epsilon for one in found]
    possible = [one.hidden_state_bound or 0 for one in found]
    composed = [one.upper_bound or 0 for one in found]
    axes.plot(PERIODS, composed, ":", color=style.UPPER, label="upper bound, every model seen")
    axes.plot(PERIODS, possible, "--", color=style.UPPER, label="upper bound, last model alone")
    axes.plot(PERIODS, proven, "o-", color=style.FREE, label="proven, nothing assumed")
    axes.fill_between(PERIODS, proven, possible, color=style.FREE, alpha=0.2, lw=0)
    axes.set(xscale="log", ylim=(0, 34), title="What could it leak at most?")
    axes.set_xticks(PERIODS, [str(k) for k in PERIODS])
    axes.minorticks_off()
    axes.set_xlabel("a canary in every k-th step")
    axes.legend(loc="upper right", fontsize=8)


def picture(runs: int = 200) -> Figure:
    """All three beside each other, from so many trainings of each audit."""
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(11, 3.6))
        draw_steps(axes[0])
        draw_proof(axes[1], 2 * runs)
        draw_bracket(axes[2], runs)
        return figure


if __name__ == "__main__":
    print(files.write_whole(Path("results") / "three_questions.png", style.png(picture())))
