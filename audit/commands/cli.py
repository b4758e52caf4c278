"""Code shared by all commands: flags, and one-line messages for errors and interrupts."""

import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from absl import app, flags

from audit import errors
from audit.commands import dispatch
from audit.errors import InputError, require
from audit.runtime.machine import prepare_jax as prepare_jax
from audit.settings import make
from audit.settings.fields import AUTO, MAX_SEED, Field
from audit.settings.setting import Setting
from audit.storage import files
from audit.written import Level, printable

# absl attributes the flags that this module defines to the command that calls it.
flags.disclaim_key_flags()

_DEFINE: dict[type, Callable[[str, Any, str], object]] = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_bool,
    str: flags.DEFINE_string,
}
_ONLY_FLAGS = "AUDIT_ONLY_FLAGS"
_HELP_FLAGS = {"--help", "-help", "-h"}
_HELP_INDENT = 28


def run(main: Callable[[], None]) -> None:
    """Parses the flags, calls `main` and exits. For an InputError, prints one line; the exit status is 2."""
    dispatch.handle_interrupts()
    app.run(partial(_run_main, main), flags_parser=_parse_flags)


def _run_main(main: Callable[[], None], argv: Sequence[str]) -> int:
    """Calls `main` and returns the exit status; `argv` contains the program and all non-flag arguments."""
    try:
        if len(argv) > 1:
            raise InputError(f"{argv[1]!r} is not a flag: write --name=value, see --help")
        # run.sh sets AUDIT_ONLY_FLAGS to check the flags before it installs anything.
        if os.environ.get(_ONLY_FLAGS):
            return 0
        main()
        sys.stdout.flush()
    except InputError as error:
        return _report_error(str(error))
    except MemoryError:
        return _report_error("out of memory: ask for less")
    except BrokenPipeError:  # the reader of stdout has exited, as `head` does
        # Discards the remaining output, because Python flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the flags and returns the other arguments; exits after printing help or an error."""
    if not _HELP_FLAGS.isdisjoint(argv[1:]):
        print(_format_help())
        sys.exit(0)
    try:
        return flags.FLAGS(argv)
    except flags.IllegalFlagValueError as error:
        sys.exit(_report_error(_describe_illegal_value(error)))
    except (flags.Error, ValueError) as error:  # ValueError is for --noflag=value
        sys.exit(_report_error(f"{error}: see --help"))


def refuse(names: Iterable[str], why: str) -> None:
    """Raises InputError if any of the flags `names` is on the command line; `why` ends the message."""
    for name in names:
        flag = flags.FLAGS[name]
        require(not flag.present, f"--{name}={flag.value} {why}")


def is_given(name: str) -> bool:
    """Returns True if the value of a flag is neither None nor False."""
    value = flags.FLAGS[name].value
    return value is not None and value is not False


def refuse_both(name: str, others: Iterable[str]) -> None:
    """Raises InputError if a flag is given together with any of the others."""
    for other in others:
        is_clash = is_given(name) and is_given(other)
        require(not is_clash, f"--{other} conflicts with --{name}: drop one")


def _format_help() -> str:
    """Returns the help of the current command: its module docstring, and its flags with defaults."""
    lines = [sys.modules["__main__"].__doc__ or ""]
    # absl registers the command's module under the name sys.argv[0].
    for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0]):
        text = " ".join(str(flag.help).split())
        if flag.default not in (None, False, []):
            text = f"{text} [{flag.default}]"
        name = f"  --{flag.name}".ljust(_HELP_INDENT)
        lines += textwrap.wrap(text, 80, initial_indent=name, subsequent_indent=" " * _HELP_INDENT)
    return "\n".join(lines)


def _report_error(message: str) -> int:
    """Prints an error to stderr on one line, and returns the exit status for user errors."""
    return dispatch.report_error(one_line(message))


def one_line(message: str) -> str:
    """Returns a message as one line, with flags instead of fields: `name=value` becomes --flag=value."""
    return printable(re.sub(r"`([a-z_]+)(=[^`]*|)`", _write_as_flag, " ".join(message.split())))


def _describe_illegal_value(error: flags.IllegalFlagValueError) -> str:
    """Returns the message for a flag value of the wrong type, such as "--runs=x: give an integer".

    absl reports "flag --name=value: reason". The parser's advice, if any, replaces the reason.
    """
    reason = str(error.__context__)  # the parser's error
    flag_and_value = str(error).removeprefix("flag ").removesuffix(f": {reason}")
    name = flag_and_value.partition("=")[0].removeprefix("--")
    parser = flags.FLAGS[name].parser
    advice = parser.syntactic_help  # such as "an integer"
    if isinstance(parser, flags.BooleanParser):
        advice = "true or false"
    if not advice:
        return f"{flag_and_value}: {reason}"
    return f"{flag_and_value}: give {advice}"


def _write_as_flag(match: re.Match[str]) -> str:
    """Converts a field in backticks to its flag, such as `periodicity=5` to --k=5.

    For a field without a flag, only the backticks are removed. Any other name is a flag of the command.
    """
    name, value = match.groups()  # the value is "=..." or ""
    field = make.fields().get(name)
    if field is None:
        return f"--{name}{value}"
    if field.has_flag:
        return f"--{field.flag}{value}"
    return f"{name}{value}"


