"""The public functions for audits and lower bounds. They print only progress."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from audit.errors import number, path, require, require_type, shown
from audit.result import Grid, Result
from audit.runtime import installed
from audit.written import Level

if TYPE_CHECKING:
    import flax.linen as nn
    from jax import Array
    from numpy.typing import ArrayLike

    from audit.adversaries.base import Adversary
    from audit.claims.claim import Claim
    from audit.evidence.given import Evidence
    from audit.training.driver import Request

MAX_AUDITS = 1000  # in a grid


def bounds(
    scores_in: "ArrayLike | Evidence | Any",
    scores_out: "ArrayLike | None" = None,
    claim: "Claim | None" = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    name: str = "scores",
) -> Result:
    """Returns lower bounds on epsilon from scores, without loading JAX.

    Include every run that you started; record failed runs as NaN.

    Args:
      scores_in: scores (n,) of independent runs with the canary, or (n, K) for K canaries per run. Higher
        scores mean "inserted". Without scores_out, give the result of `audit.coins`, `audit.cosines` or
        `audit.ranks`, or a table (such as a pandas DataFrame) with the columns `score` and `in` (1 or 0), or
        `in` and `out`.
      scores_out: scores (m,) of runs without the canary, or (m, M) for M held-out canaries per run. If
        scores_in has K canaries per run, each of these m runs must insert K - 1 other canaries, so that only
        one canary differs. Otherwise the bounds are too high.
      claim: a privacy claim to test, such as `audit.DpSgd(noise_multiplier=4, insertions=250)`. The claimed
        epsilon is the upper bound.
      delta: the delta of the bounds.
      confidence: the confidence of each bound.
      name: a title for the report.

    Returns:
      A `Result` with the bounds of all methods in `bounds`.

    Raises:
      InputError: the scores cannot be used, or an argument is out of range.

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
    from audit.claims.claim import Claim
    from audit.conclusions.concluded import conclude
    from audit.report import subjects

    require_type("name", name, str)
    require(
        claim is None or isinstance(claim, Claim),
        f"`claim={shown(claim)}`: give audit.DpSgd(...), audit.Gdp(mu) or audit.EpsilonDelta(...)",
    )
    level = _read_level(delta, confidence)
    conclusion = conclude(_read_evidence(scores_in, scores_out), claim, level)
    return Result(conclusion, partial(subjects.describe_arrays, name, conclusion))


def audit(
    model: str = "fcnn",
    *,
    runs: int = 5000,
    out: str | Path = "results",
    delta: float = 1e-5,
    confidence: float = 0.95,
    data: str | Path | None = None,
    **settings: Any,
) -> Result:
    """Trains and audits one of the repository's models, like the command `audit`.

    The models are available only in a clone of the repository. Runs that are already in `out` are not
    trained again.

    Args:
      model: a name in `models.catalogue.TASKS`, such as "fcnn" or "convnet".
      runs: the number of models to train, half of them with the canary.
      out: the folder for results.
      delta, confidence: as in `bounds`.
      data: a local data file or prepared TFDS folder; by default, the data are downloaded.
      settings: other flags of the command `audit`. For example, insertions=50 and k=5 insert the canary 50
        times, once every five steps. `adversary` is a name, such as "gc_r", or an
        `audit.adversaries.base.Adversary`.

        vary={"k": [1, 5], "seed": [0, 1, 2]} audits all combinations of these values.

        lipschitz="measured" measures the Lipschitz constants of training steps in `rehearsals` additional
        runs, for an upper bound on the last model's leakage. Smooth models with k > 1 are measured by
        default; lipschitz="none" disables the measurement.

    Returns:
      A `Result` or, with `vary`, a `Grid`.

    Raises:
      InputError: the setting cannot be audited.

    >>> audit.audit("fcnn", runs=40, insertions=2, out=folder).upper_bound  # doctest: +ELLIPSIS
    1.356...
    """
    installed.require_training_libraries("audit", installed.ZOO)
    settings |= {"runs": runs, "out": out, "delta": delta, "confidence": confidence, "data": data}
    return _audit_each(partial(_request_task, model), settings)


