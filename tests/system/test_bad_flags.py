"""Bad command lines: what no field of a setting declares (test_bad_fields.py has those), and what does not go
together. Each is one line that names it and exit status 2, and nothing else happens."""

import itertools

import numpy as np
import pytest

from tests.system.bad import (
    HUGE,
    Bad,
    assert_refused,
    firsts_of_a_kind,
    lines,
    named,
    nothing,
    rows,
    two_worlds,
)

COMMANDS = (
    "audit", "benchmark", "bound", "canife", "check", "compare",
    "federated", "figures", "landscape", "list", "plan",
    "report", "sweep", "throughput",
)  # fmt: skip
WORDS, BOUND = ("many", ""), ("bound", "--scores=scores.npz")
AUDIT = (
    "audit",
    "--data_file=nowhere.csv",
)  # what is out of range is said before the data are looked for
POISSON = (*AUDIT, "--sampler=poisson:0.5")
AFRESH = (*AUDIT, "--adversary=sphere")
UNTIL = "--until={}: give an epsilon above 0, a multiple of the claim as 0.9x, or refuted"
POISONED = "audit --data_file=nowhere.csv --adversary=poisoned"
COUNTS = (  # flags of whole numbers that are no fields, after their command
    "bound k; "
    "audit runs chunk_size; plan runs audits seed; landscape steps runs seed; "
    "throughput rounds; check seeds; federated runs; bound insertions dimension; "
    "benchmark audits processes seed n"
)
EMPTY = (  # lists that name nothing, after their command
    "landscape batch_sizes; throughput models engines; benchmark estimators mechanisms"
)
SWITCHES = "audit json; bound json; check json; list json; plan json; throughput json; sweep list"


UNKNOWN = {  # what no command takes, and what is said
    "stray": "argument 'stray' is no flag",
    "--nothing=1": "Unknown command line flag 'nothing'",
    "--\udcff=1": r"Unknown command line flag '\udcff'",
}
LEVELLED = (
    "audit",
    "bound",
    "figures",
    "landscape",
    "plan",
    "report",
    "federated",
)


def failing(folder):
    (folder / "mine.py").write_text("1 / 0")


def flags_of(text):
    for command, *names in map(str.split, text.split(";")):
        yield from ((command, name) for name in names)


def no_flags():
    for word, says in UNKNOWN.items():
        yield from (
            named(Bad((command, word), says)) for command in COMMANDS[:: 1 if word.isascii() else 9]
        )
    for name in ("nosuch", "AUDIT", "../audit", "__main__", "cli", "own", "", "audit.py", "\udcff"):
        yield named(Bad((name,), f"no command {name!r}: ".rstrip(": ")))


def levels():
    for command, level in itertools.product(LEVELLED, ("delta", "confidence")):
        argv, lay = (BOUND, two_worlds) if command == "bound" else ((command,), nothing)
        every = None if command == "audit" else 1
        yield from rows(argv, level, f"{level} is {{}}", *("nan", "-1.0")[:every], lay=lay)
        yield from rows(
            argv,
            level,
            f"{level} is {{}}.0: it must lie strictly between",
            *("1", "0")[:every],
            lay=lay,
        )
        yield from rows(argv, level, f"--{level}={{}}: give a number", *WORDS[:every], lay=lay)


def of_no_kind():
    for command, flag in flags_of(COUNTS):
        yield from rows([command], flag, f"--{flag}={{}}: give a whole number", "", "1.5")
    for command, flag in flags_of(SWITCHES):
        yield from rows([command], flag, f"--{flag}={{}}: give true or false", "maybe")
    for command, flag in flags_of(EMPTY):
        yield from rows([command], flag, f"{flag} is empty{{}}: ", "")


SAID = """
    plan runs 4 1e8; plan audits 2 1e7; throughput rounds 1 1000; federated runs 1 1e6;
    benchmark audits 1 1e6; benchmark n 50 5000; benchmark processes 1 1024
"""  # command, flag, the least and the most that it takes, as the line says
RANGES = """
    audit runs 2 1e8; audit chunk_size 0 1e8; plan seed 0 4294967295;
    landscape seed 0 4294967295; landscape steps 1 999999;
    benchmark seed 0 4294967295; landscape runs 4 1e17
"""  # in other words, or a number beyond which it takes none


