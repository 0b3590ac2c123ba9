"""What the rules on late ranks share: the waits must be known, and claims on waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.claims import Claim
from traceprof.findings.context import Context
from traceprof.measures.collectives.blame import why_withheld
from traceprof.measures.collectives.waits import find_waits
from traceprof.model.results import Note

MIN_RANGE_FACTOR: Final = 1.05
REPLAY_ERROR_FACTOR: Final = 0.95
MODEL: Final = Note(
    "traceprof replays the waiting without the delay. Lower bound: 5% less, the error in runs with "
    "known delays. Upper bound: the waiting time of the rank that waits least."
)
_MIN_SHARED_COLLECTIVES: Final = 2


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
    if len(np.unique(waits["match"][waits["is_in_step"]])) < _MIN_SHARED_COLLECTIVES:
        raise NotRecordedError(
            "the ranks share too few collectives in this window to attribute their waiting"
        )


def devices_of_members(context: Context) -> dict[int, int]:
    """Return the device of each rank, by index in `find_members`."""
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


def attributed(claims: tuple[Claim, ...], due_ns: float) -> tuple[Claim, ...]:
    """Return the claims with ``due_ns`` of their time attributed to the finding, or all."""
    total_ns = sum(claim.total_ns for claim in claims)
    ratio = min(1.0, due_ns / total_ns) if total_ns else 0.0
    return tuple(replace(claim, attributed_ratio=ratio) for claim in claims)
