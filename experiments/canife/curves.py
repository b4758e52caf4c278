"""Presents the results of measured rounds as data frames and tables.

A "frame of rounds" is a data frame from `summarize`.
"""

import textwrap
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import pandas as pd

from audit.laws import conversions
from audit.report.table import at_least
from audit.written import counted
from experiments.canife import rounds
from experiments.canife.attacked import Attacked
from experiments.canife.measured import Measured
from experiments.canife.rounds import Charge
from experiments.canife.sweep import ROUND, AblationSweep
from experiments.sweeps.records import field, mean_fields, own_table
from experiments.sweeps.sweep import OwnTable

_ROUNDS_HEAD = """\
                                     at delta 1/n          {}
round  test health    |g|         published    law perfect    law perfect proven
{}"""
_NOTES = """\
published: estimate at the best threshold of {n} scores, delta 1/n [95% Clopper-
Pearson], at most {cap:.2f} for any leak. law: exact epsilon of the score. perfect:
exact epsilon of a perfect canary, the largest possible for the round's noise.
proven: a 95% bound from {mock:,} mock rounds per world, at delta {delta:g}"""
_CURVES_NOTES = """\
deviation: of noisy scores / C, averaged over both worlds. attack: accuracy.
published: estimate per round; law_then: exact epsilon; both at delta 1/n.
training: epsilon up to this round, composed from the published estimates"""


def summarize(setting: Attacked, measured: Sequence[Measured]) -> pd.DataFrame:
    """Returns a data frame with a row for each measured round.

    The paper estimates a round's epsilon at delta 1/n for n scores, and the training run's epsilon at a
    smaller delta, `setting.delta`. Each exact epsilon therefore has two columns. The columns are:

        round, test              the round number, and the model's test accuracy
        health                   the fraction by which the canary's design reduced the penalty it minimizes
        norm                     the norm of the canary's gradient
        attack                   the accuracy of the attack
        deviation                the standard deviation of scores
        clients                  the part of this deviation that is due to the random choice of clients
        published, lower, upper  the published estimate of epsilon and its interval, at delta 1/n
        law_then, law            the score's exact epsilon, at delta 1/n and at `setting.delta`
        perfect_then, perfect    the exact epsilon of a perfect canary, at delta 1/n and at `setting.delta`
        proven                   a lower bound on epsilon, at `setting.delta`
        rate, mock_rate          a client's sampling probability in a round, and in a simulated (mock) round
    """
    paper_delta = 1 / setting.scores
    sigma = setting.noise_multiplier
    # The scores of a perfect canary are N(1, sigma^2) with it and N(0, sigma^2) without.
    mu = 1 / sigma if sigma else np.inf
    records = []
    for row in measured:
        published = rounds.best_epsilon(row.scores_in, row.scores_out, paper_delta)
        client_dots = row.known  # of clients in mock rounds
        variance = np.var(client_dots, ddof=1)
        # Cohorts are drawn without replacement from these clients, which reduces the variance of their sum.
        correction = 1 - setting.cohort / len(client_dots)
        records.append(
            {
                "round": row.number,
                "test": row.accuracy,
                "health": row.health,
                "norm": row.norm,
                "attack": published.accuracy,
                "deviation": (np.std(row.scores_in) + np.std(row.scores_out)) / 2,
                "clients": np.sqrt(setting.cohort * variance * correction),
                "published": published.epsilon,
                "lower": published.lower,
                "upper": published.upper,
                "law_then": row.exact_then,
                "perfect_then": conversions.epsilon_from_mu(mu, paper_delta),
                "law": row.exact,
                "perfect": conversions.epsilon_from_mu(mu, setting.delta),
                "proven": row.proven,
                "rate": setting.cohort / row.clients,
                "mock_rate": setting.cohort / len(client_dots),
            }
        )
    return pd.DataFrame(records)


