"""Bound epsilon from scores computed in any framework.

    ./run.sh bound --scores=scores.npz                   in and out, or scores and presence
    ./run.sh bound --scores=in.npy,out.npy               one array per file
    ./run.sh bound --scores=scores.csv --json            columns score,in (1 or 0)
    ./run.sh bound --scores=scores.xlsx                  or .tsv, .json, .parquet
    ./run.sh bound --scores=vendor.csv --columns=score:-loss,presence:member
    ./run.sh bound --scores=run.csv --one_run            the canaries of a single run
    ./run.sh bound --scores=-                            CSV or JSON from a pipe
    ./run.sh bound --scores=scores.csv --claim=3         tests an accountant's epsilon
    ./run.sh bound --scores=scores.csv --noise_multiplier=4 --insertions=250 --k=5 --lipschitz=1
                                                         the last model, if steps contract
    ./run.sh bound --scores=run.npz --dimension=68       cosines of one run: observed
    ./run.sh bound --scores=in.npy --dimension=62006     cosines of several: (runs, canaries)
    ./run.sh bound --scores=ranks.npz                    scores (runs, canaries) and fresh (runs, draws)
    ./run.sh bound --scores=results/fcnn-gc_s-1f3a       the folder of an audit
    ./run.sh bound --scores=scores.csv --write_card=card.json    also a card, a record to publish
    ./run.sh bound --scores=scores.csv --card=card.json  do the scores agree with the card?

Arrays are flat, or (runs, canaries) for several canaries per run. A run without the scored canary must insert
all others; otherwise, the bounds are too high.
"""

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from absl import flags

from audit.claims.claim import Claim, DpSgd, EpsilonDelta
from audit.commands import cli, dispatch
from audit.conclusions import results, verdicts
from audit.conclusions.concluded import conclude
from audit.errors import InputError, require
from audit.evidence import given_directions
from audit.evidence.canaries import Fresh
from audit.evidence.given import Evidence
from audit.report import bounds_table, subjects
from audit.result import Result, card
from audit.storage import files, score_files
from audit.written import Level, at_least, write_json

FLAGS = flags.FLAGS
cli.define_optional(
    str,
    scores="The scores: .npz with in and out, scores and presence, or scores and fresh; .csv, .tsv, .json, "
    ".xlsx or .parquet with columns score,in or in,out; in.npy,out.npy; or -.",
    insert="With --lipschitz: which of every k steps inserts the canary: last, first or a number.",
    report="Also write a report to this HTML file.",
    card="Compare the result with this audit card (.json).",
    write_card="Also write an audit card to this .json file.",
    name="A name for the report; by default, the name of the score file.",
)
cli.define_optional(
    float,
    noise_multiplier="Noise multiplier, for an upper bound.",
    sampling_rate="Probability that a step uses the canary; by default 1.",
    claim="Epsilon at delta from your accountant, instead of --noise_multiplier and --insertions.",
    lipschitz="Lipschitz constant of every step, for the hidden-state bound.",
)
cli.define_optional(
    int,
    insertions="Number of steps that insert the canary, for an upper bound.",
    k="With --lipschitz: the canary is inserted every k steps; by default 1.",
    dimension="Number of trained parameters, if scores are cosines.",
)
cli.define_optional(
    bool,
    one_run="The scores are from the canaries of a single run.",
    leave_one_out="With --dimension: each cosine was computed after projecting out the other directions.",
    in_order="With cosines or ranks: rows are in the order in which runs started.",
    fail_if_violated="Exit with status 3 if the claim is rejected, 2 if runs are dependent and the test is "
    "inconclusive.",
)
flags.DEFINE_list(
    "columns",
    None,
    "Other names for a file's columns or arrays: score:loss,presence:member. A minus negates scores: "
    "score:-loss.",
)
cli.define_levels()
cli.define_json()

# The exit status if scores reject the claim (with --fail_if_violated) or disagree with the card.
REJECTED = 3
# Flags of a DP-SGD mechanism: the fields of `DpSgd`.
_MECHANISM_FLAGS = ("noise_multiplier", "insertions", "sampling_rate", "k", "insert", "lipschitz")
_CLAIM_FLAGS = ("claim", *_MECHANISM_FLAGS)
_READING_FLAGS = ("columns", "one_run", "dimension", "in_order", "name")
_RESULT_FLAGS = ("delta", "confidence", "report", "write_card", "json", "fail_if_violated")


def main() -> None:
    """Reads scores, then writes and prints the conclusion."""
    require(
        FLAGS.scores, "--scores is missing: name a .npz, .csv or .json file, two .npy files, or -"
    )
    cli.refuse_both("claim", _MECHANISM_FLAGS)
    # With --dimension, scores are a matrix (runs, canaries) of cosines.
    cli.refuse_both("dimension", ("columns", "one_run"))
    if FLAGS.dimension is None:
        cli.refuse(["leave_one_out"], "requires --dimension: give both, or drop it")
    paths = score_files.paths(FLAGS.scores)
    if FLAGS.card is not None:
        # A card records an audit with its claim and level.
        _compare_with_card(paths)
        return
    result = _conclude(paths, _make_claim(), cli.level())
    require(
        result.upper_bound is not None or not FLAGS.fail_if_violated,
        "--fail_if_violated requires a claim: give --claim, or the noise and the insertions",
    )
    _show(result)
    _exit_on_failure(result)


