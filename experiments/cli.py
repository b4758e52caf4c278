"""The common part of all commands: flags, errors and interrupts that end in one line, without a traceback."""

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from absl import app, flags

from audit.errors import InputError
from experiments.settings.devices import prepare_jax as prepare_jax

if TYPE_CHECKING:
    from experiments.settings.setting import Setting
    from experiments.settings.tasks import Sources

USAGE_ERROR = 2
_INTERRUPTED = 130


def run(main: Callable[[], None]) -> None:
    """Parses the flags and calls main; a user's mistake ends in one line and exit status 2."""

    def guarded(argv: Sequence[str]) -> int:
        try:
            if len(argv) > 1:
                raise InputError(f"argument {argv[1]!r} is no flag: write --name=value, see --help")
            main()
        except InputError as error:
            return _complain(str(error), USAGE_ERROR)
        except KeyboardInterrupt:
            return _complain("interrupted: finished chunks are kept, the same command goes on", _INTERRUPTED)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        return 0

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app.run(guarded, flags_parser=_parse)


def _parse(argv: Sequence[str]) -> list[str]:
    """absl's parser, without its usage pages for a mistyped flag."""
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        sys.exit(_complain(f"{error}: see --help", USAGE_ERROR))


def _complain(message: str, status: int) -> int:
    """One line on stderr."""
    print(f"error: {as_flags(' '.join(message.split()))}", file=sys.stderr)
    return status


def as_flags(message: str) -> str:
    """A library's message, which names `fields` and `field=value`s, with flags in their place."""
    from experiments.settings.fields import fields

    def flag(match: re.Match[str]) -> str:
        known = fields().get(match[1])
        return f"--{known.flag if known else match[1]}{match[2]}"

    return re.sub(r"`([a-z_]+)(=[^`]*|)`", flag, message)


def define_setting(names: Sequence[str]) -> None:
    """Defines the flags of a setting's fields."""
    from experiments.settings.fields import fields

    define: dict[type, Callable[[str, Any, str], object]] = {
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        bool: flags.DEFINE_bool,
        str: flags.DEFINE_string,
    }
    for name in names:
        field = fields()[name]
        define[field.kind](field.flag, field.default, field.help)


def setting(names: Sequence[str], **fixed: Any) -> "Setting":
    """The setting that the flags of these fields describe, beside fixed ones."""
    from experiments.settings.fields import fields
    from experiments.settings.make import setting_of

    given = {name: flags.FLAGS[fields()[name].flag].value for name in names}
    return setting_of(**{**given, **fixed})


def define_sources() -> None:
    """Defines the flags of the data's sources."""
    flags.DEFINE_string("data_file", None, "The data as a file, instead of fetching them.")
    flags.DEFINE_string("tfds_dir", None, "A prepared TFDS folder that holds the data.")


def sources(**more: Any) -> "Sources":
    """The sources that the flags name."""
    from experiments.settings.tasks import Sources

    return Sources(flags.FLAGS.data_file, flags.FLAGS.tfds_dir, **more)


def numbers(flag: str) -> list[float]:
    """A list flag's numbers; raises InputError for what is none."""
    return [_number(flag, text) for text in flags.FLAGS[flag].value or []]


def whole_numbers(flag: str) -> list[int]:
    """A list flag's whole numbers; raises InputError for what is none."""
    values = numbers(flag)
    for value in values:
        if not value.is_integer():
            raise InputError(f"--{flag}={value:g} is no whole number: give whole numbers, comma-separated")
    return [int(value) for value in values]


def _number(flag: str, text: str) -> float:
    """One number of a list flag."""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--{flag}={text!r} is no number: give numbers, comma-separated") from None
