"""The common part of all commands: flags, errors and interrupts that end in one line, without a traceback."""

import functools
import logging
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import app, flags

from audit.commands import dispatch
from audit.errors import InputError, plain_digits, require
from audit.runtime.machine import cores
from audit.runtime.machine import prepare_jax as prepare_jax
from audit.settings.fields import AUTO

if TYPE_CHECKING:
    from audit.settings.fields import Field
    from audit.settings.setting import Setting
    from audit.tasks.task import Sources

USAGE_ERROR = 2
_AS_TEXT: flags.ArgumentSerializer[int | str] = flags.ArgumentSerializer()
# By the type of a field, what defines its flag.
_DEFINE: dict[type, Callable[[str, Any, str], object]] = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_bool,
    str: flags.DEFINE_string,
}
_GIVE = {  # advice by the type of a flag's values, as absl names it
    "int": "give a whole number",
    "float": "give a number",
    "bool": "give true or false",
}

_ONLY_FLAGS = "AUDIT_ONLY_FLAGS"  # set by run.sh, which reads the flags before it installs packages
_HELP_FLAGS = {"--help", "-help", "-h", "--helpshort", "--helpfull"}
_HELP_INDENT = 28
_MAX_PROCESSES = 1024
_MAX_SHOWN = 1000  # characters of a message


def run(main: Callable[[], None], keeps: bool = False) -> None:
    """Parses the flags and calls main; a mistake of the user's ends in a single line and exit status 2.

    Args:
      main: the command, which reads its flags itself and raises InputError for a mistake of the user's.
      keeps: whether the command keeps what is finished when it is interrupted, and goes on from there.
    """

    def run_main(argv: Sequence[str]) -> int:
        """Calls the command's main function and returns the exit status: 0, or that of a reported error."""
        try:
            if len(argv) > 1:
                raise InputError(f"argument {argv[1]!r} is no flag: write --name=value, see --help")
            if os.environ.get(_ONLY_FLAGS):
                return 0
            main()
            sys.stdout.flush()  # here, so that an error of printing is reported below
        except InputError as error:
            return _report_error(str(error))
        except MemoryError:
            return _report_error("out of memory: ask for less")
        except OSError as error:
            return _report_unprinted(error)
        return 0

    # Otherwise matplotlib logs that it looks for fonts.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    if keeps:
        dispatch.say_kept()
    dispatch.install()
    app.run(run_main, flags_parser=_parse_flags)


def _parse_plainly(parse: Callable[[str], Any], argument: Any) -> Any:
    """Parses a number as absl's parser does, but refuses digits that only Python reads, such as 1_000."""
    return parse(plain_digits(str(argument)))


def _report_unprinted(error: OSError) -> int:
    """Reports that stdout cannot be written, and returns the exit status; raises any other error again.

    Nothing is reported if stdout's reader has left, as `head` does.
    """
    if error.filename is not None:  # the error of a file
        raise error
    # Flushing stdout's buffer at the end would fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 1
    return _report_error(f"cannot print ({error.strerror}): what was computed is kept")


def _parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses a command line's flags, and returns the arguments that are no flags.

    Exits after printing the help that the command line asks for, or an error.
    """
    if not _HELP_FLAGS.isdisjoint(argv[1:]):
        print(_format_help())
        sys.exit(0)
    for name in flags.FLAGS:
        flag = flags.FLAGS[name]
        if flag.flag_type() in ("int", "float"):
            plainly = functools.partial(_parse_plainly, flag.parser.parse)
            flag.parser.parse = plainly  # type: ignore[method-assign]
    try:
        return flags.FLAGS(argv)
    except flags.IllegalFlagValueError as error:
        sys.exit(_report_error(_describe_illegal_value(error)))
    except (flags.Error, ValueError) as error:  # the latter of --noflag=value
        sys.exit(_report_error(f"{error}: see --help"))


def refuse(names: Iterable[str], why: str) -> None:
    """Raises InputError if any of the flags of these names is given; the message says why not."""
    for name in names:
        flag = flags.FLAGS[name]
        require(not flag.present, f"--{name}={flag.value} {why}")


def is_given(name: str) -> bool:
    """Returns whether a flag whose default is None or false has another value."""
    value = flags.FLAGS[name].value
    return value is not None and value is not False


def refuse_both(name: str, others: Iterable[str]) -> None:
    """Raises InputError if a flag is given and any of the others, too."""
    for other in others:
        is_clash = is_given(name) and is_given(other)
        require(not is_clash, f"--{other} does not go with --{name}: drop one")


def _describe_illegal_value(error: flags.IllegalFlagValueError) -> str:
    """Returns the message on a flag's value of a wrong type, such as "--runs=x: give a whole number".

    Absl's own message is "flag --name=value: reason". For a flag of a type in _GIVE, advice replaces the
    reason, which is the message of Python's parser.
    """
    reason = str(error.__context__)  # the parser's error, during whose handling absl raised its own
    flag_and_value = str(error).removeprefix("flag ").removesuffix(f": {reason}")
    name = flag_and_value.partition("=")[0].removeprefix("--")
    kind = flags.FLAGS[name].flag_type() if name in flags.FLAGS else ""
    return f"{flag_and_value}: {_GIVE.get(kind, reason)}"


def _format_help() -> str:
    """Returns the help of the command that runs: its module's docstring, and its flags."""
    lines = [sys.modules["__main__"].__doc__ or ""]
    # absl lists the flags of the module that runs as the main program under argv[0].
    for module, module_flags in flags.FLAGS.flags_by_module_dict().items():
        if module != sys.argv[0] and not module.startswith(("experiments.", "audit.")):
            continue
        for flag in module_flags:
            text = str(flag.help)
            if flag.default not in (None, False, []):
                text = f"{text} [{flag.default}]"
            name = f"  --{flag.name}".ljust(_HELP_INDENT)
            indent = " " * _HELP_INDENT
            lines += textwrap.wrap(text, 80, initial_indent=name, subsequent_indent=indent)
    return "\n".join(lines)


