"""A run of several files gives what its merged trace gives."""

import pickle

import pandas as pd
import pytest

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

US = 1000


def rank(slow: int) -> Trace:
    """Two steps of copies, kernels and waits; the second is ``slow`` µs later."""
    builder = TraceBuilder()
    for number in range(2):
        at = number * (500 + slow) * US
        builder.step(at, at + 480 * US, number)
        builder.phase("data", at, at + 90 * US)
        builder.copy(
            "h2d",
            at + 110 * US,
            at + 130 * US,
            n_bytes=2_000_000,
            launched_ns=(at + 100 * US, at + 105 * US),
        )
        for kernel in range(4):
            begin = at + (150 + 60 * kernel) * US
            builder.kernel(
                "gemm", begin, begin + 40 * US, launched_ns=(begin - 9 * US, begin - 5 * US)
            )
        builder.kernel(
            "nccl", at + 400 * US, at + 430 * US, launched_ns=(at + 390 * US, at + 393 * US)
        )
        builder.copy(
            "d2h",
            at + 440 * US,
            at + 441 * US,
            n_bytes=4,
            launched_ns=(at + 431 * US, at + 433 * US),
        )
        builder.api_call("cudaStreamSynchronize", at + 434 * US, at + (445 + slow) * US)
    builder.kernel("lost", 3_000 * US, 3_001 * US)
    return builder.build(span=(0, 4_000 * US))


def ranks() -> Ranks:
    members = tuple(RankTrace(rank(slow), number) for number, slow in enumerate((0, 30, 70)))
    return place_run(RunFiles("run", members, 3), [0, 0, 0])


@pytest.mark.parametrize("window", [None, TimeWindow(300 * US, 1_100 * US)])
@pytest.mark.parametrize("name", ["idle", "gaps", "launches", "sync", "path", "whatif"])
def test_a_run_gives_what_its_merged_trace_gives(name: str, window: TimeWindow | None) -> None:
    several = ranks() if window is None else ranks().within(window)
    apart, together = run(name, several), run(name, Ranks.of(several.merged()))
    assert apart.tables.keys() == together.tables.keys()
    for name, table in together.tables.items():
        frames = apart.tables[name].to_frame(), table.to_frame()
        pd.testing.assert_frame_equal(*frames, check_dtype=False, check_categorical=False)
    assert apart.scalars == together.scalars
    assert apart.notes == together.notes
    assert len(apart.table)


@pytest.mark.parametrize("name", ["idle", "gaps", "launches", "sync", "path", "whatif", "quality"])
def test_a_rank_can_go_to_another_process_with_what_is_known_of_it(name: str) -> None:
    trace = rank(30)
    before = run(name, trace)
    after = run(name, pickle.loads(pickle.dumps(trace)))
    pd.testing.assert_frame_equal(before.table.to_frame(), after.table.to_frame())
