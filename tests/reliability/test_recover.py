"""`record` and `recover` may be killed at any step: the trace is there, or what makes it is."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.reliability.commands import Server, serving
from traceprof.formats import open_trace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and steps of Linux")

_N_RANGES = 12
_PROGRAM = f"""
import os, signal, traceprof
alive = os.open("alive", os.O_WRONLY)
for step in range({_N_RANGES}):
    with traceprof.step(), traceprof.range("work"): pass
os.kill(os.getppid(), signal.SIGKILL)  # the recorder
"""
_MOST_STEPS = 200
_EVERY = 1 if "TRACEPROF_THOROUGH" in os.environ else 4


def test_recovering_may_be_killed_before_each_of_its_steps(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "work.py").write_text(_PROGRAM)
    output = tmp_path / "out.sqlite"
    os.mkfifo(tmp_path / "alive")
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    with serving(tmp_path) as server:
        words = ("record", "-o", output, "--with", "torch", "--", sys.executable, "work.py")
        assert server.run(words).code == -signal.SIGKILL
        (left,) = (path.parent for path in (tmp_path / "temporary").glob("*/recording.json"))
        os.set_blocking(alive, True)
        assert os.read(alive, 1) == b""  # the program goes on where its recorder was killed
        os.close(alive)
        shutil.copytree(left, tmp_path / "kept")
        tried = [step for step in range(1, _MOST_STEPS, _EVERY) if _is_survived(server, left, step)]
    assert len(tried) * _EVERY > 8


def _is_survived(server: Server, left: Path, step: int) -> bool:
    """Kill `recover` before its ``step``, recover again; return whether it came to that step."""
    output, kept = server.folder / "out.sqlite", server.folder / "kept"
    output.unlink(missing_ok=True)
    shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(kept, left)
    ended = server.run(("recover", left), step=step, signal=signal.SIGKILL)
    if not ended.is_hit:
        return False
    assert ended.code == -signal.SIGKILL
    if not output.exists():
        again = server.run(("recover", left))
        assert again.code == 0, (step, again.stderr)
    ranges = open_trace(output).ranges
    assert int((ranges["name"] == "work").sum()) == _N_RANGES, step
    return True


def test_recording_may_be_killed_before_each_of_its_steps(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "work.py").write_text(
        f"import traceprof\nfor step in range({_N_RANGES}):\n"
        "    with traceprof.step(), traceprof.range('work'): pass\nopen('ended', 'w').close()\n"
    )
    os.mkfifo(tmp_path / "printed")
    with serving(tmp_path) as server:
        tried = []
        for step in range(1, _MOST_STEPS, _EVERY):
            found = _recorded_until(server, step)
            if found is None:
                break
            tried.append(found)
    assert len(tried) * _EVERY > 8
    # Before it was run, while its trace was still to be written, and when that was there.
    assert _NOTHING in tried
    assert _RECOVERED in tried


_NOTHING, _THERE, _RECOVERED = "nothing", "there", "recovered"


def _recorded_until(server: Server, step: int) -> str | None:
    """Kill `record` before its ``step``; return where the trace then is, None: it had no such."""
    output, ended_file = server.folder / "out.sqlite", server.folder / "ended"
    for path in (output, ended_file):
        path.unlink(missing_ok=True)
    shutil.rmtree(server.folder / "temporary")
    (server.folder / "temporary").mkdir()
    # Its reader sees the end of what the program prints, also where its recorder is gone.
    printed = os.open(server.folder / "printed", os.O_RDONLY | os.O_NONBLOCK)
    words = ("record", "-o", output, "--with", "torch", "--", sys.executable, "work.py")
    ended = server.run(
        words, step=step, signal=signal.SIGKILL, stdout=str(server.folder / "printed")
    )
    os.set_blocking(printed, True)
    while os.read(printed, 1 << 16):
        pass
    os.close(printed)
    if not ended.is_hit:
        assert (ended.code, output.exists()) == (0, True), ended.stderr
        return None
    assert ended.code == -signal.SIGKILL
    if output.exists():
        assert _n_recorded(output) == _N_RANGES, step
        return _THERE
    left = [path.parent for path in (server.folder / "temporary").glob("*/recording.json")]
    if not ended_file.exists():
        for path in left:
            refused = server.run(("recover", path))
            assert (refused.code, refused.is_one_line) == (5, True), (step, refused.stderr)
        return _NOTHING
    (folder,) = left
    again = server.run(("recover", folder))
    assert again.code == 0, (step, again.stderr)
    assert _n_recorded(output) == _N_RANGES, step
    return _RECOVERED


def _n_recorded(output: Path) -> int:
    return int((open_trace(output).ranges["name"] == "work").sum())
