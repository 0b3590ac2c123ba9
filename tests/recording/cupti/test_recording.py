"""`record --with cupti`, from a program to its trace, with a stand-in in the place of a GPU."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.recording.conftest import Recorded, environment_of_test, finished
from tests.recording.cupti.conftest import WRITTEN
from tests.recording.cupti.libraries import Libraries, compiler
from tests.requirements import require
from traceprof.formats import open_trace
from traceprof.recording import recover
from traceprof.recording.recorders import cupti

_STEPS = """
import ctypes, os, signal, sys, time
import traceprof
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
for number in range(6):
    with traceprof.step():
        driver.standin_launch(50, number % 2, 0)
        driver.standin_launch(2, 0, 10)
        driver.standin_copy(1, ctypes.c_uint64(1 << 20))
        driver.standin_synchronize()
        time.sleep(0.002)
"""


_RUNNER = """
import sys
from pathlib import Path
from traceprof.cli import app
from traceprof.recording import trial
from traceprof.formats import open_trace
from traceprof.recording import recover
from traceprof.recording.recorders import cupti
cupti.has_gpu = trial.has_gpu = lambda: sys.argv[1] == "gpu"
cupti.LIBRARY = Path(sys.argv[2])
app(sys.argv[3:])
"""
Record = Callable[..., Recorded]


@pytest.fixture
def recorded(libraries: Libraries, tmp_path: Path) -> Record:
    """Return a function that records a program of Python where the recorder believes in a GPU.

    The library is that of these sources, and the driver the stand-in.
    """

    def run(
        code: str, *options: str, gpu: str = "gpu", folder: bool = False, **environment: str
    ) -> Recorded:
        program, path = tmp_path / "program.py", tmp_path / ("run" if folder else "run.sqlite")
        program.write_text(code)
        command = [sys.executable, "-c", _RUNNER, gpu, str(libraries.recorder), "record"]
        command += ["--with", "cupti", "--force", "-o", f"{path}{'/' * folder}", *options]
        command += ["--", sys.executable, str(program)]
        given = environment_of_test(LD_LIBRARY_PATH=str(libraries.standin.parent), **environment)
        return Recorded(finished(command, tmp_path, given), path)

    return run


def test_devices_and_ranges_are_on_one_clock(recorded):
    run = recorded(_STEPS)
    assert run.done.returncode == 0, run.done.stderr
    ours = [line for line in run.done.stderr.splitlines() if line.startswith("traceprof:")]
    assert len(ours) == 1, ours
    assert "recorded 6 ranges and " in ours[0]
    assert " of GPU records of 1 process with cupti" in ours[0]
    trace = run.trace
    kernels, calls = trace.kernels, trace.api_calls
    steps = trace.ranges.take(trace.ranges["name"] == "user_step")
    assert len(steps) == 6
    assert len(kernels) == 6 * 70
    assert (kernels["graph_node"] >= 0).sum() == 6 * 20
    assert np.isin(kernels["correlation"], calls["correlation"]).all()
    assert set(calls["name"].tolist()) == {
        *("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync"),
        "cudaDeviceSynchronize",
    }
    for start, end in zip(steps["start_ns"], steps["end_ns"], strict=True):
        inside = (kernels["start_ns"] >= start) & (kernels["start_ns"] <= end)
        assert inside.sum() == 70
    assert trace.copies["n_bytes"].tolist() == [1 << 20] * 6
    assert trace.devices["name"].tolist() == ["Stand-in 80GB"]
    assert trace.devices["compute_capability"].tolist() == [90]
    assert {"kernels", "copies", "api_calls", "kernel_shapes"} <= trace.recorded
    assert not trace.info.warnings


def test_only_the_steps_asked_for(recorded):
    trace = recorded(_STEPS, "--steps", "2..3").trace
    assert len(trace.kernels) == 2 * 70


def test_graphs_that_are_recorded_whole_are_known_as_such(recorded):
    run = recorded(_STEPS, "--cupti-arg=graphs=whole", "--cupti-arg=syncs")
    kernels = run.trace.kernels
    assert kernels["activity"].tolist().count("cuda_graph") == 6 * 2
    assert len(kernels) == 6 * 52
    assert len(run.trace.syncs) == 6


def test_ranks_have_files_and_devices_of_their_own(recorded):
    code = f"""
