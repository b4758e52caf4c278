"""The common part of all commands: flags, errors and interrupts that end in one line, without a traceback."""

import errno
import logging
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import app, flags

from audit import started
from audit.commands import interrupts, streams
from audit.errors import InputError, require
from audit.machine import prepare_jax as prepare_jax
from audit.settings.fields import ADVERSARY, AUDITED, AUTO, DP_SGD

if TYPE_CHECKING:
    from audit.settings.fields import Field
    from audit.settings.setting import Setting
    from audit.task import Sources

USAGE_ERROR = 2
_AS_TEXT: flags.ArgumentSerializer[int | str] = flags.ArgumentSerializer()
_DEFINE: dict[type, Callable[[str, Any, str], object]] = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_bool,
    str: flags.DEFINE_string,
}
_HELP, _HELP_INDENT = {"--help", "-help", "-h", "--helpshort", "--helpfull"}, 28
_GROUPS = {  # of flags that are no fields of a setting
    AUDITED: (
        *("models", "runs", "looks", "data_file", "tfds_dir", "weights", "input_size"),
        *("california_housing", "cifar10", "fashion_mnist", "purchase100"),
    ),
    ADVERSARY: (),
    DP_SGD: (),
    "bounds and output": ("delta", "confidence", "chunk_size", "out", "json", "report", "figure"),
    "several machines": ("engine", "ray_address", "worker"),
}
_MOST_SHOWN = 1000  # characters of a message
_LONG_WORD = re.compile(r"(\S{60})\S{240,}")  # longer than most paths
_OUTPUT_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run(main: Callable[[], None]) -> None:
    """Parses the flags and calls main; a user's mistake ends in one line and exit status 2."""

    def guarded(argv: Sequence[str]) -> int:
        try:
            with interrupts.ending():
                if len(argv) > 1:
                    raise InputError(f"argument {argv[1]!r} is no flag: write --name=value, see --help")
                main()
                sys.stdout.flush()
        except InputError as error:
            return _complain(str(error), USAGE_ERROR)
        except MemoryError:
            return _complain("out of memory: ask for less", USAGE_ERROR)
        except OSError as error:
            return _unprinted(error)
        return 0

    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it tells of its first look for fonts
    streams.mend()
    interrupts.install()
    with interrupts.ending():
        app.run(guarded, flags_parser=_parse)


def _parse(argv: Sequence[str]) -> list[str]:
    if not _HELP.isdisjoint(argv[1:]):
        try:
            print(_help(), flush=True)
        except OSError as error:
            sys.exit(_unprinted(error))
        sys.exit(0)
    try:
        return flags.FLAGS(argv)
    except flags.IllegalFlagValueError as error:
        sys.exit(_complain(_mended(error), USAGE_ERROR))
    except flags.Error as error:
        sys.exit(_complain(f"{error}: see --help", USAGE_ERROR))


def _mended(error: flags.IllegalFlagValueError) -> str:
    """absl's message on a value of another type, with what to give in place of Python's words."""
    why = str(error.__context__)
    said = str(error).removeprefix("flag ").removesuffix(f": {why}")
    found = re.match(r"--([a-z_]+)=", said)
    kind = flags.FLAGS[found[1]].flag_type() if found else ""
    give = {"int": "give a whole number", "float": "give a number", "bool": "give true or false"}
    return f"{said}: {give.get(kind, why)}"


def _help() -> str:
    own = [
        flag
        for module, defined in flags.FLAGS.flags_by_module_dict().items()
        if module == sys.argv[0] or module.startswith(("experiments.", "audit."))
        for flag in defined
    ]
    from audit.settings.make import fields

    grouped = {name: title for title, names in _GROUPS.items() for name in names}
    grouped |= {field.flag: field.group for field in fields().values()}
    about = started.in_its_words(getattr(sys.modules["__main__"], "__doc__", None) or "").strip()
    parts = ["\n\n".join(map(_narrow, about.split("\n\n")))]
    for title in ("this command", *_GROUPS):
        lines = [_described(flag) for flag in own if grouped.get(flag.name, "this command") == title]
        if lines:
            parts.append("\n".join([f"{title}:", *lines]))
    return "\n\n".join(parts)


def _narrow(paragraph: str) -> str:
    """A paragraph in 80 columns; examples stay lines, their comments in a column or below."""
    if not paragraph.lstrip().startswith(("./", started.program() or started.MODULE)):
        return textwrap.fill(paragraph, 80)
    examples = [line.strip().partition("  ") for line in paragraph.splitlines()]
    width = max(len(command) for command, _, _ in examples)
    lines = [f"    {command:<{width}}  {comment.strip()}".rstrip() for command, _, comment in examples]
    if max(map(len, lines)) > 80:
        lines = [f"    {command}\n        {comment.strip()}".rstrip() for command, _, comment in examples]
    return "\n".join(lines)


