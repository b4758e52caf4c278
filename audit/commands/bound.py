"""Bound epsilon from the score file of any framework.

    ./run.sh bound --scores=scores.npz                   in, out or scores, presence
    ./run.sh bound --scores=in.npy,out.npy               or an array a file
    ./run.sh bound --scores=scores.csv --json            columns score,in (1 or 0)
    ./run.sh bound --scores=scores.xlsx                  or .tsv, .json, .parquet
    ./run.sh bound --scores=vendor.csv --columns=score:-loss,presence:member
    ./run.sh bound --scores=run.csv --one_run            the canaries of a single run
    ./run.sh bound --scores=-                            CSV or JSON from a pipe
    ./run.sh bound --scores=scores.csv --claim=3         an accountant's epsilon
    ./run.sh bound --scores=scores.csv --noise_multiplier=4 --insertions=250 --k=5 --lipschitz=1
                                                         steps that contract: hidden state
    ./run.sh bound --scores=scores.csv --report=p.html   also a page with figures
    ./run.sh bound --scores=run.npz --dimension=68       one run's cosines: observed
    ./run.sh bound --scores=in.npy --dimension=62006     those of several: (runs, canaries)
    ./run.sh bound --scores=ranks.npz                    scores, fresh (runs, draws), or ranks, fresh_draws
    ./run.sh bound --scores=results/fcnn-gc_s-1f3a       the folder of an audit
    ./run.sh bound --scores=scores.csv --write_card=card.json    also a card, a record to publish
    ./run.sh bound --scores=scores.csv --card=card.json  do these scores give this card?

Arrays are flat, or matrices if runs have several canaries: a row a run, a column a canary. Runs without a
scored canary must then have all canaries except one. Otherwise bounds are too high.
"""

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from absl import flags

from audit.claims.claim import Claim, DpSgd, EpsilonDelta
from audit.commands import cli
from audit.conclusions import results, verdicts
from audit.conclusions.concluded import conclude
from audit.conclusions.conclusion import Conclusion
from audit.errors import InputError, require
from audit.evidence import given_directions
from audit.evidence.canaries import Fresh
from audit.report import bounds_table, subjects
from audit.result import Result, card
from audit.settings.setting import require_noise
from audit.storage import files, score_files
from audit.storage.score_files import Evidence
from audit.written import Level, at_least, write_json

_UPPER_HELP = (
    "Epsilon at delta from your own accountant, instead of --noise_multiplier and --insertions."
)

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "scores",
    None,
    "The scores: .npz with in, out or scores, presence or scores, fresh; .csv, .tsv, .json, .xlsx or "
    ".parquet with columns score,in or in,out; in.npy,out.npy; or -.",
)
flags.DEFINE_list(
    "columns",
    None,
    "Other names of a file's columns or arrays: score:loss,presence:member. A minus negates scores: "
    "score:-loss.",
)
flags.DEFINE_bool(
    "one_run", False, "Scores and presence in one column each are those of a single run's canaries."
)
cli.define_levels()
flags.DEFINE_float("noise_multiplier", None, "Noise multiplier, for an upper bound.")
flags.DEFINE_integer("insertions", None, "Steps with the canary, for an upper bound.")
flags.DEFINE_float("sampling_rate", None, "Probability that a step has the canary; by default 1.")
flags.DEFINE_float("claim", None, _UPPER_HELP)
flags.DEFINE_alias("upper_bound", "claim")
flags.DEFINE_float(
    "lipschitz", None, "Lipschitz constant of every step, for the hidden-state bound."
)
flags.DEFINE_integer(
    "k", None, "With --lipschitz: steps from one insertion to the next; by default 1."
)
flags.DEFINE_string(
    "insert", None, "With --lipschitz: the canary's step of each k: last, first or a number."
)
flags.DEFINE_string("figure", None, "Also draw the audit into this .png, .pdf or .svg file.")
flags.DEFINE_string("report", None, "Also write a report into this HTML file.")
flags.DEFINE_string("card", None, "Compare the result with an audit card, a .json file.")
flags.DEFINE_string("write_card", None, "Also write an audit card into this .json file.")
flags.DEFINE_string("name", None, "A name for the report; by default the scores' file.")
flags.DEFINE_integer("dimension", None, "Number of trained parameters, if scores are cosines.")
flags.DEFINE_bool(
    "leave_one_out", False, "With --dimension: a cosine used the other canaries' directions."
)
flags.DEFINE_bool(
    "in_order", False, "With cosines or ranks: rows are in the order of the runs' start."
)
cli.define_json()
flags.DEFINE_bool(
    "fail_if_violated",
    False,
    "Exit status 3 if the claim is rejected, 2 if runs are dependent and the test is inconclusive.",
)

