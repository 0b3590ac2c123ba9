"""Run a program under nsys: one nsys for the whole process tree."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from traceprof.errors import RecordingError, UsageError
from traceprof.recording import orphans
from traceprof.recording import program as programs
from traceprof.recording.machine import has_gpu, has_rdma
from traceprof.recording.recorders.embedded import RECORDER as EMBEDDED
from traceprof.recording.recorders.nsys import report as reports
from traceprof.recording.request import Recorder, RecordRequest, RunRecorded
from traceprof.secrets import masked_command

_NAME: Final = "nsys"
_LAUNCHER: Final = programs.INJECT_FOLDER / "_traceprof_runtime" / "launch.py"
_TMPDIR_VARIABLE: Final = "TRACEPROF_TMPDIR"
"""Passes the program's TMPDIR to `_LAUNCHER`, because nsys gets another TMPDIR."""

_MAX_ATTEMPTS: Final = 3  # nsys sometimes does not find its agent, mostly on busy machines
_STDOUT, _STDERR = 1, 2
_MAX_WRITING_S: Final = 20.0  # for the report of nsys if the program does not end
_OPTION: Final = re.compile(r"--[a-z][\w-]+")
_HEADING: Final = re.compile(r"^[ \t]*(?:(-\w), )?(--[a-z][\w-]+)", re.MULTILINE)
_HELP_TIMEOUT_S: Final = 60
_CAPTURE_OPTIONS: Final = (
    "--capture-range=nvtx",
    "--nvtx-capture=traceprof.capture@traceprof",
    "--capture-range-end=stop",
)
"""Options to capture a part of a run.

The hooks open this range at the start of the part. The program keeps running after it.
"""


def _missing() -> str | None:
    return None if shutil.which("nsys") else "nsys is not on PATH; install Nsight Systems"


def _run(request: RecordRequest, folder: Path) -> RunRecorded:
    """Run the program under nsys.

    If nsys repeatedly does not start the program, the embedded recorder runs it.
    """
    with reports.temporary_folder(folder) as temporary:
        run = _NsysRun(shutil.which("nsys") or "nsys", request, folder, temporary)
        code = run.start()
        if code is not None:
            return RunRecorded(code, left=run.program.left)
    note = f"nsys did not start the program ({run.why_not_started()}); recorded with torch instead"
    return replace(EMBEDDED.run(request, folder), recorder=EMBEDDED.name, notes=(note,))


