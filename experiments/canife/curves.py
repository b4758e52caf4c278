"""What measured rounds show, as data frames and tables.

A frame of rounds has a row for each measured round, and these columns:

    round, test, health, norm, own     of the round, the model's accuracy and the canary; as in `Measured`
    attack                             the attack's accuracy
    deviation, clients                 the scores' standard deviation with noise, and by the clients only
    published, lower, upper            the published estimate and its interval, at delta 1/n
    law_then, law                      the exact epsilon of the score, at 1/n and at the training's delta
    perfect_then, perfect              that of a perfect canary
    proven                             a lower bound, at the training's delta
    rate, mock_rate                    a client's probability of taking part in a round and in a mock round
"""

import textwrap
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd

from audit.laws import conversions
from audit.report.table import Column, Table, at_least, number
from audit.written import counted
from experiments.canife import rounds
from experiments.canife.attacked import Attacked
from experiments.canife.measured import Floats, Measured
from experiments.canife.rounds import Charge
from experiments.canife.sweep import ROUND, AblationSweep
from experiments.sweeps.records import Record, field

_WIDTH = 80
_NOTES = """\
published: best threshold of {n} scores at delta 1/n [95% Clopper-Pearson], an
estimate, at most {cap:.2f} whatever leaks. law: the exact epsilon of the score;
perfect: of a canary that nothing disturbs, which is all that the round's noise
allows. proven: a bound at 95% from {mock:,} mock rounds a world, at delta {delta:g}"""
_CURVES_NOTES = """\
deviation: of the scores / C, both worlds' mean, with noise. attack: its
accuracy. published: the estimate a round; law_then: exact; both at delta 1/n.
training: epsilon up to there, composed of the published estimates"""


def summarize(setting: Attacked, measured: Sequence[Measured]) -> pd.DataFrame:
    """Returns the frame of measured rounds, in their order.

    A perfect canary's score is N(1, sigma^2) with the canary and N(0, sigma^2) without it. Its trade-off
    curve is Gaussian with mu = 1 / sigma.

    Args:
      setting: The setting of the training run.
      measured: What is stored of its rounds.
    """
    paper_delta = 1 / setting.scores
    sigma = setting.noise_multiplier
    mu = 1 / sigma if sigma else np.inf
    records = []
    for row in measured:
        published = rounds.best_epsilon(row.scores_in, row.scores_out, paper_delta)
        record: Record = {
            "round": row.number,
            "test": row.accuracy,
            "health": row.health,
            "norm": row.norm,
            "own": row.own,
            "attack": rounds.largest_accuracy(row.scores_in, row.scores_out),
            "deviation": (np.std(row.scores_in) + np.std(row.scores_out)) / 2,
            "clients": compute_cohort_deviation(row.known, setting.cohort),
            "published": published.epsilon,
            "lower": published.lower,
            "upper": published.upper,
            "law_then": row.exact_then,
            "perfect_then": conversions.epsilon_from_mu(mu, paper_delta),
            "law": row.exact,
            "perfect": conversions.epsilon_from_mu(mu, setting.delta),
            "proven": row.proven,
            "rate": setting.cohort / row.clients,
            "mock_rate": setting.cohort / len(row.known),
        }
        records.append(record)
    return pd.DataFrame(records)


