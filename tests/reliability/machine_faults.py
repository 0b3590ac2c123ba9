"""All faults of the machine: those of `faults`, and those that machine.c makes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from tests.reliability import faults
from tests.reliability.commands import Ended, Server
from tests.reliability.faults import Injector, harms_of_error, jobs, words_of
from tests.reliability.machine import Fault, in_folder
from tests.reliability.tally import Faults
from tests.reliability.workplace import JOBS, Job, Workplace

ASKED: Final = (
    Job("analyze -j", ("analyze", "run", "-j", "2")),
    Job("analyze", ("analyze", "a.sqlite")),
    Job("show", ("show", "kernels,idle", "trace.json")),
    Job("query", ("query", "a.sqlite", "SELECT name, sum(duration_ns) FROM kernels GROUP BY 1")),
    Job("ops", ("ops", "trace.json", "--csv")),
    Job("info", ("info", "run")),
)
"""What is asked beside: its answer is the same, or it is none."""
PRINTED: Final = (
    *ASKED[1:],  # worker processes change nothing here
    Job("analyze --full", ("analyze", "run", "--full")),
    Job("analyze --markdown", ("analyze", "a.sqlite", "--markdown")),
    Job("demo", ("demo", "--no-browser", "-o", "demo", "-f")),
    Job("findings", ("findings", "a.sqlite")),
    Job("show", ("show",)),
    Job("show --json", ("show", "kernels,steps,gaps", "a.sqlite", "--json", "-w", "all")),
    Job("show --csv", ("show", "steps", "a.sqlite", "--csv")),
    Job("a table alone", ("kernels", "a.sqlite")),
    Job("explain", ("explain", "a.sqlite", "slowest")),
    Job("memory", ("memory", "memory.pickle")),
    Job("query --schema", ("query", "--schema")),
    Job("query --json", ("query", "a.sqlite", "SELECT * FROM kernels", "--json")),
    Job("ops --json", ("ops", "a.sqlite", "--json")),
    Job("ops --ncu", ("ops", "a.sqlite", "--ncu")),
    Job("compare", ("compare", "a.sqlite", "b.sqlite")),
    Job("compare --json", ("compare", "a.sqlite", "b.sqlite", "--json")),
    Job("scaling", ("scaling", "a.sqlite", "run")),
    Job("elastic", ("elastic", "run")),
    Job("accuracy", ("accuracy", "a.log")),
    Job("nodes", ("nodes", "run")),
    Job("info --json", ("info", "a.sqlite", "--json")),
    Job("doctor", ("doctor",)),
    Job("runs list", ("runs", "list")),
    Job("runs show", ("runs", "show", "kept-0")),
    Job("runs export", ("runs", "export")),
    Job("runs import-log", ("runs", "import-log", "a.log", "--dry-run")),
    Job("help", ("help", "options")),
    Job("--help", ("--help",)),
    Job("show --help", ("show", "--help")),
    Job("--version", ("--version",)),
)
"""Every command that prints an answer, in each of its forms."""
_MOST_PROCESSES: Final = 10
_MOST_READS: Final = 100
_WAYS_OF_READING: Final = ("short", "EINTR", "EIO", "ESTALE", "ETIMEDOUT")
_CPU_S: Final = 60
_UNCACHED: Final = {"TRACEPROF_CACHE": "0"}


def no_more_processes(place: Workplace, server: Server, rng: random.Random, n: int) -> Faults:
    """No more processes and threads may be started from one on, or one cannot be."""
    tally = Faults("no more processes and threads (`ulimit -u`), or one that does not start")
    for job in jobs(rng, n, (*JOBS, *ASKED)):
        number, is_once = rng.randrange(1, _MOST_PROCESSES), rng.random() < 0.5
        ended, harms = _asked(place, server, job, ("PROCESSES", "", number), is_once=is_once)
        tally.count(f"{job.name}, {number}, once {is_once}", harms, ended.code)
    return tally


def reads_of_a_network_disk(place: Workplace, server: Server, rng: random.Random, n: int) -> Faults:
    """A file system of another machine gives less than was asked for, or fails in the middle."""
    tally = Faults("reads from a network file system: short, interrupted, EIO, ESTALE, ETIMEDOUT")
    for job in jobs(rng, n, (*JOBS, *ASKED)):
        way, number = rng.choice(_WAYS_OF_READING), rng.randrange(1, _MOST_READS)
        is_once = way == "EINTR" or rng.random() < 0.5
        ended, harms = _asked(place, server, job, ("READS", way, number), is_once=is_once)
        if ended.code and way in ("short", "EINTR"):
            harms.append(f"exit {ended.code}: {ended.stderr[-200:]}")
        tally.count(f"{job.name}, {way}, {number}, once {is_once}", harms, ended.code)
    return tally


def output_in_parts(place: Workplace, server: Server, rng: random.Random, n: int) -> Faults:
    """Standard output takes some bytes and is full then, or takes a few at a time."""
    tally = Faults("standard output that accepts a part: full after some bytes, or a slow pipe")
    for job in jobs(rng, n, PRINTED):
        way, is_buffered = rng.choice(("full", "slow")), rng.random() < 0.5
        share = rng.random()
        place.prepare(job)
        whole = printed(server, job)
        ended, harms = printed_in_parts(server, job, whole, way, share, is_buffered=is_buffered)
        tally.count(f"{job.name}, {way}, {share}, buffered {is_buffered}", harms, ended.code)
    return tally


def printed(server: Server, job: Job) -> bytes:
    """Return what a command prints."""
    server.run(job.arguments, environment=_UNCACHED)
    return (server.folder / "stdout.txt").read_bytes()


def printed_in_parts(
    server: Server, job: Job, whole: bytes, way: str, share: float, *, is_buffered: bool
) -> tuple[Ended, list[str]]:
    """Print ``whole`` where this share of it is taken, or is taken at a time; return harms."""
    number = max(int(len(whole) * share), 1)
    planned = Fault(server.folder.with_name("counts"), "WRITES", way, number)
    environment = planned.environment | _UNCACHED
    ended = server.run(
        job.arguments, environment=environment, is_buffered=is_buffered, cpu_s=_CPU_S
    )
    wanted = whole if way == "slow" else whole[:number]
    harms = list(words_of(ended)) if ended.code else []
    if ended.code != int(wanted != whole):
        harms.append(f"exit {ended.code}: {ended.stderr[-300:]!r}")
    found = (server.folder / "stdout.txt").read_bytes()
    if found != wanted:
        harms.append(f"printed {len(found)} bytes, not {len(wanted)}")
    return ended, harms


def _asked(
    place: Workplace, server: Server, job: Job, fault: tuple[str, str, int], *, is_once: bool
) -> tuple[Ended, list[str]]:
    """Ask with a fault, and without where its answer is printed; return the end, and harms."""
    place.prepare(job)
    counts = place.folder.with_name("counts")
    planned = Fault(counts, *fault, is_once=is_once)
    environment = {**planned.environment, **in_folder(place.folder)}
    if job not in ASKED:
        ended = server.run(job.arguments, environment=environment, cpu_s=_CPU_S)
        return ended, [*(harms_of_error(place, job, ended) if ended.code else place.harms(job))]
    ended = server.run(job.arguments, environment=environment | _UNCACHED, cpu_s=_CPU_S)
    return ended, [*_harms_to_answer(ended, server.run(job.arguments, environment=_UNCACHED))]


def _harms_to_answer(ended: Ended, undisturbed: Ended) -> Iterator[str]:
    if ended.code:
        yield from words_of(ended)
        yield from ["half an answer"] if ended.stdout else []
    elif ended.stdout != undisturbed.stdout:
        yield f"another answer: {ended.stdout[:300]!r}"


FAULTS: Final[tuple[Injector, ...]] = (
    faults.killed_at_each_step,
    faults.killed_at_random,
    faults.interrupted_at_each_step,
    faults.interrupted_at_random,
    faults.system_errors,
    faults.files_that_cannot_grow,
    faults.full_disks,
    faults.unwritable_folders,
    faults.replaced_while_read,
    faults.clock_jumps,
    faults.little_memory,
    faults.streams_that_fail,
    faults.eight_at_once,
    no_more_processes,
    reads_of_a_network_disk,
    output_in_parts,
)
