"""The commands that README and docs show, with what they print, and the files that they name.

``python -m tests.docs.examples`` writes anew what they print, where a page shows it.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.forking import IS_POSSIBLE, run_forked
from tests.measures.generated_run import MS, Plan, make_run
from tests.requirements import ROOT
from tests.snapshots.allocator import Allocator, backward, forward, optimizer
from traceprof.formats.nsys.writer import write_nsys

COLUMNS: Final = 96
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
_TRACES: Final = ROOT / "fixtures" / "traces"
_SHELLS: Final = re.compile(r"[|&;<>()$`*?\[~{]|^\w+=")
"""What a shell makes something of; without it a command needs none."""
_TIMEOUT_S: Final = 300.0

ELSEWHERE: Final = {
    r"(git|pip|mkdocs|uv|nsys|docker|kubectl|sbatch|srun) ": "installs, or is no command of ours",
    r"scripts/": "tests/scripts/test_first_commands.py",
    r"(sqlite3|datasette) ": "a program of others",
    r"traceprof show flops (?!.*--parameters)": "needs sizes of operators: tests/measures/compute",
    r"traceprof (watch|capture) ": "needs a running program: tests/recording/live",
    r"traceprof view ": "serves until it is ended: tests/viewer",
    r"traceprof try ": "trains for minutes: tests/trying",
    r"traceprof record .*torchrun": "trains on several ranks: tests/recording/programs",
    r"traceprof mcp": "serves until it is ended: tests of mcp",
    r"traceprof .*…": "is no whole command",
    r"traceprof .*tcp://": "needs a cluster: tests/workers",
    r"traceprof .*--cluster local": "needs Dask: tests/workers",
    r"traceprof recover ": "needs a recording that was broken off: tests/recording/programs",
    r"traceprof timeline .*\.(png|svg)": "needs a browser: tests/render/pictures",
}
"""What is not run here, by how the command begins: where it is tried instead."""


@dataclass(frozen=True, slots=True)
class Example:
    """A command of a page, and what the page shows of what it prints ("" where nothing)."""

    page: str
    line: int
    command: str
    printed: str

    @property
    def elsewhere(self) -> str:
        """Why it is not run, or ""."""
        return next((why for how, why in ELSEWHERE.items() if re.match(how, self.command)), "")


def examples(page: Path) -> Iterator[Example]:
    """Yield the commands of a page in their order."""
    text = page.read_text("utf-8")
    for fence in _FENCE.finditer(text):
        if fence[1] not in ("console", ""):
            continue
        is_console = fence[1] == "console"
        first = text[: fence.start(2)].count("\n") + 1
        lines = fence[2].splitlines()
        starts = [i for i, one in enumerate(lines) if _command(one, is_console)]
        for i, end in pairwise([*starts, len(lines)]):
            printed = "\n".join(lines[i + 1 : end]) if is_console else ""
            command = _command(lines[i], is_console)
            yield Example(page.name, first + i, command, printed.strip("\n"))


def inline_examples(page: Path) -> Iterator[Example]:
    """Yield the commands in the sentences and tables of a page that no block of a page shows."""
    text = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), page.read_text("utf-8"))
    for found in re.finditer(r"`(traceprof [^`]+)`", text):
        command = " ".join(found[1].replace("\\|", "|").split())
        if command not in _in_blocks():
            yield Example(page.name, text.count("\n", 0, found.start()) + 1, command, "")


@cache
def _in_blocks() -> frozenset[str]:
    return frozenset(one.command for page in PAGES for one in examples(page))


def _command(line: str, is_console: bool) -> str:
    """Return the command of a line, without its comment; "" where it is none."""
    if is_console and not line.startswith("$ "):
        return ""
    if not is_console and not line.startswith("traceprof "):
        return ""
    return re.sub(r"\s+# .*$|\s{2,}→.*$", "", line.removeprefix("$ ")).strip()


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a user would, in a folder that `furnish` made."""
    known = {name: value for name, value in os.environ.items() if name[:10] != "TRACEPROF_"}
    path = os.pathsep.join((str(folder / ".bin"), known["PATH"]))
    ours = {
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "COLUMNS": str(COLUMNS),
        "HOME": str(folder),
        "TRACEPROF_RUNS": str(folder / ".runs.db"),
        "TRACEPROF_CACHE": "0",
    }
    # What is recorded here is of a stand-in for training: no other command is about it.
    where = folder / "recorded" if command.startswith("traceprof record") else folder
    for written in re.findall(r"-o (\S+\.\w+)", command):
        (where / written).unlink(missing_ok=True)  # pages write several things under one name
    program, *words = shlex.split(command)
    if IS_POSSIBLE and program == "traceprof" and not _SHELLS.search(command):
        done = run_forked(words, where, known | ours, _TIMEOUT_S, is_merged=True)
        assert done is not None, f"not done after {_TIMEOUT_S:g} s: {command}"
        return done
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=where,
        env=known | ours,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=_TIMEOUT_S,
        check=False,
    )


def furnish(folder: Path, page: str = "") -> None:
    """Put what pages name into a folder: traces, runs, logs, programs, a database of runs.

    Runs that the ``page`` adds itself are not in the database.
    """
    (folder / "fixtures").symlink_to(ROOT / "fixtures")
    _programs(folder)
    _traces(folder)
    _runs(folder)
    _logs(folder)
    _snapshot(folder / "trace.memory.pickle")
    kept = tuple(name for name in _KEPT if f"--name {name}" not in page)
    if kept:
        (folder / ".runs.db").write_bytes(_kept_runs(kept))


_KEPT: Final = {"resnet-1gpu": "before", "resnet-8gpu": "after"}
"""The runs in the database, and of which trace they are."""


