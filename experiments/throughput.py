"""Time our engine beside jax_privacy, Opacus and torch.func.

    ./run.sh throughput                                 both models, all engines
    ./run.sh throughput --models=fcnn --rounds=3        one model, quickly
    ./run.sh throughput --engines=ours,opacus --json    two engines, as JSON

All engines do DP-SGD steps on one model, batch size, data and machine: per-example gradients, clipping,
noise, SGD. Before it is timed, each must take the step that ours takes without noise. In every round
each is timed once, so that what slows a round slows all, and ratios are taken within rounds. Ours is
what `audit` trains, insertion included. jax_privacy and torch_func use all cores, with as many models
at once as they are fastest with; Opacus runs a process of one thread on each core, and their rates add.

"of GEMM" is the model's arithmetic a second as a share of a float32 product of 2048 x 2048 matrices,
timed in the same rounds by JAX on all cores. The arithmetic is a multiplication and an addition for
each use of a weight in the forward pass, the weights' gradients and the inputs' gradients (the first
layer has none); biases, activations, clipping and noise are not counted. Peak memory is of the engine's
processes with their libraries and data, on a GPU of its memory.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags
from tqdm import tqdm

from audit.errors import require
from experiments import cli
from experiments.engine.workers import (
    ENGINES,
    GEMM,
    GEMM_SIZE,
    About,
    Memory,
    Worker,
    cores,
    write_problem,
)

FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["fcnn", "convnet"], "fcnn (California Housing), convnet (CIFAR-10).")
flags.DEFINE_list("engines", list(ENGINES), f"Of {', '.join(ENGINES)}.")
flags.DEFINE_integer("rounds", 5, "Rounds; each times every engine once.")
flags.DEFINE_float("seconds", 3.0, "Seconds a measurement, at least.")
flags.DEFINE_string("data_file", None, "One model's data as a file, instead of fetching them.")
flags.DEFINE_string("tfds_dir", None, "A prepared TFDS folder that holds the data.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of a table.")


class Layer(NamedTuple):
    """A dense layer, or a convolution as one at every position of its window."""

    positions: int
    inputs: int
    outputs: int


LAYERS = {
    "fcnn": (Layer(1, 8, 6), Layer(1, 6, 2)),
    "convnet": (
        Layer(28 * 28, 5 * 5 * 3, 6),
        Layer(10 * 10, 5 * 5 * 6, 16),
        Layer(1, 400, 120),
        Layer(1, 120, 84),
        Layer(1, 84, 10),
    ),
}


def flops(layers: tuple[Layer, ...], batch_size: int) -> int:
    """Floating-point operations of a step: two for each use of a weight (see the module's docstring)."""
    uses = [layer.positions * layer.inputs * layer.outputs for layer in layers]
    return 2 * batch_size * (3 * sum(uses) - uses[0])


class Measurement(NamedTuple):
    """An engine on a model. rates, gemm: model-steps and GEMM's operations a second, a value a round.

    memory sums over the engine's processes.
    """

    model: str
    engine: str
    rates: list[float]
    gemm: list[float]
    flops_per_step: int
    memory: Memory
    about: About
    processes: int

    def rate(self) -> float:
        """The rounds' median."""
        return statistics.median(self.rates)

    def gemm_share(self) -> float:
        """The model's arithmetic a second over the GEMM's: the median of the rounds' ratios."""
        shares = [r * self.flops_per_step / g for r, g in zip(self.rates, self.gemm, strict=True)]
        return statistics.median(shares)

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "model": self.model,
            "engine": self.engine,
            "model_steps_per_second": self.rate(),
            "gemm_share": self.gemm_share(),
            "peak_memory_bytes": self.memory.peak,
            "import_memory_bytes": self.memory.imports,
            "rounds_model_steps_per_second": self.rates,
            "rounds_gemm_flops_per_second": self.gemm,
            "gemm_flops_per_second": statistics.median(self.gemm),
            "flops_per_step": self.flops_per_step,
            "device": self.about.device,
            "processes": self.processes,
            "models_at_once": self.about.models,
            "distance_from_ours": self.about.check,
        }


class Team:
    """An engine's processes: one, or one a core, which then measure at the same time."""

    def __init__(self, name: str, problem: Path) -> None:
        kind = ENGINES[name]
        self.name = name
        self.workers = [Worker(name, kind, problem)]
        self.about = self.workers[0].about()
        if kind.chooses:  # afresh, since what it tried counts in its peak memory
            self.workers[0].stop()
            self.workers = [Worker(name, kind, problem, self.about.models)]
            self.workers[0].about()
        if kind.one_thread and self.about.platform == "cpu":
            self.workers += [Worker(name, kind, problem) for _ in range(cores() - 1)]
        for worker in self.workers[1:]:
            worker.about()

    def rate(self, seconds: float) -> float:
        """Model-steps a second of all."""
        for worker in self.workers:
            worker.begin(seconds)
        return sum(worker.rate() for worker in self.workers)

    def stop(self) -> Memory:
        """Ends them; the sums of their memory."""
        peaks, imports = zip(*(worker.stop() for worker in self.workers), strict=True)
        return Memory(sum(peaks), sum(imports))


