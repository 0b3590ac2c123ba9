"""One run of the program, with changes or as it is: what its steps took, or why it failed."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.recording.orphans import kill_with_children
from traceprof.recording.program import (
    Program,
    child_environment,
    ignores_injection,
    last_line,
    run_recorded,
    said_in,
)
from traceprof.recording.request import RecordRequest
from traceprof.recording.spool import read_object
from traceprof.trying.changes import Chosen

_CANNOT: Final = 97  # the exit code of a program in which a change cannot be made
_OUT_OF_MEMORY: Final = re.compile(
    r"OutOfMemoryError|CUDA out of memory|MemoryError|DefaultCPUAllocator: can't allocate"
    r"|Cannot allocate memory"
)
_KILLED: Final = 128 + 9
_LONGEST: Final = 200
_OUR_WORDS: Final = "traceprof: "

OK: Final = ""
OUT_OF_MEMORY, HANGS, DIVERGED, FAILED = "out of memory", "hangs", "diverges", "fails"
NOT_HERE: Final = "cannot be made"


@dataclass(frozen=True, slots=True)
class TryPlan:
    """How a run is measured: so many steps after so many, in at most so many seconds.

    ``folder`` is where the program runs; None: here.
    """

    command: Sequence[str]
    warmup: int
    n_steps: int
    limit_s: float = math.inf
    step_from: str = ""
    folder: Path | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TriedRun:
    """What a run gave.

    ``failure`` is OK, or what kind of failure it was, ``reason`` in words. ``step_ns``: of each
    step that was measured the mean of all ranks. ``losses``: by step, the same mean. ``facts``:
    what the hooks saw. ``is_whole``: as many steps as were asked for. ``took_s``: the run from
    start to end.
    """

    changes: Sequence[Chosen] = ()
    failure: str = OK
    reason: str = ""
    step_ns: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    losses: Mapping[int, float] = field(default_factory=dict)
    peak_bytes: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    is_whole: bool = False
    steps_count: int = 0
    ranks_count: int = 0
    exit_code: int = 0
    took_s: float = 0.0

    @property
    def name(self) -> str:
        """The changes, as they are written; "" for none."""
        return " + ".join(one.text for one in self.changes)

    @property
    def mean_ns(self) -> float:
        """The mean step; NaN where none was measured."""
        return float(self.step_ns.mean()) if len(self.step_ns) else math.nan


class InterruptedTryingError(Exception):
    """Somebody pressed Ctrl-C, or sent a signal: what was measured until then is told."""


def run_once(plan: TryPlan, changes: Sequence[Chosen] = ()) -> TriedRun:
    """Run the program and return what it gave.

    Raises:
        RecordingError: it cannot be started.
        InterruptedTryingError: it was ended by a signal that came to us.
    """
    with _work_folder() as folder:
        log = folder / "said.txt"
        program = Program(is_apart=True)
        begun_s = time.monotonic()
        overdue: list[float] = []

        def watch(running: Program) -> None:
            if time.monotonic() - begun_s > plan.limit_s and not overdue:
                overdue.append(time.monotonic())
                process = running.process
                if isinstance(process, subprocess.Popen):
                    kill_with_children([process.pid])
                    process.kill()

        with log.open("wb") as stream:
            code = run_recorded(
                plan.command,
                _environment(folder, plan, changes),
                watch,
                program=program,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                cwd=plan.folder,
            )
        if program.n_interrupts or program.signal_passed:
            raise InterruptedTryingError
        took_s = time.monotonic() - begun_s
        records = [read_object(path) for path in sorted(folder.glob("try.*.json"))]
        said = said_in(log)
        imported_torch = any(folder.glob("process.*.json"))
    found = _measured(changes, [one for one in records if one], code, took_s)
    failure, reason = _failure(found, plan, said, code, is_overdue=bool(overdue))
    if not failure and not found.steps_count:
        failure, reason = FAILED, _why_no_steps(plan.command, imported_torch=imported_torch)
    return replace(found, failure=failure, reason=reason)


def _environment(folder: Path, plan: TryPlan, changes: Sequence[Chosen]) -> dict[str, str]:
    request = RecordRequest(plan.command, folder / "unused", step_from=plan.step_from)
    environment = child_environment(folder, request)
    for one in changes:
        environment |= one.change.environment(one.value)
    return environment | {
        "TRACEPROF_TRY": f"{plan.warmup},{plan.n_steps}",
        "TRACEPROF_CHANGES": "\n".join(f"{one.change.name}={one.value}" for one in changes),
        "TRACEPROF_EMITTER": "spool",
    }


@contextmanager
def _work_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="traceprof-try-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(
    changes: Sequence[Chosen], records: Sequence[Mapping[str, Any]], code: int, took_s: float
) -> TriedRun:
    """Return what the ranks of a run wrote: of each step the mean of all."""
    series = [np.array(one["step_s"], np.float64) * 1e9 for one in records if one.get("step_s")]
    common = min(map(len, series), default=0)
    steps = np.mean([own[:common] for own in series], axis=0) if common else np.empty(0)
    # Of all ranks: files are in the order of process ids, which no two runs have alike.
    by_step: dict[int, list[float]] = {}
    for one in records:
        for number, loss in one.get("losses", ()):
            by_step.setdefault(int(number), []).append(float(loss))
    peaks = [int(one["peak_bytes"]) for one in records if one.get("peak_bytes")]
    first = records[0] if records else {}
    facts = dict(first.get("facts") or {})
    return TriedRun(
        changes,
        step_ns=steps,
        losses={number: float(np.mean(own)) for number, own in sorted(by_step.items())},
        peak_bytes=max(peaks, default=None),
        facts=facts | {"on_gpu": bool(first.get("on_gpu"))} if facts else {},
        is_whole=bool(records) and all(one.get("is_whole") for one in records),
        steps_count=max((int(one.get("steps_count", 0)) for one in records), default=0),
        ranks_count=len(records),
        exit_code=code,
        took_s=took_s,
    )


def _failure(
    found: TriedRun, plan: TryPlan, said: str, code: int, *, is_overdue: bool
) -> tuple[str, str]:
    """Return what kind of failure a run is, and the reason in words."""
    if is_overdue:
        return HANGS, f"not finished after {plan.limit_s:.0f} s: traceprof killed the program"
    if code == _CANNOT:
        own = [line for line in said.splitlines() if line.startswith(_OUR_WORDS)]
        reason = own[-1].removeprefix(_OUR_WORDS) if own else "it does not apply to this program"
        return NOT_HERE, reason[:_LONGEST]
    if code and _OUT_OF_MEMORY.search(said):
        return OUT_OF_MEMORY, _last_that(said, _OUT_OF_MEMORY)
    if code == _KILLED:
        return OUT_OF_MEMORY, "killed by the system (signal 9), probably because of its memory use"
    if code:
        return FAILED, f"exit code {code}: {last_line(said)[:_LONGEST]}"
    bad = next((step for step, loss in found.losses.items() if not math.isfinite(loss)), None)
    if bad is not None:
        return DIVERGED, f"the loss is not finite from step {bad}"
    return OK, ""


def _last_that(said: str, pattern: re.Pattern[str]) -> str:
    lines = [line.strip() for line in said.splitlines() if pattern.search(line)]
    return lines[-1][:_LONGEST] if lines else "the program ran out of memory"


def _why_no_steps(command: Sequence[str], *, imported_torch: bool) -> str:
    option = ignores_injection(command)
    if option is not None:
        return f"python {option} ignores PYTHONPATH: remove {option} to let traceprof measure"
    if not imported_torch:
        return "the program did not import torch: traceprof cannot find its steps or change it"
    return "no steps found: define a step with --step-from or traceprof.step()"


def changed_files(folder: Path, before: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return the files in ``folder`` that are new or other than in ``before``."""
    now = files_in(folder)
    return sorted(name for name, state in now.items() if before.get(name) != state)


_SKIPPED: Final = frozenset({".git", "__pycache__", ".venv", "node_modules", ".mypy_cache"})
_MOST_FILES: Final = 50_000


def files_in(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the files below ``folder`` with their size and time, so many at most."""
    found: dict[str, tuple[int, int]] = {}
    for place, names, files in os.walk(folder):
        names[:] = [name for name in names if name not in _SKIPPED]
        for name in files:
            path = Path(place, name)
            try:
                state = path.stat()
            except OSError:
                continue
            found[str(path.relative_to(folder))] = state.st_size, state.st_mtime_ns
        if len(found) > _MOST_FILES:
            break
    return found


@contextmanager
def scratch_of(folder: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Give a copy of ``folder``, which goes afterwards."""
    copy = Path(tempfile.mkdtemp(prefix="traceprof-scratch-")) / folder.name
    say(f"running the program in a copy of {folder}")
    try:
        shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns(*_SKIPPED))
        yield copy
    finally:
        shutil.rmtree(copy.parent, ignore_errors=True)