def out_of_range():
    for table, ends in ((SAID, " {:,} to {:,}"), (RANGES, "")):
        for command, flag, *limits in map(str.split, table.split(";")):
            least, most = (int(float(limit)) for limit in limits)
            argv = AUDIT if command == "audit" else (command,)
            says = f"--{flag}={{}}: give{ends.format(least, most)}"
            below = {value: None for value in (least - 1, 0, -1, -HUGE) if value < least}
            yield from rows(argv, flag, says, *below, most + 1, 10**18, HUGE)


PARSED = [*no_flags(), *levels(), *of_no_kind(), *lines("argument '-' is no flag", "-")]
PARSED += lines("--model=nobody is unknown", "--model=nobody")
PARSED += lines("Missing value for flag", "audit --runs")
SIZES = [
    *out_of_range(),
    *rows((*AUDIT, "--steps=20"), "k", "--k={} inserts nothing in 20 steps", 21, 10**7),
    *rows(
        AUDIT, "k", "--insertions=250 times --k={}: give at most 10,000,000 steps", 40_001, 10**7
    ),
    *rows((*AUDIT, "--k=5"), "insertions", "--insertions={} times --k=5: give at most", 9 * 10**6),
    *rows(AUDIT, "batch_size", "--batch_size={}: their product is to be at most", 10**7),
    *rows((*AUDIT, "--steps=9"), "repetitions", "--repetitions={}: give 0 to 9, the steps", 10),
    *rows((*AUDIT, "--canaries=8", "--k=2"), "repetitions", "choose steps too: drop them", 3),
    *rows(AUDIT, "repetitions", "--repetitions={} is for many canaries: raise --canaries", 3),
    *rows(
        AUDIT, "sampler", "--sampler={}: give every, poisson:RATE", "random", "poisson:2", "known"
    ),
    *rows(AUDIT, "sampler", "--sampler={}: give at least 2 batches", "shuffled:1"),
    *rows((*AUDIT, "--steps=9"), "sampler", "no whole epochs: give --steps 8, or 12", "shuffled:4"),
    *rows((*AUDIT, "--k=2"), "sampler", "choose steps too: drop them", "shuffled:4"),
    *rows(POISSON, "insertions", "--insertions={}: with --sampling_rate, give at most", 10**6 + 1),
    *rows(POISSON, "noise_multiplier", "with --sampling_rate, give at most 10,000", "20000.0"),
    *rows(POISSON, "delta", "--delta={}: with --sampling_rate, give at least 1e-12", "1e-13"),
    *rows((*POISSON, "--vary=k=1,2"), "delta", "--sampling_rate, give at least 1e-12", "1e-13"),
    *lines(
        "each of --sampler, --sampling_rate and --repetitions says which steps insert: give one",
        "audit --data_file=nowhere.csv --sampler=shuffled:5 --sampling_rate=0.5",
    ),
    *lines(
        "--steps=20 and --insertions=3 say the same: drop one",
        "audit --data_file=nowhere.csv --steps=20 --insertions=3",
    ),
    *rows(
        ["audit"],
        "confidence",
        "confidence is {}.0: it must lie strictly between 0 and 1; did you",
        95,
    ),
    *lines("give a range of directions, counted from 0", f"{POISONED} --first_direction=784"),
    *lines("give a range of directions", f"{POISONED} --first_direction=5 --end_direction=5"),
    *rows(
        ["plan"],
        "epsilon",
        "epsilon is {}: give --epsilon",
        "nan",
        "inf",
        "-1",
        "0",
        "501",
        "1e-300",
    ),
    *rows(["plan"], "epsilon", "--epsilon={}: give a number", *WORDS),
    *rows(
        ["plan"],
        "tightness",
        "--tightness={}: give more than 0",
        "nan",
        "inf",
        "1.0",
        "0.0",
        "-1.0",
    ),
    *rows(["plan"], "noise_multiplier", "give --epsilon, 1e-06 to 500", "0", "1e9", "1e-6"),
    *rows(["landscape"], "sigmas", "--sigmas: {}: give 1e-06", "0", "-1", "nan", "inf", "1e-300"),
    *rows(["landscape"], "sigmas", "--sigmas or --batch_sizes is empty: give numbers", ""),
    *rows(["landscape"], "sigmas", "is no number: give numbers", "x", "1,", "4;5", "\udcff"),
    *rows(["landscape"], "batch_sizes", "--batch_sizes: {}: give 1 to 10,000", "0", "-1"),
    *rows(["landscape"], "batch_sizes", "--batch_sizes={} is no whole number", "1.5", "nan", "inf"),
    *rows(["landscape"], "batch_sizes", "is no number: give numbers", "x", "1,,2"),
    *rows(["landscape"], "threshold", "--threshold={}: give", "nan", "inf", "1e+300", "-1e+18"),
    *rows(["landscape"], "delta", "--delta={}: give at least 1e-100", "1e-300"),
    *rows(AFRESH, "minutes", "--minutes={}: give a number above 0", "nan", "inf", "0.0", "-1.0"),
    *rows(AFRESH, "until", UNTIL, "", "0", "-1", "nan", "inf", "1e400", "10 %"),
    *rows(AFRESH, "until", r"--until=\udcff: give an epsilon", "\udcff"),
    *rows(AFRESH, "until", UNTIL, "x", "0x", "-1x", "nanx", "0.9xx", "0,9x", "Refuted", "refute"),
    *lines(
        "--until goes with --adversary=sphere, examples or --afresh: drop it",
        "audit --data_file=nowhere.csv --until=refuted",
        "audit --data_file=nowhere.csv --adversary=gc_r --until=3",
    ),
    *lines(
        "hold at any number of runs: drop --looks",
        "audit --data_file=nowhere.csv --adversary=examples --looks=5,6",
        "audit --data_file=nowhere.csv --adversary=gc_r --afresh --looks=5,6",
    ),
    *rows(["plan"], "bug", "--bug={}: give a number above 0, as 0.9", "0", "-1", "nan", "inf"),
    *rows(["plan"], "bug", "--bug={}: give numbers above 0", "half", "0.9x"),
    *rows(
        ["throughput"],
        "seconds",
        "--seconds={}: give more than 0",
        "nan",
        "inf",
        "0.0",
        "-1.0",
        "3600.0",
    ),
    *lines(
        "--out=: name a folder",
        "canife --out=",
        "federated --out=",
        "benchmark --out=",
    ),
]
MINE = (  # a file of the user's, and what is said of it
    ("def step(p, b, s):\n    return p\n", "mine.py has no params, batch: define step, params"),
    ("1 / 0\n", "mine.py fails with ZeroDivisionError: division by zero"),
    ("def step(:\n", "mine.py fails with SyntaxError"),
    ("import nothing_such\n", "mine.py needs nothing_such, which is not installed"),
    ("step = params = batch = stated = 1\n", "mine.py: stated is no dict"),
    ("step = params = batch = 1\nstated = {'clipping_norm': 1}\n", "give --noise_multiplier=, --lea"),
    ("step = params = batch = 1\nstated = dict.fromkeys(('clipping_norm', 'noise_multiplier',"
     " 'learning_rate', 'batch_size'), 'x')\n", "--clipping_norm='x' is no float"),
)  # fmt: skip
OF_STEP = {
    "clipping_norm": ("0", "give a finite number, more than 0"),
    "noise_multiplier": ("-1", "give a finite number, 0 or more"),
    "learning_rate": ("0", "give a finite number, more than 0"),
    "batch_size": ("0", "give a finite number, more than 0"),
    "seeds": ("3", "give 4 to 100,000"),
}
OF_BATCHES = {
    "sampling_rate": ("2", "give a number between 0 and 1"),
    "assumed": ("cyclic", "give poisson, fixed, shuffled, balls_in_bins"),
    "examples": ("1", "give 2 to 1,000,000,000"),
    "noise_multiplier": ("0", "give 0.05 to 10,000"),
    "noise_multiplier=1 --epochs": ("0", "give 1 to 10,000"),
}