def _conclude(
    paths: Sequence[Path], claim: Claim | None, level: Level, runs: int | None = None
) -> Result:
    """Returns the result for the scores in files or in an audit's folder.

    `claim` applies only to files; a folder's setting has its own. `runs` is the number of runs to use from a
    folder, by default the number in its last audit.
    """
    if len(paths) == 1 and paths[0].is_dir():
        cli.refuse(
            (*_CLAIM_FLAGS, *_READING_FLAGS), f"conflicts with the audit in {FLAGS.scores}: drop it"
        )
        subject = subjects.describe_setting(paths[0], *level, runs)
        # `Result` takes a function that returns the subject.
        return Result(subject.conclusion, lambda: subject, folder=paths[0])
    conclusion = conclude(_read_evidence(paths), claim, level)
    name = FLAGS.name or score_files.describe_files(paths)
    command = shlex.join(["./run.sh", "bound", *sys.argv[1:]])
    make_subject = partial(subjects.describe_score_files, name, paths, conclusion, command)
    return Result(conclusion, make_subject)


def _compare_with_card(paths: Sequence[Path]) -> None:
    """Compares a card with one recomputed from the scores; exits with status 3 if they differ.

    A card is a JSON record of an audit: the claim, the level, the result, and a hash of the claim and method.
    """
    from audit.report.card import find_difference, read_card

    cli.refuse((*_CLAIM_FLAGS, *_RESULT_FLAGS), "conflicts with --card: drop it")
    stored = read_card(Path(FLAGS.card))
    result = _conclude(paths, stored.claim, stored.level, stored.runs)
    difference = find_difference(stored.card, card(result))
    if difference:
        dispatch.report_error(cli.one_line(f"{FLAGS.card} does not agree: {difference}"))
        sys.exit(REJECTED)
    print(
        f"the card agrees: epsilon at least {at_least(result.epsilon)} "
        f"({stored.card['method']['name']}), verdict {result.verdict}, "
        f"commitment {stored.card['commitment']:.16}"
    )


def _show(result: Result) -> None:
    """Writes the files named by flags, and prints the conclusion as a table or as JSON."""
    contents = {}  # {flag: content of its file}
    if FLAGS.report is not None:
        from audit.report import audit_page  # loads matplotlib, which takes a second

        contents["report"] = audit_page.make_page(result.subject())
    if FLAGS.write_card is not None:
        contents["write_card"] = f"{write_json(card(result), indent=2)}\n".encode()
    for flag, content in contents.items():
        place = Path(str(FLAGS[flag].value))
        files.write_whole(place, content, f"name another file with --{flag}")
        print(f"{flag}: {place}", file=sys.stderr)
    if FLAGS.json:
        print(results.result_json(result.conclusion))
        for remark in bounds_table.remarks(result.conclusion):
            print(remark, file=sys.stderr)
    else:
        print(result)
    sys.stdout.flush()


def _exit_on_failure(result: Result) -> None:
    """With --fail_if_violated, exits with status 3 if the scores reject the claim.

    Raises InputError if scores have the wrong sign and do not reject the claim. With --fail_if_violated, also
    raises it if runs may be dependent.
    """
    conclusion = result.conclusion
    is_violated = result.verdict == verdicts.VIOLATED
    if FLAGS.fail_if_violated:
        doubt = conclusion.doubt  # why runs may be dependent, or ""
        require(not doubt, f"these scores do not come from independent runs: {doubt}")
        if is_violated:
            sys.exit(REJECTED)
    if is_violated or not conclusion.is_reversed:
        return
    if conclusion.is_one_run and conclusion.one_run.cosines is not None:
        raise InputError("cosines are lower than without canaries: negate the displacement")
    raise InputError(
        "scores are lower with the canary: if lower means in, negate the score, as "
        "`columns=score:-loss` does"
    )


def _read_evidence(paths: Sequence[Path]) -> Evidence:
    """Returns the evidence in files, read as the flags specify: scores, or cosines with --dimension.

    --in_order (rows sorted by their runs' start times) requires scores with a known null distribution.
    """
    if FLAGS.dimension is not None:
        require(len(paths) == 1, f"--scores={FLAGS.scores}: with --dimension give one file")
        given_directions.require_dimension(FLAGS.dimension)
        return score_files.read_cosines(
            paths[0], FLAGS.dimension, FLAGS.leave_one_out, FLAGS.in_order
        )
    columns = {}
    for pair in FLAGS.columns or ():  # such as "score:loss"
        ours, _, theirs = pair.partition(":")
        columns[ours.strip().lower()] = theirs
    evidence = score_files.read_files(paths, columns, FLAGS.one_run)
    if not FLAGS.in_order:
        return evidence
    if not isinstance(evidence, Fresh):  # ranks among fresh draws
        raise InputError("--in_order requires --dimension, or scores with fresh draws: drop it")
    return evidence._replace(in_order=True)


def _make_claim() -> Claim | None:
    """Returns the claim given by the flags: an accountant's epsilon, a DP-SGD mechanism, or None."""
    if FLAGS.claim is not None:
        require(FLAGS.claim >= 0, f"--claim={FLAGS.claim}: give epsilon, at least 0")
        return EpsilonDelta(FLAGS.claim, FLAGS.delta)
    stated: dict[str, Any] = {
        name: FLAGS[name].value for name in _MECHANISM_FLAGS if cli.is_given(name)
    }
    if not stated:
        return None
    is_complete = "noise_multiplier" in stated and "insertions" in stated
    any_given = min(stated)
    require(is_complete, f"--{any_given} requires --noise_multiplier and --insertions: give both")
    return DpSgd(**stated)


if __name__ == "__main__":
    cli.run(main)
