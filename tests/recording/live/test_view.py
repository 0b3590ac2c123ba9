"""What is said about a running program: stragglers, stalls, lost processes, and damaged files."""

import time
from pathlib import Path

import pytest

from tests.recording.live.status_files import MS, encode, header, look, step, write_status
from traceprof.errors import UsageError
from traceprof.recording.live.capture import send_request
from traceprof.recording.live.status import HEADER_BYTES, N_STEPS, LiveRun, Node, Process
from traceprof.recording.live.view import is_stalled
from traceprof.render.live_text import facts_of, problems, watch_json, watch_line, watch_text


def ranks(run, *steps_of_ranks, **fields):
    for rank, steps in enumerate(steps_of_ranks):
        write_status(run, rank, steps, world_size=len(steps_of_ranks), **fields)
    return look(run)


FAST = step(50, wait=30, forward=5, backward=40)
SLOW = step(50, wait=1, forward=5, backward=10)
EVEN = step(50, wait=10, forward=5, backward=20)


def test_the_rank_for_which_the_others_wait_is_named(tmp_path):
    view = ranks(tmp_path, [FAST] * 20, [SLOW] * 20)
    assert view.straggler is not None
    assert (view.straggler.rank, view.straggler.place) == (1, "other")
    assert view.straggler.excess_ns == 29 * MS  # 49 ms of work where the other rank has 20 ms
    assert view.straggler.waited_ns == 29 * MS
    assert view.phases_ns["other"] == 35 * MS
    assert "rank 1 is the straggler" in watch_line(view)


@pytest.mark.parametrize(
    "steps",
    [
        ([EVEN] * 20, [EVEN] * 20),  # both wait: the network is slow, no rank is
        ([FAST, SLOW] * 10, [SLOW, FAST] * 10),  # the slow rank changes
        ([step(50)] * 20, [step(20)] * 20),  # one has more work, and nobody waits
        ([FAST] * 4, [SLOW] * 4),  # too few steps
        ([FAST] * 20,),
    ],
)
def test_no_rank_is_named_without_evidence(tmp_path, steps):
    assert ranks(tmp_path, *steps).straggler is None


def test_ranks_whose_waiting_is_not_measured_are_not_compared(tmp_path):
    view = ranks(tmp_path, [FAST] * 20, [SLOW] * 20, is_wait_unknown=True)
    assert view.straggler is None
    assert "NCCL" in view.why_no_straggler
    assert view.ranks[0].work_ns is None  # unknown, not zero


def test_ranks_are_compared_in_the_same_steps(tmp_path):
    write_status(tmp_path, 0, [FAST] * 30)
    write_status(tmp_path, 1, [SLOW] * 20, first=100)
    assert look(tmp_path).straggler is None


def test_a_short_delay_of_short_steps_names_no_rank(tmp_path):
    """In 20 of the last 200 steps of 1 ms, rank 1 waits for a core, and rank 0 for rank 1."""
    fast, slow = step(1, forward=1), step(3, forward=3)
    waiting = step(3, forward=1, wait=2)
    assert (
        ranks(tmp_path, [fast] * 180 + [waiting] * 20, [fast] * 180 + [slow] * 20).straggler is None
    )
    view = ranks(tmp_path, [waiting] * 200, [slow] * 200)
    assert view.straggler is not None


def test_tokens_per_second_are_those_of_all_ranks(tmp_path):
    """20 steps with 640 tokens of one rank, and 20 with 320 of the other: 32 and 16 per 100 ms."""
    steps = [step(100)] * 30
    write_status(tmp_path, 0, steps, tokens=(20, 640))
    write_status(tmp_path, 1, steps, tokens=(20, 320))
    view = look(tmp_path)
    assert [rank.tokens_per_s for rank in view.ranks] == pytest.approx([320, 160])
    assert view.tokens_per_s == pytest.approx(480)
    assert "(10 steps/s, 480 tokens/s)" in dict(facts_of(view, []))["Step time"]
    assert ranks(tmp_path / "without", steps).tokens_per_s is None


def test_rates_come_from_batches_only(tmp_path):
    (view,) = [ranks(tmp_path, [step(100, samples=8)] * 10)]
    assert view.samples_per_s == pytest.approx(80)
    assert ranks(tmp_path, [step(100)] * 10).samples_per_s is None