VIOLATED = 3  # exit status with --fail_if_violated if the claim is rejected, and of other cards
_NO_UPPER = "--fail_if_violated requires a claim: give --claim, or the noise and the insertions"


# flag -> the flag that it requires
_NEEDS = {
    "noise_multiplier": "insertions",
    "insertions": "noise_multiplier",
    "sampling_rate": "noise_multiplier",
    "lipschitz": "noise_multiplier",
    "k": "lipschitz",
    "insert": "lipschitz",
    "leave_one_out": "dimension",
}
# What a card and an audit's folder already state.
_STATED = ("claim", "noise_multiplier", "delta", "confidence")
_OUTPUTS = ("figure", "report", "write_card", "json", "fail_if_violated")
_READING = ("columns", "one_run", "dimension", "in_order", "name")


def main() -> None:
    """Reads scores, concludes from them, and writes and prints the conclusion."""
    require(
        FLAGS.scores, "--scores is missing: name a .npz, .csv or .json file, two .npy files, or -"
    )
    cli.require_output("report", "an HTML file")
    cli.require_output("write_card", "a .json file")
    cli.refuse_both("claim", ("noise_multiplier", "insertions", "sampling_rate"))
    cli.refuse_both("dimension", ("columns", "one_run"))
    for name, needed in _NEEDS.items():
        is_complete = cli.is_given(needed) or not cli.is_given(name)
        require(is_complete, f"--{name} requires --{needed}: give both, or drop it")
    paths = score_files.paths(FLAGS.scores)
    if FLAGS.card is not None:
        _compare_with_card(paths)
        return
    claim = _make_claim()
    if FLAGS.figure is not None:
        from audit.report import style

        style.find_format("figure", Path(FLAGS.figure))  # before computations
    result = _conclude(paths, claim, Level(FLAGS.delta, FLAGS.confidence))
    require(result.upper_bound is not None or not FLAGS.fail_if_violated, _NO_UPPER)
    _show(result)


def _conclude(
    paths: Sequence[Path], claim: Claim | None, level: Level, runs: int | None = None
) -> Result:
    """Returns the result of --scores: of files, or of the first runs in the folder of an audit."""
    if len(paths) == 1 and paths[0].is_dir():
        cli.refuse(
            (*_STATED[:2], *_READING), f"conflicts with the audit in {FLAGS.scores}: drop it"
        )
        subject = subjects.describe_setting(paths[0], *level, runs)
        return Result(subject.conclusion, lambda: subject, paths[0])
    conclusion = conclude(_read_evidence(paths), claim, level)
    name = FLAGS.name or score_files.describe_files(paths)
    command = shlex.join(["./run.sh", "bound", *sys.argv[1:]])
    describe = partial(subjects.describe_score_files, name, paths, conclusion, command)
    return Result(conclusion, describe)


def _compare_with_card(paths: Sequence[Path]) -> None:
    """Prints that a card agrees with the scores; exits with status 3 if it does not."""
    from audit.report import card as cards

    cli.refuse((*_STATED, *_OUTPUTS), "conflicts with --card: drop it")
    stated, claim, level, runs = cards.read_card(Path(FLAGS.card))
    result = _conclude(paths, claim, level, runs)
    for difference in cards.find_differences(stated, card(result)):
        message = f"{FLAGS.card} does not agree: {difference}"
        print(f"error: {cli.one_line(message)}", file=sys.stderr)
        sys.exit(VIOLATED)
    print(
        f"the card agrees: epsilon at least {at_least(result.epsilon)} ({stated['method']['name']}), "
        f"verdict {result.verdict}, commitment {stated['commitment']:.16}"
    )