def before_the_file(place, flags):
    """Cases of flags out of range beside a file that fails: the line names the flag, not the file."""
    for flag, (value, advice) in flags.items():
        says = f"--{flag.split('--')[-1]}={value}: {advice}"
        yield from lines(says, f"check {place} --{flag}={value}", lay=failing)


CHECK = [
    *lines(
        "give one of --example=NAME, --step=mine.py:step, --batches=mine.py:loader",
        "check",
        "check --example=numpy --step=a.py:f",
    ),
    *lines("--example=nobody: give dpsgd, fedavg", "check --example=nobody"),
    *lines("--report=: name an HTML file", "check --example=numpy --report="),
    *rows(
        ["check"],
        "step",
        "--step={}: name a file and its function",
        "mine.py",
        "",
        "mine.py:",
        ":step",
    ),
    *rows(["check"], "step", "--step={}: there is no file", "nowhere.py:step"),
    *rows(["check"], "clipping_norm", "--clipping_norm={}: give a number", *WORDS),
    *(
        named(
            Bad(
                ("check", "--step=mine.py:step"),
                says,
                lambda f, t=text: (f / "mine.py").write_text(t),
            ),
            f" {i}",
        )
        for i, (text, says) in enumerate(MINE)
    ),
    *rows(
        ["check", "--example=numpy"],
        "batch_size",
        "--batch_size={}: give a finite number",
        "0",
        "nan",
        "-1",
    ),
    *rows(["check", "--example=numpy"], "seeds", "--seeds={}: give 4 to 100,000", "3", "-1"),
    *before_the_file("--step=mine.py:step", OF_STEP),
    *before_the_file("--batches=mine.py:loader --sampling_rate=0.1", OF_BATCHES),
]
CANIFE = [
    *rows(["canife", "--model=linear"], "examples", "--examples={}: give 0 to 1,000,000", HUGE),
    *rows(["canife"], "charge", "--charge={}: choose one of forward, backward", "", "sideways"),
    named(Bad(("canife", "--data_file=nowhere.npz"), "nowhere.npz")),
    *rows(["compare"], "measured_rounds", "--measured_rounds={}: give 1 to 250, the steps", 251),
]
LONG = "a" * 5000
SHORTENED = [
    *rows(["federated"], "model", f"--model={'a' * 52}... is unknown: choose one of convnet", LONG),
    *rows(["audit"], "runs", f"--runs={'a' * 53}...", LONG),
    *lines("error: no command 'aaaa", LONG),
    *(
        case
        for name in ("federated", "canife", "compare", "plan")
        for case in rows([name], "tfds_dir", "... cannot be used: it holds no prepared", LONG)
    ),
]
EVERY = ("sweep", "--name=all")
CHOICES = [
    *rows(["audit"], "model", r"--model=\udcff is unknown", "\udcff"),
    *rows(
        ["audit", "--model=mlp"],
        "clipping",
        "--clipping={} is none that mlp can take",
        "book_keeping",
    ),
    *rows(
        ["benchmark"],
        "scale",
        "--scale={} is unknown: choose one of smoke, full",
        "",
        "huge",
        "Full",
    ),
    *rows(["benchmark"], "estimators", "--estimators='{}' is in no name: ", "nobody", "OURS"),
    *rows(["benchmark"], "mechanisms", "--mechanisms='' is in no name: ", "Gaussian,,", ","),
    *lines("takes such scores", "benchmark --estimators=CANIFE --mechanisms=coins"),
    *rows(["throughput"], "models", "--models: '{}' is unknown: choose of", "nobody"),
    *rows(["throughput"], "models", "--models: '{}' can't be timed, its network has not", "mlp"),
    *rows(["throughput"], "engines", "--engines: '{}' is unknown: choose of", "nobody", "OURS"),
    *rows(["throughput"], "engines", "--engines: '' is unknown", "ours,"),
    *rows(
        ["sweep"],
        "name",
        "--name={} is unknown: give all, or some of canife",
        "nobody",
        "figure",
    ),
    *rows(["sweep"], "name", "is unknown: give all", "figure_4,,", ",", "../x"),
    *rows(["sweep"], "name", "--name=all is unknown: give all", "all,figure_4"),
    *rows(["sweep"], "name", "--name is missing: give all", ""),
    *rows(EVERY, "scale", "--scale={} is unknown: choose one of smoke", "", "huge", "Paper"),
    *rows(["sweep", "--list"], "scale", "--scale={} is unknown", "nobody"),
    *rows(
        ["sweep", "--name=figure_1c"],
        "engine",
        "--engine={} is unknown: choose one of local",
        "",
        "Ray",
    ),
    *rows(AUDIT, "engine", "--engine={} is unknown: choose one of local, ray", "", "nobody"),
    *rows(EVERY, "worker", "--worker={}: give i/n", "0/3", "4/3", "3", "a/b", "1/0", "-1/3"),
    *rows(EVERY, "worker", "--worker={}: give i/n", "", "1/2/3", "٣/٤", f"1/{HUGE}"),
    *rows(["figures"], "name", "--name={} is unknown: give all", "nobody", "Figure_4"),
    *rows(["figures"], "name", "--name= is unknown", "figure_4,,"),
    *rows(["figures"], "name", "--name is missing", ""),
    *rows(["figures"], "scale", "--scale={} is unknown: choose one of smoke", "huge", "Paper", ""),
    *rows(
        ["report"], "scale", "--scale={} is a sweep's: name one with --sweep", "laptop", "huge", ""
    ),
    *rows(
        ["report", "--sweep=figure_4"],
        "scale",
        "--scale={}: choose one of smoke",
        "",
        "huge",
        "Paper",
    ),
    *rows(
        ["report"],
        "sweep",
        "--sweep={} is unknown: choose one of canife",
        "",
        "nobody",
        "all",
        "../x",
    ),
    *rows(
        ["report"], "sweep", "--sweep={} holds no audits of trained models", "landscape", "figure_8"
    ),
]
RAY = "--ray_address=host:1"
TOGETHER = [
    *lines(f"{RAY} goes with --engine=ray", f"audit {RAY}", f"sweep --name=figure_1c {RAY}"),
    *lines("are both set; name one", "audit --data_file=a.csv --tfds_dir=b"),
    *lines("do not go together: drop one", "report --setting=all --sweep=figure_4"),
    *lines("--data_file is one model's", "throughput --data_file=x.csv"),
    *lines("--report=: name an HTML file", "federated --report="),
]


