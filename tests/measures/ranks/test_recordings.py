"""A rank is judged within its own recording: before and after it, nothing is known to be idle."""

from tests.builders import TraceBuilder, plain
from tests.running import run
from traceprof.model.placement import place_run, retime
from traceprof.model.ranks import RankTrace, RunFiles
from traceprof.model.timing import ClockCorrection, TimeWindow
from traceprof.model.trace import Trace, TraceInfo

COLUMNS = ("duration_ns", "compute_ns", "idle_ns")


def skewed() -> RunFiles:
    """Rank 0 is recorded from 0 to 100, rank 1 from 60 to 160; each computes for 50 of that."""
    members = []
    for rank, start in enumerate((0, 60)):
        builder = TraceBuilder().process(10 + rank, rank=rank)
        for i in range(5):
            at = start + 20 * i
            called = (at, at + 1)
            builder.kernel(
                "gemm", at + 10, at + 20, launched_ns=called, process=10 + rank, device=rank
            )
        trace = builder.build(info=TraceInfo(path=f"rank{rank}", utc_epoch_ns=0))
        members.append(RankTrace(trace, rank, rank))
    return RunFiles("skewed", tuple(members), 2)


def idle_of(trace: Trace) -> int:
    return int(run("idle", trace).table.to_frame()["total_ns"].sum())


def test_time_outside_a_recording_is_not_idle() -> None:
    ranks = place_run(skewed())
    assert ranks.span == TimeWindow(0, 160)
    devices = run("breakdown", ranks)
    assert plain(devices.table.to_frame(), *COLUMNS) == [(100, 50, 50), (100, 50, 50)]
    assert plain(devices.to_frame("total"), *COLUMNS) == [(200, 100, 100)]
    assert idle_of(ranks.merged()) == 100


def test_a_window_is_cut_to_the_recording_of_each_rank() -> None:
    window = TimeWindow(40, 80)
    assert plain(run("breakdown", place_run(skewed()).within(window)).table, *COLUMNS) == [
        (40, 20, 20),
        (20, 10, 10),
    ]
    merged = place_run(skewed()).merged().within(window)
    assert plain(run("breakdown", merged).table.to_frame(), *COLUMNS) == [
        (40, 20, 20),
        (20, 10, 10),
    ]


def test_a_rank_that_was_not_recorded_in_the_window_has_no_time_in_it() -> None:
    parts = run("breakdown", place_run(skewed()).within(TimeWindow(0, 40))).table
    assert plain(parts, *COLUMNS) == [(40, 20, 20), (0, 0, 0)]


def test_shares_of_idle_time_are_of_what_was_recorded_of_each_device() -> None:
    for window in (TimeWindow(0, 160), TimeWindow(40, 80)):
        ranks = place_run(skewed()).within(window)
        idle, parts = (
            run("idle", ranks),
            run("breakdown", ranks).table.to_frame().set_index("device"),
        )
        devices = idle.to_frame("devices").set_index("device")
        assert devices["recorded_ns"].to_dict() == parts["duration_ns"].to_dict()
        assert devices["idle_ns"].to_dict() == parts["idle_ns"].to_dict()
        assert devices["share_ratio"].tolist() == [0.5, 0.5]
        for name in ("causes", "names"):
            frame = idle.to_frame(name)
            if name == "names":
                frame = frame.groupby(["device", "cause"])[["total_ns", "share_ratio"]].sum()
            shares = frame.groupby("device")["share_ratio"].sum()
            assert (shares <= 0.5 + 1e-12).all()
            assert name == "names" or shares.tolist() == [0.5, 0.5]


def test_a_recording_moves_with_the_clock() -> None:
    second = place_run(skewed()).parts[1]
    moved = retime(second, {11: ClockCorrection(offset_ns=60)})
    assert moved.recordings == {11: TimeWindow(0, 100)}
