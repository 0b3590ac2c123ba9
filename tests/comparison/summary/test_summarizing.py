"""What is kept of a run: exact sums, few rows, and nothing that nobody recorded."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.comparison.generated import KERNELS, Program
from tests.measures.generated_run import MS, Plan, make_host_ahead, make_run
from tests.real_traces import ALL
from tests.requirements import ROOT, TRACES, require
from traceprof.comparison.sides import STEP, series_of
from traceprof.comparison.summary.summarize import (
    OTHERS,
    blocks_of_steps,
    bounded_composition,
    summarize,
)
from traceprof.errors import UsageError
from traceprof.model.activity import PARTS
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks
from traceprof.model.summary import SUMMARY, Summary
from traceprof.model.table import Table
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.render.formatting import sentences
from traceprof.session.run import Run, open_run, run_of


def four_ranks() -> Run:
    return run_of(place_run(make_run(Plan(n_ranks=4, extra_ns={(1, "forward"): 10 * MS}))))


def measure(summary: Summary, name: str) -> float:
    found = summary.measure(name)
    assert found is not None
    return found


def test_the_measures_of_a_known_loop() -> None:
    found = Program(n_steps=11).summary("loop")
    assert (found.name, found.origin, found.workload) == ("loop", "nsys", "unknown")
    assert (found.window, found.steps_count, found.devices_count) == ("steady", 11, 1)
    assert measure(found, "world_size") == 1
    assert measure(found, "global_batch_count") == 32
    assert measure(found, "samples_per_s") == pytest.approx(320)
    assert measure(found, "step_period_ns") == 100 * MS
    assert measure(found, "median_step_period_ns") == 100 * MS
    assert measure(found, "compute_ns") == 96 * MS
    assert measure(found, "kernels_per_step_count") == 4
    assert found.measure("waited_ns") is None
    assert found.measure("all_reduce_busbw_bytes_per_s") is None
    table = found.table("measures").to_frame().set_index("measure")
    ends = {name: (table["low"][name], table["high"][name]) for name in table.index}
    assert ends["median_step_period_ns"] == (100 * MS, 100 * MS)
    assert ends["step_period_ns"] == (100 * MS, 100 * MS)
    assert ends["samples_per_s"] == pytest.approx((320, 320))
    assert np.isnan(ends["compute_ns"]).all()
    assert set(table["better"]) == {"", "higher", "lower"}


def test_a_host_that_runs_ahead_makes_no_run_faster() -> None:
    kept = summarize(run_of(Ranks.of(make_host_ahead())))
    assert measure(kept, "samples_per_s") == pytest.approx(1600)
    assert measure(kept, "step_period_ns") == pytest.approx(20 * MS)
    assert measure(kept, "median_step_period_ns") == pytest.approx(20 * MS)
    assert measure(kept, "steps_per_s") == pytest.approx(50)
    # And so says what is compared step by step.
    assert series_of(kept, "period_ns", STEP).tolist() == [20 * MS] * 8
    assert series_of(kept, "samples_per_s", STEP).tolist() == pytest.approx([1600] * 8)
    table = kept.table("measures")
    ends = table.select("low", "high").take(table["measure"] == "step_period_ns").row(0)
    assert ends == {"low": pytest.approx(20 * MS), "high": pytest.approx(20 * MS)}


def test_a_kept_recording_is_as_fast_as_its_program_said() -> None:
    """On an H100 it took 23.05 ms a step by its own clock (fixtures/README.md), batches of 64."""
    kept = summarize(open_run([ROOT / "fixtures" / "traces" / "h100-cnn.sqlite.gz"]))
    assert measure(kept, "step_period_ns") == pytest.approx(23.05 * MS, rel=0.005)
    assert measure(kept, "samples_per_s") == pytest.approx(64 / 0.02305, rel=0.005)


def test_what_a_window_is_made_of_adds_up_to_it() -> None:
    found = summarize(four_ranks())
    made = found.table("makeup").to_frame()
    assert found.window_ns is not None
    assert found.devices_count == 4
    assert int(made["ns"].sum()) == 4 * found.window_ns
    assert set(made["part"]) <= set(PARTS)
    kernels = made[made["kind"] == "kernel"]
    assert (kernels["class"] != "").all()
    assert kernels["place_ratio"].between(0, 1).all()
    assert (made.loc[made["kind"] != "kernel", "class"] == "").all()


def test_where_in_a_step_a_kernel_begins() -> None:
    made = (
        Program(n_steps=5)
        .summary("loop")
        .table("makeup")
        .to_frame()
        .set_index("name")["place_ratio"]
    )
    gemm, multiply, layout, flash = (made[name] for name in KERNELS)
    # A step begins 4 ms before its first kernel: the first one with the host.
    assert (gemm, multiply) == pytest.approx((0.04, 0.44))
    assert gemm < multiply < layout < flash


def test_steps_are_those_of_the_whole_recording_and_of_a_chosen_window_its_own() -> None:
    run = run_of(Ranks.of(Program(n_steps=11).trace()))
    assert summarize(run).table("steps").to_frame()["step"].tolist() == list(range(11))
    part = summarize(run.within("step:3..5"))
    assert part.table("steps").to_frame()["step"].tolist() == [3, 4, 5]
    assert (part.window, part.steps_count) == ("step:3..5", 3)
    with pytest.raises(UsageError):
        summarize(run.within("step:30..50"))


def test_steps_of_all_ranks_have_their_rank_and_their_waiting() -> None:
    steps = summarize(four_ranks()).table("steps").to_frame()
    assert sorted(set(steps["rank"])) == [0, 1, 2, 3]
    assert not steps.duplicated(["attempt", "rank", "step"]).any()
    by_rank = steps.groupby("rank")["waited_ns"].sum()
    assert by_rank[1] == 0
    assert (by_rank.drop(1) > 0).all()
    parts = [f"{part}_ns" for part in PARTS]
    assert (steps[parts].sum(axis=1) == steps["device_ns"]).all()


def test_ranks_that_nobody_numbers_are_numbered_and_that_is_said() -> None:
    builder = TraceBuilder()
    for process in (70, 50):
        for i in range(4):
            where: dict[str, Any] = {"process": process, "thread": process}
            builder.step(100 * i, 100 * i + 90, i, **where)
            builder.kernel("gemm", 100 * i + 10, 100 * i + 60, device=process, **where)
    found = summarize(run_of(Ranks.of(builder.build())))
    assert sorted(set(found.table("steps").to_frame()["rank"])) == [0, 1]
    assert any("The files do not contain ranks" in text for text in sentences(found.notes))


def test_long_runs_are_kept_as_blocks_of_which_the_sums_are_exact() -> None:
    n = 10_001
    random = np.random.default_rng(1)
    steps = Table(
        {
            "attempt": 0,
            "rank": np.repeat([0, 1], n),
            "step": np.tile(np.arange(n), 2),
            "steps_count": 1,
            "at_ns": np.tile(np.arange(n) * 100, 2),
            "period_ns": random.integers(90, 110, 2 * n),
            "device_ns": np.where(np.arange(2 * n) == 5_000, np.nan, 80.0),
            "is_warmup": np.tile(np.arange(n) < 3, 2),
            "samples_count": np.where(np.arange(2 * n) % 2, 32.0, np.nan),  # a batch for two steps
        }
    )
    found = blocks_of_steps(steps, most_rows=1_000).to_frame()
    assert len(found) <= 1_010
    assert found["period_ns"].sum() == steps["period_ns"].sum()
    assert found["steps_count"].sum() == 2 * n
    assert found.loc[found["is_warmup"].astype(bool), "steps_count"].tolist() == [3, 3]
    assert found["samples_count"].sum() == 32 * n
    # A sum of which a part is not known is not known.
    assert found["device_ns"].isna().sum() == 1
    assert found.groupby("step").size().eq(2).all()


def test_few_steps_stay_as_they_are() -> None:
    steps = Program(n_steps=5).summary("loop").table("steps")
    assert blocks_of_steps(steps)["steps_count"].tolist() == [1] * 5


def test_many_kernels_are_kept_by_name_and_the_others_together() -> None:
    n = 1_000
    made = Table(
        {
            "part": "compute",
            "kind": "kernel",
            "name": [f"k{i}" for i in range(n)],
            "ns": np.arange(n) + 1,
            "count": 2,
            "n_bytes": np.nan,
            "class": "gemm",
            "place_ratio": 0.5,
        }
    )
    found = bounded_composition(made).to_frame()
    assert len(found) == 301
    assert found["ns"].sum() == made["ns"].sum()
    (others,) = found[found["name"] == OTHERS].to_dict("records")
    assert (others["count"], others["place_ratio"], others["ns"]) == (1_400, 0.5, 700 * 701 // 2)


def test_metrics_epochs_and_events_are_those_that_the_program_told() -> None:
    builder = TraceBuilder().process(1, rank=0)
    for epoch in (0, 1):
        start = 1_000 * epoch
        where = {"kind": "start_end", "payload": float(epoch)}
        builder.phase("epoch", start, start + 900, **where)
        for i in range(4):
            at = start + 200 * i
            builder.batch(at, 8).step(at, at + 200, 4 * epoch + i)
            builder.kernel("gemm", at + 10, at + 190, launched_ns=(at + 1, at + 5))
            builder.mark("metric:loss", at + 150, 4.0 - epoch - i / 10, domain=TRACEPROF_DOMAIN)
        builder.mark("metric:top1", start + 950, 0.5 + epoch / 10, domain=TRACEPROF_DOMAIN)
    found = summarize(run_of(Ranks.of(builder.build())))
    epochs = found.table("epochs").to_frame()
    assert epochs["epoch"].tolist() == [0, 1]
    assert epochs["duration_ns"].tolist() == [900, 900]
    assert epochs["steps_count"].tolist() == [4, 4]
    assert epochs["samples_count"].tolist() == [32, 32]
    assert epochs["ranks_count"].tolist() == [1, 1]
    metrics = found.table("metrics").to_frame()
    loss = metrics[metrics["metric"] == "loss"]
    assert loss["step"].tolist() == list(range(1, 9))
    assert loss["value"].tolist() == pytest.approx([4.0, 3.9, 3.8, 3.7, 3.0, 2.9, 2.8, 2.7])
    assert loss["epoch"].tolist()[:2] == pytest.approx([150 / 900, 350 / 900])
    top1 = metrics[metrics["metric"] == "top1"]
    assert top1["epoch"].tolist() == [1, 2]
    assert found.table("events").to_frame()["kind"].tolist() == ["start", "end"]
    assert found.table("attempts").to_frame()["rank"].tolist() == [0]


def test_what_is_noted_behind_the_last_step_of_an_epoch_is_after_that_step() -> None:
    builder = TraceBuilder().process(1, rank=0)
    for i in range(8):
        at = 200 * i
        builder.batch(at, 8).step(at, at + 200, i)
        builder.phase("optimizer", at + 120, at + 140)
        builder.mark("metric:loss", at + 100, 1.0, domain=TRACEPROF_DOMAIN)
    # The step after the fourth began at 800, without any work so far.
    builder.mark("metric:top1", 805, 0.5, domain=TRACEPROF_DOMAIN)
    metrics = summarize(run_of(Ranks.of(builder.build()))).table("metrics").to_frame()
    assert metrics[metrics["metric"] == "top1"]["step"].tolist() == [4]
    # A loss before the update is that of the model before it.
    assert metrics[metrics["metric"] == "loss"]["step"].tolist() == list(range(8))


def test_the_environment_has_the_same_names_whoever_recorded_it_and_no_secret() -> None:
    builder = TraceBuilder().kernel("gemm", 0, 100).device(0, "NVIDIA H100")
    for name, value in {
        "nvidia_driver": "580.1",
        "cuda_driver": "13000",
        "ram_bytes": "512000000000",
        "cpu": "unknown",
        "git.commit": "abc",
        "git.state": "changed",
        "env.NCCL_ALGO": "Ring",
        "env.NCCL_SECRET_TOKEN": "hush",
        "env.AWS_ACCESS": "hush",
        "anything": "hush",
        "command": "python train.py --api-key=hush",
    }.items():
        builder.setting(name, value)
    found = summarize(run_of(Ranks.of(builder.build())))
    environment = found.environment
    assert environment["driver"] == "580.1"
    assert environment["cuda_driver"] == "13.0"
    assert environment["ram"] == "512.0 GB"
    assert environment["gpu"] == "NVIDIA H100"
    assert (environment["git_commit"], environment["git_is_dirty"]) == ("abc", "yes")
    assert environment["NCCL_ALGO"] == "Ring"
    assert "cpu" not in environment
    assert "hush" not in str(environment) + found.command
    assert found.command.startswith("python train.py")


def test_turns_of_a_pattern_are_no_steps() -> None:
    builder = TraceBuilder()
    for i in range(40):
        for k, name in enumerate(("gemm", "relu", "softmax", "add")):
            builder.kernel(name, 100 * i + 20 * k, 100 * i + 20 * k + 15)
    found = summarize(run_of(Ranks.of(builder.build())))
    assert found.steps_count is None
    assert found.table("steps").to_frame().empty
    assert found.measure("turns_count") == 39
    assert found.measure("iteration_ns") == 100
    assert found.measure("step_period_ns") is None


@pytest.mark.traces
@pytest.mark.parametrize("name", [name for name in ALL if name != "nvprof/zero-kernels.sql"])
def test_of_every_real_trace_a_little_is_kept_that_adds_up(name: str) -> None:
    require("traces")
    found = summarize(open_run([TRACES / name]))
    assert len(pickle.dumps(found)) < 400_000
    for table in SUMMARY.tables:
        frame = found.table(table.name).to_frame()
        assert not frame.duplicated(list(table.keys)).any(), table.name
        assert set(frame) <= {column.name for column in table}
    made = found.table("makeup").to_frame()
    if found.devices_count and found.window_ns:
        most = found.window_ns * found.devices_count
        # Files of a run seldom begin and end together: what was not recorded is not there.
        assert 0.75 * most <= made["ns"].sum() <= most
        if len(found.sources) == 1 and not found.measure("turns_count"):
            assert made["ns"].sum() == most
        elif len(found.sources) == 1:  # iterations of several devices end at several times
            assert made["ns"].sum() == pytest.approx(most, rel=1e-4)


def test_all_iterations_of_a_pattern_are_kept_since_they_are_compared_one_by_one() -> None:
    builder = TraceBuilder()
    for i in range(300):
        for place, name in enumerate(("gemm", "norm", "add", "copy_kernel")):
            at = (100 * i + 20 * place) * 1_000
            builder.kernel(name, at, at + 15_000)
    kept = summarize(run_of(Ranks.of(builder.build())))
    assert kept.results["steps"].scalars["is_pattern"]
    n = len(kept.results["steps"].table)
    assert n >= 298
    assert len(series_of(kept, "period_ns", "iteration")) == n
