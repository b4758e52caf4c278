"""Audits from Python, as `import audit` offers them.

They have no flags, print nothing but progress, and change nothing of JAX's configuration. Importing this
module loads nothing: a function loads what it needs when it is called.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from audit.errors import require
from audit.result import Result
from audit.runtime import installed
from audit.runtime.installed import TRAIN

if TYPE_CHECKING:
    import flax.linen as nn
    from jax import Array
    from numpy.typing import ArrayLike

    from audit.adversaries.base import Adversary
    from audit.claims.claim import Claim
    from audit.evidence.given import Evidence
    from audit.training.driver import Finished
    from audit.written import Level


class Columns(Protocol):
    """A table with named columns, such as a DataFrame of pandas or Polars."""

    @property
    def columns(self) -> Any:
        """The columns' names."""

    def __getitem__(self, name: Any, /) -> Any:
        """Returns the column with this name."""


def bounds(
    scores_in: "ArrayLike | Columns | Evidence",
    scores_out: "ArrayLike | None" = None,
    claim: "Claim | None" = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    name: str = "scores",
) -> Result:
    """Returns lower bounds on epsilon from scores, without loading JAX.

    Args:
      scores_in: scores (n,) of independent runs with the canary, higher meaning in; or (n, K) for K
        canaries a run. Without scores_out: a table, such as a DataFrame of pandas, with columns score,in
        (1 or 0) or in,out; or the evidence that `audit.coins`, `audit.cosines` or `audit.ranks` returns.
        Every run that was begun counts: a failed run scores NaN.
      scores_out: scores (m,) of runs without the canary, or (m, M) for M canaries that a run does not hold.
        Where scores_in has K canaries a run, each of these m runs must hold K - 1 others: runs without any
        would count K canaries as a single one, and bounds would be too high.
      claim: what is claimed of the mechanism, such as `audit.DpSgd(noise_multiplier=4, insertions=250)`;
        the upper bound follows from it.
      delta: the delta at which epsilon is bounded.
      confidence: the probability with which each bound holds.
      name: a name for what was audited, which the page shows.

    Raises:
      InputError: nothing can be concluded from the scores, or an argument is out of range.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores_in, scores_out = rng.normal(2, 1, 500), rng.normal(0, 1, 500)
    >>> result = audit.bounds(scores_in, scores_out, audit.DpSgd(noise_multiplier=1, insertions=4))
    >>> result.bounds["if_gaussian"].epsilon > result.bounds["assumption_free"].epsilon > 1
    True
    >>> round(result.upper_bound, 2)
    10.0
    >>> cosines = rng.normal(4, 1, (10, 256)) / 62_006**0.5
    >>> audit.bounds(audit.cosines(cosines, dimension=62_006)).epsilon > 14
    True
    """
    from audit.conclusions.concluded import conclude
    from audit.errors import require_type
    from audit.report import subjects

    require_type("name", name, str)
    require_claim(claim)
    level = _read_level(delta, confidence)
    conclusion = conclude(_read_evidence(scores_in, scores_out), claim, level)
    # The facts of the result's page are only gathered when a page is made.
    return Result(conclusion, partial(subjects.describe_arrays, name, conclusion))


def audit(
    model: str = "fcnn",
    *,
    runs: int = 5000,
    out: str | Path = "results",
    delta: float = 1e-5,
    confidence: float = 0.95,
    data_file: str | Path | None = None,
    tfds_dir: str | Path | None = None,
    **settings: Any,
) -> Result:
    """Trains and audits a model of the repository, as the repository's command `audit` does with these flags.

    It works in a clone of the repository only.

    Args:
      model: "fcnn", "convnet" or another of `models.catalogue.TASKS`.
      runs: the number of models to train, half of them with the canary; those already in `out` are not
        trained again.
      out: the folder of the store.
      delta: the delta at which epsilon is bounded.
      confidence: the probability with which each bound holds.
      data_file, tfds_dir: a file or a TFDS folder to read the data from; by default they are fetched.
      settings: the command's other flags that describe the setting, such as adversary="gc_r", k=5, seed=1.
        lipschitz="measured" measures along rehearsed runs how much steps stretch distances between models;
        smooth models at k > 1 are measured by default, and "none" switches it off. `rehearsals` is the number
        of these runs.

    Raises:
      InputError: the setting cannot be audited.

    >>> audit.audit("fcnn", runs=40, insertions=2, out=folder).upper_bound  # doctest: +ELLIPSIS
    1.356...
    """
    settings |= {"delta": delta, "confidence": confidence}
    request = _read_request("audit", runs, out, settings, installed.ZOO)
    from audit.conclusions.lipschitz import count_rehearsals
    from audit.errors import path
    from audit.settings import make
    from audit.settings.setting import validate
    from audit.tasks import task
    from audit.tasks.task import Sources
    from audit.training import driver

    # These two are no fields of the setting.
    lipschitz = settings.pop("lipschitz", None)  # "measured", "none" or None
    rehearsed = settings.pop("rehearsals", None)
    sources = Sources(
        None if data_file is None else str(path("data_file", data_file)),
        None if tfds_dir is None else str(path("tfds_dir", tfds_dir)),
    )
    # Without any of these settings, the number of steps follows from the default of insertions.
    if not {"steps", "insertions", "sampler"} & set(settings):
        settings["insertions"] = make.fields()["insertions"].default
    setting = make.setting_of(model, **settings)
    validate(setting, request.runs, request.level.delta)
    rehearsed = count_rehearsals(setting, lipschitz, rehearsed)

    dataset = task.task(model).data.load(sources)
    asked = driver.make_request(setting, dataset, request.runs, request.level, rehearsed)

    def train() -> "Finished":
        """Trains the missing runs, and keeps the conclusion."""
        finished = driver.audit(asked, request.out)
        driver.keep(finished)
        return finished

    return _make_result(train, request)


