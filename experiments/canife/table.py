"""Measured rounds and the training's epsilon: 80 columns."""

from collections.abc import Sequence

import numpy as np

from audit.statistics import rounds
from experiments.canife.attacked import Attacked
from experiments.canife.curves import Global, RoundValues

_TEXT_WIDTH = 72
_NOTES = """\
published: best threshold of {n} scores at delta 1/n [95% Clopper-Pearson], an
estimate, at most {cap:.2f} whatever leaks. law: the exact epsilon of the score;
perfect: of a canary that nothing disturbs, which is all that the round's noise
allows. proven: a bound at 95% from {mock:,} mock rounds a world, at delta {delta:g}"""


def rounds_table(attacked: Attacked, rows: Sequence[RoundValues]) -> str:
    """A row a measured round."""
    groups = f"{'':>26} {'at delta 1/n':^32}{'at delta ' + format(attacked.delta, 'g'):^18}"
    names = f"{'round':>5} {'test':>5} {'health':>6} {'|g|':>6} {'published':>17} {'law':>6} {'perfect':>7}"
    lines = [groups.rstrip(), f"{names} {'law':>6} {'perfect':>7} {'proven':>6}"]
    lines.append("-" * 80)
    for one in rows:
        found, kept = one.published, one.measured
        value = f"{found.estimate.epsilon:.2f} [{found.lower:.1f}, {found.upper:.1f}]"
        norm = f"{kept.norm:.0f}" if kept.norm >= 100 else f"{kept.norm:.3g}"
        start = f"{kept.number:>5} {kept.accuracy:>5.0%} {kept.health:>6.3f} {norm:>6}"
        exact = f"{value:>17} {kept.exact_then:>6.2f} {one.truth_then:>7.2f}"
        lines.append(f"{start} {exact} {kept.exact:>6.2f} {one.truth:>7.2f} {kept.proven:>6.2f}")
    half = attacked.scores // 2
    cap = rounds.largest_estimate(half, half, 1 / attacked.scores)
    notes = _NOTES.format(n=attacked.scores, cap=cap, mock=attacked.mock_rounds, delta=attacked.delta)
    return "\n".join([*lines, notes])


def canaries_table(rows: Sequence[RoundValues]) -> str:
    """The designed texts, as in the paper's Table 1; nothing where canaries are images."""
    texts = [(one.measured.number, one.measured.canary) for one in rows]
    lines = ["round canary, a designed text; a line break is shown as \\n"]
    for number, text in texts:
        if isinstance(text, str):
            first, *rest = broken(text, _TEXT_WIDTH)
            lines += [f"{number:>5} {first}", *(f"{'':>5} {part}" for part in rest)]
    return "\n".join(lines) if len(lines) > 1 else ""


def broken(text: str, width: int) -> list[str]:
    """A text in lines of so many characters, with line breaks and the like escaped."""
    shown = [character if character.isprintable() else repr(character)[1:-1] for character in text]
    lines = [""]
    for one in shown:
        if len(lines[-1]) + len(one) > width:
            lines.append("")
        lines[-1] += one
    return lines


def global_table(attacked: Attacked, found: Global, perfect: float, released: float, backward: bool) -> str:
    """The training's epsilon by each reading. perfect: as published, of a canary that nothing disturbs."""
    way = "backward" if backward else "forward"
    interval = f"{found.published[-1]:.2f} [{found.lower[-1]:.2f}, {found.upper[-1]:.2f}]"
    lines = [
        f"epsilon over {found.rounds[-1]:,} rounds at delta {attacked.delta:g}, charged {way}:",
        f"  as published, through Renyi DP             {interval:>20}",
        f"  as published, through the Gaussian curve   {found.gaussian[-1]:>20.2f}",
        f"  as published, of a perfect canary          {perfect:>20.2f}",
        f"  of the canaries' exact laws                {found.canaries[-1]:>20.2f}",
        f"  the accountant's                           {found.accountant[-1]:>20.2f}",
        f"  and its value if mock rounds were released {released:>20.2f}",
    ]
    return "\n".join(lines)


def as_csv(rows: Sequence[RoundValues], found: Global) -> str:
    """A row a measured round, with all digits that matter."""
    names = (
        "round,test_accuracy,health,gradient_norm,own_dot,dots_deviation,attack_accuracy,deviation_in,"
        "deviation_out,published,lower,upper,former,law_at_1/n,perfect_at_1/n,law,perfect,proven,"
        "proven_if_gaussian,charged_to,global_published,global_lower,global_upper,global_gaussian,"
        "global_canaries,accountant"
    )
    lines = [names]
    for i, one in enumerate(rows):
        kept, estimate = one.measured, one.published
        values = [
            *(kept.number, kept.accuracy, kept.health, kept.norm, kept.own, np.std(kept.known), one.accuracy),
            *(np.std(kept.scores_in), np.std(kept.scores_out), estimate.estimate.epsilon),
            *(estimate.lower, estimate.upper, one.former.estimate.epsilon, kept.exact_then, one.truth_then),
            *(kept.exact, one.truth, kept.proven, kept.proven_if_gaussian),
            *(curve[i] for curve in found),
        ]
        lines.append(",".join(f"{value:.7g}" for value in values))
    return "\n".join(lines) + "\n"
