"""All starts of a program that was started again, as one job: lives, epochs, events, lost time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.formats.runs.files import attempts_of_run
from traceprof.formats.runs.manifest import LAUNCHER
from traceprof.model.ranks import Attempt
from traceprof.model.results import Note
from traceprof.model.summary import SUMMARY, Summary
from traceprof.session.summarising.restarts import Restart, find_restarts, lives_at_once
from traceprof.session.summarising.started import Started, read_start

__all__ = ["with_lives"]

_MOST_FILES: Final = 512
_OWN: Final = ("start", "end", "checkpoint")
"""Events of the life that is looked at which those of all lives stand for."""
_MANY: Final = Note(
    "the job has {n:count} starts of ranks: their steps and epochs are those of the first "
    "{shown:count}"
)
_AT_ONCE: Final = Note(
    "lives {one:number} and {other:number} trained at the same time: no restart, but two jobs in "
    "one folder, or nodes that lost one another"
)
_JUDGED: Final = Note(
    "the program was started {n:count} times: steps, results and measures are those of life "
    "{life:number}, lives, events and epochs of all"
)


def with_lives(summary: Summary, paths: Sequence[Path | str], life: int | None = None) -> Summary:
    """Return ``summary`` of a run with what is known of every start of its program.

    Times then count from where the first agents meet, else from the start of the first process.
    Nothing changes where no manifest tells when processes were started.

    Args:
        summary: what is kept of the life that was looked at.
        paths: where the run lies.
        life: which life that was, None for the one that is chosen where nobody says.
    """
    lives, agents, chosen = attempts_of_run(paths)
    if not lives or summary.started_utc_ns is None:
        return summary
    shown = chosen if life is None else life
    met = (event.get("start_ns") for event in agents if event.get("kind") == "rendezvous")
    begins = [one.start_ns for one in lives] + [at for at in met if isinstance(at, int)]
    zero = min(begins)
    nodes = _nodes(lives)
    started = [one for one in map(read_start, lives[:_MOST_FILES]) if one is not None]
    epochs = _epochs(started, zero)
    restarts = find_restarts(lives, started, agents)
    events = [
        *_starts(lives, zero),
        *_of_restarts(restarts, zero),
        *_of_agents(agents, nodes, zero),
    ]
    events += [*_set_ups(lives, started, zero), *_failures(lives, nodes, zero)]
    events += _checkpoints(started, zero)
    shift_ns = summary.started_utc_ns - zero
    tables = {name: _moved(table, shift_ns, shown) for name, table in summary.tables.items()}
    theirs = tables.get("events", SUMMARY.table("events").frame())
    kept: list[dict[str, Any]] = [
        {str(name): value for name, value in row.items()}
        for row in theirs[~theirs["kind"].isin(_OWN)].to_dict("records")
    ]
    tables["events"] = _numbered(events + kept)
    tables["lives"] = SUMMARY.table("lives").frame(pd.DataFrame(list(_lives(lives, nodes, zero))))
    if len(epochs):
        tables["epochs"] = SUMMARY.table("epochs").frame(epochs)
    notes = list(summary.notes)
    count = len({one.life for one in lives})
    if count > 1:
        notes.append(replace(_JUDGED, values={"n": count, "life": shown}))
    for one, other in lives_at_once(started):
        notes.append(replace(_AT_ONCE, values={"one": one, "other": other}))
    if len(lives) > _MOST_FILES:
        notes.append(replace(_MANY, values={"n": len(lives), "shown": _MOST_FILES}))
    return replace(summary, tables=tables, started_utc_ns=zero, notes=tuple(notes))


def _nodes(lives: Sequence[Attempt]) -> dict[str, str]:
    """Return what the node of each launcher is called: its host, numbered where it has several."""
    hosts: dict[str, list[str]] = {}
    for one in lives:
        of_host = hosts.setdefault(one.host, [])
        if one.launcher not in of_host:
            of_host.append(one.launcher)
    return {
        launcher: host if len(launchers) == 1 else f"{host}#{number}"
        for host, launchers in hosts.items()
        for number, launcher in enumerate(launchers, 1)
    }


def _lives(
    lives: Sequence[Attempt], nodes: Mapping[str, str], zero: int
) -> Iterator[Mapping[str, Any]]:
    for one in lives:
        yield {
            "life": one.life,
            "rank": one.rank,
            "node": nodes[one.launcher],
            "at_ns": one.start_ns - zero,
            "end_ns": one.end_ns - zero,
            "ended": one.ended,
            "source": one.path,
        }


def _epochs(started: Sequence[Started], zero: int) -> pd.DataFrame:
    """Return the epochs of each life, from where its first rank begins to where its last ends."""
    rows = []
    for one in started:
        for row in one.epochs.to_dict("records"):
            begin, end = int(row["start_ns"]), int(row["end_ns"])
            inside = (one.work[:, 0] >= begin) & (one.work[:, 0] < end)
            sizes = one.batches[one.batches["at"].between(begin, end, inclusive="left")]["size"]
            rows.append((one.life.life, row["epoch"], begin, end, int(inside.sum()), sizes.sum()))
    table = pd.DataFrame(rows, columns=["life", "epoch", "begin", "end", "steps", "samples"])
    groups = table.groupby(["life", "epoch"], sort=True)
    found = pd.DataFrame(
        {
            "at_ns": groups["begin"].min() - zero,
            "duration_ns": groups["end"].max() - groups["begin"].min(),
            "steps_count": groups["steps"].max(),
            "samples_count": groups["samples"].sum(),
            "ranks_count": groups.size(),
        }
    ).reset_index()
    return found.assign(samples_count=found["samples_count"].replace(0, np.nan))


def _starts(lives: Sequence[Attempt], zero: int) -> Iterator[dict[str, Any]]:
    """Return start and end of the job, and how many ranks each life has."""
    before: set[str] = set()
    size_before = 0
    for life in sorted({one.life for one in lives}):
        own = [one for one in lives if one.life == life]
        at = min(one.start_ns for one in own) - zero
        size = max(len(own), *(one.world_size for one in own))
        if life == 0:
            yield {"kind": "start", "at_ns": at, "duration_ns": 0, "life": 0, "value": size}
        else:
            came = sorted({one.launcher for one in own} - before)
            gone = sorted(before - {one.launcher for one in own})
            yield {"kind": "restart", "at_ns": at, "life": life, "value": size}
            if came or gone or size != size_before:
                text = " and ".join(
                    filter(None, ("nodes came" if came else "", "nodes went" if gone else ""))
                )
                yield {"kind": "membership", "at_ns": at, "life": life, "value": size, "text": text}
        before, size_before = {one.launcher for one in own}, size
    end = max(one.end_ns for one in lives) - zero
    last = max(one.life for one in lives)
    yield {"kind": "end", "at_ns": end, "duration_ns": 0, "life": last}


def _set_ups(
    lives: Sequence[Attempt], started: Sequence[Started], zero: int
) -> Iterator[dict[str, Any]]:
    """Return set-up and worker initialisation of the first life: later ones are lost time."""
    own = [one for one in started if one.life.life == 0 and one.begin_ns is not None]
    if not own:
        return
    begin = min(one.start_ns for one in lives if one.life == 0)
    first = min(one.begin_ns for one in own if one.begin_ns is not None)
    spans = [(a, b) for one in own for a, b in one.initialisation if a < first]
    length = max((int(b - a) for a, b in spans), default=0)
    if spans:
        at = min(int(a) for a, _ in spans)
        yield {"kind": "initialisation", "at_ns": at - zero, "duration_ns": length, "life": 0}
    yield {
        "kind": "setup",
        "at_ns": begin - zero,
        "duration_ns": first - begin - length,
        "life": 0,
        "text": "from the start of the first process to the first step, without initialisation",
    }


def _of_restarts(restarts: Sequence[Restart], zero: int) -> Iterator[dict[str, Any]]:
    """Return the time lost at each restart, and of what it is made."""
    for one in restarts:
        about = {"life": one.life, "epoch": one.epoch}
        yield {
            "kind": "time_lost",
            "at_ns": one.kept_ns - zero,
            "duration_ns": one.begin_ns - one.kept_ns,
            "value": one.redone_count,
            "text": one.why,
            **about,
        }
        for part in one.parts:
            yield {
                "kind": part.kind,
                "at_ns": part.at_ns - zero,
                "duration_ns": part.duration_ns,
                **about,
            }


def _failures(
    lives: Sequence[Attempt], nodes: Mapping[str, str], zero: int
) -> Iterator[dict[str, Any]]:
    for one in lives:
        if one.ended in ("failed", "killed"):
            yield {
                "kind": "failure" if one.ended == "failed" else "stopped",
                "at_ns": one.end_ns - zero,
                "life": one.life,
                "rank": one.rank,
                "node": nodes[one.launcher],
                "text": one.ended,
            }


def _of_agents(
    agents: Sequence[Mapping[str, Any]], nodes: Mapping[str, str], zero: int
) -> Iterator[dict[str, Any]]:
    for event in agents:
        if event.get("kind") != "rendezvous" or not isinstance(event.get("start_ns"), int):
            continue
        yield {
            "kind": "rendezvous",
            "at_ns": event["start_ns"] - zero,
            "duration_ns": event["end_ns"] - event["start_ns"],
            "node": nodes.get(str(event.get(LAUNCHER)), str(event.get("node", ""))),
            "value": event.get("world_size"),
        }


def _checkpoints(started: Sequence[Started], zero: int) -> Iterator[dict[str, Any]]:
    for one in started:
        for what, spans in (("saved", one.saves), ("loaded", one.loads)):
            for begin, end in spans:
                yield {
                    "kind": "checkpoint",
                    "at_ns": int(begin) - zero,
                    "duration_ns": int(end - begin),
                    "life": one.life.life,
                    "rank": one.life.rank,
                    "text": what,
                }


def _numbered(events: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    spec = SUMMARY.table("events")
    columns = [column.name for column in spec]
    table = pd.DataFrame(list(events), columns=columns)
    table = table.sort_values("at_ns", kind="stable", ignore_index=True)
    return spec.frame(table.assign(event=np.arange(len(table))))


def _moved(table: pd.DataFrame, shift_ns: int, life: int) -> pd.DataFrame:
    """Return a table of the life that was looked at as a part of the whole job."""
    columns: dict[str, Any] = {}
    for name in ("at_ns", "end_ns"):
        if name in table:
            columns[name] = table[name] + shift_ns
    if "life" in table:
        columns["life"] = life
    return table.assign(**columns) if len(table) else table
