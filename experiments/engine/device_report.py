"""Works through the parts of `device_parts`, and keeps what each found in a JSON file, and on a page, as soon
as it ends."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from audit import processes
from audit.report import page
from audit.storage import files
from experiments.engine.device_parts import Part, Row, Trial, tell

JSON, PAGE = "accelerator.json", "accelerator.html"
LONGEST = 540.0  # seconds a part


class PartFound(NamedTuple):
    """What a part found: rows, where they are from, and why there are no more; empty where that is all."""

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
) -> list[PartFound]:
    """Does the parts that the folder lacks, and then again those that failed, until so much time is up.

    Every part has a process of its own, which is killed after `longest` seconds; the rows that it told until
    then are kept. say: hears a line a part. tell: (name, trial) -> where a part runs, and its rows. Returns
    all that the folder has of these parts.
    """
    end, kept = time.monotonic() + seconds, _kept(folder, trial)
    failed = [part for part in parts if part.name in kept and kept[part.name].failure]
    for part in [*(part for part in parts if part.name not in kept), *failed]:
        begin = time.monotonic()
        if begin >= end:
            say(f"{part.name}: not begun, the time is up; start again to go on")
            continue
        told, failure = processes.attempt(partial(tell, part.name, trial), min(longest, end - begin))
        about, rows = (told[0], told[1:]) if told else ({}, [])
        found = PartFound(part.name, part.measures, time.monotonic() - begin, about, rows, failure)
        say(f"{part.name}: {found.seconds:.0f} s{failure and ': '}{failure}")
        if part.name not in kept or not failure or len(rows) >= len(kept[part.name].rows):
            kept[part.name] = found
        _keep(folder, trial, list(kept.values()))
    return [kept[part.name] for part in parts if part.name in kept]


def _kept(folder: Path, trial: Trial) -> dict[str, PartFound]:
    """What an earlier start found in the same trial; what is not whole counts as missing."""
    try:
        content = json.loads(files.read(folder / JSON) or b"{}")
        found = [PartFound(**one) for one in content.get("parts", [])]
        return {one.name: one for one in found} if content.get("trial") == trial._asdict() else {}
    except (AttributeError, TypeError, ValueError):
        return {}


def _keep(folder: Path, trial: Trial, found: Sequence[PartFound]) -> None:
    content = {"trial": trial._asdict(), "parts": [one._asdict() for one in found]}
    files.write_whole(folder / JSON, (json.dumps(content, indent=1) + "\n").encode())
    files.write_whole(folder / PAGE, as_page(trial, found))


def as_page(trial: Trial, found: Sequence[PartFound]) -> bytes:
    """One self-contained page, a section a part."""
    about: Row = next((one.about for one in found if one.about), {})
    failed = [f"{one.name}: {one.failure}" for one in found if one.failure]
    title = f"The first hour on {about.get('device', 'an accelerator')}"
    facts = {_words(name): _shown(value) for name, value in {**about, "scale": trial.scale}.items()}
    why = page.join([page.element("h2", "Not done"), page.points(failed)] if failed else [])
    return page.document(title, page.element("h1", title), page.terms(facts), why, *map(_section, found))


def _section(found: PartFound) -> page.Html:
    """What all rows have in common stands above them."""
    heads = dict.fromkeys(name for row in found.rows for name in row)
    values = {name: [_shown(row.get(name)) for row in found.rows] for name in heads}
    varied = [name for name in heads if len({*values[name]}) > 1 or len(found.rows) == 1]
    common = {_words(name): values[name][0] for name in heads if name not in varied}
    parts = [
        page.element("h2", found.name),
        page.element("p", found.measures),
        page.terms({**common, "seconds in all": f"{found.seconds:.0f}"}),
    ]
    if varied:
        rows = zip(*(values[name] for name in varied), strict=True)
        parts.append(page.table(found.name, [*map(_words, varied)], rows))
    return page.element("section", *parts)


def _words(name: str) -> str:
    return name.replace("_per_s", " a second").removesuffix("_s").replace("_", " ")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
