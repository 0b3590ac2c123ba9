"""Run the program once, with or without changes, and return its step times or its failure."""

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
    read_output_log,
    run_recorded,
)
from traceprof.recording.request import RecordRequest
from traceprof.recording.spool import read_object
from traceprof.trying.changes import ChosenChange

_EXIT_CANNOT_CHANGE: Final = 97  # exit code of a program to which a change cannot be applied
_OUT_OF_MEMORY: Final = re.compile(
    r"OutOfMemoryError|CUDA out of memory|MemoryError|DefaultCPUAllocator: can't allocate"
    r"|Cannot allocate memory"
)
_EXIT_KILLED: Final = 128 + 9
_MAX_REASON_CHARS: Final = 200
_OUR_PREFIX: Final = "traceprof: "

OFFLINE: Final = {
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
"""Variables with which the usual libraries send nothing; MLFLOW_TRACKING_URI is a folder."""
_WITHOUT_NETWORK: Final = ("disabled", "dryrun", "debug")

OK: Final = ""
OUT_OF_MEMORY, HANGS, DIVERGED, FAILED = "out of memory", "hangs", "diverges", "fails"
NOT_APPLICABLE: Final = "cannot be made"


@dataclass(frozen=True, slots=True)
class TryPlan:
    """How to measure a run.

    A run measures ``n_steps`` steps after ``warmup`` steps, in at most ``limit_s`` seconds.
    ``folder`` is the working folder of the program; None means the current one. ``is_offline``: set
    the variables of `OFFLINE`.
    """

    command: Sequence[str]
    warmup: int
    n_steps: int
    limit_s: float = math.inf
    step_from: str = ""
    folder: Path | None = None
    is_offline: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TriedRun:
    """The result of a run.

    Attributes:
        changes: the changes that were applied.
        failure: OK, or the kind of failure.
        reason: the reason for the failure, in words.
        step_ns: the time of each measured step, as the mean of all ranks.
        losses: the loss by step, as the mean of all ranks.
        peak_bytes: peak memory; None if unknown.
        facts: what the hooks found.
        is_whole: the run had all requested steps.
        steps_count: the number of steps.
        ranks_count: the number of ranks.
        exit_code: the exit code of the program.
        took_s: the duration of the run.
        cpu_ns: the CPU time of the program per step, as the mean of all ranks; NaN if unknown.
        load: the number of CPU cores that other programs used during the run; NaN if unknown.
        round: the number of the round, in which every change runs once; -1 for the first run.
        written: the files that the program opened for writing.
    """

    changes: Sequence[ChosenChange] = ()
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
    cpu_ns: float = math.nan
    load: float = math.nan
    round: int = -1
    written: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The changes as the user writes them; "" without changes."""
        return " + ".join(change.text for change in self.changes)

    @property
    def mean_ns(self) -> float:
        """The mean step time; NaN if no step was measured."""
        return float(self.step_ns.mean()) if len(self.step_ns) else math.nan


class InterruptedTryingError(Exception):
    """The user pressed Ctrl-C or sent a signal; the finished runs are still reported."""


def run_once(plan: TryPlan, changes: Sequence[ChosenChange] = ()) -> TriedRun:
    """Run the program and return the result.

    Raises:
        RecordingError: the program cannot be started.
        InterruptedTryingError: a signal to traceprof ended the run.
    """
    with tempfile.TemporaryDirectory(prefix="traceprof-try-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        log = folder / "said.txt"
        program = Program(is_apart=True)
        begun_s = time.monotonic()
        before_s = _cpu_times_of_others()
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
        load = max(_cpu_times_of_others() - before_s, 0.0) / max(took_s, 1e-9)
        records = [read_object(path) for path in sorted(folder.glob("try.*.json"))]
        output = read_output_log(log)
        lists = [path.read_bytes() for path in folder.glob("written.*")]
        written = frozenset(os.fsdecode(line) for text in lists for line in text.splitlines())
        imported_torch = any(folder.glob("process.*.json"))
    found = _merge_ranks(changes, [record for record in records if record], code, took_s)
    failure, reason = _classify_failure(found, plan, output, code, is_overdue=bool(overdue))
    if not failure and not found.steps_count:
        failure, reason = FAILED, _why_no_steps(plan.command, imported_torch=imported_torch)
    return replace(found, failure=failure, reason=reason, load=load, written=written)


def _cpu_times_of_others() -> float:
    """Return the CPU time in s of all programs but this one and its children; NaN if unknown."""
    try:
        with Path("/proc/stat").open("rb") as file:
            user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
        ticks_per_s = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return math.nan
    return (user + nice + system + irq + softirq) / ticks_per_s - sum(os.times()[:4])


def _environment(folder: Path, plan: TryPlan, changes: Sequence[ChosenChange]) -> dict[str, str]:
    request = RecordRequest(plan.command, folder / "unused", step_from=plan.step_from)
    environment = child_environment(folder, request)
    if plan.is_offline:
        environment |= {
            name: value
            for name, value in OFFLINE.items()
            if environment.get(name, "").lower() not in _WITHOUT_NETWORK
        }
        environment["MLFLOW_TRACKING_URI"] = (folder / "mlflow").as_uri()
    for chosen in changes:
        environment |= chosen.change.environment(chosen.value)
    return environment | {
        "TRACEPROF_TRY": f"{plan.warmup},{plan.n_steps}",
        "TRACEPROF_CHANGES": "\n".join(
            f"{chosen.change.name}={chosen.value}" for chosen in changes
        ),
        "TRACEPROF_EMITTER": "spool",
    }


def _merge_ranks(
    changes: Sequence[ChosenChange], records: Sequence[Mapping[str, Any]], code: int, took_s: float
) -> TriedRun:
    """Return the records of the ranks as one run: the mean of all ranks per step."""
    series = [
        np.array(record["step_s"], np.float64) * 1e9 for record in records if record.get("step_s")
    ]
    common = min(map(len, series), default=0)
    steps = np.mean([times[:common] for times in series], axis=0) if common else np.empty(0)
    # The mean of all ranks: files are ordered by process ID, which differs between runs.
    by_step: dict[int, list[float]] = {}
    for record in records:
        for number, loss in record.get("losses", ()):
            by_step.setdefault(int(number), []).append(float(loss))
    peaks = [int(record["peak_bytes"]) for record in records if record.get("peak_bytes")]
    cpu_s = [
        record["cpu_s"] / len(record["step_s"])
        for record in records
        if record.get("step_s") and record.get("cpu_s") is not None
    ]
    first_rank = records[0] if records else {}
    facts = dict(first_rank.get("facts") or {})
    return TriedRun(
        changes,
        step_ns=steps,
        losses={number: float(np.mean(losses)) for number, losses in sorted(by_step.items())},
        peak_bytes=max(peaks, default=None),
        facts=facts | {"on_gpu": bool(first_rank.get("on_gpu"))} if facts else {},
        is_whole=bool(records) and all(record.get("is_whole") for record in records),
        steps_count=max((int(record.get("steps_count", 0)) for record in records), default=0),
        ranks_count=len(records),
        exit_code=code,
        took_s=took_s,
        cpu_ns=float(np.mean(cpu_s)) * 1e9 if cpu_s else math.nan,
    )


def _classify_failure(
    found: TriedRun, plan: TryPlan, output: str, code: int, *, is_overdue: bool
) -> tuple[str, str]:
    """Return the kind of failure of a run, and the reason in words."""
    if is_overdue:
        return HANGS, f"not finished after {plan.limit_s:.0f} s: traceprof killed the program"
    if code == _EXIT_CANNOT_CHANGE:
        messages = [line for line in output.splitlines() if line.startswith(_OUR_PREFIX)]
        reason = (
            messages[-1].removeprefix(_OUR_PREFIX)
            if messages
            else "it does not apply to this program"
        )
        return NOT_APPLICABLE, reason[:_MAX_REASON_CHARS]
    if code and _OUT_OF_MEMORY.search(output):
        return OUT_OF_MEMORY, _last_matching_line(output, _OUT_OF_MEMORY)
    if code == _EXIT_KILLED:
        return OUT_OF_MEMORY, "killed by the system (signal 9), probably because of its memory use"
    if code:
        return FAILED, f"exit code {code}: {last_line(output)[:_MAX_REASON_CHARS]}"
    diverged_step = next(
        (step for step, loss in found.losses.items() if not math.isfinite(loss)), None
    )
    if diverged_step is not None:
        return DIVERGED, f"the loss is not finite from step {diverged_step}"
    return OK, ""


def _last_matching_line(output: str, pattern: re.Pattern[str]) -> str:
    lines = [line.strip() for line in output.splitlines() if pattern.search(line)]
    return lines[-1][:_MAX_REASON_CHARS] if lines else "the program ran out of memory"


def _why_no_steps(command: Sequence[str], *, imported_torch: bool) -> str:
    option = ignores_injection(command)
    if option is not None:
        return f"python {option} ignores PYTHONPATH: remove {option} to let traceprof measure"
    if not imported_torch:
        return "the program did not import torch: traceprof cannot find its steps or change it"
    return "no steps found: define a step with --step-from or traceprof.step()"


def changed_files(folder: Path, before: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return the files in ``folder`` that are new or differ from ``before``."""
    now = files_in(folder)
    return sorted(name for name, state in now.items() if before.get(name) != state)


_SKIPPED: Final = frozenset({".git", "__pycache__", ".venv", "node_modules", ".mypy_cache"})
_MAX_FILES: Final = 50_000


def files_in(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and modification time of the files below ``folder``.

    The search stops after the folder in which the number of files exceeds ``_MAX_FILES``.
    """
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
        if len(found) > _MAX_FILES:
            break
    return found


@contextmanager
def scratch_copy(folder: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Yield a copy of ``folder``, which is deleted at the end."""
    copy = Path(tempfile.mkdtemp(prefix="traceprof-scratch-")) / folder.name
    say(f"running the program in a copy of {folder}")
    try:
        shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns(*_SKIPPED))
        yield copy
    finally:
        shutil.rmtree(copy.parent, ignore_errors=True)