def _request_task(model: str, fields: dict[str, Any], runs: int, level: Level) -> "Request":
    """Returns the request to audit one of the repository's models.

    `fields` contains the other arguments of `audit`, and is modified in place.
    """
    # These modules load JAX.
    from audit.adversaries.base import Adversary
    from audit.conclusions.lipschitz import count_rehearsals
    from audit.settings import make
    from audit.settings.setting import validate
    from audit.tasks import task
    from audit.training import driver

    require_type("model", model, str)
    model_task = task.task(model)
    data_file = fields.pop("data")
    if data_file is not None:
        data_file = str(path("data", data_file))
    make.add_default_insertions(model, fields)
    if isinstance(fields.get("adversary"), Adversary):
        from audit import own

        custom = own.wrap_task(model_task, model_task.data.load(data_file))
        # This also validates the setting, and reads `lipschitz` and `rehearsals`.
        return own.make_request(custom, fields, runs, level)
    lipschitz = fields.pop("lipschitz", None)
    rehearsals = fields.pop("rehearsals", None)
    setting = make.setting_of(model, **fields)
    validate(setting, runs, level.delta)
    rehearsals = count_rehearsals(setting, lipschitz, rehearsals)
    return driver.make_request(setting, model_task.data.load(data_file), runs, level, rehearsals)


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
    """Trains a Flax Linen module with DP-SGD, with a canary in half of the runs, and bounds the leakage.

    Runs that are already in `out` are not trained again.

    Args:
      module: a deterministic module that takes one example, features[i], without a batch axis. All its
        variables must be trained parameters.
      criterion: a function (module output, labels[i]) -> scalar loss of one example.
      features: (N, ...), one row per example; converted to float32, uint8 or int32.
      labels: (N, ...), one row per example. The adversary "loss" requires classes numbered 0, 1, ...
      runs: the number of models to train.
      adversary: a name in `audit.settings.adversaries.ADVERSARIES`, such as "gc_r", or a custom
        `audit.adversaries.base.Adversary`.
      out: the folder for results.
      settings: training settings, such as steps=100, noise_multiplier=2, k=5. `delta` and `confidence` of the
        bounds default to 1e-5 and 0.95. `model` is the model's name in the report. `lipschitz` lowers the
        upper bound for the last model (see `audit.hidden_state_epsilon`): a guaranteed Lipschitz constant of
        all training steps, or a list with one per step. lipschitz="measured" measures the constants in
        `rehearsals` additional runs and assumes that they are valid for all runs. `vary` audits a grid, as in
        `audit`.

    Returns:
      A `Result` or, with `vary`, a `Grid`. `Result.folder` contains the scores, the figure and the report.

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
    installed.require_training_libraries("audit_model")
    from audit import own

    model = own.wrap_module(module, criterion, features, labels)
    settings |= {"runs": runs, "adversary": adversary, "out": out}
    return _audit_each(partial(own.make_request, model), settings)


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
    """Trains any JAX model with DP-SGD, with a canary in half of the runs, and bounds the leakage.

    Supports models written in Flax NNX, Equinox or Haiku. Training is slower than in `audit_model` because
    gradients are computed per example.

    Args:
      loss: a deterministic function (params, (features[i], labels[i])) -> scalar loss of one example, without
        a batch axis.
      params: a pytree of float arrays, the initial model of every run.
      features: (N, ...), one row per example.
      labels: (N, ...), one row per example.
      runs, adversary, out, settings: see `audit_model`.

    Returns:
      A `Result` or, with `vary`, a `Grid`.

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
    installed.require_training_libraries("audit_loss")
    from audit import own

    model = own.wrap_loss(loss, params, features, labels)
    settings |= {"runs": runs, "adversary": adversary, "out": out}
    return _audit_each(partial(own.make_request, model), settings)


