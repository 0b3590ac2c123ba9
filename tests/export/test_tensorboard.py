"""Scalars of steps, read back by TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.builders import TraceBuilder
from tests.measures.generated_run import Plan, make_ranks_of
from traceprof.errors import UsageError
from traceprof.export import exporter_called
from traceprof.export.request import Exported, Request
from traceprof.model.ranks import Ranks
from traceprof.model.trace import TraceInfo
from traceprof.session.run import run_of

MS = 1_000_000
EPOCH_S = 1_700_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def built(info: TraceInfo | None = None) -> Ranks:
    """Return steps 5 and 6: 10 ms from the end of work to the end of work, all but 2 ms busy.

    A kernel takes 4 ms, an all-reduce of 4 MB of two ranks 2 ms, a copy of 1 MB 2 ms.
    """
    builder = TraceBuilder().process(1, rank=3, world_size=4)
    for number, start in ((5, 0), (6, 10 * MS)):
        launched = (start + 1000, start + 2000)
        builder.step(start, start + 9 * MS, number).batch(start + 10, 64)
        builder.kernel("gemm", start + 2 * MS, start + 6 * MS, launched_ns=launched)
        builder.collective(
            "all_reduce", start + 3000, start + 4000, n_bytes=4_000_000, correlation=number
        )
        builder.kernel(
            NCCL,
            start + 6 * MS,
            start + 8 * MS,
            launched_ns=(start + 3000, start + 4000),
            correlation=number,
            stream=8,
        )
        builder.copy(
            "h2d", start + 8 * MS, start + 10 * MS, n_bytes=1_000_000, launched_ns=launched
        )
    return Ranks.of(builder.build(info=info))


def export(of: Ranks, output: Path, **more: Any) -> Exported:
    return exporter_called("tensorboard").load()(run_of(of), Request(output, **more))


def scalars(folder: Path) -> dict[str, list[tuple[float, int, float]]]:
    """Return what TensorBoard reads: by tag wall time, step and value."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {
        tag: [(one.wall_time, one.step, one.value) for one in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


def test_every_step_has_its_scalars(tmp_path: Path) -> None:
    info = TraceInfo(path="built", utc_epoch_ns=EPOCH_S * 10**9)
    done = export(built(info), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rank_3"]
    found = scalars(tmp_path / "out" / "rank_3")
    assert all([step for _, step, _ in values] == [5, 6] for values in found.values())
    second = {tag: values[1][2] for tag, values in found.items()}
    assert second == pytest.approx(
        {
            "step/duration_ms": 10,
            "step/samples_per_s": 64 / 10e-3,  # of the time on the device, to the end of the copy
            "step/exposed_communication_ms": 2,
            "parts/compute_ratio": 0.4,
            "parts/exposed_communication_ratio": 0.2,
            "parts/exposed_transfer_ratio": 0.2,
            "parts/device_memory_ratio": 0,
            "parts/idle_ratio": 0.2,
            "bandwidth/h2d_bytes_per_s": 1e8,
            "bandwidth/busbw_bytes_per_s": 2e9,
        }
    )
    assert done.n_rows == 2 * len(second)
    assert found["step/duration_ms"][1][0] == EPOCH_S + 0.02


def test_what_was_not_recorded_has_no_scalar(tmp_path: Path) -> None:
    builder = TraceBuilder().step(0, 10 * MS, 1).step(10 * MS, 20 * MS, 2)
    done = export(Ranks.of(builder.build()), tmp_path / "out")
    found = scalars(tmp_path / "out" / "process_1")
    assert found == {"step/duration_ms": [(0.01, 1, 10.0), (0.02, 2, 10.0)]}
    (remark,) = done.remarks
    assert "wall-clock time was not recorded" in remark


def test_a_rank_without_what_others_have_has_no_zeros(tmp_path: Path) -> None:
    builder = TraceBuilder().process(1, rank=0).process(2, rank=1)
    for process in (1, 2):
        builder.step(0, 10 * MS, 1, process=process).step(10 * MS, 20 * MS, 2, process=process)
    builder.batch(5, 8)
    export(Ranks.of(builder.build()), tmp_path / "out")
    assert "step/samples_per_s" in scalars(tmp_path / "out" / "rank_0")
    assert "step/samples_per_s" not in scalars(tmp_path / "out" / "rank_1")


def test_every_rank_is_a_run(tmp_path: Path) -> None:
    ranks = make_ranks_of(Plan(n_ranks=3, n_steps=4))
    export(ranks, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["rank_0", "rank_1", "rank_2"]
    export(ranks, tmp_path / "some", ranks={2})
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["rank_2"]
    one = scalars(tmp_path / "some" / "rank_2")
    assert one == scalars(tmp_path / "out" / "rank_2")
    assert len(one["step/duration_ms"]) == 4


def test_a_window_leaves_the_other_steps_out(tmp_path: Path) -> None:
    run = run_of(built()).within("step:6")
    exporter_called("tensorboard").load()(run, Request(tmp_path / "out"))
    found = scalars(tmp_path / "out" / "rank_3")["step/duration_ms"]
    assert [step for _, step, _ in found] == [6]


@pytest.mark.parametrize(
    ("ranks", "more", "told"),
    [
        (Ranks.of(TraceBuilder().kernel("k", 0, 5).build()), {}, "contains no steps"),
        (built(), {"tables": ["kernels"]}, "--tables"),
        (built(), {"ranks": {0}}, "no steps of rank 0; choose from 3"),
    ],
)
def test_mistakes_leave_nothing(
    ranks: Ranks, more: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=told):
        export(ranks, tmp_path / "out", **more)
    assert not list(tmp_path.iterdir())
