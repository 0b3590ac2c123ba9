"""`recover` may be killed at any step: the trace is there, or what it is made of still is."""

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