def compose(setting: Attacked, frame: pd.DataFrame, is_backward: bool = False) -> pd.DataFrame:
    """Extends a frame of rounds with the training run's epsilon up to each measured round, by Renyi DP.

    We compose Gaussian releases with the same epsilons as the rounds. An unmeasured round has the epsilon of
    the previous measured round, as in the paper ("forward"), or of the next one, as in the public code
    (`is_backward`). `frame`, from `summarize`, has all measured rounds, in order. The added columns are

        charged_to                         the last round that is composed
        training                           from the published estimates, converted to noise by Renyi DP
        training_lower, training_upper     the same from the ends of these estimates' intervals
        training_gaussian                  from the published estimates, converted to noise exactly
        training_law                       from the scores' exact epsilons, converted to noise exactly
        accountant                         from the true noise multiplier
    """
    numbers = frame[ROUND].tolist()
    # The last measured round represents the rounds up to `last`, unless `is_backward`.
    last = min(numbers[-1] + setting.every - 1, setting.rounds)
    counts = rounds.count_rounds(numbers, last, is_backward)
    sigma = setting.noise_multiplier

    def compute_epsilons(noise_multipliers: Iterable[float]) -> list[float]:
        """Returns the epsilon up to each measured round, given the rounds' noise multipliers."""
        charges = map(Charge, noise_multipliers, frame["rate"], counts)
        return rounds.cumulative(charges, setting.delta)

    paper_delta = 1 / setting.scores  # only for published estimates
    # These map a round's epsilon to a noise multiplier. Like the public code, they map infinity to the true
    # multiplier.
    by_renyi = partial(rounds.find_renyi_noise, delta=paper_delta, true_noise=sigma)
    exactly = partial(rounds.find_gaussian_noise, true_noise=sigma)
    lower = frame["lower"].clip(rounds.MIN_LOWER)  # as in the public code
    # `by_renyi` raises estimates to MIN_EPSILON, so we do the same before the exact conversion.
    published = frame["published"].clip(rounds.MIN_EPSILON)
    return frame.assign(
        charged_to=np.cumsum(counts),
        training=compute_epsilons(frame["published"].map(by_renyi)),
        training_lower=compute_epsilons(lower.map(by_renyi)),
        training_upper=compute_epsilons(frame["upper"].map(by_renyi)),
        training_gaussian=compute_epsilons(published.map(partial(exactly, delta=paper_delta))),
        training_law=compute_epsilons(frame["law"].map(partial(exactly, delta=setting.delta))),
        accountant=compute_epsilons([sigma] * len(frame)),
    )


def average_over_seeds(
    sweep: AblationSweep, stored: Sequence[tuple[Attacked, pd.DataFrame]]
) -> pd.DataFrame:
    """Returns a frame with the points of a sweep's curves, averaged over seeds.

    Its columns are `curve`, `x`, `round`, the number of `trainings`, and the mean and standard deviation of
    every column in a frame of rounds (such as `health` and `health_deviation`). A deviation is NaN if any
    value is infinite or there is only one seed.

    Args:
      sweep: The sweep, which names the fields for `curve` and `x`. If x is the round, the frame also has the
        training run's epsilon (`compose`).
      stored: The setting of each training run, and the frame of its measured rounds.
    """
    frames = []
    for setting, frame in stored:
        x = frame[ROUND]
        if sweep.x == ROUND:
            frame = compose(setting, frame)
        else:
            x = getattr(setting, sweep.x)
        frames.append(frame.assign(curve=getattr(setting, sweep.curve), x=x))
    by_point = pd.concat(frames).groupby(["curve", "x", ROUND], sort=False)
    averages = by_point.mean().join(by_point.std().add_suffix("_deviation"))
    return averages.assign(trainings=by_point.size()).reset_index()


def show_rounds(setting: Attacked, frame: pd.DataFrame) -> str:
    """Formats a frame of rounds (see `summarize`) as a table with notes on its columns."""
    # The published estimate needs errors of both kinds (Errata C7), so the largest finite estimate has one
    # error of each kind. With very few scores, the formula gives a negative value.
    n_out = setting.scores // 2
    n_in = setting.scores - n_out
    cap = conversions.epsilon_from_rates(1 / n_out, 1 / n_in, 1 / setting.scores)
    notes = _NOTES.format(
        n=setting.scores,
        cap=max(float(cap), 0.0),
        mock=setting.mock_rounds,
        delta=setting.delta,
    )
    over_columns = f"{f'at delta {setting.delta:g}':^18}".rstrip()  # above the last three columns
    rule = "-" * 80
    lines = [_ROUNDS_HEAD.format(over_columns, rule)]
    for row in frame.itertuples():
        norm = f"{row.norm:.0f}" if row.norm >= 100 else f"{row.norm:.3g}"
        published = f"{row.published:.2f} [{row.lower:.1f}, {row.upper:.1f}]"
        proven = at_least(row.proven, 2)
        lines.append(
            f"{row.round:>5} {row.test:>5.0%} {row.health:>6.3f} {norm:>6} {published:>17} "
            f"{row.law_then:>6.2f} {row.perfect_then:>7.2f} {row.law:>6.2f} {row.perfect:>7.2f} {proven:>6}"
        )
    return "\n".join([*lines, notes])