import os, subprocess, sys
if "RANK" not in os.environ:
    each = [dict(os.environ, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    ranks = [subprocess.Popen([sys.executable, __file__], env=one) for one in each]
    sys.exit(sum(one.wait() for one in ranks))
{_STEPS}
"""
    run = recorded(code, folder=True)
    assert run.done.returncode == 0, run.done.stderr
    for rank in range(2):
        trace = open_trace(run.path / f"rank{rank}.sqlite")
        assert len(trace.kernels) == 6 * 70
        assert trace.devices["name"].tolist() == ["Stand-in 80GB"]
        assert trace.processes["rank"].tolist() == [rank]


def test_what_was_done_before_a_kill_is_kept(recorded):
    end = f"{WRITTEN}\nwritten(6 * (70 * 216 + 54 * 40)); os.kill(os.getpid(), signal.SIGKILL)"
    run = recorded(_STEPS + end)
    assert run.done.returncode == 137
    assert "GPU activity of process" in run.done.stderr
    assert "may be lost because it was killed" in run.done.stderr
    (warning,) = run.trace.info.warnings
    assert "may be lost because it was killed" in warning
    assert len(run.trace.kernels) == 6 * 70


def test_processes_of_one_run_are_told_apart(recorded):
    code = f"import os\nchild = os.fork(){_STEPS}\nif child: os.waitpid(child, 0)\n"
    trace = recorded(code).trace
    assert np.unique(trace.kernels["process"], return_counts=True)[1].tolist() == [420, 420]


def test_a_program_that_is_no_python_is_a_rank(recorded, libraries, tmp_path):
    source, program = tmp_path / "train.c", tmp_path / "train"
    source.write_text("""
int cuInit(unsigned);
void standin_launch(int, int, int), standin_synchronize(void);
int main(void) { cuInit(0); standin_launch(300, 1, 0); standin_synchronize(); return 3; }
""")
    subprocess.run([compiler(), "-o", program, source, libraries.standin], check=True)
    code = f"import os; os.execv({str(program)!r}, ['train'])"
    run = recorded(code, RANK="5", WORLD_SIZE="8", OMPI_COMM_WORLD_LOCAL_RANK="1")
    assert run.done.returncode == 3
    assert len(run.trace.kernels) == 300
    processes = run.trace.processes
    names = ("name", "rank", "local_rank", "world_size")
    assert [processes[name][0] for name in names] == ["train", 5, 1, 8]


def test_what_a_recorder_that_was_killed_has_left_is_recovered(recorded, tmp_path):
    end = f"{WRITTEN}\nwritten(6 * (70 * 216 + 54 * 40)); os.kill(os.getppid(), signal.SIGKILL)"
    work = tmp_path / "work"
    work.mkdir()
    recorded(_STEPS + end, TMPDIR=str(work))
    (folder,) = work.glob("traceprof-*")
    recording = recover(folder, str(tmp_path / "recovered.sqlite"))
    assert recording.recorder == "cupti"
    assert recording.output is not None
    assert len(open_trace(recording.output).kernels) == 6 * 70


def test_lost_work_is_said_and_stays_with_the_trace(recorded):
    code = _STEPS.replace("driver.standin_launch(50", "driver.standin_launch(20000")
    run = recorded(code, "--cupti-arg=memory=1")
    assert "CUPTI dropped" in run.done.stderr
    assert "use --cupti-arg=memory=1024 to give CUPTI more buffers" in run.done.stderr
    assert [warning for warning in run.trace.info.warnings if "CUPTI dropped" in warning]


def test_another_holder_is_named_and_ranges_are_kept(recorded):
    run = recorded(_STEPS, STANDIN_BUSY="1")
    assert run.done.returncode == 0
    why = "no GPU activity recorded (CUPTI is in use by CUPTI for the monitor"
    assert why in run.done.stderr
    assert (run.trace.ranges["name"] == "user_step").sum() == 6
    assert not len(run.trace.kernels)


def test_arguments_that_it_does_not_know_are_refused(recorded):
    run = recorded(_STEPS, "--cupti-arg=everything")
    assert run.done.returncode == 2
    assert "--cupti-arg=everything: choose calls=runtime" in run.done.stderr


def test_an_injection_of_the_user_is_left_alone(recorded):
    code = f"{_STEPS}\nassert os.environ['CUDA_INJECTION64_PATH'] == '/opt/other.so'\n"
    run = recorded(code, CUDA_INJECTION64_PATH="/opt/other.so")
    assert run.done.returncode == 0, run.done.stderr
    assert "CUDA_INJECTION64_PATH is set (/opt/other.so); only programs with" in run.done.stderr


@pytest.mark.torch
def test_torch_starts_it_and_its_profiler_has_priority(recorded):
    require("torch")
    code = """
import ctypes, torch
driver = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
def use_cuda():
    try:
        torch.cuda._lazy_init()
    except AssertionError:
        pass  # this torch is for the CPU
use_cuda()
driver.standin_launch(100, 0, 0); driver.standin_synchronize()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    torch.ones(3) + 1
    driver.standin_launch(1000, 0, 0); driver.standin_synchronize()
use_cuda()
driver.standin_launch(1000, 0, 0); driver.standin_synchronize()
assert len(profile.events())
"""
    run = recorded(code)
    assert run.done.returncode == 0, run.done.stderr
    assert len(run.trace.kernels) == 100
    marks = run.trace.marks["name"].tolist()
    assert {"traceprof.devices", "traceprof.devices.ceded"} <= set(marks)


def test_without_a_gpu_it_says_that_there_is_none(recorded):
    run = recorded(_STEPS, gpu="none")
    assert run.done.returncode == 5
    assert "cannot record with cupti: this machine has no GPU" in run.done.stderr


def test_a_library_that_was_not_compiled_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(cupti, "LIBRARY", tmp_path / "recorder.library")
    assert "is not compiled" in str(cupti.RECORDER.missing())
