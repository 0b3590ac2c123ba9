"""A folder with every kind of input, the commands that write there, and what must be true after.

Whatever happens to a command: inputs stay as they are, an output is the old one or a whole new one,
and runs that were kept stay kept.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.builders import TraceBuilder
from tests.formats.test_contract import write_as_kineto
from tests.snapshots.allocator import Allocator, forward
from tests.summaries import make_summary, steps_table
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.trace import Trace
from traceprof.store import Store, exported_runs

OLD: Final = "what was here before\n"
PROGRAM: Final = (
    "import traceprof\n"
    "for i in range(30):\n"
    "    with traceprof.step(), traceprof.range('work'): pass"
)
LOG: Final = "".join(
    f"Epoch: [0][{at}/40]\tTime  0.1{at % 7} ( 0.120)\tData  0.001 ( 0.001)\tLoss 2.{at}e+00 "
    f"(2.5e+00)\tAcc@1  1{at % 10}.00 ( 10.00)\n"
    for at in range(40)
)


_STEPS_OF_A: Final = 10
_ROWS_OF_A: Final = {"at_ns": _STEPS_OF_A * 10, "name": 9}
"""Rows of CSV by their first column: operations of a.sqlite, and its kernels by name."""


@dataclass(frozen=True, slots=True)
class Job:
    """A command that writes, what it writes, and whether that is there before."""

    name: str
    arguments: tuple[str, ...]
    output: str = ""
    is_replaced: bool = True
    is_of_runs: bool = False


JOBS: Final = (
    Job("timeline", ("timeline", "trace.sqlite", "-o", "out.html", "--force"), "out.html"),
    Job("report", ("report", "trace.json", "-o", "out.html", "--force"), "out.html"),
    Job("report of two", ("report", "a.sqlite", "b.sqlite", "-o", "out.html", "-f"), "out.html"),
    Job("cut", ("cut", "trace.sqlite", "-w", "all", "-o", "out.sqlite", "-f"), "out.sqlite"),
    Job("cut of JSON", ("cut", "trace.json", "-w", "all", "-o", "out.json", "-f"), "out.json"),
    Job("cut of a run", ("cut", "run", "-w", "all", "-o", "out"), "out", is_replaced=False),
    Job(
        "cut --split",
        ("cut", "trace.sqlite", "-w", "step:3..5", "--split", "step", "-o", "out"),
        "out",
        is_replaced=False,
    ),
    Job(
        "export",
        ("export", "trace.sqlite", "--to", "perfetto", "-o", "out.json", "-f"),
        "out.json",
    ),
    Job(
        "query -o",
        ("query", "trace.sqlite", "SELECT * FROM kernels", "--json", "-o", "out.json", "-f"),
        "out.json",
    ),
    Job("show -o", ("show", "kernels", "a.sqlite", "-o", "out.csv", "-f"), "out.csv"),
    Job("ops -o", ("ops", "a.sqlite", "--csv", "-o", "out.csv", "-f"), "out.csv"),
    Job("compare -o", ("compare", "a.sqlite", "b.sqlite", "-o", "out.html", "-f"), "out.html"),
    Job("scaling -o", ("scaling", "a.sqlite", "run", "-o", "out.html", "-f"), "out.html"),
    Job("nodes -o", ("nodes", "run", "-o", "out.html", "-f"), "out.html"),
    Job("accuracy -o", ("accuracy", "a.log", "-o", "out.html", "-f"), "out.html"),
    Job("elastic -o", ("elastic", "run", "-o", "out.html", "-f"), "out.html"),
    Job("analyze --save", ("analyze", "a.sqlite", "--save"), is_of_runs=True),
    Job("runs add", ("runs", "add", "a.sqlite", "b.sqlite"), is_of_runs=True),
    Job("runs add --force", ("runs", "add", "b.sqlite", "--name", "kept-1", "-f"), is_of_runs=True),
    Job("runs import-log", ("runs", "import-log", "a.log"), is_of_runs=True),
    Job("runs tag", ("runs", "tag", "kept-0", "network=calico"), is_of_runs=True),
    Job("runs rm", ("runs", "rm", "kept-2"), is_of_runs=True),
    Job("runs export", ("runs", "export", "-o", "out.json", "-f"), "out.json", is_of_runs=True),
    Job("runs add JSON", ("runs", "add", "runs.json"), is_of_runs=True),
    Job(
        "record",
        (*("record", "-o", "out.sqlite", "-f", "--with", "torch", "--", sys.executable), "work.py"),
        "out.sqlite",
    ),
)
"""Every command that writes; tests hold it against the list of commands."""


def make_trace(n_steps: int = 20, *, slower: int = 0, rank: int = -1) -> Trace:
    """Return a trace of steps with kernels, copies and collectives."""
    builder = TraceBuilder().process(1, rank=rank, world_size=2 if rank >= 0 else -1)
    for step in range(n_steps):
        at = 1_000_000 * step
        builder.step(at, at + 990_000, step).phase("forward", at + 10, at + 400_000)
        builder.phase("backward", at + 400_010, at + 900_000)
        for one in range(8):
            begin = at + 100_000 * one + 20_000
            end = begin + 50_000 + slower
            builder.kernel(f"gemm_{one}", begin, end, launched_ns=(begin - 9_000, begin - 5_000))
        builder.copy("h2d", at + 1_000, at + 9_000, n_bytes=4096, launched_ns=(at + 20, at + 40))
        builder.kernel(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            *(at + 850_000, at + 900_000),
            launched_ns=(at + 800_000, at + 801_000),
            stream=20,
        )
    return builder.build()


class Workplace:
    """The folder, made anew from a copy for each fault."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept = folder.with_name(folder.name + "-kept")
        shutil.rmtree(self._kept, ignore_errors=True)
        _fill(self._kept)
        self._inputs = {path.relative_to(self._kept): _digest(path) for path in _files(self._kept)}
        self._runs = _runs(self._kept / "runs.db")
        self.restore()

    def restore(self) -> None:
        """Make everything as it was."""
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o755)
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        shutil.copytree(self._kept, self.folder, dirs_exist_ok=True)
        (self.folder / "temporary").mkdir()

    def prepare(self, job: Job) -> None:
        """Make everything as it was, with an old output where the job replaces one."""
        self.restore()
        if job.output and job.is_replaced:
            (self.folder / job.output).write_text(OLD)

    def harms(self, job: Job, *, ended: bool = True, replaced: bool = False) -> Iterator[str]:
        """Yield what was lost or torn; what a killed process cannot tidy up is no harm.

        ``ended``: the command ended by itself, so that nothing of it may be left. ``replaced``:
        somebody else replaced inputs.
        """
        for path, digest in self._inputs.items():
            is_runs = str(path) == "runs.db"
            if not is_runs and not replaced and _digest(self.folder / path) != digest:
                yield f"input {path} changed"
        yield from self._harms_to_runs(job)
        if job.output:
            yield from _harms_to(self.folder / job.output, job)
        if ended:
            yield from (f"left: {one}" for one in self.leftovers(job))

    def leftovers(self, job: Job) -> list[str]:
        """Return what lies in the folder and was not there, but for the output."""
        expected = {"stdout.txt", "stderr.txt", "temporary", "cache", job.output.split("/")[0]}
        expected |= {path.name for path in self._kept.iterdir()}
        left = [one.name for one in self.folder.iterdir() if one.name not in expected]
        return left + [f"temporary/{one.name}" for one in (self.folder / "temporary").iterdir()]

    def is_new(self, job: Job) -> bool:
        """Return whether the output is a new one."""
        path = self.folder / job.output
        return path.is_dir() or (path.is_file() and path.read_bytes() != OLD.encode())

    def _harms_to_runs(self, job: Job) -> Iterator[str]:
        try:
            runs = _runs(self.folder / "runs.db")
        except sqlite3.Error as error:
            yield f"the database of runs: {error}"
            return
        for name, rows in self._runs.items():
            may_change = name in ("kept-0", "kept-1", "kept-2") and job.is_of_runs
            if not may_change and runs.get(name) != rows:
                yield f"run {name} changed"
            if name not in runs and name != "kept-2":
                yield f"run {name} is lost"


