"""Recording under NVIDIA Nsight Systems."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from traceprof.errors import RecordingError
from traceprof.recording import launch
from traceprof.recording.child import child_environment
from traceprof.recording.embedded import RECORDER as EMBEDDED
from traceprof.recording.environment import hidden_values
from traceprof.recording.gpu import has_gpu
from traceprof.recording.nsys_report import export_report, find_report
from traceprof.recording.orphans import (
    become_subreaper,
    end_processes_with,
    is_alive,
    wait_for_program,
)
from traceprof.recording.process import run_recorded
from traceprof.recording.request import RecordRequest, RunRecorded
from traceprof.recording.scrub import mask_values, scrub_environments
from traceprof.recording.watchdog import Watchdog

__all__ = ["RECORDER", "NsysRecorder", "nsys_options", "profile_options"]

_OPTION: Final = re.compile(r"--[a-z][\w-]+")
# The hooks open this range when the capture is due; the program goes on after its end.
_CAPTURE: Final = (
    "--capture-range=nvtx",
    "--nvtx-capture=traceprof.capture@traceprof",
    "--capture-range-end=stop",
)
_HELP_TIMEOUT_S: Final = 60
_ATTEMPTS: Final = 3  # now and then it does not find its own agent, on a busy machine above all
_STDOUT, _STDERR = 1, 2


class NsysRecorder:
    """One nsys around the whole tree of processes: one report, one clock."""

    name = "nsys"

    def missing(self) -> str | None:
        """Return why nsys cannot be used here, None if it can."""
        return None if shutil.which("nsys") else "nsys is not on PATH: install Nsight Systems"

    def run(self, request: RecordRequest, folder: Path) -> RunRecorded:
        """Run the program under nsys and export what it recorded.

        Where nsys does not start the program, several times, the embedded recorder does.
        """
        run = _NsysRun(shutil.which("nsys") or "nsys", request, folder)
        code = run.start()
        if code is None:
            note = f"nsys did not start the program ({run.last_line()}): recorded with torch"
            embedded = EMBEDDED.run(request, folder)
            return replace(embedded, recorder=EMBEDDED.name, notes=(note,))
        report = find_report(folder, run.said(), run.started_at)
        if report is None:
            return RunRecorded(code, notes=(f"nsys left no report ({run.last_line()})",))
        try:
            return RunRecorded(code, run.export(report))
        except RecordingError as error:
            return RunRecorded(code, notes=(str(error),))


def nsys_options(nsys: str, command: str) -> frozenset[str]:
    """Return the long options that ``nsys command`` of this version knows."""
    try:
        done = subprocess.run(
            [nsys, command, "--help"], capture_output=True, check=False, timeout=_HELP_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecordingError(f"{nsys}: cannot be asked for its options ({error})") from error
    return frozenset(_OPTION.findall(done.stdout.decode("utf-8", "replace")))


def profile_options(
    known: frozenset[str], report: Path, session: str, *, with_gpu: bool
) -> list[str]:
    """Return the options of ``nsys profile``; ``known`` are those that this version has.

    An unknown option is fatal. Sampling is off: it makes some versions hang at the end.
    """
    wanted = {
        "--force-overwrite": "true",
        "--output": str(report),
        "--session-new": session,
        "--trace": "cuda,nvtx" if with_gpu else "nvtx",
        "--sample": "none",
        "--cpuctxsw": "none",
        "--cuda-graph-trace": "node",
        "--trace-fork-before-exec": "true",
        "--wait": "primary",
    }
    return [f"{name}={value}" for name, value in wanted.items() if name in known]


class _NsysRun:
    """One program under nsys, started again where nsys fails before the program starts."""

    def __init__(self, nsys: str, request: RecordRequest, folder: Path) -> None:
        self._nsys = nsys
        self._request = request
        self._folder = folder
        self._log = folder / "nsys.log"
        self._marker = folder / "started"
        self._session = f"traceprof-{folder.name}"  # unique: nsys's processes are known by it
        self.started_at = time.time()

    def start(self) -> int | None:
        """Run the program to its end and return its exit code, None where nsys did not start it."""
        become_subreaper()
        environment = child_environment(self._folder, self._request)
        options = profile_options(
            nsys_options(self._nsys, "profile"),
            self._folder / "report",
            self._session,
            with_gpu=has_gpu(),
        )
        if self._request.bounds.is_bounded:
            options += _CAPTURE
        for attempt in range(_ATTEMPTS):
            self.started_at = time.time()
            try:
                code = self._run_once(options, environment)
                if self._marker.exists():
                    return self._code_of_program(code)
            finally:
                end_processes_with(self._session)
            self._request.detail(f"attempt {attempt + 1} of nsys failed: {self.last_line()}")
        return None

    def _code_of_program(self, code: int) -> int:
        """Return the exit code; a program that has outlived nsys is waited for."""
        pid = int(self._marker.read_text() or 0)
        if not pid or not is_alive(pid):
            return code
        self._request.say("nsys has ended before the program, which goes on without it")
        own_code = wait_for_program(pid)
        return code if own_code is None else own_code

    def export(self, report: Path) -> Path:
        """Return the report as SQLite, without environments unless they were asked for."""
        database = self._folder / "report.sqlite"
        with_blobs = "--include-blobs" in nsys_options(self._nsys, "export")
        kept = export_report(self._nsys, report, database, with_blobs=with_blobs)
        if not self._request.keep_environment:
            scrub_environments(database)
            mask_values(database, hidden_values(self._request.command))
        if self._request.keep_report:
            shutil.copy2(kept, self._request.output.with_suffix(kept.suffix))
        return database

    def said(self) -> str:
        """Return what nsys printed."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def last_line(self) -> str:
        """Return the last thing that nsys said."""
        lines = [line.strip() for line in self.said().splitlines() if line.strip()]
        return lines[-1] if lines else "it said nothing"

    def _run_once(self, options: list[str], environment: Mapping[str, str]) -> int:
        stdout, stderr = os.dup(_STDOUT), os.dup(_STDERR)
        launcher = [sys.executable, "-I", "-S", launch.__file__, str(stdout), str(stderr)]
        command = [
            *(self._nsys, "profile", *options, *self._request.profiler_arguments),
            *(*launcher, str(self._marker), *self._request.command),
        ]
        self._request.detail(shlex.join(command))
        try:
            with self._log.open("wb") as log:
                return run_recorded(
                    command,
                    environment,
                    Watchdog(self._folder, self._request.say),
                    is_profiler=True,
                    pass_fds=(stdout, stderr),
                    stdout=log,
                    stderr=log,
                )
        finally:
            os.close(stdout)
            os.close(stderr)


RECORDER: Final = NsysRecorder()
