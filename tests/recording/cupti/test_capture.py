"""`capture --with cupti`: GPU activity of some steps of a running program, with a stand-in GPU."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recording.conftest import environment_of_test
from tests.recording.cupti.libraries import Libraries
from traceprof.formats import open_trace
from traceprof.recording.live.status import LiveRun

_PROGRAM = """
import ctypes, os, sys, time
import traceprof
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
while not os.path.exists(sys.argv[1]):
    with traceprof.step():
        driver.standin_launch(50, 0, 0)
        driver.standin_copy(1, ctypes.c_uint64(1 << 20))
        driver.standin_synchronize()
        time.sleep(0.002)
"""
_RUNNER = """
import sys
from pathlib import Path
from traceprof.cli import app
from traceprof.recording.live import running
running.LIBRARY = Path(sys.argv[1])
app(sys.argv[2:])
"""


@pytest.fixture
def run(libraries: Libraries, tmp_path: Path, library: str) -> Iterator[Path]:
    """Yield the folder of a running program that uses the stand-in for a GPU."""
    program, stop, folder = tmp_path / "program.py", tmp_path / "stop", tmp_path / "run"
    program.write_text(_PROGRAM)
    path = libraries.recorder if library == "compiled" else tmp_path / "none"
    command = [sys.executable, "-c", _RUNNER, str(path), "record", "--live", "-o", f"{folder}/"]
    environment = environment_of_test(LD_LIBRARY_PATH=str(libraries.standin.parent))
    launcher = subprocess.Popen(
        [*command, "--", sys.executable, str(program), str(stop)], env=environment
    )
    try:
        while not any(folder.glob("live/status.*")) or not LiveRun(folder).refresh():
            assert launcher.poll() is None
        yield folder
    finally:
        stop.touch()
        assert launcher.wait(120) == 0


def capture(run: Path, n_steps: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traceprof", "capture", str(run), "--with", "cupti"]
    command += ["--steps", str(n_steps), "--no-page"]
    environment = environment_of_test()
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("library", ["compiled"])
def test_each_capture_has_the_work_of_its_steps(run):
    for number, n_steps in ((1, 3), (2, 5)):
        done = capture(run, n_steps)
        assert done.returncode == 0, done.stderr
        assert "GPU records of 1 process with cupti" in done.stderr
        (path,) = (run / f"capture-{number}").glob("*.sqlite")
        trace = open_trace(path)
        assert len(trace.kernels) == 50 * n_steps
        assert len(trace.copies) == n_steps
        assert set(trace.kernels["name"].tolist()) > {"softmax_warp"}
        assert trace.devices["name"].tolist() == ["Stand-in 80GB"]
        assert trace.ranges["name"].tolist().count("user_step") == n_steps


@pytest.mark.parametrize("library", ["missing"])
def test_without_the_library_the_ranges_are_kept(run):
    done = capture(run, 3)
    assert done.returncode == 0, done.stderr
    assert "no GPU activity is recorded: the launcher has no compiled CUPTI" in done.stderr
    (path,) = (run / "capture-1").glob("*.sqlite")
    assert open_trace(path).ranges["name"].tolist().count("user_step") == 3