def compose(setting: Attacked, frame: pd.DataFrame, backward: bool = False) -> pd.DataFrame:
    """Returns a frame of all measured rounds with epsilon of the training run up to each, by Renyi DP.

    Each measured round's epsilon is converted to the noise multiplier of a Gaussian round that leaks as much.
    All rounds that it represents are charged this noise. A round of infinite epsilon is charged its true
    noise multiplier. The further columns are

        charged_to                         the last round that is charged
        training                           of the published estimates, converted through Renyi DP
        training_lower, training_upper     of the ends of their intervals, likewise
        training_gaussian                  of the published estimates, converted by the Gaussian curve
        training_law                       of the exact laws, likewise
        accountant                         of the true noise multiplier

    Args:
      setting: The setting.
      frame: All of its measured rounds, in order.
      backward: Whether a measured round represents the rounds before it, as in the public code, instead of
        those after it, as in the paper.
    """
    numbers = frame[ROUND].tolist()
    counts = rounds.forward(numbers, min(numbers[-1] + setting.every - 1, setting.rounds))
    if backward:
        counts = rounds.backward(numbers)
    sampling_rate = float(frame["rate"].iloc[0])
    paper_delta = 1 / setting.scores
    floored = frame["published"].clip(lower=rounds.MIN_EPSILON)

    def charge(noises: Sequence[float]) -> list[float]:
        """Returns epsilon up to each measured round, whose rounds are charged these noise multipliers."""
        pairs = zip(noises, counts, strict=True)
        charges = [Charge(noise, sampling_rate, count) for noise, count in pairs]
        return rounds.cumulative(charges, setting.delta)

    def convert(
        find_noise: Callable[[float, float], float], epsilons: pd.Series, delta: float
    ) -> list[float]:
        """Returns epsilon up to each measured round, of the rounds' epsilons at delta."""
        noises = []
        for epsilon in epsilons:
            is_finite = np.isfinite(epsilon)
            noises.append(find_noise(epsilon, delta) if is_finite else setting.noise_multiplier)
        return charge(noises)

    lower = frame["lower"].clip(lower=rounds.MIN_LOWER)
    upper = frame["upper"].clip(lower=rounds.MIN_EPSILON)
    return frame.assign(
        charged_to=np.cumsum(counts),
        training=convert(rounds.renyi_noise, floored, paper_delta),
        training_lower=convert(rounds.renyi_noise, lower, paper_delta),
        training_upper=convert(rounds.renyi_noise, upper, paper_delta),
        training_gaussian=convert(rounds.gaussian_noise, floored, paper_delta),
        training_law=convert(rounds.gaussian_noise, frame["law"], setting.delta),
        accountant=charge([setting.noise_multiplier] * len(counts)),
    )


def compute_cohort_deviation(dots: Floats, size: int) -> float:
    """Returns the standard deviation of the sum of `size` of M numbers (M,), drawn without replacement."""
    return float(np.sqrt(size * np.var(dots, ddof=1) * (1 - size / len(dots))))


def average_over_seeds(
    sweep: AblationSweep, stored: Sequence[tuple[Attacked, pd.DataFrame]]
) -> pd.DataFrame:
    """Returns the points of a sweep's curves: averages over training runs that differ only in their seeds.

    Args:
      sweep: The sweep.
      stored: The settings, each with the frame of its measured rounds.

    Returns:
      A frame with a row for each point: `curve`, `x`, `round`, `trainings`, and of each other column the mean
        and the standard deviation over seeds, such as `health` and `health_deviation`. A mean is infinite
        if the value of a seed is. A deviation is NaN for a single seed, and where one is infinite.
    """
    parts = []
    for setting, frame in stored:
        x = frame[ROUND]
        if sweep.x == ROUND:
            frame = compose(setting, frame)
        else:
            x = getattr(setting, sweep.x)
        parts.append(frame.assign(curve=getattr(setting, sweep.curve), x=x))
    together = pd.concat(parts)
    by_point = together.groupby(["curve", "x", ROUND], sort=False)
    averages = by_point.mean().join(by_point.std().add_suffix("_deviation"))
    return averages.assign(trainings=by_point.size()).reset_index()


def _show_interval(record: Record) -> str:
    return f"{record['published']:.2f} [{record['lower']:.1f}, {record['upper']:.1f}]"


def _show_norm(norm: float) -> str:
    return f"{norm:.0f}" if norm >= 100 else f"{norm:.3g}"


_EPSILON = number(".2f")
_ROUND_COLUMNS = (
    field("round", head="round", width=5),
    field("test", head="test", show=number(".0%"), width=5),
    field("health", head="health", show=number(".3f"), width=6),
    field("norm", head="|g|", show=_show_norm, width=6),
    Column(None, _show_interval, head="published", width=17),
    field("law_then", head="law", show=_EPSILON, width=6),
    field("perfect_then", head="perfect", show=_EPSILON, width=7),
    field("law", head="law", show=_EPSILON, width=6),
    field("perfect", head="perfect", show=_EPSILON, width=7),
    field("proven", head="proven", show=partial(at_least, decimals=2), width=6),
)


