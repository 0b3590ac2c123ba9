"""Faults of the machine, injected into every command that writes."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.reliability.commands import Ended, Server
from tests.reliability.tally import Faults
from tests.reliability.workplace import JOBS, OLD, Job, Workplace
from tests.requirements import ROOT

Injector = Callable[[Workplace, Server, random.Random, int], Faults]
_MOST_STEPS: Final = 400
_PLANNED: Final = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EDQUOT)
_MIB: Final = 1 << 20
_PROMPT_S: Final = 1.0
"""Within how much CPU time an interrupted command is over: wall time depends on the machine."""


def killed_at_each_step(place: Workplace, server: Server, rng: random.Random, n: int) -> Faults:
    """Kill −9 just before each thing that a command does to a file."""
    tally = Faults("`kill -9` before each file operation")
    for job, step, ended in _steps(place, server, rng, n, signal=signal.SIGKILL):
        harms = [*place.harms(job, ended=False)]
        if rng.random() < 0.1:
            again = server.run(_again(job))
            harms += [] if again.code == 0 else [f"not again: {again.stderr}"]
        tally.count(f"{job.name}, step {step}", harms, ended.code)
    return tally


def killed_at_random(place: Workplace, server: Server, rng: random.Random, n: int) -> Faults:
    """Kill −9 at a random moment of the work."""
    tally = Faults("`kill -9` at a random time")
    for job in jobs(rng, n):
        place.prepare(job)
        ended = _stop_at_random(server, job, rng, signal.SIGKILL)
        tally.count(job.name, place.harms(job, ended=False), ended.code)
    return tally


def interrupted_at_each_step(
    place: Workplace, server: Server, rng: random.Random, n: int
) -> Faults:
    """Ctrl-C just before each thing that a command does to a file."""
    tally = Faults("Ctrl-C before each file operation")
    for job, step, ended in _steps(place, server, rng, n, signal=signal.SIGINT):
        tally.count(f"{job.name}, step {step}", _harms_of_interrupt(place, job, ended), ended.code)
    return tally


def interrupted_at_random(place: Workplace, server: Server, rng: random.Random, n: int) -> Faults:
    """Ctrl-C at a random moment, from the start of the interpreter on."""
    tally = Faults("Ctrl-C at a random time, including start-up")
    for job in jobs(rng, n):
        place.prepare(job)
        if job.name == "record":  # its program gets it, too: tests/recording/programs
            continue
        process = _program(place, job)
        time.sleep(rng.uniform(0.03, 2.0))
        process.send_signal(signal.SIGINT)
        used_s = _cpu_s(process.pid)
        after_s = used_s
        while process.poll() is None:
            after_s = _cpu_s(process.pid) or after_s
            time.sleep(0.02)
        _, stderr = process.communicate()
        harms = [*place.harms(job)]
        # Before the first line of ours Python ends itself by the signal: a shell says 130, too.
        ours = "/traceprof/" in stderr and "/traceprof/__init__" not in stderr
        if process.returncode not in (0, 130) and (process.returncode not in (-2, 1) or ours):
            harms.append(f"exit {process.returncode}: {stderr[-200:]}")
        if process.returncode == 130 and stderr.count("\n") > 1:
            harms.append(f"said: {stderr[-200:]}")
        if after_s - used_s > _PROMPT_S:
            harms.append(f"{after_s - used_s:.1f} s of CPU after Ctrl-C")
        tally.count(job.name, harms, process.returncode)
    return tally


def system_errors(place: Workplace, server: Server, rng: random.Random, n: int) -> Faults:
    """The system refuses one thing that a command does to a file: full, broken, not allowed."""
    tally = Faults("a system error at each file operation (disk full, I/O, access, quota)")
    for job, step, ended in _steps(place, server, rng, n, errno=_PLANNED):
        tally.count(f"{job.name}, step {step}", harms_of_error(place, job, ended), ended.code)
    return tally


def files_that_cannot_grow(place: Workplace, server: Server, rng: random.Random, n: int) -> Faults:
    """No file may be longer than a random number of bytes."""
    tally = Faults("a file size limit")
    for job in jobs(rng, n):
        place.prepare(job)
        # What is read for a plan of pages is not written; the log of the command itself is.
        ended = server.run(job.arguments, file_bytes=rng.choice((2_000, 9_000, 30_000, 60_000)))
        tally.count(job.name, harms_of_error(place, job, ended), ended.code)
    return tally


def full_disks(place: Workplace, server: Server, rng: random.Random, n: int) -> Faults:
    """The folder of the output is a small disk of its own that is full after some bytes."""
    tally = Faults("a full disk (a small disk, mounted)")
    disk = place.folder.with_name("disk")
    for job in (job for job in jobs(rng, n) if job.output.endswith(("html", "sqlite"))):
        place.restore()
        disk.mkdir(exist_ok=True)
        size = rng.choice((4, 16, 64, 1024))
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", disk],
            capture_output=True,
            check=False,
        )
        if done.returncode:
            return tally  # nothing can be mounted here: the table says 0 of 0
        try:
            (disk / "out").write_text(OLD)
            arguments = [str(disk / "out") if one == job.output else one for one in job.arguments]
            ended = server.run(arguments)
            harms = [*words_of(ended)] if ended.code else []
            if ended.code and (disk / "out").read_text() != OLD:
                harms.append("the old one is lost")
            harms += [f"left: {one.name}" for one in disk.iterdir() if one.name != "out"]
            tally.count(f"{job.name} on {size} kB", harms, ended.code)
        finally:
            subprocess.run(["umount", disk], check=False)
    return tally


def unwritable_folders(place: Workplace, server: Server, rng: random.Random, n: int) -> Faults:
    """The folder may be read only, or goes away while the command runs."""
    tally = Faults("read-only folders, and folders that disappear")
    for job in jobs(rng, n):
        place.prepare(job)
        if rng.random() < 0.5 and os.getuid() == 0:
            place.folder.chmod(0o555)
            (place.folder / "temporary").chmod(0o777)
            for one in ("stdout.txt", "stderr.txt"):
                (place.folder / one).touch(mode=0o666)
                (place.folder / one).chmod(0o666)
            ended = server.run(job.arguments, user=65534)
            place.folder.chmod(0o755)
            tally.count(f"{job.name}, read only", harms_of_error(place, job, ended), ended.code)
            continue
        away = place.folder / "temporary"
        aside = place.folder.with_name("said")
        aside.mkdir(exist_ok=True)
        server.start(job.arguments, **{one: str(aside / one) for one in ("stdout", "stderr")})
        time.sleep(rng.uniform(0, 0.3))
        shutil.rmtree(away, ignore_errors=True)
        shutil.rmtree(place.folder, ignore_errors=True)
        ended = server.end()
        # What the program of `record` said, and its exit code, are not ours.
        harms = words_of(ended) if ended.code and job.name != "record" else ()
        tally.count(f"{job.name}, gone", harms, ended.code)
        place.folder.mkdir(exist_ok=True)
    return tally


def replaced_while_read(place: Workplace, server: Server, rng: random.Random, n: int) -> Faults:
    """An input is replaced, truncated or removed while it is read."""
    tally = Faults("files that are replaced, truncated, or removed while traceprof reads them")
    for job in (job for job in jobs(rng, n) if job.arguments[0] in _READING):
        place.prepare(job)
        names = [one for one in job.arguments if (place.folder / one).is_file()]
        names = [one for one in names if one.startswith(("trace", "a.", "b."))]
        if not names:
            continue
        server.start(job.arguments)
        time.sleep(rng.uniform(0, 0.25))
        for name in names:
            _harm_file(place.folder / name, rng)
        ended = server.end()
        harms = [*place.harms(job, replaced=True)]
        harms += words_of(ended) if ended.code else ()
        tally.count(job.name, harms, ended.code)
    return tally


def clock_jumps(place: Workplace, server: Server, rng: random.Random, n: int) -> Faults:
    """Wall time jumps by hours or years, back and forth, between any two looks at it."""
    tally = Faults("a clock that jumps")
    for job in jobs(rng, n):
        place.prepare(job)
        offset_s = rng.choice((-1e9, -3600.0, 3600.0, 1e9))
        ended = server.run(job.arguments, clock_offset_s=offset_s)
        harms = [*place.harms(job)]
        if ended.code:
            harms.append(f"exit {ended.code}: {ended.stderr[-200:]}")
        tally.count(job.name, harms)
    return tally


def little_memory(place: Workplace, _: Server, rng: random.Random, n: int) -> Faults:
    """The whole program gets a random amount of memory, from less than most commands take."""
    tally = Faults("a memory limit")
    for job in jobs(rng, n):
        place.prepare(job)
        program = _program(place, job, memory_bytes=rng.randrange(100, 480) * _MIB)
        _, stderr = program.communicate()
        ended = Ended(program.returncode, 0.0, "", stderr, is_hit=True)
        tally.count(job.name, harms_of_error(place, job, ended), ended.code)
    return tally


def streams_that_fail(place: Workplace, server: Server, rng: random.Random, n: int) -> Faults:
    """Standard output or standard error is full, or nobody reads it any more."""
    tally = Faults("a full standard output or standard error")
    for job in jobs(rng, n):
        place.prepare(job)
        stream = rng.choice(("stdout", "stderr"))
        ended = server.run(job.arguments, **{stream: "/dev/full"})
        harms = [*place.harms(job)]
        if ended.code not in (0, 1) or (ended.code and not ended.is_one_line):
            harms.append(f"exit {ended.code}: {ended.stderr[-200:]}")
        tally.count(f"{job.name}, {stream}", harms, ended.code)
    return tally


def eight_at_once(place: Workplace, server: Server, rng: random.Random, n: int) -> Faults:
    """Eight programs that read and write the same files at the same time."""
    tally = Faults("8 processes that read and write the same files")
    writing = [job for job in JOBS if job.output == "out.html" or job.name.startswith("runs")]
    for _ in range(max(1, n // 8)):
        chosen = [job for job in rng.choices(writing, k=8) if job.name != "runs rm"]
        place.prepare(JOBS[0])
        programs = [(job, _program(place, job)) for job in chosen]
        for job, program in programs:
            _, stderr = program.communicate()
            harms = [] if program.returncode == 0 else [f"exit {program.returncode}: {stderr}"]
            if job.name.startswith("runs add") and "already exists: choose another name" in stderr:
                harms = []
            others = replace(job, is_of_runs=True)  # which change the runs meanwhile
            harms += place.harms(others, ended=False)
            tally.count(job.name, harms, program.returncode)
        left = [one for one in place.leftovers(JOBS[0]) if one != "out.json"]
        tally.count("all", [f"left: {one}" for one in left])
    return tally


_READING: Final = ("timeline", "report", "cut", "compare", "analyze", "accuracy", "runs")


def jobs(rng: random.Random, n: int, among: Sequence[Job] = JOBS) -> Iterator[Job]:
    """Yield ``n`` jobs: each in turn, in random order."""
    order: list[Job] = []
    for _ in range(n):
        if not order:
            order = rng.sample(among, len(among))
        yield order.pop()


def _steps(
    place: Workplace, server: Server, rng: random.Random, n: int, **fault: Any
) -> Iterator[tuple[Job, int, Ended]]:
    """Run jobs with a fault at one step after the other, at most ``n`` times."""
    left = n
    for job in rng.sample(JOBS, len(JOBS)):
        for step in range(1, _MOST_STEPS):
            if left == 0:
                return
            place.prepare(job)
            planned = {
                name: rng.choice(value) if isinstance(value, tuple) else int(value)
                for name, value in fault.items()
            }
            ended = server.run(job.arguments, step=step, **planned)
            if not ended.is_hit:
                break
            left -= 1
            yield job, step, ended


def _again(job: Job) -> tuple[str, ...]:
    arguments = job.arguments
    return ("runs", "list") if job.is_of_runs or not job.is_replaced else arguments


def _stop_at_random(server: Server, job: Job, rng: random.Random, number: int) -> Ended:
    pid = server.start(job.arguments)
    time.sleep(rng.uniform(0, 0.5))
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    return server.end()


def _program(
    place: Workplace, job: Job, memory_bytes: int = resource.RLIM_INFINITY
) -> subprocess.Popen[str]:
    """Start a job as a user does."""

    def prepare() -> None:
        # A shell starts what runs in its background with Ctrl-C ignored.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, resource.RLIM_INFINITY))

    return subprocess.Popen(
        [sys.executable, "-m", "traceprof", *job.arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place.folder,
        preexec_fn=prepare,  # noqa: PLW1509
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TRACEPROF_RUNS": str(place.folder / "runs.db"),
            "TRACEPROF_CACHE": str(place.folder / "cache"),
            "TMPDIR": str(place.folder / "temporary"),
        },
    )


def _cpu_s(pid: int) -> float:
    """Return what a process has used; 0 where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _harms_of_interrupt(place: Workplace, job: Job, ended: Ended) -> Iterator[str]:
    yield from place.harms(job)
    if ended.code != 128 + signal.SIGINT and job.name != "record":
        yield f"exit {ended.code}: {ended.stderr[-300:]}"
    if "Traceback" in ended.stderr:
        yield ended.stderr[-300:]