def _harms_to(path: Path, job: Job) -> Iterator[str]:
    if not os.path.lexists(path):
        if job.is_replaced:
            yield f"{path.name}: the old one is lost"
        return
    try:
        is_whole = _is_whole(path)
    except (OSError, ValueError, sqlite3.Error) as error:
        yield f"{path.name}: {error}"
        return
    if not is_whole:
        yield f"{path.name}: torn"


def _is_whole(path: Path) -> bool:
    if path.is_dir():
        return all(_is_whole(one) for one in _files(path)) and bool(list(_files(path)))
    data = path.read_bytes()
    if data == OLD.encode():
        return True
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
            ((told,),) = database.execute("PRAGMA integrity_check").fetchall()
            return bool(told == "ok" and database.execute("SELECT * FROM sqlite_master").fetchone())
    if path.suffix == ".json":
        return bool(json.loads(data))
    if path.suffix == ".csv":
        header, *rows = csv.reader(data.decode().splitlines())
        is_ended = data.endswith(b"\n") and {len(row) for row in rows} == {len(header)}
        return is_ended and len(rows) == _ROWS_OF_A[header[0]]
    return data.startswith(b"<!doctype html>") and data.rstrip().endswith(b"</html>")


def _fill(folder: Path) -> None:
    folder.mkdir(parents=True)
    write_nsys(make_trace(), folder / "trace.sqlite")
    write_as_kineto(make_trace(4), folder / "trace.json")
    write_nsys(make_trace(_STEPS_OF_A), folder / "a.sqlite")
    write_nsys(make_trace(10, slower=9_000), folder / "b.sqlite")
    (folder / "run").mkdir()
    for rank in (0, 1):
        write_nsys(make_trace(8, rank=rank), folder / "run" / f"rank{rank}.sqlite")
    (folder / "a.log").write_text(LOG)
    (folder / "work.py").write_text(PROGRAM)
    allocator = Allocator()
    allocator.alloc(3_000_000, forward(7))
    allocator.write(folder / "memory.pickle")
    for name in ("runs.db", "others.db"):
        store = Store(folder / name)
        for number in range(6):
            tables = {"steps": steps_table([10 + number] * 40)}
            store.add(make_summary(f"{name[:-3].replace('runs', 'kept')}-{number}", tables=tables))
    others = Store(folder / "others.db")
    (folder / "runs.json").write_text(exported_runs([others.get(one) for one in others.names()]))
    (folder / "others.db").unlink()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _runs(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return the rows of each run, by plain sqlite3, after its own recovery."""
    with closing(sqlite3.connect(path)) as database:
        ((told,),) = database.execute("PRAGMA integrity_check").fetchall()
        if told != "ok":
            raise sqlite3.DatabaseError(str(told))
        names = dict(database.execute("SELECT id, name FROM runs").fetchall())
        rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in names.values()}
        tables = [name for (name,) in database.execute(_TABLES).fetchall()]
        for table in tables:
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            if "run_id" not in columns:
                continue
            for row in database.execute(f'SELECT * FROM "{table}" ORDER BY 1, 2, 3'):
                rows[names[row[columns.index("run_id")]]].append((table, *row))
        return rows


_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