def main() -> None:
    """Parse, measure, print."""
    models, engines = _chosen("models", LAYERS), _chosen("engines", ENGINES)
    require(FLAGS.rounds >= 1, f"--rounds={FLAGS.rounds}: give at least 1")
    require(0 < FLAGS.seconds < 3600, f"--seconds={FLAGS.seconds}: give more than 0, up to an hour")
    one = FLAGS.data_file is None or len(models) == 1
    require(one, "--data_file is one model's: name that one in --models")
    missing = [name for name in engines if not ENGINES[name].is_installed()]
    engines = [name for name in engines if name not in missing]
    if missing:
        print(missing_line(missing), file=sys.stderr)
    require(engines, "none of --engines is installed: name others")
    measurements = [measurement for model in models for measurement in _measure(model, engines)]
    print(as_json(measurements, missing) if FLAGS.json else as_table(measurements))


def _chosen(flag: str, known: Any) -> list[str]:
    """A flag's names, each once."""
    names = list(dict.fromkeys(FLAGS[flag].value or ()))
    for name in names:
        require(name in known, f"--{flag}: {name!r} is unknown: choose of {', '.join(known)}")
    require(names, f"--{flag} is empty: choose of {', '.join(known)}")
    return names


def missing_line(missing: list[str]) -> str:
    """What is left out, and the mend."""
    libraries = ", ".join(dict.fromkeys(ENGINES[name].needs for name in missing))
    return (
        f"left out: {', '.join(missing)} ({libraries} not installed; "
        f"{sys.executable} -m pip install -c requirements.lock -e '.[bench]' brings it)"
    )


def _measure(model: str, engines: list[str]) -> list[Measurement]:
    """All engines on a model, and the GEMM, in turn, round by round."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "problem.npz")
        bar = tqdm(total=1 + len(engines) * (1 + FLAGS.rounds), desc=f"{model}: data", leave=False)
        batch_size = write_problem(model, FLAGS.data_file, FLAGS.tfds_dir, path)
        product = Worker("gemm", GEMM, path)
        product.about()
        teams: list[Team] = []
        for name in engines:
            bar.set_description(f"{model}: {name} starts")
            teams.append(Team(name, path))
            bar.update()
        rates: list[list[float]] = [[] for _ in teams]
        gemm: list[float] = []
        for _ in range(FLAGS.rounds):
            product.begin(min(FLAGS.seconds, 1.0))
            gemm.append(2.0 * GEMM_SIZE**3 * product.rate())
            for team, own in zip(teams, rates, strict=True):
                bar.set_description(f"{model}: {team.name}")
                own.append(team.rate(FLAGS.seconds))
                bar.update()
        product.stop()
        bar.close()
        operations = flops(LAYERS[model], batch_size)
        return [
            Measurement(model, t.name, own, gemm, operations, t.stop(), t.about, len(t.workers))
            for t, own in zip(teams, rates, strict=True)
        ]


def as_json(measurements: list[Measurement], missing: list[str]) -> str:
    """One object: a list `measurements`, and the engines that were left out."""
    return json.dumps({"measurements": [m.fields() for m in measurements], "missing": missing})


def as_table(measurements: list[Measurement]) -> str:
    """A row a model and engine, of at most 80 columns; ratios are of the same round."""
    gemm = statistics.median(g for m in measurements for g in m.gemm)
    head = f"{'model':<8} {'engine':<11} {'model-steps/s':>13}  {'ours is faster by':<22} {'of GEMM':>8}"
    head += f" {'peak MB':>8}"
    lines = [head, "-" * len(head)]
    ours = {m.model: m.rates for m in measurements if m.engine == "ours"}
    for m in measurements:
        ratio = "" if m.engine == "ours" or m.model not in ours else _ratio(ours[m.model], m.rates)
        lines.append(
            f"{m.model:<8} {m.engine:<11} {_rounded(m.rate()):>13}  {ratio:<22} {m.gemm_share():8.2%}"
            f" {m.memory.peak / 1e6:8,.0f}"
        )
    lines.append(f"GEMM: {gemm / 1e9:,.0f} GFLOP/s; on {measurements[0].about.device}, {cores()} cores")
    return "\n".join(lines)


def _rounded(rate: float) -> str:
    """Three digits at least."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _ratio(ours: list[float], peer: list[float]) -> str:
    """Median, least and largest of the rounds' ratios."""
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    return f"{_rounded(statistics.median(ratios))} ({_rounded(min(ratios))} to {_rounded(max(ratios))})"


if __name__ == "__main__":
    cli.run(main)
