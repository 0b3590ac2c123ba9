"""Work that is missing in the recordings of a run: how much, why, what to do, what is left.

What is missing is not known: it is neither idle time nor compute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
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
_LACKS: Final = {
    "kernel": "kernel launches have no recorded kernel",
    "graph": "CUDA graph launches have no recorded kernels",
    "copy": "copy calls have no recorded copy",
    "memset": "memset calls have no recorded memset",
}
_MIN_LOST_RATIO: Final = 0.01
"""Where no steps are known, less of the launches without work changes no answer."""
_MIN_WHOLE_STEPS_RATIO: Final = 0.25
"""With a smaller share of the steps whole, or of devices' work, too little is left to judge."""
_MIN_BUSY_RATIO: Final = 0.2
_MIN_ACTIVE_FACTOR: Final = 2
"""So many times as much work as was recorded, and more, was not recorded."""
_MIN_POWER_FACTOR: Final = 2.0
"""A device at work draws as many times of what it draws at rest, or more."""
_POWER_SAMPLE_NS: Final = 1_000_000_000
"""Power is sampled, and averaged, over up to a second."""
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
"""The first release of Nsight Systems that came with each release of CUDA."""


@dataclass(frozen=True, slots=True)
class LostWork:
    """What is missing (``what``), why (``causes``) and what to do (``action``).

    ``is_idle_known``: enough is left to say how long devices were idle.
    """

    what: tuple[Note, ...]
    causes: tuple[Note, ...]
    action: Note
    is_idle_known: bool


@of_window
def lost_work(ranks: Ranks) -> LostWork | None:
    """Return what of the work in a recording is missing, and whether that matters in the window.

    None where nothing is missing.
    """
    missing = [*missing_work(ranks)]
    if not missing:
        return None
    inside, older = ranks.each(completeness), _note_on_old_profiler(ranks)
    drawn = _note_on_power(ranks) or _note_on_sms(ranks)
    lost = _counts(ranks.whole)
    if lost and not _counts(ranks):
        missing.insert(len(lost), Note("none of these launches is in this window"))
    has_silent_passes = any(_PHASE in note.values for note in missing)
    is_known = not has_silent_passes and _is_enough_left(ranks, inside)
    left_out = _note_on_excluded_steps(ranks) if is_known else None
    missing += [left_out] if left_out else []
    warnings = [text for text in ranks.info.warnings if says_incomplete(text)]
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
    """Return what of the work in a recording is missing, wherever the window is."""
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
    return tuple(notes)


def depends_on_power(ranks: Ranks) -> bool:
    """Return whether it takes samples of power to tell what is missing."""
    empty = _sums([rank.n_empty for rank in ranks.whole.each(completeness)])
    return any(empty.values()) and _note_on_old_profiler(ranks) is None


def says_incomplete(warning: str) -> bool:
    """Return whether a warning of a reader says that a part of what happened is missing."""
    return _INCOMPLETE_WARNING.search(warning) is not None


def _sums(every: list[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums over ranks, by key."""
    return {key: sum(counts[key] for counts in every) for key in every[0]}


def _counts(ranks: Ranks) -> dict[str, tuple[int, int]]:
    """Return how many launches of each kind lack their work, of how many; of those that do."""
    lost = {
        name: n
        for name, n in _sums([rank.n_lost for rank in ranks.each(completeness)]).items()
        if n
    }
    every = _sums(ranks.each(launches_by_kind)) if lost else {}
    return {name: (n, every[name]) for name, n in lost.items()}


def _note_on_launches(kind: str, n: int, n_all: int) -> Note:
    if n == n_all and kind == "kernel":
        return Note.of("kernels were not recorded: {n:count} launches have no kernel", n=n)
    return Note.of(f"{{n:count}} of {{all:count}} {_LACKS[kind]}", n=n, all=n_all)


def _is_enough_left(ranks: Ranks, found: list[Completeness]) -> bool:
    """Return whether idle time can be judged without what is missing."""
    if not any(rank.has_work for rank in found):
        return False
    # A window of steps has only those that lack no work: the others count, too.
    every = ranks.whole if ranks.span.is_of_steps else ranks
    wholeness, steps = wholeness_of_ranks(every), named_steps(steps_of_ranks(every))
    if len(steps):
        is_whole = wholeness[~steps.warmup()] == WHOLE
        return bool(is_whole.mean() >= _MIN_WHOLE_STEPS_RATIO)
    lost = sum(_sums([rank.n_lost for rank in found]).values())
    return lost < _MIN_LOST_RATIO * sum(_sums(ranks.each(launches_by_kind)).values())


def _note_on_excluded_steps(ranks: Ranks) -> Note | None:
    """Return which steps are not judged."""
    wholeness = wholeness_of_ranks(ranks.whole if ranks.span.is_of_steps else ranks)
    n = int((wholeness == LACKS_WORK).sum())
    text = (
        f"traceprof does not analyze {{n:count}} of {{all:count}} steps{_of(ranks)} and the step "
        "after each, since their launches lack GPU work"
    )
    return Note.of(text, n=n, all=len(wholeness)) if n else None


def _of(ranks: Ranks) -> str:
    """Return whose steps are counted, each rank's by itself; "" of one rank."""
    return f" of {len(ranks)} ranks" if len(ranks) > 1 else ""


def _note_on_old_profiler(ranks: Ranks) -> Note | None:
    """Return that the profiler is of an older major version of CUDA than the driver."""
    environment = dict(
        zip(*(ranks.table("environment")[n] for n in ("name", "value")), strict=True)
    )
    driver = _version(str(environment.get("driver.cuda") or environment.get("cuda_driver") or ""))
    profiler, name = _cuda_of_profiler(ranks, environment), ranks.info.profiler
    if not driver or not profiler or int(float(profiler)) >= int(float(driver)):
        return None
    text = "{name} is for CUDA {old}, but the driver is for CUDA {new}: it may lose GPU work"
    return Note.of(text, name=name, old=profiler, new=driver)


def _version(text: str) -> str:
    """Return a version of CUDA as people write it: of 13000 "13.0"; "" of none."""
    if text.isdigit() and len(text) > 3:
        return f"{int(text) // 1000}.{int(text) % 1000 // 10}"
    return text if re.fullmatch(r"\d+\.\d+", text) else ""


def _cuda_of_profiler(ranks: Ranks, environment: dict[str, str]) -> str:
    """Return the release of CUDA that the profiler came with; "" where it is not known."""
    if "Nsight Systems" not in ranks.info.profiler:
        # That of CUPTI in torch is the runtime's.
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
    """Return that a device drew much power while hardly any of its work is recorded."""
    found = [power for power in ranks.each(_power_of_rank) if power is not None]
    least, most = max(found, key=lambda power: power[1] / power[0], default=(0.0, 0.0))
    if not found or most < _MIN_POWER_FACTOR * least:
        return None
    text = (
        "a GPU drew up to {most:count} W with almost no recorded work, compared with "
        "{least:number} W at idle"
    )
    return Note.of(text, most=round(most), least=round(least))


def _note_on_sms(ranks: Ranks) -> Note | None:
    """Return that counters of a GPU saw far more work than was recorded."""
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
    """Return the least power of the device that hardly works in the steps, and the most there."""
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
    """Return how to record what is missing."""
    again = "record again with `traceprof record`, which tests its recorder first, or "
    if older is not None and ranks.info.recorded_by is RecordedBy.NSYS:
        text = f"{again}use Nsight Systems for CUDA {{new}} or later"
        return Note.of(text, new=older.values["new"])
    return Note(f"{again}{ranks.info.recorded_by.how_to('all')}")
