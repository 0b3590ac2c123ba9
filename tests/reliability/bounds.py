"""What commands may take: memory by the size of the file, CPU time that grows no faster than it."""

from __future__ import annotations

import gzip
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.corpus.test_corpus import ARCHIVE, INPUTS
from tests.real_traces import KINETO, NSYS, NVPROF
from tests.reliability.commands import Ended, Server
from tests.reliability.shapes import Shape
from tests.reliability.tally import Costs, Growth
from tests.requirements import require, unpack

FLOOR_BYTES: Final = 320 << 20
"""What a command may take whatever the file: Python, pandas, Arrow, all of our modules."""
BYTES_PER_BYTE: Final = 24
"""And for each byte of the file, unpacked where it is gzipped."""
FLOOR_CPU_S: Final = 10
CPU_S_PER_MB: Final = 2
"""CPU time of a slow machine: some tenths of it are usual."""

GROWN: Final = 4
"""How much larger the second file of a shape is."""
HEADROOM: Final = 1.6
"""n log n, and how much CPU times differ; what is quadratic grows four times as much."""
_LEAST_S: Final = 0.4
"""Below it a command is over too soon for its time to tell anything."""

QUESTIONS: Final[tuple[tuple[str, ...], ...]] = (
    ("info",),
    ("analyze",),
    ("show", "findings"),
    ("show", "breakdown,kernels,copies,idle,gaps,quality,ranges,range-work"),
    ("explain", "slowest"),
    ("report", "-o"),
    ("timeline", "-o"),
    ("ops", "--csv"),
    ("query", "SELECT name, sum(duration_ns) FROM kernels GROUP BY 1"),
    ("compare", ""),
    ("cut", "-w", "1us..", "-o"),
    ("export", "--to", "perfetto", "-o"),
)


def bound_bytes(path: Path) -> int:
    """Return the memory that a command about the trace or run ``path`` may take."""
    return FLOOR_BYTES + BYTES_PER_BYTE * n_bytes(path)


def n_bytes(path: Path) -> int:
    """Return the size of a trace: of a folder all files, of a packed one what is inside."""
    if path.is_dir():
        return sum(n_bytes(one) for one in path.iterdir() if one.is_file())
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    return _n_unpacked(path) if is_packed else path.stat().st_size


def _n_unpacked(path: Path) -> int:
    size = path.stat().st_size
    try:
        with gzip.open(path) as file:
            while block := file.read(1 << 20):
                size += len(block)
    except (OSError, EOFError, ValueError):
        pass  # a damaged one: as much as can be unpacked
    return size


def ask(server: Server, command: Sequence[str], path: Path) -> Ended:
    """Ask one of `QUESTIONS` about a trace, with nothing kept of it."""
    output = server.folder / "out"
    shutil.rmtree(output, ignore_errors=True)
    output.unlink(missing_ok=True)
    name, *more = command
    ending = [str(output)] if more and more[-1] == "-o" else []
    if name == "show":
        arguments = [name, more[0], str(path)]
    elif name == "compare":
        arguments = [name, str(path), str(path)]
    else:
        arguments = [name, str(path), *more, *ending]
    return server.run(arguments, environment={"TRACEPROF_CACHE": "0"}, cpu_s=600)


def measure_files(server: Server, files: Sequence[Path], n_questions: int) -> list[Costs]:
    """Return for each command what it took of ``files``, and where it left its bounds.

    Each file is asked so many of the questions, in turn.
    """
    every = max(1, len(QUESTIONS) // n_questions)
    costs = [Costs(" ".join(command).strip()) for command in QUESTIONS]
    each = list(zip(costs, QUESTIONS, strict=True))
    for number, path in enumerate(files):
        most = bound_bytes(path)
        size_mb = n_bytes(path) / 1e6
        for cost, command in each[number % every :: every]:
            ended = ask(server, command, path)
            cost.count(ended.cpu_s, ended.peak_bytes, ended.peak_bytes / most)
            if ended.peak_bytes > most or ended.code < 0 or ended.code not in range(5):
                cost.beyond.append(f"{path.name}: exit {ended.code}, {ended.peak_bytes >> 20} MiB")
            if ended.cpu_s > FLOOR_CPU_S + CPU_S_PER_MB * size_mb:
                cost.beyond.append(f"{path.name}: {ended.cpu_s:.1f} s of CPU")
    return costs


def corpus_files(folder: Path) -> list[Path]:
    """Return the files of the corpus, unpacked into a new folder."""
    folder.mkdir()
    with tarfile.open(ARCHIVE) as archive:
        unpack(archive, folder)
    return [folder / name for name in INPUTS]


def traces() -> list[Path]:
    """Return the real traces, each file once."""
    folder = Path(require("traces"))
    return [folder / name for name in (*NSYS, *KINETO, *NVPROF)]


def measure_shape(server: Server, shape: Shape, n: int) -> Growth:
    """Return how costs grow when an execution of a shape is `GROWN` times as large."""
    paths = []
    for size in (n, GROWN * n):
        folder = server.folder / f"shape{size}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        paths.append(shape(folder, size))
    growth = Growth(shape.__name__, (shape.__doc__ or "").strip().rstrip("."), GROWN * n)
    for command in QUESTIONS:
        small, large = (ask(server, command, path) for path in paths)
        ratio = large.cpu_s / small.cpu_s if small.cpu_s else 0.0
        growth.count(" ".join(command).strip(), large.cpu_s, ratio, large.peak_bytes)
        if large.code < 0 or (large.cpu_s > _LEAST_S and ratio > HEADROOM * GROWN):
            growth.beyond.append(f"{command[0]}: {small.cpu_s:.2f} s, {large.cpu_s:.2f} s")
        if large.peak_bytes > bound_bytes(paths[1]):
            growth.beyond.append(f"{command[0]}: {large.peak_bytes >> 20} MiB")
    return growth
