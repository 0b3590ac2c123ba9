"""Logs as a whole: recognition, patterns of the user, restarts, thinning, damage."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.logs.reading import all_runs, kinds, one_run, rows, said, scope_of
from traceprof.errors import TraceError, TraceprofError, UsageError
from traceprof.logs import read_log

S = 1e9
TITAN = "step: {:2d}  loss: {}.5  memory: 40.00GiB(50.0%)  tps: {}  tflops: 3.1  mfu: 30.0%\n"
AGENT = "I0307 22:33:{:02d}.000000 17 torch/distributed/elastic/agent/server/api.py:525] {}\n"


def steps(numbers: range, rate: int = 1000) -> str:
    return "".join(TITAN.format(i, 9, rate) for i in numbers)


def agent(*said: tuple[int, str]) -> str:
    return "".join(AGENT.format(at, text) for at, text in said)


def rendezvous(at: int, size: int) -> str:
    text = agent((at, "[default] Rendezvous'ing worker group"))
    text += agent((at + 1, "[default] Rendezvous complete for workers. Result:"))
    text += agent((at + 1, "  restart_count=0"), (at + 1, f"  global_world_sizes=[{size}, {size}]"))
    return text + agent((at + 2, "[default] Starting worker group"))


def test_what_no_program_prints_is_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("nothing\nof interest\n")
    with pytest.raises(TraceError, match="--pattern"):
        read_log(path)
    path.write_bytes(b"")
    with pytest.raises(TraceError, match="the log format is unknown"):
        read_log(path)


def test_sources_and_patterns_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(steps(range(3)))
    with pytest.raises(UsageError, match="torchtitan"):
        read_log(path, source="nothing")
    for pattern in ("(", "no group", r"(?P<step>\d+)"):
        with pytest.raises(UsageError, match="--pattern"):
            read_log(path, patterns={"0": pattern})
    with pytest.raises(TraceError, match="no line matches"):
        read_log(path, patterns={"0": "(?P<loss>x)"})


def test_two_programs_in_one_log_are_told(tmp_path: Path) -> None:
    text = steps(range(5)) + "".join(f"iter {i}: loss 1.0, time 5.00ms\n" for i in range(4))
    run = one_run(tmp_path, text)
    assert run.origin == "log:torchtitan"
    assert "--source {name}" in said(run)


def test_patterns_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(
        "[rank1]: world 8\n"
        + "".join(f"[rank0]: it {i} took 20.5 ms, 100.0 img/s, top-1 {i}.0%\n" for i in range(5))
        + "epoch 3: 90.0 s\n"
    )
    run = read_log(
        path,
        patterns={
            "0": r"it (?P<step>\d+) took (?P<step_period_ms>[\d.]+) ms, "
            r"(?P<samples_per_s_per_device>[\d.]+) img/s, top-1 (?P<top1_percent>[\d.]+)%",
            "1": r"^world (?P<world_size>\d+)",
            "2": r"epoch (?P<epoch>\d+): (?P<epoch_s>[\d.]+) s",
        },
    )[0]
    assert run.origin == "log:pattern"
    assert run.measure("step_period_ns") == 20.5e6
    assert run.measure("samples_per_s") == 800
    assert scope_of(run, "samples_per_s_per_device") == "device"
    assert rows(run, "top1")["value"].tolist() == [0, 0.01, 0.02, 0.03, 0.04]
    assert run.table("epochs").to_frame()[["epoch", "duration_ns"]].to_numpy().tolist() == [
        [3, 90 * S]
    ]


def test_a_restart_by_the_launcher_is_another_life_of_the_run(tmp_path: Path) -> None:
    text = rendezvous(0, 8) + steps(range(1, 6))
    text += agent(
        (30, "[default] Worker group FAILED. 3/3 attempts left; will restart worker group")
    )
    text += rendezvous(31, 4) + steps(range(1, 9))
    text += agent(
        (59, "[default] worker group successfully finished. Waiting 300 seconds for other")
    )
    run = one_run(tmp_path, text)
    assert rows(run, "loss")["attempt"].tolist() == [0] * 5 + [1] * 8
    assert kinds(run) == [
        *("rendezvous", "start", "failure", "restart", "rendezvous", "rescaling", "end"),
    ]
    restart = run.table("events").to_frame().set_index("kind").loc["restart"]
    assert (restart["duration_ns"], restart["value"], restart["attempt"]) == (3 * S, 4, 1)
    assert "resumes at step 1 after step 5" in restart["text"]
    assert run.measure("world_size") == 4


def test_new_nodes_are_no_failure(tmp_path: Path) -> None:
    text = rendezvous(0, 4) + steps(range(1, 6))
    text += agent(
        (30, "[default] Detected 1 new nodes from group_rank=0; will restart worker group")
    )
    run = one_run(tmp_path, text + rendezvous(31, 8) + steps(range(4, 9)))
    assert "failure" not in kinds(run) and kinds(run).count("membership") == 1
    assert run.table("events").to_frame().set_index("kind").loc["rescaling", "value"] == 8


def test_going_back_without_a_launcher(tmp_path: Path) -> None:
    resumed = one_run(tmp_path, steps(range(1, 20)) + steps(range(10, 25)))
    assert rows(resumed, "loss")["attempt"].max() == 1
    again = all_runs(tmp_path, steps(range(1, 20)) + steps(range(1, 25), rate=500))
    assert [run.measure("tokens_per_s_per_device") for run in again] == [1000, 500]
    assert [run.name for run in again] == ["a:1", "a:2"]


def test_ranks_that_lag_by_a_line_are_no_restart(tmp_path: Path) -> None:
    lines = steps(range(1, 20)).splitlines(keepends=True)
    mixed = [line for i in range(19) for line in (lines[i], lines[max(0, i - 1)])]
    run = one_run(tmp_path, "".join(mixed))
    assert kinds(run) == []
    assert rows(run, "loss")["step"].tolist() == list(range(1, 20))


def test_long_runs_are_thinned_and_keep_their_last_value(tmp_path: Path) -> None:
    text = "".join(f"iter {i}: loss {i}.0, time {5 + i % 3}.00ms\n" for i in range(10_001))
    run = one_run(tmp_path, text)
    loss = rows(run, "loss")
    assert len(loss) <= 2_001
    assert loss["step"].iloc[-1] == 10_000 and loss["value"].iloc[-1] == 10_000
    assert (loss["step"] == loss["value"]).all()
    assert run.measure("step_period_ns") == 6e6


def test_horovod_s_elastic_driver(tmp_path: Path) -> None:
    text = "[0]<stdout>:Iter #0: 100.0 img/sec per GPU\nwait for available slots: 2\n"
    text += "start worker process: a[0]\nrank and size: 0 3\nrank and size: 1 3\n"
    text += (
        "[1]<stdout>:[2020-12-07 17:25:00.5: D x/operations.cc:321] [1]: ExecuteOperation Failed\n"
    )
    text += "record state: b[0] = FAILURE\nblacklist failing host: b\nreset workers: 2\n"
    text += "rank and size: 0 2\nsuccess count == 1 -> stop running\n"
    run = one_run(tmp_path, text)
    events = run.table("events").to_frame()
    assert events["kind"].tolist() == [
        *("rendezvous", "membership", "membership", "failure", "failure", "membership"),
        *("rescaling", "membership", "end"),
    ]
    assert events.loc[events["kind"] == "membership", "value"].dropna().tolist() == [3, 2]
    assert events.loc[3, "rank"] == 1
    assert run.measure("world_size") == 2


def test_the_first_torchelastic(tmp_path: Path) -> None:
    text = "example_1      | INFO 2020-04-03 17:36:32,118 Rendezvous version 1 is complete. Final "
    text += "state: {'status': 'final', 'version': '1', 'participants': [0, 1]}\n"
    run = one_run(tmp_path, text)
    assert run.origin == "log:torchrun"
    assert run.measure("nodes_count") == 2


def test_packed_and_damaged_logs(tmp_path: Path) -> None:
    packed = gzip.compress(steps(range(1, 3000)).encode())
    assert one_run(tmp_path, packed, "run.log.gz").name == "run"
    run = one_run(tmp_path, packed[:-20], "run.log.gz")
    assert "damaged" in said(run)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from(
                [b"\r", b"\n", b"\x1b[31m", b"\x08\x08", b"\0", b"\xff", b"Epoch 3 took nan",
                 b"step: 9  loss: nan  tps: 1,0,0", b":::MLLOG {}",
                 b":::MLLOG {\"key\": \"run_stop\"}",
                 b":::MLLOG {\"key\": \"eval_accuracy\", \"value\": 1e999}", b"{'loss': {}}",
                 b"{'loss': nan, 'epoch': 'x'}", b"5/0 [====] - 1s 0us/step - loss: 1",
                 b"Epoch: [0][ 1/0]\tTime 0 (0)\tLoss 1 (1)", b"| train_inner | {\"epoch\": []}",
                 b"iteration 1/0 | elapsed time per iteration (ms): 0 | global batch size: 5 |",
                 b"100%|##| 0/0 [00:00<00:00, 0.0it/s]", b"{'epoch': 2, 'loss': 1}",
                 b"Train: 0 [ 0/0 (0%)]  Loss: 1 (1)  Time: 0s, 0/s (0s, 0/s)", b"1 images/sec: 0",
                 b"[2] [3/0] Epoch(train) [1][1/0] lr: 1 time: 0 ",
                 b"Epoch[1] Batch [0] Speed: inf samples/s"]
            ),
        ),
        max_size=30,
    )
)  # fmt: skip
def test_any_bytes_are_read_or_refused(tmp_path: Path, parts: list[bytes]) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(b"\n".join(parts))
    for source in (None, "mlperf", "keras", "imagenet", "torchvision", "mmengine"):
        try:
            runs = read_log(path, source=source)
        except TraceprofError:
            continue
        assert all(len(run.table("metrics").to_frame()) <= 40 for run in runs)


def test_patterns_of_the_user_are_matched_with_and_without_prefixes(tmp_path: Path) -> None:
    path = tmp_path / "own.log"
    lines = [f"[rank1]: it {step} loss {step}.5" + " of 9" * (step % 2) for step in range(1, 600)]
    path.write_text("\n".join(["nothing", *lines, "a" * 60_000]))
    (run,) = read_log(
        path,
        patterns={
            "0": r"^it (?P<step>\d+) loss (?P<loss>[\d.]+)( of (?P<left_count>\d+))?",
            "1": r"^\[rank(?P<rank>\d)\]: it (?P<step>\d+) loss (?P<seen_s>\d+)",
            "2": r"(?P<never>(a+)+$)b",
        },
    )
    metrics = run.table("metrics")
    assert [metrics["metric"].tolist().count(name) for name in ("loss", "left_count")] == [599, 300]
    with pytest.raises(UsageError, match="name the groups"):
        read_log(path, patterns={"0": r"it (\d+)"})
