"""Idle devices where no other rule says why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Claim, Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.measures.device.times import used_devices
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace

__all__ = ["RULE"]

_LEAST: Final = 0.1
_TELLING: Final = ("kernels", "copies", "api_calls", "ranges")
_WORDS: Final = {
    "queued": "work had been launched and waited for another stream, or for the pause between two "
    "kernels",
    "peer": "work that another device takes part in",
    "edge": "before the first or after the last work of the device",
    "unknown": "which call launched the next work was not recorded",
}
_TITLES: Final = {
    "queued": "idle while launched work waits",
    "peer": "idle while another device does what this one takes part in",
    "edge": "no work before the first or after the last kernel",
    "unknown": "idle, and the recording does not tell why",
}
_ACTIONS: Final = {
    "edge": "see when each device works (`traceprof timeline`): give it work from the beginning, "
    "or judge the time in which all of them work (--window)",
    "unknown": "record the calls that launch the work (nsys: --trace=cuda, and openacc or openmp "
    "where the program uses them)",
}
_MOST: Final = 0.5


def _check(context: Context) -> Iterator[Finding]:
    rest = context.left(
        {
            device: recorded - context.times[device].busy
            for part, recorded in zip(context.ranks, context.ranks.each(_recorded), strict=True)
            for device in used_devices(part)
        }
    )
    least_ns = _LEAST * context.typical_ns
    low = {device: time for device, time in rest.times.items() if time.total_ns >= least_ns}
    claim = Claim(low)
    if not low:
        return
    busy = {d: 1 - time.total_ns / context.typical_ns for d, time in low.items()}
    worst = min(busy, key=lambda device: busy[device])
    causes = _causes(context, claim)
    most = causes[0][1] if causes and causes[0][0] > _MOST else ""
    yield Finding(
        title=Note.of(
            f"{_TITLES.get(most, 'idle for several reasons')}: {{who}}, {{share:ratio}} of the "
            "time",
            who=_listed(list(low), len(context.devices)),
            share=claim.total_ns / context.typical_ns / len(low),
        ),
        claims=(claim,),
        kind=Kind.NONE if most == "edge" else Kind.BOUNDED,
        evidence=_first_works(context, claim)
        if most == "edge"
        else tuple(
            Note.of("{share:ratio} of it: {words}", share=own, words=_WORDS[cause])
            for own, cause in causes
        ),
        action=_ACTIONS.get(most, "see what runs there: `traceprof show gaps`"),
        caveat="start-up and shut-down count, too: choose a window inside the loop (--window)",
        window=_longest(context, worst, claim),
    )


def _recorded(part: Trace) -> Intervals:
    """Return when the recording of a rank was on, as far as its rows tell."""
    tables = [part.table(name) for name in _TELLING]
    filled = [table for table in tables if len(table)]
    starts = [int(table["start_ns"].iloc[0]) for table in filled]
    ends = [int(table["end_ns"].max()) for table in filled]
    return Intervals.single(min(starts), max(ends)) if filled else Intervals.empty()


def _listed(devices: list[int], n_all: int) -> str:
    if len(devices) == n_all and n_all > 1:
        return f"all {n_all} devices"
    numbers = ", ".join(map(str, devices))
    return f"device {numbers}" if len(devices) == 1 else f"devices {numbers}"


def _first_works(context: Context, claim: Claim) -> tuple[Note, ...]:
    """Return when the devices begin to work after the window does, and stop before its end."""
    notes = []
    for device in claim.times:
        busy, span = context.times[device].busy, context.ranks.span
        if not len(busy):
            notes.append(Note.of("device {device} does nothing in it", device=device))
            continue
        late_ns = int(busy.starts[0]) - span.start_ns
        early_ns = span.end_ns - int(busy.ends[-1])
        begins = "begins {late:ns} after the start of the window" if late_ns else ""
        stops = "stops {early:ns} before its end" if early_ns and late_ns else ""
        stops = stops or ("stops {early:ns} before the end of the window" if early_ns else "")
        both = " and ".join(filter(None, (begins, stops)))
        if both:
            text = f"device {{device}} {both}"
            notes.append(Note.of(text, device=device, late=late_ns, early=early_ns))
    return tuple(notes[:3])


def _causes(context: Context, claim: Claim) -> list[tuple[float, str]]:
    """Return the share of each cause that is left to say, the largest first."""
    found = []
    for cause in _WORDS:
        own = context.idle_for(cause).times
        total = sum((own[d] & time).total_ns for d, time in claim.times.items() if d in own)
        found.append((total / max(1, claim.total_ns), cause))
    return [own for own in sorted(found, reverse=True) if own[0] >= _LEAST]


def _longest(context: Context, device: int, claim: Claim) -> str:
    time = claim.times[device]
    place = int((time.ends - time.starts).argmax())
    return context.window_text(int(time.starts[place]), int(time.ends[place]))


RULE = Rule(
    name="low_utilisation",
    subject="idle time",
    summary="idle devices where nothing says why",
    needs=("kernels", "copies"),
    show="idle",
    check=_check,
)
