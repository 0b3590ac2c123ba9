"""Running a program under nsys: one nsys around the whole tree of processes."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from traceprof.errors import UsageError
from traceprof.recording import orphans
from traceprof.recording import program as programs
from traceprof.recording.machine import has_gpu, has_rdma
from traceprof.recording.recorders.embedded import RECORDER as EMBEDDED
from traceprof.recording.recorders.nsys import arguments
from traceprof.recording.recorders.nsys import report as reports
from traceprof.recording.request import Recorder, RecordRequest, RunRecorded
from traceprof.secrets import masked_command

_NAME: Final = "nsys"
_LAUNCH: Final = programs.INJECT_FOLDER / "_traceprof_runtime" / "launch.py"
_TMPDIR: Final = "TRACEPROF_TMPDIR"
"""Tells `_LAUNCH` the program's own folder for temporary files."""

_ATTEMPTS: Final = 3  # now and then it does not find its own agent, on a busy machine above all
_STDOUT, _STDERR = 1, 2
_WRITING_S: Final = 20.0  # what nsys gets for its report where the program does not end


def _missing() -> str | None:
    return None if shutil.which("nsys") else "nsys is not on PATH; install Nsight Systems"


def _run(request: RecordRequest, folder: Path) -> RunRecorded:
    """Run the program under nsys.

    Where nsys does not start the program, several times, the embedded recorder does.
    """
    with reports.temporary_folder(folder) as temporary:
        run = _NsysRun(shutil.which("nsys") or "nsys", request, folder, temporary)
        code = run.start()
        if code is not None:
            return RunRecorded(code, left=run.program.left)
    note = f"nsys did not start the program ({run.why_not_started()}); recorded with torch instead"
    embedded = EMBEDDED.run(request, folder)
    return replace(embedded, recorder=EMBEDDED.name, notes=(note,))


