"""Traces of several processes in one Kineto file: each is a rank, with the work it launched."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.formats.kineto_file import complete, on_device, write
from traceprof.formats import open_trace
from traceprof.measures.collectives.members import find_members
from traceprof.measures.host.launches import launches_of
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text
from traceprof.session.run import open_run

MS = 1_000_000
STEPS, KERNELS = 6, 4


def rank_events(
    rank: int,
    *,
    pid: int | None = None,
    tid: int | None = None,
    device: int | None = None,
    lane: int | None = None,
    ready_ms: int = 20,
    first: int = 1,
    named: str = "",
) -> list[dict[str, Any]]:
    """Return the events of one rank, in lockstep with the others: steps of 40 ms.

    Its kernels end after ``ready_ms``, then it waits in an all-reduce until 35 ms. Correlations
    count from ``first``.
    """
    pid = 4000 + rank if pid is None else pid
    host = {"pid": pid, "tid": pid if tid is None else tid}
    device = rank if device is None else device
    events: list[dict[str, Any]] = []
    if named:
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": named}})
    correlation = first
    for step in range(STEPS):
        at = 1000 * MS + step * 40 * MS
        events.append(complete("user_annotation", f"ProfilerStep#{step}", at, at + 39 * MS, **host))
        length = ready_ms * MS // KERNELS
        work = [("gemm", at + MS + i * length, at + MS + (i + 1) * length) for i in range(KERNELS)]
        work.append(("ncclDevKernel_AllReduce_Sum_f32_RING_LL", work[-1][2], at + 35 * MS))
        for place, (name, start, end) in enumerate(work):
            call = at + place * 1000 + rank
            args = {"correlation": correlation}
            events.append(
                complete("cuda_runtime", "cudaLaunchKernel", call, call + 500, **host, args=args)
            )
            event = on_device("kernel", name, start, end, device=device, correlation=correlation)
            event["pid"] = device if lane is None else lane
            events.append(event)
            correlation += 1
    return events


def as_it_happens(part: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return part


def as_kineto_writes(part: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events of a rank with those of the host first, then calls and kernels."""
    return sorted(part, key=lambda event: event.get("cat") in ("cuda_runtime", "kernel"))


