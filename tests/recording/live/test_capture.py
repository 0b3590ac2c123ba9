"""Requests for captures: their numbers, their first step, and whom they ask."""

import json

import pytest

from tests.recording.live.status_files import encode, header, step, write_status
from traceprof.errors import RecordingError, UsageError
from traceprof.recording.live.capture import REQUEST, send_request, wait_for, write_capture
from traceprof.recording.live.running import Monitor, bytes_of
from traceprof.recording.live.status import LiveRun
from traceprof.recording.live.trigger import Conditions


def written(run):
    return json.loads((run / "live" / REQUEST).read_text())


def test_all_ranks_begin_at_one_step_that_is_2_s_away(tmp_path):
    write_status(tmp_path, 0, [step(100)] * 20)
    write_status(tmp_path, 1, [step(100)] * 23)
    request = send_request(LiveRun(tmp_path), 5)
    expected = {"id": 1, "first": 22 + 2 + 20, "steps": 5, "ranks": None, "with": "torch"}
    assert written(tmp_path) == expected
    assert request.folder == tmp_path / "live" / "capture-1"
    assert request.folder.is_dir()


def test_numbers_are_used_once(tmp_path):
    write_status(tmp_path, 0, [step(100)] * 20)
    (tmp_path / "capture-3").mkdir()
    (tmp_path / "capture-x").mkdir()
    run = LiveRun(tmp_path)
    assert [send_request(run, 1).number for _ in range(2)] == [4, 5]


def test_only_running_ranks_are_asked(tmp_path):
    write_status(tmp_path, 0, [step(100)] * 20)
    write_status(tmp_path, 1, [step(100)] * 20, ended="finished")
    run = LiveRun(tmp_path)
    with pytest.raises(UsageError, match="running ranks: 0"):
        send_request(run, 1, [1])
    with pytest.raises(UsageError, match="expected 1 to"):
        send_request(run, 10**9)
    write_status(tmp_path, 0, [step(100)] * 20, ended="failed")
    with pytest.raises(UsageError, match="no process runs"):
        send_request(run, 1)


def test_waiting_ends_when_the_ranks_are_done_or_gone(tmp_path):
    """Rank 0 is done, rank 1 was killed, and rank 2 was not asked."""
    for rank in range(3):
        write_status(tmp_path, rank, [step(100)] * 20)
    run = LiveRun(tmp_path)
    request = send_request(run, 2, [0, 1])
    with pytest.raises(RecordingError, match="within 0 s"):
        wait_for(run, request, 0)
    write_status(tmp_path, 0, [], capture={"id": 1, "state": "done"})
    write_status(tmp_path, 1, [], capture={"id": 1, "state": "recording"}, ended="failed")
    assert wait_for(run, request, 0) == ["rank 1 did not capture all steps (failed)"]


def test_an_error_of_a_rank_is_reported(tmp_path):
    path = write_status(tmp_path, 0, [step(100)] * 20)
    run = LiveRun(tmp_path)
    request = send_request(run, 2)
    state = {"id": 1, "state": "failed", "error": "the disk is full"}
    with path.open("r+b") as file:
        file.write(encode(header(0, 20, capture=state)))
    assert wait_for(run, request, 0) == ["rank 0: the disk is full"]
    with pytest.raises(RecordingError, match="no process captured"):
        write_capture(run, request)
    assert not request.folder.exists()


def test_the_launcher_asks_once_when_a_rank_falls_behind(tmp_path, monkeypatch):
    """Two ranks whose status does not change: the straggler is confirmed in three checks."""
    monkeypatch.setattr("traceprof.recording.live.running.socket.gethostname", lambda: "node1")
    said = []
    monitor = Monitor(tmp_path / "live", Conditions(straggler=True), said.append)
    write_status(tmp_path, 0, [step(50, wait=30)] * 20)
    write_status(tmp_path, 1, [step(50, wait=1)] * 20)
    for _ in range(5):
        monitor._next_check_s = 0
        monitor.tick()
    assert said == ["rank 1 is a straggler: capturing 6 steps"]
    assert written(tmp_path)["id"] == 1
    monitor.close()


@pytest.fixture
def behind(tmp_path, monkeypatch):
    """Return a function that checks four ranks with a straggler: what is said with a limit."""
    monkeypatch.setattr("traceprof.recording.live.running.socket.gethostname", lambda: "node1")

    def check(max_bytes, n_bytes=0):
        said = []
        conditions = Conditions(straggler=True)
        monitor = Monitor(tmp_path / "live", conditions, said.append, max_bytes=max_bytes)
        monitor._n_bytes = n_bytes
        for rank in range(4):
            write_status(tmp_path, rank, [step(50, wait=1 if rank == 2 else 30)] * 20)
        for _ in range(5):
            monitor._next_check_s = 0
            monitor.tick()
        return said

    return check


def test_the_total_size_of_the_captures_is_shared_by_the_ranks(behind, tmp_path):
    """Four ranks with 32 MB each; half of it is for the events, half for the operators."""
    assert behind(200_000_000, 40_000_000) == ["rank 2 is a straggler: capturing 6 steps"]
    request = written(tmp_path)
    assert (request["ranks"], request["max_bytes"]) == (None, 20_000_000)


def test_ranks_that_have_no_room_are_left_out(behind, tmp_path):
    (said,) = behind(80_000_000)
    assert said.endswith("capturing 6 steps of 2 of 4 ranks (--max-size)")
    request = written(tmp_path)
    assert (request["ranks"], request["max_bytes"]) == ([0, 2], 20_000_000)


def test_a_total_size_that_is_used_is_reported_once(behind, tmp_path):
    assert behind(1_000_000_000, 990_000_000) == [
        "rank 2 is a straggler: not captured, because the captures use 990 MB of 1.00 GB "
        "(--max-size); no more captures"
    ]
    assert not (tmp_path / "live" / REQUEST).exists()


def test_the_size_of_a_capture_counts(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "trace").write_bytes(bytes(70))
    (tmp_path / "a" / "manifest").write_bytes(bytes(7))
    assert (bytes_of(tmp_path / "a"), bytes_of(tmp_path / "none")) == (77, 0)


def test_only_the_launcher_of_the_first_rank_asks(tmp_path):
    monitor = Monitor(tmp_path / "live", Conditions(straggler=True), lambda _line: None)
    write_status(tmp_path, 0, [step(50, wait=30)] * 20, host="another")
    write_status(tmp_path, 1, [step(50, wait=1)] * 20)
    for _ in range(5):
        monitor._next_check_s = 0
        monitor.tick()
    assert not (tmp_path / "live" / REQUEST).exists()