def combine(vary: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns all combinations of values as dicts {name: value}; the last name varies fastest.

    Raises InputError if there are more than MAX_AUDITS combinations.
    """
    count = math.prod(map(len, vary.values()))
    require(count <= MAX_AUDITS, f"`vary` must give at most {MAX_AUDITS:,} audits, got {count:,}")
    return [dict(zip(vary, row, strict=True)) for row in itertools.product(*vary.values())]


def _audit_each(make_request: "Callable[..., Request]", settings: dict[str, Any]) -> Result:
    """Returns the result of an audit or, with `vary`, the `Grid` of all combinations of its values.

    Args:
      make_request: (fields of the setting, runs, level) -> the request for an audit.
      settings: the fields that all audits share, other arguments of `_audit_one`, and optionally `vary`,
        {name: list of values}.
    """
    if "vary" not in settings:
        return _audit_one(make_request, **settings)
    vary = settings.pop("vary")
    require_type("vary", vary, Mapping)
    require("model" not in vary, "`vary` has `model`: audit each model separately")
    require(vary, "`vary` is empty: give a list of values for each setting")
    for name, values in vary.items():
        is_list = isinstance(values, Sequence) and not isinstance(values, str) and len(values)
        require(is_list, f"`vary[{name!r}]={shown(values)}`: give a list of values")
    combinations = combine(vary)
    results = [_audit_one(make_request, **{**settings, **values}) for values in combinations]
    # The annotation is `Result`, because few callers pass `vary`.
    return cast(Result, Grid(tuple(vary), tuple(combinations), tuple(results)))


def _audit_one(
    make_request: "Callable[..., Request]",
    /,
    *,
    runs: int,
    out: str | Path,
    delta: float = 1e-5,
    confidence: float = 0.95,
    **fields: Any,
) -> Result:
    """Runs an audit, writes its conclusion to a folder in `out`, and returns the result.

    Matrix products use full float32 precision; on some devices, JAX's default is lower. `fields` is the
    setting. For `make_request`, see `_audit_each`.
    """
    import jax

    from audit.laws import conversions
    from audit.report import subjects
    from audit.training import driver

    level = _read_level(delta, confidence)
    conversions.require_levels(*level)
    runs = number("runs", runs, int)
    root = path("out", out)
    request = make_request(fields, runs, level)
    # `audit_model` and `audit_loss` promise a figure and a report.
    is_custom = request.model is not None
    with jax.default_matmul_precision("float32"):
        finished = driver.audit(request, root)
        driver.keep(finished, figure=is_custom, page=is_custom)
    folder = finished.store.path
    read_facts = partial(subjects.describe_setting, folder, *level, request.runs)
    return Result(finished.conclusion, read_facts, folder)


def _read_evidence(scores_in: Any, scores_out: Any) -> "Evidence":
    """Validates the score arguments of `bounds` and returns them as evidence."""
    from audit.evidence import given
    from audit.storage import score_files

    if isinstance(scores_in, given.Evidence):
        require(
            scores_out is None, f"`scores_out` conflicts with {type(scores_in).__name__}: drop it"
        )
        return scores_in
    if scores_out is not None:
        return given.two_worlds(scores_in, scores_out)
    require(
        hasattr(scores_in, "columns"),
        "`scores_out` is missing: give it, or a table with columns score,in (1 or 0), or audit.coins(scores, "
        "presence), audit.cosines(values, dimension), or audit.ranks(scores, fresh)",
    )
    return score_files.read_columns(
        "the table", list(scores_in.columns), column=scores_in.__getitem__
    )


def _read_level(delta: float, confidence: float) -> Level:
    """Returns the level of the bounds; raises InputError for a value that is not a number."""
    return Level(number("delta", delta, float), number("confidence", confidence, float))
