"""Works through the parts of `device_parts`, and writes what each measured, as soon as it ends.

The results go into a JSON file and onto a page.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from audit.report import page
from audit.runtime import processes
from audit.storage import files
from experiments.engine.device_parts import Part, Row, Trial, tell

JSON = "accelerator.json"
PAGE = "accelerator.html"
LONGEST = 540.0  # seconds of a part


class PartResult(NamedTuple):
    """What a part measured.

    Attributes:
      name: The part's.
      measures: What that is, in a sentence.
      seconds: That the part took.
      about: Where it ran.
      rows: What it measured.
      failure: Why there are no more rows; empty where these are all.
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
    """Does the parts that the folder does not have, then those that failed again, until the time is up.

    Every part has a process of its own, which is killed after `longest` seconds; the rows that it yielded
    until then are stored. A part that fails again keeps the result with more rows.

    Args:
      folder: Of the JSON file and the page.
      parts: To do.
      trial: How large they are, and their data.
      seconds: After which nothing is begun.
      say: Takes a line on each part.
      tell: (name, trial) -> a row on where a part runs, then its rows.
      longest: Seconds of a part.

    Returns:
      The results that the folder has of these parts.
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
        before = results.get(part.name)
        if before is None or not result.failure or len(result.rows) >= len(before.rows):
            results[part.name] = result
        _save(folder, trial, list(results.values()))
    return [results[part.name] for part in parts if part.name in results]


def _choose_parts(parts: Sequence[Part], results: dict[str, PartResult]) -> list[Part]:
    """Returns the parts that have no result, and after them those that failed."""
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
      part: What is done.
      run: Does it: yields a row on where it runs, then the part's rows.
      seconds: After which the process is killed; the rows that it yielded until then count.
    """
    begin = time.monotonic()
    answers, failure = processes.run_with_limit(run, seconds)
    about: Row = {}
    if answers:
        about = answers[0]
    return PartResult(
        name=part.name,
        measures=part.measures,
        seconds=time.monotonic() - begin,
        about=about,
        rows=answers[1:],
        failure=failure,
    )


def _load(folder: Path, trial: Trial) -> dict[str, PartResult]:
    """Returns the results of an earlier call in the same trial, by the parts' names.

    There are none where the JSON file is missing, damaged or of another trial.
    """
    try:
        content = json.loads(files.read(folder / JSON) or b"{}")
        results = {}
        for fields in content.get("parts", []):
            result = PartResult(**fields)
            results[result.name] = result
        if content.get("trial") != trial._asdict():
            return {}
        return results
    except (AttributeError, TypeError, ValueError):
        return {}


def _save(folder: Path, trial: Trial, results: Sequence[PartResult]) -> None:
    """Writes the JSON file and the page of these results into a folder."""
    content = {
        "trial": trial._asdict(),
        "parts": [result._asdict() for result in results],
    }
    encoded = (json.dumps(content, indent=1) + "\n").encode()
    files.write_whole(folder / JSON, encoded)
    files.write_whole(folder / PAGE, as_page(trial, results))


def as_page(trial: Trial, results: Sequence[PartResult]) -> bytes:
    """Returns a self-contained HTML page: the device, what is not done, and a section for each part.

    Args:
      trial: How large the parts were.
      results: Of the parts, in order.
    """
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
    """Returns a part's section: a table of its rows, and above it the fields that all rows share."""
    columns = {}
    for name in _list_names(result.rows):
        columns[name] = [_show(row.get(name)) for row in result.rows]
    common = {}
    varied = {}
    for name, cells in columns.items():
        if len(set(cells)) > 1 or len(cells) == 1:
            varied[name] = cells
        else:
            common[_spell_out(name)] = cells[0]

    parts = [
        page.element("h2", result.name),
        page.element("p", result.measures),
        page.terms({**common, "seconds in all": f"{result.seconds:.0f}"}),
    ]
    if varied:
        header = [_spell_out(name) for name in varied]
        rows = zip(*varied.values(), strict=True)
        parts.append(page.table(result.name, header, rows))
    return page.element("section", *parts)


def _list_names(rows: Sequence[Row]) -> list[str]:
    """Returns the names of fields in any of the rows, each once, in the order in which they first occur."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return list(names)


def _spell_out(name: str) -> str:
    """Returns a field's name in words: "model_steps_per_s" is "model steps a second"."""
    return name.replace("_per_s", " a second").removesuffix("_s").replace("_", " ")


def _show(value: Any) -> str:
    """Returns a value for people: floats with three digits or thousands' commas, None as ""."""
    if value is None:
        return ""
    if isinstance(value, float):
        if abs(value) >= 1000:
            return f"{value:,.0f}"
        return f"{value:.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