class _NsysRun:
    """One program under nsys, retried if nsys fails before it starts the program."""

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
        self._is_start_overdue = False
        self._given = request.profiler_arguments.get(_NAME, ())

    def start(self) -> int | None:
        """Run the program; return its exit code, None if nsys did not start it.

        A signal before nsys has started the program ends all attempts.

        Raises:
            UsageError: nsys rejects the arguments of the user.
        """
        orphans.become_subreaper()
        environment = programs.child_environment(self._folder, self._request)
        # A killed nsys leaves environments in its TMPDIR. The program gets its own TMPDIR.
        environment[_TMPDIR_VARIABLE] = environment.pop("TMPDIR", "")
        environment["TMPDIR"] = str(self._temporary)
        known = nsys_options(self._nsys, "profile")
        if self._request.gpu_metrics and not any("gpu-metrics" in option for option in known):
            self._request.say("this version of nsys cannot sample GPU metrics")
        # Also between attempts: a signal would end this process and leave an agent behind.
        with programs.signals_passed_on(self.program):
            for attempt in range(_MAX_ATTEMPTS):
                # A new name, because nsys may still hold the failed session.
                options = self._options(known, session=f"{self._folder.name}-{attempt}")
                code = self._attempt(options, environment)
                if code is not None:
                    return code
                why = self.why_not_started()
                if self._given and refusal_in(programs.read_output_log(self._log)):
                    raise UsageError(f"--nsys-arg: nsys rejects it ({why}); nothing was run")
                self._request.detail(f"attempt {attempt + 1} of nsys failed: {why}")
                for path in reports.remove_leftovers():
                    self._request.say(f"removed {path}, a leftover that stops nsys from starting")
        return None

    def _attempt(self, options: list[str], environment: Mapping[str, str]) -> int | None:
        """Run nsys once; return the exit code, None if another attempt is possible.

        If the user interrupts the wait for the report, nsys keeps running; `traceprof recover`
        waits for it.
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
        if self._marker.exists():  # the program started just before nsys was ended
            return self._code_of_program(code)
        passed = self.program.signal_passed
        return 128 + passed if passed else None

    def _options(self, known: Mapping[str, str], session: str) -> list[str]:
        options = profile_options(
            known,
            self._folder / "report",
            session,
            with_gpu=has_gpu(),
            with_rdma=has_rdma(),
            with_counters=self._request.gpu_metrics,
        )
        options += _CAPTURE_OPTIONS if self._request.bounds.is_bounded else ()
        return with_given(options, self._given, known)

    def _running(self) -> int:
        """Return the process id of the running program, 0 for none."""
        pid, _ = orphans.started_in(self._folder)
        return pid if orphans.is_alive(pid) else 0

    def _code_of_program(self, code: int) -> int:
        """Return the exit code of the program; wait for a program that outlives nsys.

        ``code`` is the exit code of nsys.
        """
        if self.program.left:
            return code
        pid, launcher = orphans.started_in(self._folder)
        if not orphans.is_alive(pid):
            return self._code_after_nsys(code, pid, launcher)
        self._request.say("nsys exited before the program; the program keeps running")
        program_code = orphans.wait_for_program(pid, launcher, self.program, self._folder)
        return code if program_code is None else program_code

    def _code_after_nsys(self, code: int, pid: int, launcher: int) -> int:
        """Return the exit code of an ended program, given the exit code of nsys."""
        program = self.program
        if program.killed_by and not program.signal_passed:  # nsys was killed, not its program
            program_code = orphans.exit_code_of_orphan(pid, launcher, program, self._folder)
            if program_code is not None:
                if not program.is_stopped:
                    self._request.say("nsys exited before the program; the program kept running")
                return program_code
        return orphans.corrected_exit_code(code, pid, program, self._folder)

    def why_not_started(self) -> str:
        """Return why nsys did not start the program, and what to do about it."""
        why = f"no start within {orphans.STARTING_S:g} s" if self._is_start_overdue else ""
        output = programs.read_output_log(self._log)
        why = why or refusal_in(output) or programs.last_line(output)
        return "; ".join(filter(None, (why, reports.advice_on())))

    def _run_once(self, options: list[str], environment: Mapping[str, str]) -> int:
        """Run nsys once and return its exit code; its output goes to the log."""
        stdout, stderr = os.dup(_STDOUT), os.dup(_STDERR)
        launcher = [sys.executable, "-I", "-S", str(_LAUNCHER), str(stdout), str(stderr)]
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
                    # Otherwise Ctrl-C in a terminal ends nsys while it writes its report.
                    process_group=0,
                )
            if self.program.left:
                self.program.stop_profiler(_MAX_WRITING_S)
            return code
        finally:
            self._is_start_overdue = limit.is_exceeded
            os.close(stdout)
            os.close(stderr)


def nsys_options(nsys: str, command: str) -> dict[str, str]:
    """Return option → help text of the options that this version of ``nsys command`` has.

    Short options ("-s") map to the long options ("--sample").

    Raises:
        RecordingError: nsys does not run.
    """
    try:
        result = subprocess.run(
            [nsys, command, "--help"], capture_output=True, check=False, timeout=_HELP_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecordingError(f"{nsys}: cannot list its options ({error})") from error
    text = result.stdout.decode("utf-8", "replace")
    options = dict.fromkeys(_OPTION.findall(text), "")
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    for heading, end in zip(headings, ends, strict=True):
        short, name = heading.groups()
        options[name] += text[heading.end() : end]
        if short:
            options[short] = name
    return options


def profile_options(
    known: Mapping[str, str],
    report: Path,
    session: str,
    *,
    with_gpu: bool,
    with_counters: bool = False,
    with_rdma: bool = False,
) -> list[str]:
    """Return traceprof's options of ``nsys profile``. ``known`` are those of this version.

    Unknown options are omitted, because nsys rejects them. CPU sampling is off, because with it
    some versions hang at the end.
    """
    wanted = {
        "--force-overwrite": "true",
        "--output": str(report),
        "--session-new": session,
        "--trace": "cuda,nvtx" if with_gpu else "nvtx",
        "--sample": "none",
        "--cpuctxsw": "none",
        "--cuda-graph-trace": "node",
        "--resolve-symbols": "false",  # 2026.1 sometimes hangs for minutes on symbols
        "--trace-fork-before-exec": "true",
        "--wait": "primary",
    }
    if with_counters:
        # Renamed in 2024; newer versions still accept the old name.
        name = "--gpu-metrics-devices"
        wanted[name if name in known else name.removesuffix("s")] = "all"
    if with_rdma:
        # The value that enables adapter sampling: "true", from 2026 on a rate ("lf": low).
        description = known.get("--nic-metrics", "")
        is_rate = re.search(r"\blf\b", description) and "true" not in description
        wanted["--nic-metrics"] = "lf" if is_rate else "true"
    return [f"{name}={value}" for name, value in wanted.items() if name in known]


def with_given(options: Sequence[str], given: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """Return traceprof's ``options`` and the user's ``given`` arguments, which take precedence.

    nsys does not accept an option twice.

    Raises:
        UsageError: this version of nsys does not have one of the given options.
    """
    option_names = [option.partition("=")[0] for option in given if option.startswith("-")]
    short_names = [name for name in option_names if not name.startswith("--")]
    given_names = set(option_names).difference(short_names) | {
        known.get(name[:2], name) for name in short_names
    }
    for name in sorted(given_names):
        if name not in known:
            raise UsageError(f"--nsys-arg: this nsys has no option {name}; nothing was run")
    return [*(option for option in options if option.partition("=")[0] not in given_names), *given]


def refusal_in(output: str) -> str:
    """Return why nsys rejected its arguments, "" where its output contains no rejection."""
    reason, usage, _ = output.partition("usage: nsys")
    return " ".join(reason.split()) if usage else ""


RECORDER: Final = Recorder(_NAME, _run, _missing, reports.collect_export)
"""One nsys runs the whole process tree: one report, one clock."""