def images(folder):
    """images.npz, 40 random ones and 10 to test on."""
    rng, arrays = np.random.default_rng(0), {}
    for name, count in (("train", 40), ("test", 10)):
        arrays[f"{name}_images"] = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        arrays[f"{name}_labels"] = rng.integers(0, 10, count).astype(np.int32)
    np.savez(folder / "images.npz", **arrays)


def with_rounds(text):
    return lambda folder: (images(folder), (folder / "rounds.csv").write_text(text))


LINEAR = ("federated", "--model=linear")
FEW = (*LINEAR, "--data_file=images.npz", "--clients=4")
SMALL = (*FEW, "--cohort=2", "--rounds=3")
LISTED = (*FEW, "--participation=listed", "--cohorts=rounds.csv", "--alpha=100")
NOISY = (*SMALL, "--alpha=100", "--noise_multiplier=1")
FEDERATED = [
    *rows(["federated"], "model", "--model={} is unknown: choose one of convnet", "", "nobody"),
    *rows(
        ["federated"], "model", "--model={} cannot be trained so: its data are no images", "fcnn"
    ),
    *rows(LINEAR, "participation", "--cohorts and --participation=listed go together", "listed"),
    *rows(LINEAR, "cohorts", "--cohorts and --participation=listed go together", "x.csv"),
    *rows(LINEAR, "rounds", "their product is to be at most 100,000,000", 10**6),
    *rows((*LINEAR, "--rounds=3"), "repetitions", "--repetitions={}: give 1 to 3, the rounds", 4),
    *rows(SMALL, "clients", "--clients={}: give 1 to 40", 41, lay=images),
    *rows((*SMALL, "--clients=30"), "alpha", "without examples: raise it", "1e-9", lay=images),
    *rows(
        (*SMALL, "--alpha=100"), "cohort", "--cohort={} is more than the 4 clients", 5, lay=images
    ),
    *rows(
        NOISY, "quantile", "on the count costs more: lower it, or raise --cohort", 0.5, lay=images
    ),
    *rows(SMALL, "data_file", "{}", "nowhere.npz", lay=images),
    *lines("name an .npz file", "federated --model=emnist_cnn"),
    *lines("name an .npz file", "federated --model=word_lstm"),
    *(
        named(Bad(argv, says, lay), f": {says}")
        for argv, says, lay in (
            (LISTED, "--cohorts=rounds.csv: there is no such file", images),
            (LISTED, "rounds.csv holds no rounds", with_rounds("")),
            (LISTED, "rounds.csv, line 2: '1;2' is not round,client", with_rounds("1,1\n1;2\n")),
            (LISTED, "line 3: '1;2' is not round,client", with_rounds("round,client\n1,1\n1;2\n")),
            (LISTED, "holds no rounds: give lines", with_rounds("# Round, client\n")),
            ((*LISTED, "--cohorts=/dev/zero"), "/dev/zero: it is no file; check --cohorts", images),
            ((*LISTED, "--cohorts=."), "cannot read .: it is no file", images),
            (LISTED, "round 1 names client [4]: there are 4", with_rounds("1,1\n1,4\n")),
            (LISTED, "round 1 names a client twice", with_rounds("1,1\n1,1\n")),
            *(
                ((*LISTED, flag), f"{flag} is what --cohorts=rounds.csv decides: leave", images)
                for flag in ("--rounds=100", "--cohort=2")
            ),
            (
                (*LISTED, "--repetitions=6"),
                "round 6 names client [4]: there are 4",
                with_rounds("1,1\n6,4\n"),
            ),
            (
                (*LISTED, "--repetitions=7"),
                "--repetitions=7: give 1 to 6, the rounds",
                with_rounds("1,1\n6,1\n"),
            ),
        )
    ),
]