def define_optional(kind: type, **helps: str) -> None:
    """Defines flags of a type: int, float or str with default None, or bool with default False.

    Each keyword maps a flag name to its help text.
    """
    default = False if kind is bool else None
    for name, help in helps.items():
        _DEFINE[kind](name, default, help)


def define_setting(kind: type = Setting, names: Iterable[str] | None = None) -> None:
    """Defines a flag for each field of a settings class, or only for the fields in `names`."""
    for field in _select_fields(kind, names):
        if field.auto:  # "auto" is also allowed
            flags.DEFINE(_CountParser(), field.flag, field.default, field.help)
        else:
            _DEFINE[field.kind](field.flag, field.default, field.help)


def values(kind: type = Setting, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Returns the flag values, keyed by field name; see `define_setting` for the arguments."""
    return {field.name: flags.FLAGS[field.flag].value for field in _select_fields(kind, names)}


def setting(names: Iterable[str] | None = None, **fixed: Any) -> Setting:
    """Returns the audit setting that the command line describes.

    Only the flags of the fields `names` are read (None for all). Values in `fixed`, keyed by field, override
    flags.
    """
    given = {**values(Setting, names), **fixed}
    for name in ("insertions", "noise_multiplier"):
        # A model may have its own default, which `setting_of` uses instead of the flag's.
        if name in given and name not in fixed and not flags.FLAGS[name].present:
            del given[name]
    # Adds the model's `insertions`, unless --steps or a sampler that draws per epoch sets them.
    make.add_default_insertions(given["model"], given)
    return make.setting_of(**given)


def _select_fields(kind: type, names: Iterable[str] | None) -> list[Field]:
    """Returns the fields of a settings class that have flags, or only those in `names`."""
    by_name = make.fields(kind)
    return [by_name[name] for name in names or by_name if by_name[name].has_flag]


class _CountParser(flags.ArgumentParser[int | str]):
    """Parses a whole number or `auto`."""

    syntactic_help = f"an integer, or {AUTO}"

    def parse(self, argument: int | str) -> int | str:
        """Returns the whole number or `auto`; raises ValueError for anything else."""
        if argument == AUTO:
            return AUTO
        return int(argument)


def define_levels() -> None:
    """Defines the flags --delta and --confidence."""
    flags.DEFINE_float("delta", 1e-5, "Delta of the bounds.")
    flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")


def level() -> Level:
    """Returns the level given by --delta and --confidence; raises InputError if one is out of range."""
    from audit.laws import conversions  # loads SciPy

    given = Level(flags.FLAGS.delta, flags.FLAGS.confidence)
    conversions.require_levels(*given)
    return given


def define_seed(help: str) -> None:
    """Defines the flag --seed."""
    flags.DEFINE_integer("seed", 0, help, lower_bound=0, upper_bound=MAX_SEED)


def define_json() -> None:
    """Defines the flag --json."""
    flags.DEFINE_bool("json", False, "Print one JSON object instead of tables.")


def define_out(help: str) -> None:
    """Defines the flag --out for the results folder, which `folder` returns."""
    flags.DEFINE_string("out", "results", help)


def define_sources() -> None:
    """Defines the flag --data, for the user's data."""
    flags.DEFINE_string(
        "data", None, "Local data file or prepared TFDS folder, used instead of downloading."
    )


def folder() -> Path:
    """Returns the folder --out, which need not exist; raises InputError if the flag is empty."""
    return errors.path("out", flags.FLAGS.out)


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Writes files, keyed by name, to a folder and prints their paths."""
    for name, content in contents.items():
        print(files.write_whole(folder / name, content))


def choose_names(flag: str, choices: Iterable[str]) -> list[str]:
    """Returns the names in `choices` that a list flag selects; all names if the flag is not given.

    An item selects the name that it equals, or else all names that contain it. Raises InputError if an item
    matches no name.
    """
    names = list(choices)
    items = flags.FLAGS[flag].value
    if items is None:
        return names
    chosen = set()
    for item in items or [""]:  # an empty string matches no name
        matches = [name for name in names if item and item in name]
        if item in names:
            matches = [item]
        require(matches, f"--{flag}={item!r} matches no name: {', '.join(names[:4])}, ...")
        chosen.update(matches)
    return [name for name in names if name in chosen]


def numbers(flag: str, least: float = 0.0, most: float = math.inf) -> list[float]:
    """Returns the numbers in a list flag; [] if the flag is not given.

    Raises InputError if the list is empty, or if an item is not a number from `least` to `most`.
    """
    items = flags.FLAGS[flag].value
    if items is None:
        return []
    fix = f"give numbers from {least:g} to {most:g}, comma-separated"
    given = []
    for item in items or [""]:  # an empty string is not a number
        try:
            value = float(item)
        except ValueError:
            value = math.nan  # fails the next check
        require(least <= value <= most, f"--{flag}={item}: {fix}")
        given.append(value)
    return given