class _NsysRun:
    """One program under nsys, started again where nsys fails before the program starts."""

    def __init__(self, nsys: str, request: RecordRequest, folder: Path, temporary: Path) -> None:
        self._nsys = nsys
        self._request = request
        self._folder = folder
        self._temporary = temporary
        self._log = folder / reports.LOG
        self._marker = folder / orphans.STARTED
        self.program = programs.Program(
            grace_s=request.grace_s,
            say=request.say,
            is_apart=True,
            recorded=self._running,
            is_over=lambda: orphans.started_in(folder)[0] > 0 and not self._running(),
        )
        self._is_too_late = False
        self._given = request.profiler_arguments.get(_NAME, ())

    def start(self) -> int | None:
        """Run the program to its end and return its exit code, None where nsys did not start it.

        A signal that comes before nsys has started the program ends all attempts.

        Raises:
            UsageError: nsys does not take the arguments that were given for it.
        """
        orphans.become_subreaper()
        environment = programs.child_environment(self._folder, self._request)
        # What nsys leaves there when it is killed holds environments; the program gets its own.
        environment[_TMPDIR] = environment.pop("TMPDIR", "")
        environment["TMPDIR"] = str(self._temporary)
        known = arguments.nsys_options(self._nsys, "profile")
        if self._request.gpu_metrics and not any("gpu-metrics" in option for option in known):
            self._request.say("this version of nsys cannot sample GPU metrics")
        # Also between the attempts: else a signal would end us, and leave an agent behind.
        with programs.signals_passed_on(self.program):
            for attempt in range(_ATTEMPTS):
                # Named anew: nsys may still hold the session that failed.
                session = f"{self._folder.name}-{attempt}"
                code = self._attempt(self._options(known, session), environment)
                if code is not None:
                    return code
                why = self.why_not_started()
                if self._given and arguments.refusal_in(programs.read_output_log(self._log)):
                    raise UsageError(f"--nsys-arg: nsys rejects it ({why}); nothing was run")
                self._request.detail(f"attempt {attempt + 1} of nsys failed: {why}")
                for path in reports.remove_leftovers():
                    self._request.say(f"removed {path}, a leftover that stops nsys from starting")
        return None

    def _attempt(self, options: list[str], environment: Mapping[str, str]) -> int | None:
        """Run nsys once; return the exit code, None where it may be tried again.

        Where the user does not wait for its report it goes on: `traceprof recover` waits for it.
        """
        is_left = False
        try:
            code = self._run_once(options, environment)
            if self._marker.exists():
                return self._code_of_program(code)
        except KeyboardInterrupt:
            is_left = True
            raise
        finally:
            if not is_left:
                orphans.end_processes_with(self._folder.name)
        if self._marker.exists():  # just before nsys was ended
            return self._code_of_program(code)
        passed = self.program.signal_passed
        return 128 + passed if passed else None

    def _options(self, known: Mapping[str, str], session: str) -> list[str]:
        wanted = {"with_gpu": has_gpu(), "with_rdma": has_rdma()}
        wanted["with_counters"] = self._request.gpu_metrics
        options = arguments.profile_options(known, self._folder / "report", session, **wanted)
        options += arguments.CAPTURE if self._request.bounds.is_bounded else ()
        return arguments.with_given(options, self._given, known)

    def _running(self) -> int:
        """Return the process of the program, 0 while there is none."""
        pid, _ = orphans.started_in(self._folder)
        return pid if orphans.is_alive(pid) else 0

    def _code_of_program(self, code: int) -> int:
        """Return the exit code; a program that has outlived nsys is waited for."""
        if self.program.left:
            return code
        pid, launcher = orphans.started_in(self._folder)
        if not orphans.is_alive(pid):
            return self._code_behind(code, pid, launcher)
        self._request.say("nsys exited before the program; the program keeps running")
        own_code = orphans.wait_for_program(pid, launcher, self.program, self._folder)
        return code if own_code is None else own_code

    def _code_behind(self, code: int, pid: int, launcher: int) -> int:
        """Return the exit code of a program that has ended, where nsys ended with ``code``."""
        program = self.program
        if program.killed_by and not program.signal_passed:  # it was not ended with its program
            own_code = orphans.code_left_by(pid, launcher, program, self._folder)
            if own_code is not None:
                if not program.is_stopped:
                    self._request.say("nsys exited before the program; the program kept running")
                return own_code
        return orphans.code_behind(code, pid, program, self._folder)

    def why_not_started(self) -> str:
        """Return what is known of why nsys has not started the program, and what to do."""
        why = f"no start within {orphans.STARTING_S:g} s" if self._is_too_late else ""
        said = programs.read_output_log(self._log)
        why = why or arguments.refusal_in(said) or programs.last_line(said)
        return "; ".join(filter(None, (why, reports.advice_on())))

    def _run_once(self, options: list[str], environment: Mapping[str, str]) -> int:
        stdout, stderr = os.dup(_STDOUT), os.dup(_STDERR)
        launcher = [sys.executable, "-I", "-S", str(_LAUNCH), str(stdout), str(stderr)]
        launcher += [str(self._marker), *self._request.command]
        command = [self._nsys, "profile", *options, *launcher]
        self._request.detail(shlex.join(masked_command(command)))
        limit = orphans.StartLimit(self._marker)
        watchdog = orphans.Watchdog(self._folder, self._request.say)

        def watch(program: programs.Program) -> None:
            limit(program)
            watchdog(program)

        try:
            with self._log.open("wb") as log:
                code = programs.run_recorded(
                    command,
                    environment,
                    watch,
                    is_profiler=True,
                    program=self.program,
                    pass_fds=(stdout, stderr),
                    stdout=log,
                    stderr=log,
                    # A terminal's Ctrl-C ends nsys while it writes its report.
                    process_group=0,
                )
            if self.program.left:
                self.program.stop_profiler(_WRITING_S)
            return code
        finally:
            self._is_too_late = limit.is_exceeded
            os.close(stdout)
            os.close(stderr)


RECORDER: Final = Recorder(_NAME, _run, _missing, reports.collected)
"""One nsys around the whole tree of processes: one report, one clock."""