def audit_model(
    module: "nn.Module",
    criterion: "Callable[[Array, Array], Array]",
    features: "ArrayLike",
    labels: "ArrayLike",
    *,
    runs: int,
    adversary: "str | Adversary" = "gc_s",
    out: str | Path = "results",
    **settings: Any,
) -> Result:
    """Trains a Flax Linen module, half of the runs with a canary, and bounds what their last iterates leak.

    Args:
      module: a module that takes one example, features[i], without a batch axis; it has trained parameters
        only, and draws no randomness.
      criterion: (the module's output, labels[i]) -> the scalar loss of a single example.
      features: (N, ...), one row an example; stored as float32 or as whole numbers.
      labels: (N, ...); the adversary "loss" needs classes, whole numbers from 0.
      runs: the number of models to train; those already in `out` are not trained again.
      adversary: a name in `audit.settings.adversaries.ADVERSARIES`, such as "gc_r", or an
        `audit.adversaries.base.Adversary` of your own.
      out: the folder of the store; figure and page are written there too.
      settings: what describes the training, such as steps=100, noise_multiplier=2, k=5. `model` names the
        model in the report. `delta`, by default 1e-5, and `confidence`, by default 0.95, are those of bounds.
        `lipschitz` is the Lipschitz constant, or a list with one for each step, of the map from a model to
        the next: without canary and noise, with learning rate, clipping and weight decay. Give it where you
        can vouch for it: the upper bound on what the last model leaks then is smaller
        (`audit.hidden_state_epsilon`). lipschitz="measured" measures the constants along rehearsed runs; that
        they hold for all runs is an assumption. `rehearsals` is the number of these runs. What was measured
        stays in `out` for later calls.

    If `out` has all runs, nothing is trained.

    Raises:
      InputError: the model, data or setting cannot be audited.

    >>> import flax.linen as nn, numpy as np, optax
    >>> features, labels = np.eye(8, dtype=np.float32), np.arange(8) % 2
    >>> small = {"steps": 2, "batch_size": 4}
    >>> criterion = optax.softmax_cross_entropy_with_integer_labels
    >>> result = audit.audit_model(nn.Dense(2), criterion, features, labels, runs=40, out=folder, **small)
    >>> sorted(result.bounds)
    ['assumption_free', 'if_gaussian']
    """
    request = _read_request("audit_model", runs, out, settings)
    from audit import own

    model = own.wrap_module(module, criterion, features, labels)
    fields = {**settings, "adversary": adversary}
    return _make_result(partial(own.audited, model, fields, *request), request)