@cache
def _kept_runs(names: tuple[str, ...]) -> bytes:
    """Return a database of runs, which is the same on every page that adds none of them."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        _programs(folder)
        _traces(folder)
        for name in names:
            command = f"traceprof runs add {_KEPT[name]}.sqlite --name {name} -l model=resnet50"
            done = run(command, folder)
            assert done.returncode == 0, done.stdout
        return (folder / ".runs.db").read_bytes()


def _traces(folder: Path) -> None:
    h100 = gzip.decompress((_TRACES / "h100-cnn.sqlite.gz").read_bytes())
    for name in ("run.sqlite", "trace.sqlite", "TRACE", "T"):
        (folder / name).write_bytes(h100)
    for name in ("before", "after"):
        data = gzip.decompress((_TRACES / f"{name}.sqlite.gz").read_bytes())
        aliases = {"before": ("BASE", "A", "b1", "b2", "b3"), "after": ("NEW", "n1", "n2", "n3")}
        for alias in (f"{name}.sqlite", *aliases[name]):
            (folder / alias).write_bytes(data)
    shutil.copy2(folder / "NEW", folder / "B")
    for name in ("run", "night", "tonight"):
        (folder / name).mkdir()
        for packed in sorted((_TRACES / "h100-ddp").iterdir()):
            unpacked = folder / name / packed.name.removesuffix(".gz")
            unpacked.write_bytes(gzip.decompress(packed.read_bytes()))


def _runs(folder: Path) -> None:
    for n_ranks, name in ((1, "1gpu"), (2, "2gpu"), (4, "4gpu"), (8, "8gpu"), (4, "RUN")):
        _generated(folder / name, n_ranks)
    for name in ("alone", "together", "forward", "both"):
        _generated(folder / name, 2)
    (folder / "FOLDER").mkdir()
    for name in ("before.sqlite", "after.sqlite"):
        shutil.copy2(folder / name, folder / "FOLDER")


def _programs(folder: Path) -> None:
    (folder / ".bin").mkdir()
    command = f'#!/bin/sh\nexec "{sys.executable}" -m traceprof "$@"\n'
    for name, text in (
        ("traceprof", command),
        ("python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'),
    ):
        (folder / ".bin" / name).write_text(text)
        (folder / ".bin" / name).chmod(0o755)
    (folder / "recorded").mkdir()
    (folder / "recorded" / "train.py").write_text(
        "import time, traceprof\n"
        "for _ in range(12):\n"
        "    with traceprof.step(samples=4), traceprof.range('forward'):\n"
        "        time.sleep(0.001)\n"
    )


def _generated(folder: Path, n_ranks: int) -> None:
    folder.mkdir()
    extra = {(rank, "forward"): rank * MS for rank in range(n_ranks)}
    for member in make_run(Plan(n_ranks=n_ranks, extra_ns=extra)):
        write_nsys(member.trace, folder / f"rank{member.rank}.sqlite")


def _logs(folder: Path) -> None:
    for name, n_nodes in (
        ("1node.log", 1),
        ("8nodes.log", 8),
        ("train.log", 1),
        ("fixed.log", 1),
        ("elastic.log", 1),
    ):
        seconds = 100 // n_nodes
        (folder / name).write_text(
            "".join(
                f"2024-05-0{1 + epoch} 10:{epoch:02d}:{i:02d} Epoch: [{epoch}][{i * 10}/60] "
                f"Time {seconds / 60:.3f} loss {2 / (epoch + i + 1):.3f}\n"
                for epoch in range(4)
                for i in range(6)
            )
            + "".join(f" * Acc@1 {60 + 6 * epoch:.3f} Acc@5 90.000\n" for epoch in range(4))
        )
    for name, last in (("fixed.log", 4), ("elastic.log", 6)):
        epochs = (f"Epoch {i} took {50 - i}.5 loss: {9 - i}.5 accuracy: 0.{i}" for i in range(last))
        (folder / name).write_text("\n".join(["Script setup took 50.0", *epochs, ""]))
    steps = "".join(f"it {step}: {100 + step % 3} img/s\n" for step in range(1, 40))
    (folder / "own.log").write_text(steps)
    rates = "gpus,images_per_s,network\n1,100,calico\n2,190,calico\n4,360,calico\n"
    (folder / "rates.csv").write_text(rates)
    (folder / "notes.md").write_text(
        "| gpus | images/s | network | storage |\n|---|---|---|---|\n"
        "| 1 | 101 | cilium | COS |\n| 2 | 199 | cilium | COS-cached |\n"
    )


def _snapshot(path: Path) -> None:
    allocator = Allocator()
    allocator.alloc(4 << 20)
    for _ in range(4):
        activation = allocator.alloc(3 << 20, forward(7))
        gradient = allocator.alloc(2 << 20, backward("MmBackward0"))
        allocator.free(activation)
        allocator.alloc(1 << 20, optimizer(9))
        allocator.step()
        allocator.free(gradient)
    allocator.write(path)


def written_anew(page: Path, folder: Path) -> str:
    """Return the page with what its commands print now, where it shows what they print."""
    text = page.read_text("utf-8")
    for one in examples(page):
        if one.elsewhere:
            continue
        now = run(one.command, folder).stdout.strip("\n")
        if one.printed:
            text = text.replace(f"\n{one.printed}\n", f"\n{now}\n", 1)
    return text


def main() -> None:
    """Write the pages that are named anew, or all."""
    for page in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        with tempfile.TemporaryDirectory() as folder:
            furnish(Path(folder), page.read_text("utf-8"))
            page.write_text(written_anew(page, Path(folder)), "utf-8")


if __name__ == "__main__":
    main()