def _report_error(message: str) -> int:
    """Prints an error as a single line on stderr, and returns the exit status for it."""
    print(f"error: {one_line(message)}", file=sys.stderr)
    return USAGE_ERROR


def one_line(message: str) -> str:
    """Returns a message as a single line: names of fields in backticks become flags, long ones are cut."""
    line = _replace_fields_by_flags(" ".join(message.split()))
    if len(line) > _MAX_SHOWN:
        half = _MAX_SHOWN // 2
        line = f"{line[:half]} ... {line[-half:]}"
    return printable(line)


def printable(text: str) -> str:
    """Returns a text for a terminal, with control characters escaped, except line breaks."""
    characters = []
    for character in text:
        if character.isprintable() or character == "\n":
            characters.append(character)
        else:
            characters.append(repr(character)[1:-1])  # the escape, such as \x1b, without quotes
    return "".join(characters)


def _replace_fields_by_flags(message: str) -> str:
    """Returns a message with flags in place of fields: `name` and `name=value` become --flag, --flag=value.

    Messages of the library name a setting's fields; a command's user knows their flags.
    """
    from audit.settings.make import fields

    def name_flag(match: re.Match[str]) -> str:
        """Returns the flag for a match whose groups are a field's name, and "=value" or ""."""
        name, value = match.groups()
        field = fields().get(name)
        if field is None:  # no field of a setting: its flag has the same name
            return f"--{name}{value}"
        if not field.has_flag:
            return f"{name}{value}"
        return f"--{field.flag}{value}"

    return re.sub(r"`([a-z_]+)(=[^`]*|)`", name_flag, message)


def define_setting(kind: type | None = None, names: Iterable[str] | None = None) -> None:
    """Defines a flag for each field of a setting.

    Args:
      kind: the dataclass of the setting; by default an audit's.
      names: the names of the fields that get flags; by default all.
    """
    for field in _select_fields(kind, names):
        if field.auto:  # it takes the word `auto` in place of a number
            parser = _CountParser()
            flags.DEFINE(parser, field.flag, field.default, field.help, serializer=_AS_TEXT)
        else:
            _DEFINE[field.kind](field.flag, field.default, field.help)


