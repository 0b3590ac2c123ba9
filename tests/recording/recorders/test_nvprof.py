import os
import shutil
import stat

import pytest

from tests.builders import TraceBuilder
from tests.recording.conftest import ENVIRONMENT, NAMED_STEPS, record
from tests.requirements import require
from traceprof.formats import open_trace
from traceprof.model.tables import make_table
from traceprof.model.trace import TraceInfo, make_trace
from traceprof.recording.outputs import first_of_profiles, with_profiles
from traceprof.recording.recorders.nvprof import RECORDER, why_unsupported
from traceprof.recording.request import ProcessProfile, RecordRequest
from traceprof.recording.session import record_with

EPOCH = 1_700_000_000_000_000_000


def test_gpus_that_nvprof_cannot_record_are_named():
    assert why_unsupported({"gpu.0.compute_capability": "7.5"}, is_there=True) is None
    newer = {"gpu.0.compute_capability": "7.0", "gpu.1.compute_capability": "9.0"}
    assert "compute capability 9.0; use --with nsys" in str(why_unsupported(newer, is_there=True))
    assert "this machine has no GPU" in str(why_unsupported({}, is_there=False))


@pytest.mark.nvprof
def test_without_a_gpu_one_line_says_what_to_use_instead(tmp_path):
    require("nvprof")
    if "this machine has no GPU" not in str(RECORDER.missing()):
        pytest.skip("there is a GPU here")
    recorded = record(tmp_path / "run.sqlite", ["touch", "ran"], "--with", "nvprof")
    assert recorded.done.returncode == 5
    assert recorded.done.stderr.count("\n") == 1
    assert "use --with nsys or --with torch" in recorded.done.stderr
    assert not (tmp_path / "ran").exists()


def test_profiles_of_processes_are_put_on_the_clock_of_the_hooks():
    ranges = make_table(
        "ranges", {"start_ns": [0], "end_ns": [9], "process": [5], "domain": ["traceprof"]}
    )
    hooks = make_trace(TraceInfo(utc_epoch_ns=EPOCH), {"ranges": ranges}, ["ranges"])

    def profile(pid, epoch_ns):
        builder = TraceBuilder().kernel("gemm", 10, 20, process=-1)
        builder.range("forward", 1, 2, domain="traceprof").range("theirs", 3, 4)
        info = TraceInfo(profiler="nvprof", utc_epoch_ns=epoch_ns)
        trace = builder.build()
        tables = {name: trace.table(name) for name in ("kernels", "ranges")}
        return ProcessProfile(pid, make_trace(info, tables, tables))

    profiles = [profile(5, EPOCH + 100), profile(6, EPOCH + 1000)]
    assert first_of_profiles(profiles) == EPOCH + 100
    assert first_of_profiles([]) is None
    whole = with_profiles(hooks, profiles)
    assert whole.kernels.to_frame()[["start_ns", "end_ns", "process"]].to_numpy().tolist() == [
        [110, 120, 5],
        [1010, 1020, 6],
    ]
    assert whole.ranges.to_frame()["name"].tolist() == ["", "theirs", "theirs"]
    assert whole.recorded == {"ranges", "kernels"}
    assert whole.info.profiler == "nvprof"


@pytest.mark.traces
def test_a_program_under_nvprof_keeps_its_exit_code_and_gets_one_file(
    tmp_path, monkeypatch, real_trace
):
    """With an nvprof that hands out a real profile: here is no GPU for the real one."""
    profile = real_trace("nvprof/v16-nccl-4gpu.nvvp")
    fake = tmp_path / "bin" / "nvprof"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != sh ]; do [ "$1" = --export-profile ] && to=$2; shift; done\n'
        f'"$@"\ncp {profile} "$(echo "$to" | sed s/%p/$$/)"\nexit 9\n'
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    request = RecordRequest([*NAMED_STEPS, "3"], tmp_path / "run.sqlite")
    recording = record_with(RECORDER, request)
    assert recording.exit_code == 3
    trace = open_trace(tmp_path / "run.sqlite")
    assert len(trace.kernels.to_frame()) == len(open_trace(profile).kernels.to_frame()) > 0
    assert (trace.ranges.to_frame()["name"] == "work").sum() == 3
    assert shutil.which("nvprof") == str(fake)