def _show(result: Result) -> None:
    """Writes the requested files, and prints the conclusion as a table or as JSON.

    With --fail_if_violated, it exits with status 3 if the claim is refuted, and raises InputError if runs may
    be dependent. It always raises InputError if scores are lower with the canary.
    """
    conclusion = result.conclusion
    contents = _make_files(result)
    for flag, content in contents.items():
        files.write_whole(Path(str(FLAGS[flag].value)), content, f"name another file with --{flag}")
    if FLAGS.json:
        print(results.answer_json(conclusion))
        for remark in bounds_table.remarks(conclusion):
            print(remark, file=sys.stderr)
    else:
        print(bounds_table.bounds_table(conclusion))
    for flag in contents:
        print(f"{flag}: {FLAGS[flag].value}", file=sys.stderr)
    sys.stdout.flush()

    doubt = conclusion.doubt
    undecided = f"these scores do not come from independent runs: {doubt}"
    require(not (FLAGS.fail_if_violated and doubt), undecided)
    is_violated = conclusion.verdict.word == verdicts.VIOLATED
    if FLAGS.fail_if_violated and is_violated:
        sys.exit(VIOLATED)
    require(is_violated or not conclusion.is_reversed, _explain_reversal(conclusion))


def _explain_reversal(conclusion: Conclusion) -> str:
    """Returns the error message on scores that are lower with the canary."""
    if conclusion.is_one_run and conclusion.one_run.cosines is not None:
        return "cosines are lower than without canaries: negate the displacement"
    fix = "if lower means in, negate the score, as `columns=score:-loss` does"
    return f"scores are lower with the canary: {fix}"


def _read_evidence(paths: Sequence[Path]) -> Evidence:
    """Returns the evidence in --scores: scores, or cosines if --dimension is given."""
    if FLAGS.dimension is not None:
        require(len(paths) == 1, f"--scores={FLAGS.scores}: with --dimension give one file")
        given_directions.require_dimension(FLAGS.dimension)
        return score_files.read_cosines(
            paths[0], FLAGS.dimension, FLAGS.leave_one_out, FLAGS.in_order
        )
    evidence = score_files.read_files(paths, _parse_columns(), FLAGS.one_run)
    if not FLAGS.in_order:
        return evidence
    if not isinstance(evidence, Fresh):
        raise InputError("--in_order requires --dimension, or scores with fresh draws: drop it")
    return evidence._replace(in_order=True)


def _parse_columns() -> dict[str, str] | None:
    """Returns --columns as {our name: the file's name}, or None; raises InputError for an incomplete pair."""
    if FLAGS.columns is None:
        return None
    columns = {}
    for pair in FLAGS.columns:  # such as "score:loss"
        ours, colon, name = pair.partition(":")
        example = "give --columns=score:loss,presence:member"
        require(bool(colon and name), f"--columns={pair}: {example}")
        columns[ours.strip().lower()] = name
    return columns


def _make_claim() -> Claim | None:
    """Returns the claim of the flags, if any: an accountant's epsilon, or DP-SGD."""
    if FLAGS.claim is not None:
        require(FLAGS.claim >= 0, f"--claim={FLAGS.claim}: give epsilon, at least 0")
        return EpsilonDelta(FLAGS.claim, FLAGS.delta)
    if FLAGS.noise_multiplier is None:
        return None
    require_noise(FLAGS.noise_multiplier)
    given: dict[str, Any] = {}
    for name in ("sampling_rate", "k", "insert", "lipschitz"):
        if cli.is_given(name):
            given[name] = FLAGS[name].value
    return DpSgd(FLAGS.noise_multiplier, FLAGS.insertions, **given)


def _make_files(result: Result) -> dict[str, bytes]:
    """Returns the content of the requested figure, report and card, by flag."""
    contents = {}
    if FLAGS.figure is not None:
        # Here and below: matplotlib takes a second to load.
        from audit.report import audit_panels, style

        encode = style.find_format("figure", Path(FLAGS.figure))
        contents["figure"] = encode(audit_panels.audit_figure(result.conclusion, FLAGS.name or ""))
    if FLAGS.report is not None:
        from audit.report import audit_page

        contents["report"] = audit_page.make_audits_page([result.subject()])
    if FLAGS.write_card is not None:
        contents["write_card"] = (write_json(card(result), indent=2) + "\n").encode()
    return contents


if __name__ == "__main__":
    cli.run(main)
