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
    tally = Faults("reads of a network file system: in part, interrupted, EIO, ESTALE, ETIMEDOUT")
    for job in jobs(rng, n, (*JOBS, *ASKED)):
        way, number = rng.choice(_WAYS_OF_READING), rng.randrange(1, _MOST_READS)
        is_once = way == "EINTR" or rng.random() < 0.5
        ended, harms = _asked(place, server, job, ("READS", way, number), is_once=is_once)
        if ended.code and way in ("short", "EINTR"):
            harms.append(f"exit {ended.code}: {ended.stderr[-200:]}")
        tally.count(f"{job.name}, {way}, {number}, once {is_once}", harms, ended.code)
    return tally


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
)