def test_a_stall_names_the_rank_that_has_not_reached_the_collective(tmp_path):
    before = header(0, 20)["now_ns"] - 60_000 * MS
    waiting = {"pending": ["allreduce", before, 1], "last_step_ns": before}
    write_status(tmp_path, 0, [EVEN] * 20, **waiting)
    write_status(
        tmp_path, 1, [EVEN] * 20, last_step_ns=before, stack=["train.py:7 load"], phase="data"
    )
    view = look(tmp_path)
    assert [rank.state for rank in view.ranks] == ["stalled", "stalled"]
    said = problems(view)
    assert said[0] == "rank 0 waits in allreduce; rank 1 has not reached it"
    assert said[1].startswith("rank 1 is stalled in data: no step for 60.0")
    assert said[1].endswith("s; stack: train.py:7 load")


def test_a_stalled_rank_waits_for_a_lost_rank(tmp_path):
    before = header(0, 20)["now_ns"] - 60_000 * MS
    pending = ["allreduce", before, 1]
    write_status(tmp_path, 0, [EVEN] * 20, pending=pending, last_step_ns=before)
    write_status(tmp_path, 1, [EVEN] * 20, now_ns=before)
    said = problems(look(tmp_path))
    assert said[0] == "rank 0 waits in allreduce; rank 1 has not reached it"
    assert said[2].startswith("rank 1 does not respond")


@pytest.mark.parametrize(
    ("n_steps", "usual_ms", "silent_ms"),
    [(20, 50, 3_000), (20, 10_000, 60_000), (0, 50, 60_000)],  # short, usual, still starting
)
def test_usual_pauses_are_no_stalls(tmp_path, n_steps, usual_ms, silent_ms):
    before = header(0, 0)["now_ns"] - silent_ms * MS
    write_status(tmp_path, 0, [step(usual_ms)] * n_steps, last_step_ns=before)
    assert look(tmp_path).ranks[0].state == "running"


def test_a_process_that_works_outside_steps_is_not_stalled(tmp_path):
    before = header(0, 0)["now_ns"] - 60_000 * MS
    path = write_status(tmp_path, 0, [EVEN] * 20, last_step_ns=before, n_events=10)
    run = LiveRun(tmp_path)
    run.refresh()
    document = header(0, 20, last_step_ns=before, n_events=90, phase="eval")
    with path.open("r+b") as file:
        file.write(encode(document))
    (process,) = run.refresh()
    assert process.is_active
    assert not is_stalled(process)


def test_a_dead_process_is_killed_here_and_lost_elsewhere(tmp_path):
    """The id 4999999 is larger than any process id; 1 is the namespace of another container."""
    old = header(0, 0)["now_ns"] - 60_000 * MS
    here = int(str(Path("/proc/self/ns/pid").readlink()).partition("[")[2].rstrip("]"))
    write_status(tmp_path, 0, [EVEN] * 20, name=f"4999999.{here:x}-5")
    write_status(tmp_path, 1, [EVEN] * 20, name="4999999.1-5", now_ns=old)
    write_status(tmp_path, 2, [EVEN] * 20, name="4999998.1-5")
    assert [rank.state for rank in look(tmp_path).ranks] == ["killed", "lost", "running"]
    assert "rank 1" in watch_line(look(tmp_path))


def test_the_last_attempt_of_a_rank_counts(tmp_path):
    write_status(tmp_path, 0, [SLOW] * 20, name="100", started_ns=1)
    write_status(tmp_path, 0, [EVEN] * 5, name="200", started_ns=2)
    (rank,) = look(tmp_path).ranks
    assert (rank.attempts, rank.n_steps) == (2, 5)


def test_ranks_that_have_not_begun_are_counted(tmp_path):
    write_status(tmp_path, 0, [EVEN], world_size=4)
    assert look(tmp_path).missing == 3


def test_damaged_files_are_skipped(tmp_path):
    write_status(tmp_path, 0, [EVEN] * 20)
    live = tmp_path / "live"
    (live / "status.7").write_bytes(b"TPLIVE02" + b"\xff" * 100)
    (live / "status.8").write_bytes(b"")
    (live / "status.nonsense").write_bytes(b"x")
    (live / "status.9").write_bytes(encode({"version": 1, "pid": "x"}))
    view = look(tmp_path)
    assert len(view.ranks) == 1
    assert view.n_damaged == 4


