"""Rounds in which every engine is timed once, and what they come to: a table, or JSON."""

import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from audit.machine import cores
from experiments.engine.engines import GEMM, OURS, WORK, Kind
from experiments.engine.problem import GEMM_SIZE, About
from experiments.engine.workers import TOLERANCE, Memory, Worker, in_a_process


class Layer(NamedTuple):
    """A dense layer, or a convolution as one at every position of its window."""

    positions: int
    inputs: int
    outputs: int


def _resnet18() -> Iterator[Layer]:
    """The ResNet18's for images of 32 x 32, from the first layer on."""
    yield Layer(32 * 32, 3 * 3 * 3, 64)
    for channels, features, side in ((64, 64, 32), (64, 128, 16), (128, 256, 8), (256, 512, 4)):
        yield Layer(side**2, 9 * channels, features)
        yield from (Layer(side**2, 9 * features, features) for _ in range(3))
        if channels != features:
            yield Layer(side**2, channels, features)
    yield Layer(1, 512, 10)


LAYERS = {
    "fcnn": (Layer(1, 8, 6), Layer(1, 6, 2)),
    "convnet": (
        Layer(28 * 28, 5 * 5 * 3, 6),
        Layer(10 * 10, 5 * 5 * 6, 16),
        Layer(1, 400, 120),
        Layer(1, 120, 84),
        Layer(1, 84, 10),
    ),
    "resnet18": tuple(_resnet18()),
    "lenet": (
        Layer(24 * 24, 5 * 5, 6),
        Layer(8 * 8, 5 * 5 * 6, 16),
        Layer(1, 256, 120),
        Layer(1, 120, 84),
        Layer(1, 84, 10),
    ),
}

TOLERANCES = {"resnet18": 1e-3}  # through 18 layers of normalised sums in float32; else TOLERANCE


def flops(layers: tuple[Layer, ...], examples: float) -> int:
    """Floating-point operations on so many examples: a multiplication and an addition a use of a weight.

    Weights are used in the forward pass, for the weights' gradients and for the inputs' gradients, which
    the first layer does not form. Biases, activations, clipping and noise are not counted.
    """
    uses = [layer.positions * layer.inputs * layer.outputs for layer in layers]
    return round(2 * examples * (3 * sum(uses) - uses[0]))


class Rounds(NamedTuple):
    """How often every engine is timed, and for how many seconds at least."""

    number: int
    seconds: float


class Measurement(NamedTuple):
    """An engine on a model. rates, gemm: its units (see `Work`) and GEMM's operations a second, a value a
    round; flops: of a unit. memory sums over the engine's processes.
    """

    model: str
    engine: str
    rates: list[float]
    gemm: list[float]
    flops: int
    memory: Memory
    about: About
    processes: int

    @property
    def unit(self) -> str:
        """What the rates count."""
        return WORK[self.model].unit

    def rate(self) -> float:
        """The rounds' median."""
        return statistics.median(self.rates)

    def gemm_share(self) -> float:
        """The model's arithmetic a second over the GEMM's: the median of the rounds' ratios."""
        shares = [r * self.flops / g for r, g in zip(self.rates, self.gemm, strict=True)]
        return statistics.median(shares)

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        counted = self.unit.replace("-", "_")
        return {
            "model": self.model,
            "engine": self.engine,
            f"{counted}_per_second": self.rate(),
            "gemm_share": self.gemm_share(),
            "peak_memory_bytes": self.memory.peak,
            "import_memory_bytes": self.memory.imports,
            f"rounds_{counted}_per_second": self.rates,
            "rounds_gemm_flops_per_second": self.gemm,
            "gemm_flops_per_second": statistics.median(self.gemm),
            f"flops_per_{counted.removesuffix('s')}": self.flops,
            "device": self.about.device,
            "processes": self.processes,
            "models_at_once": self.about.models,
            "distance_from_ours": self.about.distance,
        }


