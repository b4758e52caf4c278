"""Audits from Python, as `import audit` offers them: no flags, nothing printed but progress, and of JAX's
configuration nothing changed. What needs JAX or matplotlib loads it when it is called."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import InputError, require
from audit.statistics import canaries, conversions, ranks
from audit.statistics.accounting import Composition
from audit.statistics.canaries import Design, Sets
from audit.statistics.conclusion import Conclusion, conclude_design
from audit.statistics.estimate import Bound, Estimate
from audit.statistics.ranks import Auc
from audit.storage import declared, files, results
from experiments.pages import subjects
from experiments.pages.subjects import AskedLevels, Subject
from experiments.plots import bounds_table
from experiments.plots.points import gaussian_reason
from experiments.settings import stored
from experiments.settings.fields import fields as known_fields
from experiments.settings.make import setting_of
from experiments.settings.setting import flat, require_noise, require_type
from experiments.settings.tasks import Sources, task

if TYPE_CHECKING:
    import flax.linen as nn
    from jax import Array
    from matplotlib.figure import Figure

    from experiments.own import Audit

_AUTO = "auto"  # as many canaries as the model takes


@dataclasses.dataclass(frozen=True)
class Result:
    """An audit: its conclusion, what gathers the facts of its page, and the folder that keeps it, if any.
    Printed it is the table of bounds; a notebook shows verdict and bounds."""

    conclusion: Conclusion
    subject: Callable[[], Subject]
    folder: Path | None = None

    @property
    def bounds(self) -> dict[str, Bound]:
        """The lower bounds by method, in the table's order; each holds at its confidence and under what it
        `assumes`."""
        return {bound.method: bound for bound in self.conclusion.ranked()}

    @property
    def estimates(self) -> dict[str, Estimate]:
        """What is no bound, by method."""
        return {estimate.method: estimate for estimate in self.conclusion.estimates}

    @property
    def upper_bound(self) -> float | None:
        """The epsilon at delta that accounting guarantees; None where the mechanism is not known."""
        return self.conclusion.upper_bound

    @property
    def auc(self) -> Auc:
        """The area under the ROC curve; its standard error counts all scores as independent."""
        return ranks.auc(self.conclusion.scores_in, self.conclusion.scores_out)

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The share of scores in above a threshold that at most such a share of scores out exceeds; no
        bound."""
        scores = self.conclusion.scores_in, self.conclusion.scores_out
        return ranks.true_positive_rate(*scores, false_positive_rate)

    def to_dict(self) -> dict[str, Any]:
        """What ./run.sh bound --json prints."""
        found: dict[str, Any] = json.loads(
            results.bounds_json(self.conclusion, **results.attack_fields(self.conclusion))
        )
        return found

    def figure(self) -> "Figure":
        """Scores, trade-off curve, bounds and privacy profile."""
        from experiments.plots import audit_panels

        return audit_panels.audit_drawing(self.conclusion, self.subject().title)

    def report(self, path: str | Path) -> Path:
        """Writes the page of ./run.sh report; returns its path."""
        from experiments.pages import report

        return files.write_whole(Path(path), report.of_audits([self.subject()]))

    def __str__(self) -> str:
        return bounds_table.bounds_table(self.conclusion)

    def _repr_html_(self) -> str:
        from experiments.pages import report

        return report.summary(self.subject())


def bounds(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    delta: float = 1e-5,
    confidence: float = 0.95,
    *,
    noise_multiplier: float | None = None,
    insertions: int | None = None,
    sampling_rate: float = 1.0,
    upper_bound: float | None = None,
    name: str = "scores",
) -> Result:
    """Lower bounds on epsilon from scores of runs with and without a canary, as ./run.sh bound; loads no JAX.

    Args:
      scores_in: (n,) of independent runs with the canary, higher meaning in; or (n, K) of K canaries a run.
      scores_out: (m,) of runs without it, or (m, M).
      delta: of every epsilon.
      confidence: of each bound.
      noise_multiplier, insertions, sampling_rate: of DP-SGD's steps with the canary, where the upper bound is
        wanted.
      upper_bound: epsilon by another accountant, in place of these.
      name: of what was audited, for the page.

    Raises InputError, in one line, for what nothing can be concluded from.
    """
    together = (noise_multiplier is None) == (insertions is None)
    require(together, "`noise_multiplier` and `insertions` go together: give both or none")
    composition = None
    if noise_multiplier is not None and insertions is not None:
        require_noise(noise_multiplier)
        composition = Composition(noise_multiplier, insertions, sampling_rate)
    design = _design(_array("scores_in", scores_in), _array("scores_out", scores_out))
    found = conclude_design(design, composition, delta, confidence, upper_bound).with_curve_test()
    return Result(found, partial(subjects.of_arrays, name, composition, found))


