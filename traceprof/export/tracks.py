"""Add traceprof's own lanes to a Chrome trace: findings, steps, and the longest idle gaps."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from traceprof.errors import UsageError
from traceprof.formats.kineto.rows import OWN_CATEGORY
from traceprof.model.results import Unit
from traceprof.render.briefing import findings_for_people
from traceprof.render.formatting import process_label, saving_words, value_text
from traceprof.render.report.places import address_of
from traceprof.render.shown import Row
from traceprof.session.answer import Document, answer
from traceprof.session.run import Run
from traceprof.session.selection import select

_PID: Final = 2_900_000_000
"""The process number of these lanes."""
_MAX_FINDINGS: Final = 20
_Lane = tuple[str, int, int, str, dict[str, Any]]
"""An event: lane, start and duration in ns after the start of the run, name, and arguments."""


def own_tracks(run: Run, zero_ns: int) -> Iterator[str]:
    """Yield the JSON texts of events and of the names of their lanes, without separators.

    ``zero_ns`` is time 0 of the exported trace on the clock of the run.
    """
    document = answer(run, ["findings", "steps", "gaps"])
    shift_ns = document.span.start_ns - zero_ns
    lanes: dict[str, int] = {}
    for lane, at_ns, duration_ns, name, arguments in _events(run, document):
        event = {"ph": "X", "cat": OWN_CATEGORY, "name": name, "pid": _PID}
        event |= {"tid": lanes.setdefault(lane, len(lanes) + 1)}
        event |= {"ts": (shift_ns + at_ns) / 1000, "dur": duration_ns / 1000, "args": arguments}
        yield json.dumps(event)
    for lane, number in {"": 0, **lanes}.items():
        kind, name = ("thread_name", lane) if lane else ("process_name", "traceprof")
        about = {"ph": "M", "pid": _PID, "tid": number, "ts": 0}
        yield json.dumps(about | {"name": kind, "args": {"name": name}})
        order = {"name": kind.replace("name", "sort_index"), "args": {"sort_index": number}}
        yield json.dumps(about | order)


def _events(run: Run, document: Document) -> Iterator[_Lane]:
    """Yield findings, steps, and gaps in this order, each with arguments that lead back."""
    tables = {name: result.table.rows() for name, result in document.results.items()}
    findings = document.results.get("findings")
    advice = findings_for_people(findings)[:_MAX_FINDINGS] if findings else []
    for number, row in enumerate(advice, 1):
        yield _finding(run, document, f"Finding {number}", row)
    for row in tables.get("steps", ()):
        owner = process_label(row["process"], document.ranks.get(row["process"]))
        times = int(row["at_ns"]), int(row["duration_ns"])
        yield f"Steps of {owner}", *times, f"step {row['step']:.0f}", {"kind": str(row["kind"])}
    for row in sorted(tables.get("gaps", ()), key=lambda row: (row["device"], row["at_ns"])):
        about = {name: row[name] for name in ("cause", "host_name", "before", "after") if row[name]}
        lane, name = f"Longest waits of GPU {row['device']}", f"idle: {row['cause']}"
        yield lane, int(row["at_ns"]), int(row["duration_ns"]), name, about


def _finding(run: Run, document: Document, lane: str, row: Row) -> _Lane:
    """Return a finding at its worst case, or over the analyzed window if it has none.

    The arguments lead back: a command that opens the place, and its address in a page.
    """
    place, window = document.selection.window.hull, str(row["window"] or "")
    with suppress(UsageError):
        place = select(run.within("all").of_ranks(), window).window.hull if window else place
    start_ns = document.ns_after_start(place.start_ns)
    texts = {name: value_text(Unit.TEXT, row[name]) for name in ("evidence", "action", "caveat")}
    where = f"{shlex.quote(document.info.path)} --window {start_ns}ns"
    arguments = {
        "saving": saving_words(row),
        **texts,
        "open": f"traceprof timeline {where}..{start_ns + place.duration_ns}ns",
        "address": address_of(start_ns, start_ns + place.duration_ns),
    }
    known = {name: text for name, text in arguments.items() if text}
    return lane, start_ns, place.duration_ns, value_text(Unit.TEXT, row["title"]), known