def show_rounds(setting: Attacked, frame: pd.DataFrame) -> str:
    """Returns what each measured round leaks, as a table for people."""
    # The first columns, of 26 characters, have no delta. Three columns at 1/n follow, and three at delta.
    at_delta = f"at delta {setting.delta:g}"
    headings = f"{'':>26} {'at delta 1/n':^32}{at_delta:^18}"
    # The largest finite estimate is that of a single error of either kind; 0 for very few scores.
    half = setting.scores // 2
    cap = conversions.epsilon_from_rates(1 / half, 1 / (setting.scores - half), 1 / setting.scores)
    notes = _NOTES.format(
        n=setting.scores, cap=max(float(cap), 0.0), mock=setting.mock_rounds, delta=setting.delta
    )
    return Table(
        _ROUND_COLUMNS,
        frame.to_dict("records"),
        before=[headings.rstrip()],
        after=[notes],
        gap=" ",
        rule=_WIDTH,
    ).text()


def show_texts(measured: Sequence[Measured]) -> str:
    """Returns designed texts, round by round, as Table 1 of the CANIFE paper lists them."""
    lines = ["round canary, a designed text; a line break is shown as \\n"]
    for row in measured:
        lines += textwrap.wrap(
            str(row.canary).encode("unicode_escape").decode(),
            width=78,
            initial_indent=f"{row.number:>5} ",
            subsequent_indent=" " * 6,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def show_totals(setting: Attacked, frame: pd.DataFrame, backward: bool) -> str:
    """Returns the training run's epsilon, with a line for each way to compute it.

    A perfect canary's line is what the published procedure makes of it: every round is charged the median of
    150 simulated estimates (Errata C9). The last line counts the mock rounds of the published estimates as if
    they were released too (Errata C4).

    Args:
      setting: The setting.
      frame: The frame of its measured rounds, composed.
      backward: Whether a measured round was charged for the rounds before it, rather than those after.
    """
    last = frame.iloc[-1]
    charged = int(last["charged_to"])
    charge = Charge(setting.noise_multiplier, float(last["rate"]), charged)
    rng = np.random.default_rng(setting.seed)  # the simulation is the same at each call
    perfect = rounds.ideal(rng, charge, setting.delta, setting.scores).composed

    # Mock rounds draw their cohorts from fewer clients, of whom each takes part more often.
    training = charge._replace(rounds=setting.rounds)
    mock_rounds = len(frame) * setting.scores
    mock = Charge(setting.noise_multiplier, float(last["mock_rate"]), mock_rounds)
    released = rounds.composed([training, mock], setting.delta)

    way = "backward" if backward else "forward"
    ends = f"[{last['training_lower']:.2f}, {last['training_upper']:.2f}]"
    published = f"{last['training']:.2f} {ends}"
    return f"""\
epsilon over {charged:,} rounds at delta {setting.delta:g}, charged {way}:
  as published, through Renyi DP             {published:>20}
  as published, through the Gaussian curve   {last["training_gaussian"]:>20.2f}
  as published, of a perfect canary          {perfect:>20.2f}
  of the canaries' exact laws                {last["training_law"]:>20.2f}
  the accountant's                           {last["accountant"]:>20.2f}
  and its value if mock rounds were released {released:>20.2f}"""


def show_curves(sweep: AblationSweep, averages: pd.DataFrame) -> str:
    """Returns the points of a sweep's curves as a table for people: means, with deviations over seeds.

    Args:
      sweep: The sweep.
      averages: The frame of its points.
    """
    shown = {"attack": 2, "published": 2, "law_then": 2, "training": 2}  # decimals
    which = ""
    if sweep.x != ROUND:  # such sweeps have no noise, and no epsilon
        shown = {"deviation": 3, "attack": 2, "health": 3}
        which = f"round {averages[ROUND].max()}, "
    columns = {sweep.curve: averages["curve"], sweep.x: averages["x"]}
    for name, decimals in shown.items():
        pairs = zip(averages[name], averages[f"{name}_deviation"], strict=True)
        columns[name] = [_show_mean(mean, deviation, decimals) for mean, deviation in pairs]
    trainings = averages["trainings"].max()
    which += f"mean (deviation) over {counted(trainings, 'training run')}"
    table = pd.DataFrame(columns).to_string(index=False)
    return "\n".join([f"{sweep.name}: {sweep.title}", which, table, _CURVES_NOTES])


def _show_mean(mean: float, deviation: float, decimals: int) -> str:
    """Returns a mean with its deviation in brackets; without, if there is one value only."""
    if np.isnan(deviation):
        return f"{mean:.{decimals}f}"
    return f"{mean:.{decimals}f} ({deviation:.{decimals}f})"