def test_a_file_that_is_cut_shows_what_is_left(tmp_path):
    path = write_status(tmp_path, 0, [EVEN] * 20)
    path.write_bytes(path.read_bytes()[: HEADER_BYTES + 10 * 96 + 5])
    (process,) = LiveRun(tmp_path).refresh()
    assert len(process.steps) == 10


def test_a_ring_that_has_wrapped_is_read_in_order(tmp_path):
    write_status(tmp_path, 0, [step(1)] * 300, first=N_STEPS - 100)
    (process,) = LiveRun(tmp_path).refresh()
    numbers = process.column("number").tolist()
    assert numbers == list(range(N_STEPS + 200 - 256, N_STEPS + 200))


def test_untrusted_texts_cannot_control_the_terminal(tmp_path):
    evil = "\x1b[2J\u202eevil"
    write_status(
        tmp_path,
        0,
        [EVEN] * 20,
        metrics={evil: [1.5, 3]},
        pending=[evil, 1, 1],
        last_step_ns=1,
        stack=[evil],
        phase=evil,
        host=evil,
    )
    view = look(tmp_path)
    for text in (watch_text(view, [], evil), watch_line(view), watch_json(view, [])):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "1.5 (step 3)" in watch_text(view, [], "run")


def test_the_time_to_the_end_is_that_of_the_rank_that_ends_last(tmp_path):
    now = 10_000 * 1_000_000_000
    for rank, done in enumerate((400, 200)):  # since 100 s: 1 to 2 of 1,000 are left per 0.25 s
        progress = {"run": [done, 1000, 0, now - 100_000_000_000, "Trainer"]}
        fields = {"progress": progress, "now_ns": now, "boot": ""}
        write_status(tmp_path, rank, [EVEN] * 20, **fields)
    view = look(tmp_path)
    run = view.progress["run"]
    assert (run.done, run.total) == (200, 1000)
    assert run.left_ns == pytest.approx(400e9, rel=0.01)
    assert "200 of 1000 of the run (Trainer), about 6 min 40 s to its end" in watch_text(
        view, [], "run"
    )


def test_without_a_length_or_a_speed_there_is_no_time_to_the_end(tmp_path):
    write_status(tmp_path, 0, [EVEN] * 20)
    assert "Progress" not in watch_text(look(tmp_path), [], "run")
    write_status(tmp_path, 0, [EVEN] * 20, progress={"epoch": [3, 50, 3, 1, "DataLoader"]})
    text = watch_text(look(tmp_path), [], "run")
    assert "3 of 50 batches of the epoch (DataLoader)\n" in text
    write_status(tmp_path, 0, [EVEN] * 20, ended="finished", progress={"run": [5, 9, 0, 1, "x"]})
    assert "Progress" not in watch_text(look(tmp_path), [], "run")


def test_many_ranks_fit_on_a_page(tmp_path):
    for rank in range(40):
        write_status(tmp_path, rank, [SLOW if rank == 37 else FAST] * 20)
    view = look(tmp_path)
    assert view.straggler is not None
    assert view.straggler.rank == 37
    text = watch_text(view, [], "run")
    assert len(text.splitlines()) < 30
    assert "rank 37" in text.split("state")[1]


def test_the_state_of_gpus_is_shown_where_it_is_known(tmp_path):
    write_status(tmp_path, 0, [EVEN] * 20)
    values = {"sm_clock_mhz": 1980.0, "power_watts": 301.4, "temperature_celsius": 61.0}
    node = Node("h", time.time(), gpus={"gpu:0": values, "gpu:1": {}})
    page = watch_text(look(tmp_path), [node], "run")
    assert "GPU 0: 301 W, 1980 MHz, 61 °C · GPU 1: –" in page


def test_ranks_of_an_always_run_are_not_compared_or_captured(tmp_path):
    view = ranks(tmp_path, [FAST] * 20, [SLOW] * 20, is_always=True)
    assert view.straggler is None
    assert "--always" in view.why_no_straggler
    with pytest.raises(UsageError, match="--live"):
        send_request(LiveRun(tmp_path), 3)


def test_a_killed_process_has_no_time_to_the_end(tmp_path, monkeypatch):
    progress = {"run": [5, 9, 0, 1, "Trainer"]}
    write_status(tmp_path, 0, [EVEN] * 20, progress=progress)
    assert look(tmp_path).progress["run"].done == 5
    monkeypatch.setattr(Process, "state", property(lambda _process: "killed"))
    assert look(tmp_path).progress == {}
