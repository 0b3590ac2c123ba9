"""Reports GPU work that is missing from the recordings of a run: how much, why, and how to fix it.

Missing work is unknown. It counts neither as idle time nor as compute.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from traceprof.measures.device.counters import active_sms
from traceprof.measures.device.times import device_time, used_devices
from traceprof.measures.facts import of_window
from traceprof.measures.steps.completeness import (
    LACKS_WORK,
    WHOLE,
    Completeness,
    completeness,
    launches_by_kind,
    wholeness_of_ranks,
)
from traceprof.measures.steps.find import find_steps, steps_of_ranks
from traceprof.measures.steps.measured import named_steps
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.trace import RecordedBy, Trace

_PHASE: Final = "phase"
_UNKNOWN: Final = "is_idle_unknown"
"""Values of notes on missing work that makes the idle time unknown."""
_MIN_SIGNS: Final = 3
_MIN_UNLAUNCHED_RATIO: Final = 0.1
_MIN_GRAPH_GAP_RATIO: Final = 0.05
_LACKS: Final = {
    "kernel": "kernel launches have no recorded kernel",
    "graph": "CUDA graph launches have no recorded kernels",
    "copy": "copy calls have no recorded copy",
    "memset": "memset calls have no recorded memset",
}
_MIN_LOST_RATIO: Final = 0.01
"""Without known steps, a smaller share of launches without work does not change any answer."""
_MIN_WHOLE_STEPS_RATIO: Final = 0.25
"""With a smaller share of whole steps, too little data remains to analyze idle time."""
_MIN_BUSY_RATIO: Final = 0.2
"""A device with a smaller share of recorded busy time has almost no recorded work."""
_MIN_ACTIVE_FACTOR: Final = 2
"""SM activity of more than this multiple of the recorded activity means that work is missing."""
_MIN_POWER_FACTOR: Final = 2.0
"""A working device draws at least this multiple of its idle power."""
_POWER_SAMPLE_NS: Final = 1_000_000_000
"""Power is sampled and averaged over up to one second."""
_INCOMPLETE_WARNING: Final = re.compile(
    r"not all CUDA|lost|dropped|discarded|overflow|cut off|truncated|(file|it) is damaged"
    r"|is missing|not in the file|no trace of|were not recorded",
    re.IGNORECASE,
)
_NSYS: Final = re.compile(r"(?P<year>20\d\d)\.(?P<number>\d+)")
_CUDA_OF_NSYS: Final = (
    *((2022.4, "11.8"), (2023.1, "12.1"), (2023.2, "12.2"), (2023.3, "12.3"), (2023.4, "12.4")),
    *((2024.2, "12.5"), (2024.4, "12.6"), (2024.6, "12.8"), (2025.1, "12.9"), (2025.3, "13.0")),
    (2025.5, "13.1"),
)
"""First release of Nsight Systems that shipped with each CUDA release."""


@dataclass(frozen=True, slots=True)
class LostWork:
    """Missing work: what is missing (``what``), the ``causes``, and the recommended ``action``.

    ``is_idle_known``: enough work was recorded to measure the idle time of the devices.
    """

    what: tuple[Note, ...]
    causes: tuple[Note, ...]
    action: Note
    is_idle_known: bool


@of_window
def lost_work(ranks: Ranks) -> LostWork | None:
    """Return the missing work of the recording and its effect on the window; None if complete."""
    missing = [*missing_work(ranks)]
    if not missing:
        return None
    inside, older = ranks.each(completeness), _note_on_old_profiler(ranks)
    drawn = _note_on_power(ranks) or _note_on_sms(ranks)
    lost_counts = _counts(ranks.whole)
    if lost_counts and not _counts(ranks):
        missing.insert(len(lost_counts), Note("none of these launches is in this window"))
    hides_idle = any({_PHASE, _UNKNOWN} & {*note.values} for note in missing)
    is_known = not hides_idle and _is_enough_left(ranks, inside)
    left_out = _note_on_excluded_steps(ranks) if is_known else None
    missing += [left_out] if left_out else []
    warnings = [text for text in ranks.info.warnings if is_incompleteness_warning(text)]
    causes = [
        *(Note.of("the recording reports: {said}", said=text) for text in warnings[:1]),
        *(note for note in (older, drawn) if note),
    ]
    if not warnings and (older is None or ranks.info.recorded_by is not RecordedBy.NSYS):
        causes.append(
            Note(
                "usual causes: the profiler's buffers overflowed, another profiler used CUPTI, or "
                "profiling ended before the work was done"
            )
        )
    return LostWork(tuple(missing), tuple(causes), _action(ranks, older), is_known)


@of_window
def missing_work(ranks: Ranks) -> tuple[Note, ...]:
    """Return notes on the missing work of the whole recording, independent of the window."""
    found = ranks.whole.each(completeness)
    counts, empty = _counts(ranks.whole), _sums([rank.n_empty for rank in found])
    find_causes = (_note_on_old_profiler, _note_on_power, _note_on_sms)
    is_empty = any(empty.values()) and any(find(ranks) for find in find_causes)
    silent = empty if is_empty else _sums([rank.n_silent for rank in found])
    passes = _sums([rank.n_passes for rank in found])
    notes = [_note_on_launches(name, *numbers) for name, numbers in counts.items()]
    for phase, n in silent.items():
        if n:
            others = "" if is_empty else ", although other passes of that length have many launches"
            text = "{n:count} of {all:count} {phase} passes have no recorded launch"
            notes.append(Note.of(f"{text}{others}", n=n, all=passes[phase], phase=phase))
    if thin := sum(rank.n_thin for rank in found):
        text = f"{{thin:count}} of {{all:count}} steps{_of(ranks)} have far fewer kernel launches "
        text += "than other steps, although the host did the same work for the same time"
        notes.append(Note.of(text, thin=thin, all=sum(rank.n_steps for rank in found)))
    if any(map(attrgetter("signs"), found)):
        notes += _notes_on_calls(ranks, found)
    return tuple(notes)


def _notes_on_calls(ranks: Ranks, found: list[Completeness]) -> Iterator[Note]:
    """Yield notes on missing launch calls, on unrecorded work of graphs, and on old profilers.

    Few signs are enough if the profiler is older than the driver: it loses records of all kinds.
    """
    signs = Counter[str]()
    for rank in found:
        signs.update(rank.signs)
    n, late, uncopied = (signs[name] for name in ("unlaunched", "late_ranges", "without_copies"))
    is_old = max(n, late, uncopied) >= _MIN_SIGNS and _note_on_old_profiler(ranks) is not None
    if n >= _MIN_SIGNS and (is_old or n >= _MIN_UNLAUNCHED_RATIO * signs["kernels"]):
        text = "{n:count} of {all:count} kernels have no recorded launch call, although earlier "
        text += "kernels of the same streams have one"
        yield Note.of(text, n=n, all=signs["kernels"], **{_UNKNOWN: True})
    if late >= _MIN_SIGNS and is_old:
        text = "CUDA calls end, but {n:count} later ranges have names of ranges that launch work"
        yield Note.of(text, n=late, **{_UNKNOWN: True})
    if uncopied >= _MIN_SIGNS and is_old:
        text = "{n:count} ranges are named after copies to the GPU, but no such copy was recorded"
        yield Note.of(text, n=uncopied, **{_UNKNOWN: True})
    gap_ns = signs["graph_gap_ns"]
    if gap_ns >= _MIN_GRAPH_GAP_RATIO * signs["device_ns"] > 0:
        text = "{gap:ns} inside running CUDA graphs have no recorded work, at the same place in "
        text += "nearly every launch (or the graphs contain host functions)"
        yield Note.of(text, gap=gap_ns, **{_UNKNOWN: True})


def depends_on_power(ranks: Ranks) -> bool:
    """Return whether power samples are needed to decide if work is missing."""
    empty = _sums([rank.n_empty for rank in ranks.whole.each(completeness)])
    return any(empty.values()) and _note_on_old_profiler(ranks) is None


def is_incompleteness_warning(warning: str) -> bool:
    """Return whether a reader's warning says that a part of the recording is missing."""
    return _INCOMPLETE_WARNING.search(warning) is not None