def _described(flag: flags.Flag[Any]) -> str:
    default = flag.default_as_str if flag.default not in (None, False, []) else None
    said = f"{flag.help} [{default.strip(chr(39))}]" if default else str(flag.help)
    name = f"  --{flag.name}".ljust(_HELP_INDENT - 2) + " "
    return textwrap.fill(said, 80, initial_indent=f"{name} ", subsequent_indent=" " * _HELP_INDENT)


def _unprinted(error: OSError) -> int:
    """Exit status where stdout takes no more, said in a line unless its reader left; else the error."""
    if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to print goes nowhere
    if isinstance(error, BrokenPipeError):
        return 1
    return _complain(f"cannot print ({error.strerror}): what was computed is kept", USAGE_ERROR)


def _complain(message: str, status: int) -> int:
    print(f"error: {one_line(message)}", file=sys.stderr)
    return status


def one_line(message: str) -> str:
    """A message for a terminal: flags for fields, one line, control characters escaped, what is very long cut
    out of it."""
    line = _LONG_WORD.sub(r"\1...", as_flags(" ".join(message.split())))
    ends = _MOST_SHOWN // 2
    return printable(line if len(line) <= _MOST_SHOWN else f"{line[:ends]} ... {line[-ends:]}")


def printable(text: str) -> str:
    """Lines for a terminal, their control characters escaped."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def as_flags(message: str) -> str:
    """A library's message, which names `fields` and `field=value`s, with flags in their place."""
    from audit.settings.make import fields

    def flag(match: re.Match[str]) -> str:
        known = fields().get(match[1])
        return f"--{known.flag if known else match[1]}{match[2]}"

    return re.sub(r"`([a-z_]+)(=[^`]*|)`", flag, message)


def define_setting(kind: type | None = None, names: Iterable[str] | None = None) -> None:
    """Defines the flags of a kind of setting's fields, by default of an audit's: of all, or of some."""
    for field in _chosen(kind, names):
        if field.auto:
            flags.DEFINE(_CountParser(), field.flag, field.default, field.help, serializer=_AS_TEXT)
        else:
            _DEFINE[field.kind](field.flag, field.default, field.help)


def values(kind: type | None = None, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The flags' values of these fields, by the fields' names."""
    return {field.name: flags.FLAGS[field.flag].value for field in _chosen(kind, names)}


def setting(names: Iterable[str] | None = None, **fixed: Any) -> "Setting":
    """The audit's setting that the flags of all fields, or of some, describe, beside fixed ones."""
    from audit.settings.make import setting_of

    given = {**values(None, names), **fixed}
    if given.get("steps") is not None and "insertions" in given and not flags.FLAGS["insertions"].present:
        del given["insertions"]  # a default
    return setting_of(**given)


def _chosen(kind: type | None, names: Iterable[str] | None) -> "list[Field]":
    from audit.settings.make import fields

    known = fields() if kind is None else fields(kind)
    return [known[name] for name in (known if names is None else names)]


class _CountParser(flags.ArgumentParser[int | str]):
    def parse(self, argument: int | str) -> int | str:
        """Raises ValueError for anything else."""
        text = str(argument)
        if text != AUTO and not text.lstrip("-").isdecimal():
            raise ValueError(f"give a whole number, or {AUTO}")
        return AUTO if text == AUTO else int(text)


def define_sources() -> None:
    """Defines the flags of the data's sources."""
    flags.DEFINE_string("data_file", None, "The data as a file, instead of fetching them.")
    flags.DEFINE_string("tfds_dir", None, "A prepared TFDS folder that holds the data.")


def sources(**more: Any) -> "Sources":
    """The sources that the flags name."""
    from audit.task import Sources

    return Sources(flags.FLAGS.data_file, flags.FLAGS.tfds_dir, **more)


def folder() -> Path:
    """--out's folder, which need not be there; raises InputError where it names none."""
    require(flags.FLAGS.out, "--out=: name a folder")
    return Path(flags.FLAGS.out)


def numbers(flag: str) -> list[float]:
    """A list flag's numbers; raises InputError for what is none."""
    return [_number(flag, text) for text in flags.FLAGS[flag].value or []]


def whole_numbers(flag: str) -> list[int]:
    """A list flag's whole numbers; raises InputError for what is none."""
    return [_whole_number(flag, text) for text in flags.FLAGS[flag].value or []]


def _whole_number(flag: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        value = _number(flag, text)
    if not value.is_integer():
        raise InputError(f"--{flag}={value:g} is no whole number: give whole numbers, comma-separated")
    return int(value)


def _number(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--{flag}={text!r} is no number: give numbers, comma-separated") from None
