"""The ranks that rules compare: what they require, and whose time they claim."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import COLLECTIVES, NotApplicableError, count_of
from traceprof.findings.claims import Claim
from traceprof.findings.context import Context
from traceprof.measures.collectives.blame import why_withheld
from traceprof.measures.collectives.waits import find_waits
from traceprof.model.trace import Trace

_MIN_SHARED_COLLECTIVES: Final = 3
_MIN_COLLECTIVES_IN_STEP: Final = 2


def require_waiting(context: Context) -> None:
    """Check that the waits between ranks are known.

    Raises:
        NotRecordedError: the trace does not show which rank waits for which rank.
    """
    if not context.matches.is_shared:
        raise NotRecordedError("no collective is shared by several ranks")
    if why_not := why_withheld(context.ranks):
        raise NotRecordedError(why_not)
    waits = find_waits(context.ranks)
    n_in_step = len(np.unique(waits["match"][waits["is_in_step"]]))
    if len(context.matches.table) < _MIN_SHARED_COLLECTIVES or n_in_step < _MIN_COLLECTIVES_IN_STEP:
        raise NotRecordedError(
            "the ranks share too few collectives in this window to attribute their waiting"
        )


def require_activity(context: Context) -> None:
    """Check that GPU activity was recorded, or collectives that several CPU ranks share.

    Raises:
        NotRecordedError: neither was recorded, or one file contains several CPU ranks.
    """
    if context.devices:
        return
    if not context.matches.is_shared:
        context.ranks.require("kernels")
    elif len({*devices_of_members(context).values()}) < len(context.matches.members):
        raise NotRecordedError("one file contains the CPUs of several ranks")


def require_ranks(context: Context) -> None:
    """Check the same as `require_activity`, and that there are several GPUs or CPU ranks.

    One process launches the work of its GPUs one after the other, so none of them is late.
    """
    require_activity(context)
    if len(context.devices or context.matches.members) < 2:
        communicates = count_of(context, COLLECTIVES) or context.matches.is_shared
        error = NotRecordedError if communicates else NotApplicableError
        raise error("the trace contains one GPU: pass the traces of all ranks")
    if context.devices and len({process for process, _ in context.process_devices}) < 2:
        raise NotApplicableError("one process launches the work of all GPUs")


def devices_of_members(context: Context) -> dict[int, int]:
    """Return the device of each rank, by index in `find_members`; its CPU without devices."""
    if not context.devices:
        cpus = {
            process: -1 - i
            for i, processes in enumerate(context.ranks.each(_processes_of))
            for process in processes
            if -1 - i in context.places
        }
        members = context.matches.members
        return {i: cpus[one.process] for i, one in enumerate(members) if one.process in cpus}
    rows = context.matches.rows.select("member", "device")
    known_rows = rows.take(np.isin(rows["device"], list(context.places)) & (rows["member"] >= 0))
    places, first = np.unique(known_rows["member"], return_index=True)
    found = dict(zip(places.tolist(), known_rows["device"][first].tolist(), strict=True))
    # Ranks whose CPU communicates: the first device of their process.
    devices: dict[int, int] = {}
    for process, device in context.process_devices:
        devices.setdefault(process, device)
    for place, member in enumerate(context.matches.members):
        if member.process in devices:
            found.setdefault(place, devices[member.process])
    return found


def _processes_of(part: Trace) -> list[int]:
    return [int(process) for process in part.processes["process"]]


def attributed(claims: tuple[Claim, ...], due_ns: float) -> tuple[Claim, ...]:
    """Return the claims with ``due_ns`` of their time attributed to the finding, or all."""
    total_ns = sum(claim.total_ns for claim in claims)
    ratio = min(1.0, due_ns / total_ns) if total_ns else 0.0
    return tuple(replace(claim, attributed_ratio=ratio) for claim in claims)