CLAIM = ("claim", "--sampler=shuffled", "--batches=4", "--epochs=2", "--noise_multiplier=1")
CLAIMS = [
    *rows(CLAIM, "sampler", "--sampler={}: give poisson", "random"),
    *rows(
        CLAIM, "batches", "--batches={}: give a whole number, or mine.py:loader", "x", "2.5", "-1"
    ),
    *rows(CLAIM, "batches", "--batches={}: give at least 2 an epoch", 1),
    *rows(CLAIM, "batches", "--sampler=shuffled does not go with a loader", "nowhere.py:loader"),
    *rows(CLAIM, "epochs", "--epochs={}: give 1 to 10,000", 0, 10_001),
    *rows(CLAIM, "noise_multiplier", "--noise_multiplier={}: give", 0, -1, "nan"),
    *rows(CLAIM, "tail", "--tail={}: give 0 to 1,000,000", -1),
    *rows(CLAIM, "delta", "delta is", 0, 2, "nan"),
    *rows(CLAIM, "lipschitz", "--lipschitz", "", "x", "-1", "1,1"),
    *rows(CLAIM, "largest_batch", "--examples and --largest_batch go together", 5),
    *lines(
        "there is no file nowhere.py",
        "claim --batches=nowhere.py:loader --epochs=2 --noise_multiplier=1",
    ),
    *lines(
        "--examples=-5 does not go with a loader",
        "claim --batches=mine.py:loader --epochs=2 --noise_multiplier=1 --examples=-5",
    ),
    *lines("--nojson=1 does not take an argument", "bound --scores=scores.npz --nojson=1"),
]
DIGITS = [  # that only Python reads
    *rows(AUDIT, "steps", "--steps={}: give a whole number", "1_000", "٣", "５"),
    *rows(AUDIT, "runs", "--runs={}: give a whole number, 1 or more", "1_000"),
    *rows(AUDIT, "learning_rate", "--learning_rate={}: give a number", "1_0.5", "0.٣"),
    *rows(AUDIT, "canaries", "--canaries={}: give a whole number, or auto", "1_0", "٣"),
    *rows(AUDIT, "sampler", "--sampler={}: give every, poisson", "poisson:0.0_1", "shuffled:٣"),
    *rows(AFRESH, "until", UNTIL, "1_0", "0.٣x"),
    *rows(["audit"], "looks", "--looks='{}' is no number", "1_000"),
    *rows(["plan"], "bug", "--bug={}: give numbers above 0", "0.9_5", "0.٣"),
    *rows(CLAIM, "batches", "--batches={}: give a whole number, or mine.py:loader", "٣", "1_0"),
    *lines("--vary=k: '1_0' is not a value of it", "audit --vary=k=1,1_0"),
]
UNUSED = [  # by the adversary or the study that is asked for
    *rows(AUDIT, "fresh", "--fresh={}: give 1 to 10,000,000", -1, 0),
    *rows(AUDIT, "poison_label", "--poison_label={}: give at least 0", -1),
    *rows(["plan"], "canaries", "--canaries={}: give 1 to", -1),
]
DASHES = [
    *lines(
        "--report=-: name an HTML file that begins with no dash",
        "report --report=-",
        "check --example=numpy --report=-",
        "federated --report=-",
    ),
    *lines("--report=-p.html: name an HTML file that begins", "report --report=-p.html"),
    *lines("--out=-: name a folder that begins with no dash", "list --out=-"),
]
CORPUS = [
    *PARSED,
    *SIZES,
    *DIGITS,
    *UNUSED,
    *DASHES,
    *CHECK,
    *CLAIMS,
    *CANIFE,
    *CHOICES,
    *TOGETHER,
    *FEDERATED,
    *SHORTENED,
]


@pytest.mark.parametrize("case", firsts_of_a_kind(CORPUS))
def test_a_bad_command_line_is_one_line_and_nothing_else_happens(forked, homes, tmp_path, case):
    assert_refused(case, forked, homes, tmp_path)


def test_no_case_is_there_twice():
    assert len({one.id for one in CORPUS}) == len(CORPUS)
