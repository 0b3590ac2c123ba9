"""The folder of a job that was restarted, made by hand: files of attempts and their manifests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.builders import TraceBuilder
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.timing import TRACEPROF_DOMAIN

__all__ = ["ZERO", "S", "write_job", "write_launcher"]

S = 1_000_000_000
ZERO = 1_700_000_000 * S
"""When the job began, in ns since 1970."""

Epochs = dict[int, list[tuple[float, float]]]


def _builder(rank: int, world: int, attempt: dict[str, Any]) -> TraceBuilder:
    """Return what one rank did: set-up of its process group, epochs of steps, checkpoints."""
    builder = TraceBuilder().process(100 + rank, rank=rank, world_size=world)
    more = {"domain": TRACEPROF_DOMAIN, "process": 100 + rank}
    for name in ("init_process_group", "checkpoint.save", "checkpoint.load"):
        for begin, end in attempt.get(name, ()):
            builder.range(name, int(begin * S), int(end * S), **more)
    for epoch, steps in attempt["epochs"].items():
        builder.mark("epoch", int(steps[0][0] * S), epoch, **more)
        for begin, end in steps:
            builder.range("user_step", int(begin * S), int(end * S), kind="start_end", **more)
            builder.range("optimizer", int((end - 0.01) * S), int(end * S), **more)
    return builder


def write_launcher(
    folder: Path, launcher: str, attempts: list[dict[str, Any]], agents: Any
) -> None:
    rows = []
    for attempt in attempts:
        rank, world = attempt["rank"], attempt["world"]
        trace = _builder(rank, world, attempt).build()
        trace = replace(trace, info=replace(trace.info, utc_epoch_ns=ZERO))
        name = f"rank{rank}-{launcher}-{len(rows)}.sqlite"
        write_nsys(trace, folder / name)
        started, ended = (ZERO + int(at * S) for at in attempt["ran"])
        rows.append(
            {
                "file": name,
                "host": "here",
                "rank": rank,
                "world_size": world,
                "started_ns": started,
                "ended_ns": ended,
                "ended": attempt["ended"],
                "run_id": "job",
            }
        )
    events = [
        {
            **event,
            "start_ns": ZERO + int(event["start_ns"] * S),
            "end_ns": ZERO + int(event["end_ns"] * S),
        }
        for event in agents
    ]
    manifest = {"traceprof_run": 1, "label": "job", "ranks": rows, "agents": events}
    (folder / f"manifest-{launcher}.json").write_text(json.dumps(manifest))


def write_job(folder: Path) -> Path:
    """Write a job of two attempts, times in s: rank 1 is killed at 5.5 in epoch 1, and both ranks
    go on with epoch 1 at 12, from the checkpoint that was saved at 4.2.
    """
    steps = {0: [(2.0, 3.0), (3.0, 4.0)], 1: [(4.5, 5.0), (5.0, 5.4)]}
    first = {
        "world": 2,
        "ended": "failed",
        "init_process_group": [(0.5, 1.0)],
        "epochs": steps,
        "checkpoint.save": [(4.0, 4.2)],
    }
    second = {
        "world": 1,
        "ended": "finished",
        "init_process_group": [(10.5, 11.0)],
        "checkpoint.load": [(11.0, 11.2)],
        "epochs": {1: [(12.0, 13.0), (13.0, 14.0)], 2: [(14.0, 15.0), (15.0, 16.0)]},
    }
    folder.mkdir()
    meeting = {"kind": "rendezvous", "world_size": 1}
    agents = [
        {"kind": "restart", "state": "failed", "start_ns": 6.4, "end_ns": 9.1},
        {**meeting, "start_ns": 6.4, "end_ns": 9.0},
    ]
    attempts = [{**first, "rank": 0, "ran": (0, 6)}, {**second, "rank": 0, "ran": (10, 17)}]
    write_launcher(folder, "a", attempts, agents)
    lost = {**first, "rank": 1, "ran": (0, 5.5), "ended": "killed", "checkpoint.save": []}
    write_launcher(folder, "b", [lost], [])
    return folder