def harms_of_error(place: Workplace, job: Job, ended: Ended) -> Iterator[str]:
    """Yield what a command that failed has harmed, or did not say in one line."""
    harms = place.harms(job)
    if job.name == "record" and "to write the trace of the captured data" in ended.stderr:
        harms = (one for one in harms if not one.startswith("left: temporary/traceprof-"))
    if ended.is_removing:  # what the system refuses to remove stays
        harms = (one for one in harms if not one.startswith("left: "))
    yield from harms
    if ended.code:
        yield from words_of(ended)


def words_of(ended: Ended) -> Iterator[str]:
    """Yield what is wrong with how a command said that it failed."""
    if ended.code < 0:
        yield f"ended by signal {-ended.code}"
    elif not ended.is_one_line:
        yield f"exit {ended.code}, said {ended.stderr[-300:]!r}"


def _harm_file(path: Path, rng: random.Random) -> None:
    way = rng.choice(("truncate", "remove", "replace", "rewrite"))
    if way == "truncate":
        with path.open("rb+") as file:
            file.truncate(int(path.stat().st_size * rng.random()))
    elif way == "remove":
        path.unlink()
    elif way == "replace":
        other = path.with_name(f"other-{path.name}")
        other.write_bytes(path.read_bytes()[: rng.randrange(1, 9_000)])
        other.replace(path)
    else:
        data = bytearray(path.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 4_096] = rng.randbytes(min(4_096, len(data) - middle))
        path.write_bytes(data)
