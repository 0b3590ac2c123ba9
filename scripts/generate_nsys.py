#!/usr/bin/env python3
"""Generate nsys exports of a training job: the size, the shape and the disorder of real ones.

    scripts/generate_nsys.py OUT.sqlite [--kernels 500000] [--ranks 2]   all ranks in one file
    scripts/generate_nsys.py FOLDER --ranks 8 [--kernels 2000]           rank0.sqlite … in a folder

    scripts/generate_nsys.py FOLDER --ranks 8 --samples-per-s 10   as `traceprof record` leaves them

``--kernels`` is per rank. The same options give the same bytes of events. What was planted is
printed as JSON: kernels, steps, copies with their bytes, collectives, operators, the straggler.
With ``--samples-per-s`` there are operators of the host and samples of machine and processes, too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from scripts.nsys_export.file import ExportFile
from scripts.nsys_export.rows import Rank, pass_over, rows_of
from scripts.nsys_export.samples import Recorder
from scripts.nsys_export.step import Kind, Label, Step, build_step
from scripts.nsys_export.strings import strings_of
from scripts.nsys_export.timeline import Job, simulate

__all__ = ["Job", "Planted", "generate"]

_GPUS_PER_HOST: Final = 8
_MOST_LAYERS: Final = 32
_FEWEST_STEPS: Final = 10
_CHUNK: Final = 400_000
"""Operations of all ranks that are in memory at a time."""

_EPOCH_NS: Final = 1_779_782_330_176_752_435
_FIRST_EVENT_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Planted:
    """What is in the exports, by construction; counts are those of one rank.

    ``copied_bytes`` is by direction and of one rank. ``straggler`` takes longer in its backward
    than the others, who wait for it in the collectives.
    """

    ranks: int
    steps: int
    kernels: int
    collectives: int
    operators: int
    copies: dict[str, int]
    copied_bytes: dict[str, int]
    straggler: int | None


def generate(
    out: Path,
    n_kernels: int,
    job: Job,
    seed: int = 7,
    samples_per_s: float = 0,
    n_jobs: int = 1,
) -> Planted:
    """Write exports of ``job``, about ``n_kernels`` a rank, and return what is in them.

    ``out`` is one file for all ranks where it ends in .sqlite, else a folder of one file a rank.
    With ``samples_per_s`` they are recordings of traceprof: with operators and samples. The files
    are the same bytes however many processes (``n_jobs``) write them.
    """
    step = _step_for(n_kernels)
    if out.suffix != ".sqlite":
        out.mkdir(parents=True, exist_ok=True)
    n_jobs = 1 if out.suffix == ".sqlite" else min(n_jobs, job.n_ranks)
    shares = [
        (out, n_kernels, job, seed, samples_per_s, (place, n_jobs)) for place in range(n_jobs)
    ]
    if n_jobs == 1:
        _write(*shares[0])
    else:
        with ProcessPoolExecutor(n_jobs) as processes:
            list(processes.map(_write, *zip(*shares, strict=True)))
    n_steps = max(1, round(n_kernels / step.n_kernels))
    return _planted(step, n_steps, job, has_operators=samples_per_s > 0)


def _write(
    out: Path, n_kernels: int, job: Job, seed: int, samples_per_s: float, share: tuple[int, int]
) -> None:
    """Write the files of a ``share``: every second one from the first on where that is (0, 2).

    Times are drawn for all ranks, which takes a fiftieth of what writing them does.
    """
    place, n_jobs = share
    step = _step_for(n_kernels)
    n_steps = max(1, round(n_kernels / step.n_kernels))
    random = np.random.default_rng(seed)
    ranks = _ranks(job, random, one_clock=out.suffix == ".sqlite")
    strings = strings_of(step)
    every = _files(out, ranks)
    files = every[place::n_jobs]
    exports = [
        ExportFile(path, own, strings, seed, _recorder(own, ranks, samples_per_s))
        for path, own in files
    ]
    begin, done = np.zeros(job.n_ranks, np.int64), 0
    chunk = max(1, _CHUNK // (job.n_ranks * len(step.operations)))
    while done < n_steps:
        times = simulate(job, step, begin, min(chunk, n_steps - done), random)
        for number, (_, own) in enumerate(every):
            if number % n_jobs == place:
                parts = [rows_of(step, strings, rank, times, random) for rank in own]
                exports[number // n_jobs].add(parts)
            else:
                pass_over(times, random)
        begin, done = times.begin, done + times.start.shape[1]
    wrong_by = random.integers(-1_000_000, 1_000_000, 1 + job.n_ranks // _GPUS_PER_HOST)
    for (_, own), export in zip(files, exports, strict=True):
        number = own[0].number // _GPUS_PER_HOST
        epoch = _EPOCH_NS - own[0].shift_ns + int(wrong_by[number])
        export.close(utc_epoch_ns=epoch, host=f"node{number:03}")


def _step_for(n_kernels: int) -> Step:
    """Return a step that is short enough for several of them."""
    head = build_step(0).n_kernels
    per_layer = build_step(1).n_kernels - head
    layers = (n_kernels // _FEWEST_STEPS - head) // per_layer
    return build_step(min(max(layers, 1), _MOST_LAYERS))


def _ranks(job: Job, random: np.random.Generator, *, one_clock: bool) -> list[Rank]:
    """Return the ranks; each file counts its time from when its own capture began."""
    shifts = _FIRST_EVENT_NS + random.integers(0, 2_000_000_000, job.n_ranks)
    return [
        Rank(
            number=number,
            device=number % _GPUS_PER_HOST,
            context=1 + (number % _GPUS_PER_HOST if one_clock else 0),
            process=4000 + 131 * (number % _GPUS_PER_HOST) + 2000 * (number // _GPUS_PER_HOST),
            shift_ns=int(shifts[0 if one_clock else number]),
        )
        for number in range(job.n_ranks)
    ]


def _files(out: Path, ranks: Sequence[Rank]) -> list[tuple[Path, list[Rank]]]:
    if out.suffix == ".sqlite":
        return [(out, list(ranks))]
    return [(out / f"rank{rank.number}.sqlite", [rank]) for rank in ranks]


def _recorder(own: Sequence[Rank], ranks: Sequence[Rank], samples_per_s: float) -> Recorder | None:
    """Return what samples the host of the ranks ``own``; several in one file are on one host."""
    if not samples_per_s:
        return None
    hosts = {rank.number // _GPUS_PER_HOST for rank in own}
    beside = [rank for rank in ranks if rank.number // _GPUS_PER_HOST in hosts]
    return Recorder(sorted({rank.device for rank in beside}), samples_per_s)


def _planted(step: Step, n_steps: int, job: Job, *, has_operators: bool) -> Planted:
    copied = {
        kind.name.lower(): [step.operations[place].n_bytes for place in step.places(kind)]
        for kind in (Kind.H2D, Kind.D2D, Kind.D2H, Kind.MEMSET)
    }
    return Planted(
        ranks=job.n_ranks,
        steps=n_steps,
        kernels=n_steps * step.n_kernels,
        collectives=n_steps * len(step.places(Kind.COLLECTIVE)),
        operators=n_steps * sum(one.label is Label.NUMBERED for one in step.ranges) * has_operators,
        copies={name: n_steps * len(sizes) for name, sizes in copied.items()},
        copied_bytes={name: n_steps * sum(sizes) for name, sizes in copied.items()},
        straggler=job.straggler,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--kernels", type=int, default=500_000, help="per rank")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--straggler", type=int, help="the rank that is slow in its backward")
    parser.add_argument("--slowdown", type=float, default=1.5, help="how slow it is")
    parser.add_argument("--samples-per-s", type=float, default=0, help="of every counter")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=1, help="processes that write a folder")
    options = parser.parse_args()
    if options.straggler is not None and not 0 <= options.straggler < options.ranks:
        parser.error(f"--straggler {options.straggler}: there are ranks 0..{options.ranks - 1}")
    job = Job(options.ranks, options.straggler, options.slowdown)
    samples_per_s = options.samples_per_s
    planted = generate(options.out, options.kernels, job, options.seed, samples_per_s, options.jobs)
    print(json.dumps(asdict(planted)))


if __name__ == "__main__":
    main()
