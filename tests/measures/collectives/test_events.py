"""Every collective by itself: phase, caller, step, delay, and its other end."""

from __future__ import annotations

from tests.builders import plain
from tests.measures.collectives.exchanges import add, exchange
from tests.measures.collectives.loop import loop
from tests.running import run


def test_every_collective_by_itself_with_phase_step_and_delay() -> None:
    table = run("collective-events", loop()).to_frame()
    columns = ("at_ns", "op", "phase", "caller", "step", "size_bytes", "duration_ns", "delay_ns")
    assert plain(table, *columns)[:2] == [
        (450, "all_reduce", "backward", "layer2", 0, 4000, 100, 50),
        (650, "all_reduce", "backward", "backward", 0, 8000, 100, 50),
    ]
    assert table["step"].tolist() == [0, 0, 1, 1]


def test_each_call_names_its_other_end() -> None:
    builder = exchange(3, {0: [1, 2], 1: [], 2: []})
    add(builder, "send", 0, 2, (300, 310))
    add(builder, "recv", 1, 7, (310, 320))
    table = run("collective-events", builder.build()).to_frame()
    assert [peer for peer in table["peer"] if peer] == ["{0,1,2}", "to rank 2", "from rank 7"]