def _sums(counts_of_ranks: list[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums over ranks, by key."""
    return {key: sum(counts[key] for counts in counts_of_ranks) for key in counts_of_ranks[0]}


def _counts(ranks: Ranks) -> dict[str, tuple[int, int]]:
    """Return, by kind of launch, the number of launches without work and of all launches.

    Kinds without missing work are omitted.
    """
    lost = {
        name: n
        for name, n in _sums([rank.n_lost for rank in ranks.each(completeness)]).items()
        if n
    }
    launches = _sums(ranks.each(launches_by_kind)) if lost else {}
    return {name: (n, launches[name]) for name, n in lost.items()}


def _note_on_launches(kind: str, n: int, n_all: int) -> Note:
    """Return a note on the launches of a kind that have no recorded work."""
    if n == n_all and kind == "kernel":
        return Note.of("kernels were not recorded: {n:count} launches have no kernel", n=n)
    return Note.of(f"{{n:count}} of {{all:count}} {_LACKS[kind]}", n=n, all=n_all)


def _is_enough_left(ranks: Ranks, found: list[Completeness]) -> bool:
    """Return whether enough work was recorded to analyze idle time."""
    if not any(rank.has_work for rank in found):
        return False
    # A window of steps contains only whole steps, so count all steps of the recording.
    counted = ranks.whole if ranks.span.is_of_steps else ranks
    wholeness, steps = wholeness_of_ranks(counted), named_steps(steps_of_ranks(counted))
    if len(steps):
        return bool((wholeness[~steps.warmup()] == WHOLE).mean() >= _MIN_WHOLE_STEPS_RATIO)
    lost = sum(_sums([rank.n_lost for rank in found]).values())
    return lost < _MIN_LOST_RATIO * sum(_sums(ranks.each(launches_by_kind)).values())


def _note_on_excluded_steps(ranks: Ranks) -> Note | None:
    """Return a note on the steps that are not analyzed; None if there are none."""
    wholeness = wholeness_of_ranks(ranks.whole if ranks.span.is_of_steps else ranks)
    n = int((wholeness == LACKS_WORK).sum())
    text = (
        f"traceprof does not analyze {{n:count}} of {{all:count}} steps{_of(ranks)} and the step "
        "after each, since their launches lack GPU work"
    )
    return Note.of(text, n=n, all=len(wholeness)) if n else None


def _of(ranks: Ranks) -> str:
    """Return " of N ranks" for step counts that are sums over ranks; "" for one rank."""
    return f" of {len(ranks)} ranks" if len(ranks) > 1 else ""


def _note_on_old_profiler(ranks: Ranks) -> Note | None:
    """Return a note if the profiler is for an older major CUDA version than the driver."""
    environment = dict(
        zip(*(ranks.table("environment")[n] for n in ("name", "value")), strict=True)
    )
    driver = _version(str(environment.get("driver.cuda") or environment.get("cuda_driver") or ""))
    profiler, name = _cuda_of_profiler(ranks, environment), ranks.info.profiler
    if not driver or not profiler or int(float(profiler)) >= int(float(driver)):
        return None
    return Note.of(
        "{name} is for CUDA {old}, but the driver is for CUDA {new}: it may lose GPU work",
        name=name,
        old=profiler,
        new=driver,
    )


def _version(text: str) -> str:
    """Return a CUDA version in the usual notation: "13.0" for 13000; "" if unknown."""
    if text.isdigit() and len(text) > 3:
        return f"{int(text) // 1000}.{int(text) % 1000 // 10}"
    return text if re.fullmatch(r"\d+\.\d+", text) else ""


def _cuda_of_profiler(ranks: Ranks, environment: dict[str, str]) -> str:
    """Return the CUDA release of the profiler; "" if unknown."""
    if "Nsight Systems" not in ranks.info.profiler:
        # torch ships CUPTI of the same version as the CUDA runtime.
        return _version(str(environment.get("cuda_runtime", "")))
    match = _NSYS.search(ranks.info.profiler)
    if match is None:
        return ""
    release = float(f"{match['year']}.{match['number']}")
    return max(
        (pair for pair in _CUDA_OF_NSYS if pair[0] <= release),
        default=(0.0, ""),
        key=lambda pair: pair[0],
    )[1]


def _note_on_power(ranks: Ranks) -> Note | None:
    """Return a note if a device with almost no recorded work drew much power, else None."""
    found = [power for power in ranks.each(_power_of_rank) if power is not None]
    idle_watts, max_watts = max(found, key=lambda power: power[1] / power[0], default=(0.0, 0.0))
    if not found or max_watts < _MIN_POWER_FACTOR * idle_watts:
        return None
    return Note.of(
        "a GPU drew up to {most:count} W with almost no recorded work, compared with "
        "{least:number} W at idle",
        most=round(max_watts),
        least=round(idle_watts),
    )


def _note_on_sms(ranks: Ranks) -> Note | None:
    """Return a note if GPU counters show far more SM activity than was recorded, else None."""
    found = [sms for part in ranks.each(active_sms) for sms in part]
    text = "SMs were active {active:ratio} of the time; recorded kernels cover only {own:ratio}"
    return next(
        (
            Note.of(text, active=sms_of_device.active_ratio, own=sms_of_device.recorded_ratio)
            for sms_of_device in found
            if sms_of_device.active_ratio
            > _MIN_ACTIVE_FACTOR * (sms_of_device.recorded_ratio + _MIN_BUSY_RATIO)
        ),
        None,
    )


def _power_of_rank(part: Trace) -> tuple[float, float] | None:
    """Return the minimum power of a device with almost no work, and its maximum in the steps, in W.

    "Almost no work" is a recorded busy time below `_MIN_BUSY_RATIO`. Of several such devices, the
    one with the highest power is chosen. None if there is no such device or no step.
    """
    whole = part.whole
    steps = find_steps(whole).table
    if not len(steps):
        return None
    start, end = int(steps["start_ns"].min()), int(steps["next_ns"].max())
    samples, found = whole.samples, []
    power = samples.take(samples["metric"] == "power_watts")
    for device in used_devices(whole):
        device_power = power.take(power["source"] == f"gpu:{device}")
        busy_ns = device_time(whole, device).busy.clip(start, end).total_ns
        at = (device_power["start_ns"] >= start) & (
            device_power["start_ns"] <= end + _POWER_SAMPLE_NS
        )
        if at.any() and busy_ns < _MIN_BUSY_RATIO * (end - start):
            found.append(
                (
                    max(float(device_power["value"].min()), 1.0),
                    float(device_power["value"][at].max()),
                )
            )
    return max(found, key=lambda power_range: power_range[1], default=None)


def _action(ranks: Ranks, older: Note | None) -> Note:
    """Return how to record the missing work."""
    again = "record again with `traceprof record`, which tests its recorder first, or "
    if older is not None and ranks.info.recorded_by is RecordedBy.NSYS:
        return Note.of(
            f"{again}use Nsight Systems for CUDA {{new}} or later", new=older.values["new"]
        )
    return Note(f"{again}{ranks.info.recorded_by.how_to('all')}")


def has_ranges(trace: Trace) -> bool:
    """Return whether a rank recorded any range; a launcher process has none."""
    return len(trace.ranges) > 0