def audit_loss(
    loss: "Callable[[Any, tuple[Array, Array]], Array]",
    params: Any,
    features: "ArrayLike",
    labels: "ArrayLike",
    *,
    runs: int,
    adversary: "str | Adversary" = "gc_s",
    out: str | Path = "results",
    **settings: Any,
) -> Result:
    """Trains and audits any JAX model that is given by its loss, as `audit_model` does a Linen module.

    A model of Flax NNX, Equinox or Haiku can be given so. Gradients are taken example by example, which is
    slower than what a Linen module allows.

    Args:
      loss: (params, (features[i], labels[i])) -> the scalar loss of one example, without a batch axis; it
        draws no randomness.
      params: a tree of float arrays, at which every run begins.
      features: (N, ...), one row an example.
      labels: (N, ...), one row an example.
      runs, adversary, out, settings: see `audit_model`.

    Raises:
      InputError: the loss, data or setting cannot be audited.

    >>> import jax.numpy as jnp, numpy as np
    >>> def loss(params, labelled):
    ...     return (params["w"] @ labelled[0] - labelled[1]) ** 2
    >>> features, labels = np.eye(8, dtype=np.float32), np.ones(8)
    >>> small = {"steps": 2, "batch_size": 4}
    >>> result = audit.audit_loss(loss, {"w": jnp.zeros(8)}, features, labels, runs=40, out=folder, **small)
    >>> (result.folder / "report.html").exists()
    True
    """
    request = _read_request("audit_loss", runs, out, settings)
    from audit import own

    model = own.wrap_loss(loss, params, features, labels)
    fields = {**settings, "adversary": adversary}
    return _make_result(partial(own.audited, model, fields, *request), request)


def require_claim(claim: Any) -> None:
    """Raises InputError unless a claim is None, or has the methods of `audit.claims.claim.Claim`."""
    from audit.errors import shown

    is_claim = claim is None or all(
        hasattr(claim, name) for name in ("epsilon", "power", "last_model")
    )
    require(
        is_claim,
        f"`claim={shown(claim)}`: give audit.DpSgd(...), audit.Gdp(mu) or audit.EpsilonDelta(...)",
    )


def _read_evidence(scores_in: Any, scores_out: Any) -> "Evidence":
    """Returns the scores that a caller gives to `bounds` as checked evidence.

    Args:
      scores_in: scores with the canary, (n,) or (n, K). Where scores_out is None: a table of scores with its
        columns, or evidence, which is returned as it is.
      scores_out: scores without the canary, (m,) or (m, M), or None.

    Raises:
      InputError: scores_in and scores_out do not go together, or are no scores.
    """
    from audit.evidence import given
    from audit.storage import score_files

    if scores_out is not None:
        message = "`scores_out` goes with scores of runs with the canary: drop it"
        require(not isinstance(scores_in, given.Evidence), message)
        return given.two_worlds(scores_in, scores_out)
    if isinstance(scores_in, given.Evidence):
        return scores_in
    is_table = hasattr(scores_in, "columns") and hasattr(scores_in, "__getitem__")
    missing = (
        "`scores_out` is missing: give it, or a table with columns score,in (1 or 0), or audit.coins(scores, "
        "presence), audit.cosines(values, dimension), or audit.ranks(scores, fresh)"
    )
    require(is_table, missing)
    return score_files.read_columns("the table", list(scores_in.columns), scores_in.__getitem__)


class _Request(NamedTuple):
    """A checked request for an audit that trains.

    Attributes:
      runs: the number of models to train.
      out: the folder of the store.
      level: delta and confidence of the bounds.
    """

    runs: int
    out: Path
    level: "Level"


def _read_request(
    function: str, runs: int, out: str | Path, settings: dict[str, Any], extras: str = TRAIN
) -> _Request:
    """Returns the checked request of an audit that trains, and checks `rehearsals` among its settings.

    It takes `delta` and `confidence` out of the settings. Raises InputError for values out of range, and if
    a library that `function` needs to train is not installed.
    """
    installed.require_training_libraries(function, extras)
    from audit.errors import number, path
    from audit.laws import conversions

    level = _read_level(settings.pop("delta", 1e-5), settings.pop("confidence", 0.95))
    conversions.require_levels(*level)
    if settings.get("rehearsals") is not None:
        settings["rehearsals"] = number("rehearsals", settings["rehearsals"], int)
    return _Request(number("runs", runs, int), path("out", out), level)


def _read_level(delta: float, confidence: float) -> "Level":
    """Returns the level of the bounds; raises InputError for values that are no numbers."""
    from audit.errors import number
    from audit.written import Level

    return Level(number("delta", delta, float), number("confidence", confidence, float))


def _make_result(audit: "Callable[[], Finished]", request: _Request) -> Result:
    """Returns the result of an audit, whose page is made from its store when it is asked for.

    It computes matrix products in float32, as the command does; by default, some devices take less.
    """
    import jax

    from audit.report import subjects

    with jax.default_matmul_precision("float32"):
        finished = audit()
    folder = finished.store.path
    levels = subjects.RequestedLevels(*request.level)
    subject = partial(subjects.describe_setting, folder, levels, request.runs)
    return Result(finished.conclusion, subject, folder)
