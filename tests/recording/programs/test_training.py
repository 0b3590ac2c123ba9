"""Real training programs, recorded as a user would, with each recorder."""

import os
import sqlite3
from contextlib import closing

import pytest

from tests.recording.conftest import record

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("nsys")]

N_STEPS, BATCH = 12, 4


def counts(frame):
    return frame["name"].astype(str).value_counts().to_dict()


def seconds_between_steps(trace, pid):
    """Return the time from the first to the last instant at which the program read its clock.

    It does so after the optimizer's step, and so after what the recorder does there.
    """
    ranges = trace.ranges.to_frame()[trace.ranges.to_frame()["process"] == pid]
    fetched = ranges.loc[ranges["name"] == "data", "start_ns"].tolist()
    own = ranges["name"].isin(["optimizer", "traceprof.window.start", "traceprof.window.stop"])
    ends = ranges.loc[own, "end_ns"]
    # The loop fetches once more than there are batches, to find the end.
    first, last = (ends[ends <= fetch].max() for fetch in (fetched[1], fetched[-1]))
    return (last - first) / 1e9


def assert_agrees(trace, pid, recorded, samples_per_step):
    """The program and its trace agree on the throughput within 2%.

    A busy machine may take the processor away between the end of a range and the program's
    look at its clock: half a dozen time slices are allowed for that.
    """
    printed_s = (N_STEPS - 1) * samples_per_step / recorded.printed_samples_per_s
    assert seconds_between_steps(trace, pid) == pytest.approx(printed_s, rel=0.02, abs=0.03)


def test_every_phase_of_every_step_is_there(cnn):
    ranges = counts(cnn.trace.ranges.to_frame())
    for phase in ("backward", "optimizer", "zero_grad", "step"):
        assert ranges[phase] == N_STEPS, phase
    assert ranges["forward"] == 2 * N_STEPS  # the model and the loss
    assert ranges["data"] == N_STEPS + 1  # the last fetch finds the end


def test_ranges_are_in_our_domain_with_the_number_of_the_step(cnn):
    steps = cnn.trace.ranges.to_frame()[cnn.trace.ranges.to_frame()["name"] == "step"]
    assert set(steps["domain"]) == {"traceprof"}
    assert steps["payload"].tolist() == list(range(N_STEPS))


def test_batches_are_marked_with_their_size(cnn):
    batches = cnn.trace.marks.to_frame()[cnn.trace.marks.to_frame()["name"] == "batch"]
    assert batches["payload"].tolist() == [BATCH] * N_STEPS


def test_throughput_is_what_the_program_printed(cnn):
    pid = int(cnn.trace.ranges.to_frame()["process"].iloc[0])
    assert_agrees(cnn.trace, pid, cnn, BATCH)


def test_the_output_of_the_program_is_all_that_is_on_stdout(cnn):
    lines = cnn.done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["loss", "median", "median", "throughput"]
    # What else stands there is the program's own, such as torch's warning of an old driver.
    assert any(line.startswith("traceprof: recorded ") for line in cnn.done.stderr.splitlines())


def test_operators_are_there_with_the_embedded_recorder(cnn_with_torch):
    trace = cnn_with_torch.trace
    assert "host_ops" in trace.recorded
    names = set(trace.host_ops.to_frame()["name"])
    assert {"aten::convolution_backward", "Optimizer.step#SGD.step"} <= names
    optimizer = trace.ranges.to_frame()[trace.ranges.to_frame()["name"] == "optimizer"]
    inner = trace.host_ops.to_frame()[
        trace.host_ops.to_frame()["name"] == "Optimizer.step#SGD.step"
    ]
    # By its middle: torch's own clock is converted, to some µs on a machine that is busy.
    for middle in (inner["start_ns"] + inner["end_ns"]) // 2:
        encloses = (optimizer["start_ns"] <= middle) & (optimizer["end_ns"] >= middle)
        assert encloses.sum() == 1


def test_the_first_window_is_a_trial_of_two_steps(cnn_with_torch):
    ranges = cnn_with_torch.trace.ranges.to_frame()
    windows = ranges[ranges["name"] == "traceprof.window"]
    ends = ranges.loc[ranges["name"] == "optimizer", "end_ns"]
    n_steps = [
        int(ends.between(start, end).sum())
        for start, end in zip(windows["start_ns"], windows["end_ns"], strict=True)
    ]
    assert n_steps == [2, 4]  # steps 5 and 6, and from 8 to the end


