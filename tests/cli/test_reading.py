"""What a terminal says while files are read."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.render.timeline.tasks import two_ranks
from tests.requirements import ROOT
from traceprof.cli import progress
from traceprof.cli.progress import Reading, end_reading, show_reading_progress
from traceprof.findings import RULES
from traceprof.model.ranks import Ranks
from traceprof.processes import PROGRESS
from traceprof.session.run import run_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _reading(tmp_path: Path, counted: list[int | None]) -> tuple[Reading, Terminal]:
    path = tmp_path / "run.sqlite"
    path.write_bytes(bytes(4_000_000))
    terminal = Terminal()
    return Reading([path], terminal, lambda: counted[0]), terminal


def test_share_rate_and_time_left(tmp_path: Path) -> None:
    counted: list[int | None] = [500]
    line, terminal = _reading(tmp_path, counted)
    counted[0] = 1_000_500
    line.show(4.0)
    said = "traceprof: reading run.sqlite: 25%, 250.0 kB/s, 12.00 s left"
    assert terminal.getvalue().strip() == said
    line.end()
    assert terminal.getvalue().endswith("\r")
    before = terminal.getvalue()
    line.show(5.0)
    assert terminal.getvalue() == before


@pytest.mark.parametrize(
    ("counted", "words"),
    [
        (None, "reading run.sqlite: 7 s"),
        (0, "reading run.sqlite: 7 s"),
        (5_000_000, "run.sqlite read, analyzing: 7 s"),
    ],
)
def test_what_is_not_known_or_read_by_now_has_its_time(
    tmp_path: Path, counted: int | None, words: str
) -> None:
    counts: list[int | None] = [0]
    line, _ = _reading(tmp_path, counts)
    counts[0] = counted
    assert line.text(7.2) == f"traceprof: {words}"


def test_what_is_measured_has_its_rate_and_time_left(tmp_path: Path) -> None:
    counts: list[int | None] = [0]
    line, _ = _reading(tmp_path, counts)
    counts[0] = 5_000_000
    PROGRESS.done, PROGRESS.total = 0, 40
    assert line.text(3.0) == "traceprof: run.sqlite read, analyzing: 3 s"
    PROGRESS.done += 10
    words = "traceprof: run.sqlite read, analyzing: 10 of 40 parts, 2.0/s, 15.00 s left"
    assert line.text(8.0) == words


def test_several_files_are_read_as_one(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(bytes(2_000_000))
    counted = [0]
    line = Reading(files, Terminal(), lambda: counted[0])
    counted[0] = 1_000_000
    assert line.text(4.0) == "traceprof: reading 2 files: 25%, 250.0 kB/s, 12.00 s left"
    counted[0] = 4_000_000
    assert line.text(7.0) == "traceprof: 2 files read, analyzing: 7 s"


@pytest.mark.parametrize("has_progress_line", [False, True])
def test_what_is_read_is_told_unless_others_tell_it(
    has_progress_line: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, begun = Terminal(), threading.Event()
    (tmp_path / "rank0.sqlite").write_bytes(b"x")
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_FIRST_SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(PROGRESS, "has_progress_line", has_progress_line)
    for name in ("show", "end"):
        before = getattr(Reading, name)

        def told(self: Reading, *given: float, before: Callable[..., None] = before) -> None:
            before(self, *given)
            begun.set()

        monkeypatch.setattr(Reading, name, told)
    with show_reading_progress([tmp_path, "SELECT 1", "x" * 5000, "a\0b"]):
        assert begun.wait(20)
        assert ("rank0.sqlite" in terminal.getvalue()) != has_progress_line


def test_every_part_of_a_page_is_counted() -> None:
    run_of(Ranks.of(two_ranks())).answers(("findings", "breakdown"))
    assert PROGRESS.done == PROGRESS.total == len(RULES) + 2


def test_nobody_who_looks_elsewhere_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a"
    path.touch()
    for paths in ([path], [path, path], [tmp_path], []):
        with show_reading_progress(paths):
            pass
    assert capsys.readouterr().err == ""


def test_a_terminal_sees_the_answer_alone_once_it_is_there(tmp_path: Path) -> None:
    program = (
        "import sys; from traceprof.cli import output, progress\n"
        "progress._FIRST_SHOWN_AFTER_S = 0.0\n"
        "shown = progress.Reading.show\n"
        "import threading; told = threading.Event()\n"
        "def show(self, taken_s):\n    shown(self, taken_s); told.set()\n"
        "progress.Reading.show = show\n"
        "from pathlib import Path\n"
        "with progress.show_reading_progress([Path(sys.argv[1])]):\n"
        "    told.wait(20); output.write_stderr('answer\\n')\n"
    )
    path = tmp_path / "run.sqlite"
    path.write_bytes(b"x")
    ours, theirs = pytest.importorskip("pty").openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, stderr=theirs, env=environment, check=False, timeout=60)
    os.close(theirs)
    seen = os.read(ours, 10_000).decode()
    os.close(ours)
    assert done.returncode == 0
    assert seen.startswith("\rtraceprof: run.sqlite ")
    assert seen.rstrip().split("\r")[-1] == "answer"
    end_reading()