def show_texts(measured: Sequence[Measured]) -> str:
    """Formats the text designed in each measured round, as in Table 1 of the paper."""
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


def show_totals(setting: Attacked, frame: pd.DataFrame, is_backward: bool) -> str:
    """Formats the training run's epsilon, with a line for each way of computing it.

    `frame` is the result of `compose` with the same `is_backward`, and most lines show its last row. The last
    line covers the whole training run. The others cover the rounds up to `charged_to`.
    """
    last = frame.iloc[-1]
    charged = int(last["charged_to"])
    perfect = _compose_perfect_canary(setting, last["rate"], charged)
    # The accountant's epsilon if the simulated (mock) rounds are also released (Errata C4). Each measured
    # round needs a mock round per score. These draw from fewer clients, so their sampling rate is higher.
    sigma = setting.noise_multiplier
    training = Charge(sigma, last["rate"], setting.rounds)
    mock = Charge(sigma, last["mock_rate"], rounds=len(frame) * setting.scores)
    released = rounds.composed([training, mock], setting.delta)
    direction = "backward" if is_backward else "forward"
    published = (
        f"{last['training']:.2f} [{last['training_lower']:.2f}, {last['training_upper']:.2f}]"
    )
    return f"""\
epsilon over {charged:,} rounds at delta {setting.delta:g}, charged {direction}:
  as published, via Renyi DP                 {published:>20}
  as published, via the Gaussian curve       {last["training_gaussian"]:>20.2f}
  as published, for a perfect canary         {perfect:>20.2f}
  from the canaries' exact laws              {last["training_law"]:>20.2f}
  from the accountant                        {last["accountant"]:>20.2f}
  all rounds, if mock rounds were released    {released:>20.2f}"""


def _compose_perfect_canary(setting: Attacked, sampling_rate: float, count: int) -> float:
    """Returns CANIFE's estimate of epsilon over `count` rounds with the best possible canary (Errata C9).

    A round's estimate varies with its n scores, so we use the median of many simulations. CANIFE finds
    the noise for which a round's Renyi DP gives this epsilon, and composes rounds with this noise.
    """
    sigma = setting.noise_multiplier
    rng = np.random.default_rng(setting.seed)
    estimates = rounds.estimate_perfect_canary(rng, sigma, setting.scores)
    paper_delta = 1 / setting.scores
    noise = rounds.find_renyi_noise(float(np.median(estimates)), paper_delta, true_noise=sigma)
    return rounds.composed([Charge(noise, sampling_rate, count)], setting.delta)


def make_curves_table(sweep: AblationSweep, averages: pd.DataFrame) -> OwnTable:
    """Returns the table of a sweep's curves (`average_over_seeds`): means and standard deviations.

    The CSV has all columns. The text shows the attack's accuracy (`attack`) and these columns:

        if x is the round:
            published    the round's estimate of epsilon
            law_then     the round's exact epsilon at the same delta
            training     the training run's epsilon up to the round
        otherwise:
            deviation    the standard deviation of scores
            health       the fraction by which the canary's design reduced the penalty it minimizes
    """
    decimals_by_name = {"attack": 2, "published": 2, "law_then": 2, "training": 2}
    heading = ""
    if sweep.x != ROUND:  # these sweeps train without noise, so epsilon is infinite
        decimals_by_name = {"deviation": 3, "attack": 2, "health": 3}
        heading = f"round {averages[ROUND].max()}, "
    heading += f"mean (deviation) over {counted(averages['trainings'].max(), 'training run')}"
    columns = [field("curve", sweep.curve), field("x", sweep.x)]
    for name, decimals in decimals_by_name.items():
        columns += mean_fields(name, head=name, decimals=decimals)
    in_text = {column.key for column in columns}
    columns += [field(name) for name in averages if name not in in_text]
    title = f"{sweep.name}: {sweep.title}\n{heading}"
    return own_table(title, columns, averages.to_dict("records"), [_CURVES_NOTES], gap=" ")