def values(kind: type | None = None, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Returns the values of fields' flags, by the fields' names; arguments as in `define_setting`."""
    given = {}
    for field in _select_fields(kind, names):
        given[field.name] = flags.FLAGS[field.flag].value
    return given


def setting(names: Iterable[str] | None = None, **fixed: Any) -> "Setting":
    """Returns the audit's setting that the flags describe.

    With --steps, or with a sampler that draws by epochs, the number of insertions follows from the steps or
    the epochs. Then --insertions counts only if the user gives it.

    Args:
      names: the names of the fields whose flags are read; by default all.
      **fixed: values of fields, which replace those of flags.
    """
    from audit.settings.make import setting_of

    given = {**values(None, names), **fixed}
    fixes_insertions = given.get("steps") is not None or _counts_epochs(given.get("sampler"))
    if fixes_insertions and "insertions" in given and not flags.FLAGS["insertions"].present:
        del given["insertions"]  # the flag's default, which could contradict the steps or epochs
    return setting_of(**given)


def _counts_epochs(sampler: str | None) -> bool:
    """Returns whether a sampler, given as text such as "shuffled:98", draws by epochs."""
    from audit.settings.setting import BY_EPOCHS

    return sampler is not None and sampler.partition(":")[0] in BY_EPOCHS


def _select_fields(kind: type | None, names: Iterable[str] | None) -> "list[Field]":
    """Returns the fields of a kind of setting, by default an audit's: all of them, or those named."""
    from audit.settings.make import fields

    by_name = fields() if kind is None else fields(kind)
    chosen_fields = map(by_name.__getitem__, by_name if names is None else names)
    return [*filter(attrgetter("has_flag"), chosen_fields)]


class _CountParser(flags.ArgumentParser[int | str]):
    """Parses a flag's value that is a whole number or `auto`."""

    def parse(self, argument: int | str) -> int | str:
        """Returns the whole number or the word `auto` in an argument; raises ValueError for anything else."""
        if argument == AUTO:
            return AUTO
        try:
            return int(argument)
        except ValueError:
            raise ValueError(f"give a whole number, or {AUTO}") from None


def define_levels() -> None:
    """Defines the flags --delta and --confidence, the levels of bounds."""
    flags.DEFINE_float("delta", 1e-5, "delta of the bounds.")
    flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")


def require_levels() -> None:
    """Raises InputError unless --delta and --confidence are in their ranges."""
    from audit.laws import conversions

    conversions.require_delta(flags.FLAGS.delta)
    conversions.require_confidence(flags.FLAGS.confidence)


def define_seed(help: str) -> None:
    """Defines the flag --seed; `help` is its line in --help."""
    flags.DEFINE_integer("seed", 0, help)


def require_seed() -> None:
    """Raises InputError unless --seed is 0 to 2^32 - 1."""
    seed = flags.FLAGS.seed
    require(0 <= seed < 2**32, f"--seed={seed}: give 0 to 2^32 - 1")


def define_processes() -> None:
    """Defines the flag --processes, the number of processes that work; `processes` reads it."""
    flags.DEFINE_integer("processes", None, "Processes; by default one a core.")


def processes() -> int:
    """Returns how many processes --processes requests, by default as many as there are cores.

    Raises InputError for a number out of range.
    """
    number = flags.FLAGS.processes
    if number is None:
        return cores()
    require(1 <= number <= _MAX_PROCESSES, f"--processes={number}: give 1 to {_MAX_PROCESSES:,}")
    return int(number)


def define_json() -> None:
    """Defines the flag --json, which asks for JSON instead of tables."""
    flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of tables.")


def define_out(help: str) -> None:
    """Defines the flag --out, the folder for results; `folder` reads it, `help` is its line in --help."""
    flags.DEFINE_string("out", "results", help)


def define_sources() -> None:
    """Defines the flags --data_file and --tfds_dir, which say where data come from."""
    flags.DEFINE_string("data_file", None, "The data as a file, instead of fetching them.")
    flags.DEFINE_string("tfds_dir", None, "A prepared TFDS folder that holds the data.")


def sources(**more: Any) -> "Sources":
    """Returns where data come from, as --data_file and --tfds_dir say; `more` are other fields of Sources."""
    from audit.tasks.task import Sources

    return Sources(flags.FLAGS.data_file, flags.FLAGS.tfds_dir, **more)


def folder() -> Path:
    """Returns the folder that --out names, which need not exist; raises InputError if it names none."""
    require_output("out", "a folder")
    return Path(flags.FLAGS.out)


def require_output(flag: str, kind: str) -> None:
    """Raises InputError if a flag that names an output is empty or begins with a dash.

    A dash alone means standard output to other programs. Here it would be a file's name.

    Args:
      flag: the name of the flag, which need not be given.
      kind: the output in words, such as "an HTML file".
    """
    name = flags.FLAGS[flag].value
    if name is None:
        return
    begins_with_dash = name.startswith("-")
    fix = " that begins with no dash" if begins_with_dash else ""
    require(name and not begins_with_dash, f"--{flag}={name}: name {kind}{fix}")


def chosen(flag: str, choices: Sequence[str]) -> list[str]:
    """Returns the values of a list flag, each once; all allowed values where the flag is not given.

    Args:
      flag: the flag's name.
      choices: the allowed values.

    Raises:
      InputError: the list is empty, or has a value that is not allowed.
    """
    given: list[str] | None = flags.FLAGS[flag].value
    names = list(choices if given is None else dict.fromkeys(given))
    listed = ", ".join(choices)
    require(names, f"--{flag} is empty: choose of {listed}")
    for name in names:
        require(name in choices, f"--{flag}: {name!r} is unknown: choose of {listed}")
    return names


def numbers(flag: str, whole: bool = False) -> list[float]:
    """Returns the numbers in a list flag, [] if it has no value; whole ones may be written as 1e6.

    Raises InputError for any other part.
    """
    kind = "whole numbers" if whole else "numbers"
    given = []
    for text in flags.FLAGS[flag].value or []:
        try:
            value = float(plain_digits(text))
        except ValueError:
            value = math.nan
        is_kind = value.is_integer() if whole else not math.isnan(value)
        require(is_kind, f"--{flag}={text}: give {kind}, comma-separated")
        given.append(value)
    return given