def by_kind(part: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return them with kernels first, then calls, then ranges."""
    kinds = ["kernel", "cuda_runtime"]
    return sorted(part, key=lambda e: kinds.index(e["cat"]) if e.get("cat") in kinds else 2)


LAYOUTS = (as_it_happens, as_kineto_writes, by_kind)


def read(
    path: Path, parts: list[list[dict[str, Any]]], order: str = "blocks", **header: Any
) -> Trace:
    events = [event for part in parts for event in part]
    if order == "by time":
        events.sort(key=lambda event: (int(str(event.get("ts", "0")).strip("@")), event["ph"]))
    elif order == "shuffled":
        random.Random(1).shuffle(events)
    return open_trace(write(path, events, **header))


def check(trace: Trace, ready_ms: list[int]) -> None:
    """Check that each rank has its own kernels, all of them launched by it, on its own device."""
    kernels = trace.kernels
    assert launches_of(trace, "kernels").is_known.all()
    processes = np.unique(kernels["process"]).tolist()
    assert len(processes) == len(ready_ms)
    assert len(np.unique(kernels["device"])) == len(ready_ms)
    members = find_members(Ranks.of(trace))
    assert len(members) == len(ready_ms)
    for member, ready in zip(members, ready_ms, strict=True):
        mine = kernels["process"] == member.process
        assert mine.sum() == STEPS * (KERNELS + 1)
        assert len(np.unique(kernels["device"][mine])) == 1
        own = (kernels["name"] == "gemm") & mine
        lengths = kernels["end_ns"][own] - kernels["start_ns"][own]
        assert set(lengths.tolist()) == {ready * MS // KERNELS}
    steps = trace.ranges.take(trace.ranges["name"] == "ProfilerStep#0")
    assert len(steps) == len(ready_ms)


def ready(n: int) -> list[int]:
    """Return when each rank has computed: the last one takes the longest."""
    return [12 + rank for rank in range(n - 1)] + [32]


@pytest.mark.parametrize("order", ["blocks", "by time", "shuffled"])
@pytest.mark.parametrize("first", [1, None], ids=["each counts from 1", "numbered through"])
@pytest.mark.parametrize("n", [2, 3, 6, 8])
def test_devices_are_bound_to_the_process_that_launched(
    tmp_path: Path, n: int, first: int | None, order: str
) -> None:
    parts = [
        rank_events(rank, ready_ms=ms, first=first or 1 + 1000 * rank)
        for rank, ms in enumerate(ready(n))
    ]
    trace = read(tmp_path / "t.json", parts, order)
    check(trace, ready(n))
    assert [member.rank for member in find_members(Ranks.of(trace))] == list(range(n))


@pytest.mark.parametrize("n", [2, 4, 8])
def test_one_device_number_in_processes_of_several_hosts(tmp_path: Path, n: int) -> None:
    parts = [rank_events(rank, ready_ms=ms, device=0) for rank, ms in enumerate(ready(n))]
    known: dict[str, Any] = {"deviceProperties": [{"id": 0, "name": "H100"}]}
    for layout in LAYOUTS:
        trace = read(tmp_path / "t.json", [layout(part) for part in parts], **known)
        check(trace, ready(n))
    assert trace.devices["name"].tolist() == ["H100"] * n
    assert [member.rank for member in find_members(Ranks.of(trace))] == [-1] * n


@pytest.mark.parametrize("n", [2, 4])
def test_lanes_of_one_number_that_the_merger_told_apart(tmp_path: Path, n: int) -> None:
    parts = [
        rank_events(rank, ready_ms=ms, device=0, lane=900 + rank)
        for rank, ms in enumerate(ready(n))
    ]
    check(read(tmp_path / "t.json", parts, "by time"), ready(n))


@pytest.mark.parametrize("device", [None, 0], ids=["own devices", "all device 0"])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_processes_of_several_hosts_with_one_id(tmp_path: Path, n: int, device: int | None) -> None:
    parts = [
        rank_events(rank, pid=42, device=device, ready_ms=ms) for rank, ms in enumerate(ready(n))
    ]
    for layout in LAYOUTS:
        check(read(tmp_path / "t.json", [layout(part) for part in parts]), ready(n))


@pytest.mark.parametrize("order", ["blocks", "by time"])
@pytest.mark.parametrize("own", [True, False], ids=["own ids", "one id"])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_labels_in_front_of_ids_tell_processes_apart(
    tmp_path: Path, n: int, own: bool, order: str
) -> None:
    """As SGLang merges the files of its ranks: "[TP00] 4000"."""
    parts = []
    for rank, ms in enumerate(ready(n)):
        told = {"pid": 4000 + rank} if own else {"pid": 4000, "device": 0}
        part = rank_events(rank, ready_ms=ms, named="python", **told)
        parts.append([{**event, "pid": f"[TP{rank:02d}] {event['pid']}"} for event in part])
    trace = read(
        tmp_path / "t.json", parts, order, deviceProperties=[{"id": i % 2} for i in range(4)]
    )
    check(trace, ready(n))
    members = find_members(Ranks.of(trace))
    assert [member.rank for member in members] == list(range(n))
    if own:
        assert [member.process for member in members] == [4000 + rank for rank in range(n)]
        assert trace.info.warnings == ()
    assert "[TP01] python" in trace.processes["name"].tolist()
    assert sorted(set(trace.devices["device"].tolist())) == trace.devices["device"].tolist()


def test_what_is_called_otherwise_than_in_the_file_is_said(tmp_path: Path) -> None:
    parts = [rank_events(rank, pid=42, device=0) for rank in range(3)]
    assert read(tmp_path / "t.json", parts).info.warnings == (
        "3 processes in the file have the same ID 42; traceprof gives each its own ID (the last "
        "process has ID 200000042)",
        "several processes in the file use the same GPU number; traceprof numbers the GPUs 0 to 2, "
        "in the order of the processes",
    )
    assert read(tmp_path / "u.json", [rank_events(i) for i in range(3)]).info.warnings == ()


def test_processes_with_one_id_and_threads_of_their_own(tmp_path: Path) -> None:
    parts = [
        rank_events(rank, pid=42, tid=100 + rank, ready_ms=ms) for rank, ms in enumerate(ready(3))
    ]
    check(read(tmp_path / "t.json", parts, "by time"), ready(3))


def test_ranks_are_told_by_names_or_by_the_header(tmp_path: Path) -> None:
    parts = [rank_events(i, named=f"[rank {5 - i}] python") for i in range(3)]
    trace = read(tmp_path / "t.json", parts)
    ranks = {one.process: one.rank for one in find_members(Ranks.of(trace))}
    assert ranks == {4000: 5, 4001: 4, 4002: 3}
    told = [{"rank": 8 + i, "world_size": 16} for i in range(3)]
    trace = read(tmp_path / "t.json", [rank_events(i) for i in range(3)], distributedInfo=told)
    assert [one.rank for one in find_members(Ranks.of(trace))] == [8, 9, 10]


def test_a_header_of_one_rank_says_nothing_of_the_others(tmp_path: Path) -> None:
    told = {"rank": 0, "world_size": 16}
    trace = read(tmp_path / "t.json", [rank_events(i) for i in range(3)], distributedInfo=told)
    assert [one.rank for one in find_members(Ranks.of(trace))] == [-1, -1, -1]
    told = {"rank": 0, "world_size": 3}
    trace = read(tmp_path / "t.json", [rank_events(i) for i in range(3)], distributedInfo=told)
    assert [one.rank for one in find_members(Ranks.of(trace))] == [0, 1, 2]


def test_one_gpu_that_serves_two_processes_is_one(tmp_path: Path) -> None:
    parts = [rank_events(rank, device=0) for rank in range(2)]
    alone = [
        [e for e in part if "nccl" not in e.get("name", "") and e["args"].get("correlation", 1) % 5]
        if rank
        else part
        for rank, part in enumerate([[e for e in p if "args" in e] for p in parts])
    ]
    late = [
        {**event, "ts": f"@{int(event['ts'].strip('@')) + 500 * MS:04d}@"} for event in alone[1]
    ]
    trace = read(tmp_path / "t.json", [alone[0], late])
    assert np.unique(trace.kernels["device"]).tolist() == [0]
    assert len(np.unique(trace.kernels["process"])) == 2


@pytest.mark.parametrize("n", [2, 4, 8])
def test_who_waits_least_is_to_blame(tmp_path: Path, n: int) -> None:
    parts = [rank_events(rank, ready_ms=ms) for rank, ms in enumerate(ready(n))]
    path = tmp_path / "t.json"
    read(path, parts)
    found = open_run([path]).result("findings").table
    titles = {
        rule: note_text(title) for rule, title in zip(found["rule"], found["title"], strict=True)
    }
    assert f"rank {n - 1}" in titles["straggler"]


@pytest.mark.parametrize("odd", [{"a": 1}, [1], None, True, 1.5, ""])
def test_beside_labels_ids_may_be_whatever_json_holds(tmp_path: Path, odd: object) -> None:
    part = [{**event, "pid": f"[TP00] {event['pid']}"} for event in rank_events(0, pid=42)]
    read(tmp_path / "t.json", [part, [{**part[-1], "pid": odd}]])