class Team:
    """An engine's processes: one, or one a core, which then measure at the same time."""

    def __init__(self, kind: Kind, problem: Path, tolerance: float = TOLERANCE) -> None:
        self.name = kind.name
        self.workers = [Worker(kind, problem)]
        self.about = self.workers[0].about(tolerance)
        if kind.chooses:  # afresh, since what it tried counts in its peak memory
            self.workers[0].stop()
            self.workers = [Worker(kind, problem, self.about.models)]
            self.workers[0].about(tolerance)
        if kind.one_thread and self.about.platform == "cpu":
            self.workers += [Worker(kind, problem) for _ in range(cores() - 1)]
        for worker in self.workers[1:]:
            worker.about(tolerance)

    def rate(self, seconds: float) -> float:
        """Model-steps or client-updates a second of all."""
        for worker in self.workers:
            worker.begin(seconds)
        return sum(worker.rate() for worker in self.workers)

    def stop(self) -> Memory:
        """Ends them; the sums of their memory."""
        peaks, imports = zip(*(worker.stop() for worker in self.workers), strict=True)
        return Memory(sum(peaks), sum(imports))


def measure(
    model: str, kinds: Sequence[Kind], rounds: Rounds, file: str | None = None, tfds_dir: str | None = None
) -> list[Measurement]:
    """Every engine on a model, and the GEMM, in turn, round by round; a bar on stderr shows them.

    The data come from `file` or from a prepared TFDS folder, else by the model's own recipe. Raises
    InputError where they can't be had, and where an engine fails or takes another step than ours.
    """
    steps = 1 + len(kinds) * (1 + rounds.number)
    bar = tqdm(total=steps, desc=f"{model}: data", leave=False)
    with tempfile.TemporaryDirectory() as folder, bar:
        path = Path(folder, "problem.npz")
        examples = in_a_process(WORK[model].write, model, file, tfds_dir, path)
        product = Team(GEMM, path)
        teams = list(_started(model, kinds, path, bar))
        rates: list[list[float]] = [[] for _ in teams]
        gemm: list[float] = []
        for _ in range(rounds.number):
            gemm.append(2.0 * GEMM_SIZE**3 * product.rate(min(rounds.seconds, 1.0)))
            for team, own in zip(teams, rates, strict=True):
                bar.set_description(f"{model}: {team.name}")
                own.append(team.rate(rounds.seconds))
                bar.update()
        product.stop()
        operations = flops(LAYERS[model], examples)
        return [
            Measurement(model, t.name, own, gemm, operations, t.stop(), t.about, len(t.workers))
            for t, own in zip(teams, rates, strict=True)
        ]


def _started(model: str, kinds: Sequence[Kind], path: Path, bar: tqdm) -> Iterator[Team]:
    """The engines' teams, one after the other."""
    for kind in kinds:
        bar.set_description(f"{model}: {kind.name} starts")
        yield Team(kind, path, TOLERANCES.get(model, TOLERANCE))
        bar.update()


def as_json(measurements: list[Measurement], missing: Sequence[Kind]) -> str:
    """One object: a list `measurements`, and the names of the engines that were left out."""
    names = [kind.name for kind in missing]
    return json.dumps({"measurements": [m.fields() for m in measurements], "missing": names})


def as_table(measurements: list[Measurement]) -> str:
    """A row a model and engine, of at most 80 columns, in a block a unit; ratios are of one round."""
    units = dict.fromkeys(m.unit for m in measurements)
    lines = [line for unit in units for line in _block([m for m in measurements if m.unit == unit])]
    gemm = statistics.median(g for m in measurements for g in m.gemm)
    lines.append(f"GEMM: {gemm / 1e9:,.0f} GFLOP/s; on {measurements[0].about.device}, {cores()} cores")
    return "\n".join(lines)


def _block(measurements: list[Measurement]) -> Iterator[str]:
    """The lines of measurements of one unit."""
    rate = f"{measurements[0].unit}/s"
    head = f"{'model':<8} {'engine':<11} {rate:>16}  {'ours is faster by':<19} {'of GEMM':>8} {'peak MB':>8}"
    yield from (head, "-" * len(head))
    ours = {m.model: m.rates for m in measurements if m.engine == OURS.name}
    for m in measurements:
        ratio = "" if m.engine == OURS.name or m.model not in ours else _ratio(ours[m.model], m.rates)
        yield (
            f"{m.model:<8} {m.engine:<11} {_rounded(m.rate()):>16}  {ratio:<19} {m.gemm_share():8.2%}"
            f" {m.memory.peak / 1e6:8,.0f}"
        )


def _rounded(rate: float) -> str:
    """Three digits at least."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _ratio(ours: list[float], peer: list[float]) -> str:
    """Median, least and largest of the rounds' ratios."""
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    return f"{_rounded(statistics.median(ratios))} ({_rounded(min(ratios))} to {_rounded(max(ratios))})"
