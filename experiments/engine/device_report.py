"""Runs the parts of `device_parts`, and writes the results to a JSON file and a page after each part."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from audit.report import page
from audit.rounding import at_least_digits, at_most_digits
from audit.runtime import processes
from audit.storage import files
from experiments.engine.device_parts import Part, Row, Trial, tell

_LOWER_BOUNDS = ("epsilon_if_gaussian", "proven")  # fields that people see rounded down
_UPPER_BOUNDS = ("upper_bound",)  # rounded up
_DIGITS = 3

JSON = "accelerator.json"
PAGE = "accelerator.html"
LONGEST = 540.0  # seconds after which a part is stopped


class PartResult(NamedTuple):
    """The result of a part.

    Attributes:
      name: The part's name.
      measures: A sentence that says what the part measures.
      seconds: The time that the part took.
      about: A row on the device and the libraries; empty where the part failed before it had any row.
      rows: The rows that were measured.
      failure: The reason why rows are missing; empty where the part ended well.
    """

    name: str
    measures: str
    seconds: float
    about: Row
    rows: list[Row]
    failure: str = ""


def work(
    folder: Path,
    parts: Sequence[Part],
    trial: Trial,
    seconds: float,
    say: Callable[[str], object],
    tell: Callable[[str, Trial], Iterator[Row]] = tell,
    longest: float = LONGEST,
) -> list[PartResult]:
    """Runs the parts that have no result in the folder, then those that failed earlier, until time is up.

    Each part runs in a process of its own, which is killed after `longest` seconds, or earlier when the time
    for all parts is up. The rows that it yielded until then are stored. Where a part fails again, the result
    with more rows stays, or the later of two results with equally many rows.

    Args:
      folder: The folder with the JSON file and the page.
      parts: The parts to run.
      trial: The size of the parts, and their data.
      seconds: The time for all parts: after it no part begins, and a part that still runs is killed.
      say: Prints a line; called once for each part.
      tell: (name, trial) -> an iterator over rows: one that describes the device, then those of the
        part with that name.
      longest: The most seconds that a part may take.

    Returns:
      The results in the folder, for those of the parts that have one.
    """
    end = time.monotonic() + seconds
    results = _load(folder, trial)
    for part in _choose_parts(parts, results):
        seconds_left = end - time.monotonic()
        if seconds_left <= 0:
            say(f"{part.name}: not begun, the time is up; start again to go on")
            continue
        result = _do_part(part, partial(tell, part.name, trial), min(longest, seconds_left))
        line = f"{part.name}: {result.seconds:.0f} s"
        if result.failure:
            line += f": {result.failure}"
        say(line)
        # An earlier result is a failure too, since other parts are not run again. It stays only where this
        # run failed as well, and with fewer rows.
        earlier = results.get(part.name)
        if earlier is None or not result.failure or len(result.rows) >= len(earlier.rows):
            results[part.name] = result
        _save(folder, trial, list(results.values()))
    return [results[part.name] for part in parts if part.name in results]


def _choose_parts(parts: Sequence[Part], results: dict[str, PartResult]) -> list[Part]:
    """Returns the parts to run: those without a result first, then those whose result is a failure."""
    missing = []
    failed = []
    for part in parts:
        if part.name not in results:
            missing.append(part)
        elif results[part.name].failure:
            failed.append(part)
    return missing + failed


def _do_part(part: Part, run: Callable[[], Iterator[Row]], seconds: float) -> PartResult:
    """Runs a part in a process of its own, for at most `seconds`.

    Args:
      part: The part.
      run: Measures the part: yields a row that describes the device, then the part's rows.
      seconds: The time after which the process is killed.

    Returns:
      The result. Where the process fails or is killed, it has the rows that were yielded until then, and the
      reason.
    """
    begin = time.monotonic()
    # `failure` is empty where the process yielded all its rows.
    yielded, failure = processes.run_with_limit(run, seconds)
    device: Row = {}
    if yielded:
        device = yielded[0]  # the row that describes the device comes first
    return PartResult(
        name=part.name,
        measures=part.measures,
        seconds=time.monotonic() - begin,
        about=device,
        rows=yielded[1:],
        failure=failure,
    )


def _load(folder: Path, trial: Trial) -> dict[str, PartResult]:
    """Reads the results that earlier calls stored, by the parts' names.

    The result is empty where the JSON file is missing or damaged, or was written for another trial.
    """
    try:
        # A missing file is read as None. Its content {} has no trial, so that it counts as another trial's.
        content = json.loads(files.read(folder / JSON) or b"{}")
        if content.get("trial") != trial._asdict():
            return {}
        results = {}
        for fields in content.get("parts", []):
            result = PartResult(**fields)
            results[result.name] = result
        return results
    except (AttributeError, TypeError, ValueError):  # no JSON, or JSON of another form
        return {}


def _save(folder: Path, trial: Trial, results: Sequence[PartResult]) -> None:
    """Writes results to a folder, as a JSON file and as a page."""
    content = {
        "trial": trial._asdict(),
        "parts": [result._asdict() for result in results],
    }
    encoded = (json.dumps(content, indent=1) + "\n").encode()
    files.write_whole(folder / JSON, encoded)
    files.write_whole(folder / PAGE, as_page(trial, results))


def as_page(trial: Trial, results: Sequence[PartResult]) -> bytes:
    """Returns the results as a self-contained HTML page: device, failures, and a section for each part.

    Args:
      trial: The size of the parts.
      results: The parts' results, in the order of the sections.
    """
    # The description of the device, from the first part that has it: a part that failed at once has none.
    about: Row = next((result.about for result in results if result.about), {})
    title = f"The first hour on {about.get('device', 'an accelerator')}"
    facts = {}
    for name, value in {**about, "scale": trial.scale}.items():
        facts[_spell_out(name)] = _show(value)

    failures = [f"{result.name}: {result.failure}" for result in results if result.failure]
    not_done = []
    if failures:
        not_done = [page.element("h2", "Not done"), page.points(failures)]
    sections = [_make_section(result) for result in results]
    return page.document(
        title,
        page.element("h1", title),
        page.terms(facts),
        *not_done,
        *sections,
    )


def _make_section(result: PartResult) -> page.Html:
    """Returns a part's section of the page.

    Fields that have the same value in every row are listed once, above a table of the other fields. A single
    row stands in the table with all of its fields.
    """
    columns = {}
    for name in _list_names(result.rows):
        columns[name] = [_show_field(name, row.get(name)) for row in result.rows]
    common = {}
    varied = {}
    for name, cells in columns.items():
        if len(set(cells)) > 1 or len(cells) == 1:
            varied[name] = cells
        else:
            common[_spell_out(name)] = cells[0]

    content = [
        page.element("h2", result.name),
        page.element("p", result.measures),
        page.terms({**common, "seconds in all": f"{result.seconds:.0f}"}),
    ]
    if varied:
        header = [_spell_out(name) for name in varied]
        rows = zip(*varied.values(), strict=True)
        content.append(page.table(result.name, header, rows))
    return page.element("section", *content)


def _list_names(rows: Sequence[Row]) -> list[str]:
    """Returns the names of fields in any of the rows, each once, in the order in which they first occur."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return list(names)


def _spell_out(name: str) -> str:
    """Returns a field's name in words: "model steps a second" for "model_steps_per_s"."""
    return name.replace("_per_s", " a second").removesuffix("_s").replace("_", " ")


def _show_field(name: str, value: Any) -> str:
    """Formats the value of a row's field for people: bounds so that they do not claim too much.

    Args:
      name: The field's name.
      value: Its value, as in `_show`.
    """
    if isinstance(value, float) and name in _LOWER_BOUNDS:
        return at_least_digits(value, _DIGITS)
    if isinstance(value, float) and name in _UPPER_BOUNDS:
        return at_most_digits(value, _DIGITS)
    return _show(value)


def _show(value: Any) -> str:
    """Formats a value for people.

    None is "". Floats have three significant digits, or none after the point from 1,000 on. Thousands are
    separated by commas.
    """
    if value is None:
        return ""
    if isinstance(value, float):
        if abs(value) >= 1000:
            return f"{value:,.0f}"
        return f"{value:.{_DIGITS}g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