def test_devices_are_not_recorded_where_there_is_none(cnn):
    assert "kernels" not in cnn.trace.recorded


@pytest.mark.nsys
def test_no_environment_is_left_in_what_nsys_exported(cnn_with_nsys):
    data = cnn_with_nsys.path.read_bytes()
    assert f"PATH={os.environ['PATH']}".encode() not in data
    with closing(sqlite3.connect(cnn_with_nsys.path)) as connection:
        ((n_packed,),) = connection.execute(
            "SELECT count(*) FROM StringIds WHERE instr(CAST(value AS BLOB), x'00') > 0"
        )
    assert n_packed == 0
    left = sorted(path.name for path in cnn_with_nsys.path.parent.iterdir())
    assert left == ["run.sqlite"]


@pytest.mark.nsys
def test_the_clocks_agree_under_nsys(cnn_with_nsys):
    marks = cnn_with_nsys.trace.marks.to_frame()
    clock = marks[marks["name"] == "clock"]
    assert len(clock) >= 2
    wall = clock["start_ns"] + cnn_with_nsys.trace.info.utc_epoch_ns
    late_ns = wall - clock["payload"]  # of a process that is interrupted it is more
    assert late_ns.abs().min() < 5_000_000
    assert late_ns.min() > -5_000_000


def test_both_ranks_are_there_with_their_collectives(ddp):
    trace = ddp.trace
    ranks = trace.processes.to_frame()[trace.processes.to_frame()["rank"] >= 0]
    assert sorted(ranks["rank"]) == [0, 1]
    assert set(ranks["world_size"]) == {2}
    for pid in ranks["process"]:
        ranges = trace.ranges.to_frame()[trace.ranges.to_frame()["process"] == pid]
        found = counts(ranges)
        for phase in ("backward", "optimizer", "zero_grad", "step"):
            assert found[phase] == N_STEPS, phase
        calls = trace.collectives.to_frame()[trace.collectives.to_frame()["process"] == pid]
        reduced = calls[calls["op"] == "all_reduce"]
        assert len(reduced) == found["comm:allreduce"] >= N_STEPS
        assert set(reduced["dtype"]) == {"float32"}
        assert set(reduced["backend"]) == {"gloo"}
        assert set(reduced["group_size"]) == {2}
        assert (reduced["end_ns"] > reduced["start_ns"]).all()


def test_every_step_reduces_the_bytes_of_all_parameters(ddp):
    trace = ddp.trace
    steps = trace.ranges.to_frame()[trace.ranges.to_frame()["name"] == "step"]
    reduced = trace.collectives.to_frame()[trace.collectives.to_frame()["op"] == "all_reduce"]
    pid = int(
        trace.processes.to_frame().loc[trace.processes.to_frame()["rank"] == 0, "process"].iloc[0]
    )
    steps = steps[steps["process"] == pid]
    reduced = reduced[reduced["process"] == pid]
    n_bytes = [
        int(reduced.loc[reduced["start_ns"].between(start, end), "n_bytes"].sum())
        for start, end in zip(steps["start_ns"], steps["end_ns"], strict=True)
    ]
    assert n_bytes == [PARAMETER_BYTES] * N_STEPS


# stem 3·16·9; blocks (16·16·9)·2, 16·32·9 + 32·32·9 + 16·32, 32·64·9 + 64·64·9 + 32·64;
# normalization 2·(16 + 16 + 32 + 32 + 64 + 64); head 64·10 + 10; four bytes each
PARAMETER_BYTES = 4 * (
    432 + 2 * 2304 + (4608 + 9216 + 512) + (18432 + 36864 + 2048) + 2 * 224 + 650
)


def test_throughput_of_two_ranks_is_what_the_program_printed(ddp):
    processes = ddp.trace.processes.to_frame()
    pid = int(processes.loc[processes["rank"] == 0, "process"].iloc[0])
    assert_agrees(ddp.trace, pid, ddp, 2 * BATCH)


def test_a_second_recording_needs_force(cnn_with_torch):
    before = cnn_with_torch.path.read_bytes()
    again = record(cnn_with_torch.path, ["true"])
    assert again.done.returncode == 2
    assert "exists" in again.done.stderr
    assert cnn_with_torch.path.read_bytes() == before