def audit(
    model: str = "fcnn",
    *,
    runs: int = 5000,
    out: str | Path = "results",
    delta: float = 1e-5,
    confidence: float = 0.95,
    data_file: str | None = None,
    tfds_dir: str | None = None,
    **named: Any,
) -> Result:
    """The audit of a built-in model, as ./run.sh audit with these flags; runs that `out` has are not trained
    again.

    named: ./run.sh audit's other flags that describe the setting, as adversary="gc_r", k=5, seed=1.
    Raises InputError, in one line, for what cannot be audited.
    """
    import jax

    from audit import training
    from experiments.cells import progress
    from experiments.settings import build

    require_type("runs", runs, int)
    conversions.require_delta(delta)
    conversions.require_confidence(confidence)
    require(str(out), "`out=`: name a folder")
    fields = {"model": model, **_by_field(named)}
    if fields.get("canaries") == _AUTO:
        fields["canaries"] = task(model).canaries
    setting = setting_of(**fields)
    build.validate(setting, runs)
    dataset = task(model).data.load(Sources(data_file, tfds_dir))
    with jax.default_matmul_precision("float32"):
        played, store = build.build(setting, dataset), stored.open_store(Path(out), setting, dataset)
        declared.require_declared(store, [])
        with progress.bar(training.lacking(store, runs)) as line:
            trained = training.train(played, store, runs, progress=line)
    composition = Composition(*setting.composition)
    concluded = conclude_design(trained.scores.design(), composition, delta, confidence).with_curve_test()
    found = concluded._replace(reason=gaussian_reason(setting))
    about = {"setting": flat(setting), "runs": runs, "provenance": build.provenance(dataset)}
    results.keep_result(store, found, **about, out=str(store.path))
    return Result(found, _subject(store.path, AskedLevels(delta, confidence), runs), store.path)


def audit_model(
    module: "nn.Module",
    criterion: "Callable[[Array, Array], Array]",
    features: ArrayLike,
    labels: ArrayLike,
    *,
    runs: int,
    out: str | Path = "results",
    delta: float = 1e-5,
    confidence: float = 0.95,
    **named: Any,
) -> Result:
    """The audit of a Flax Linen module: see `experiments.own.audit_model`; `named` takes the flags' names."""
    from experiments import own

    audited = partial(own.audit_model, module, criterion, features, labels)
    return _of_own(audited, runs, out, AskedLevels(delta, confidence), named)


def audit_loss(
    loss: "Callable[[Any, tuple[Array, Array]], Array]",
    params: Any,
    features: ArrayLike,
    labels: ArrayLike,
    *,
    runs: int,
    out: str | Path = "results",
    delta: float = 1e-5,
    confidence: float = 0.95,
    **named: Any,
) -> Result:
    """The audit of any JAX model, as a loss over a tree of parameters: see `experiments.own.audit_loss`;
    `named` takes the flags' names."""
    from experiments import own

    audited = partial(own.audit_loss, loss, params, features, labels)
    return _of_own(audited, runs, out, AskedLevels(delta, confidence), named)


def _of_own(
    audited: "Callable[..., Audit]", runs: int, out: str | Path, levels: AskedLevels, named: dict[str, Any]
) -> Result:
    """The result of an audit of `experiments.own`, products in float32 whatever JAX is set to."""
    import jax

    given = {"runs": runs, "out": out, **levels._asdict(), **_by_field(named)}
    with jax.default_matmul_precision("float32"):
        found = audited(**given)
    return Result(found.conclusion, _subject(found.folder, levels, runs), found.folder)


def _array(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Scores as float64, (n,) or (n, K)."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"`{name}` are no numbers in rows of one length: give an array") from None
    require(array.ndim in (1, 2), f"`{name}` have shape {array.shape}: give (runs,) or (runs, canaries)")
    return array


def _design(scores_in: NDArray[np.float64], scores_out: NDArray[np.float64]) -> Design:
    """Scores by world; flat ones are of one canary a run."""
    columns = [scores if scores.ndim == 2 else scores[:, None] for scores in (scores_in, scores_out)]
    one = all(column.shape[1] == 1 for column in columns)
    return Sets(*columns) if one else canaries.sets(*columns)


def _by_field(named: dict[str, Any]) -> dict[str, Any]:
    """Values by a setting's fields from values by flags or fields; insertions become steps."""
    by_flag = {field.flag: field.name for field in known_fields().values()}
    unknown = sorted(set(named) - set(by_flag) - set(known_fields()))
    known = f"choose of {', '.join(sorted(by_flag))}"
    require(not unknown, f"{', '.join(unknown)} is no field of a setting: {known}")
    found = {by_flag.get(name, name): value for name, value in named.items()}
    if found.get("insertions") is not None and found.get("steps") is None:
        insertions = found.pop("insertions")
        require_type("insertions", insertions, int)
        found["steps"] = insertions * max(found.get("periodicity") or 1, 1)
    return found


def _subject(folder: Path, levels: AskedLevels, runs: int) -> Callable[[], Subject]:
    """The kept audit's facts, when they are asked for."""
    return partial(subjects.of_setting, folder, levels, runs)
