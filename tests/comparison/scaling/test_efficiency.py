"""Speed-up and efficiency against a base, weak and strong, repeats, groups."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from tests.comparison.scaling.sized_runs import MS, sized
from traceprof.comparison import Comparison
from traceprof.comparison.scaling.compared import scaling
from traceprof.errors import NotRecordedError, UsageError
from traceprof.model.table import Table
from traceprof.render.formatting import sentences
from traceprof.render.text.comparisons import scaling_view


def table_of(found: Comparison) -> pd.DataFrame:
    return found.results["scaling"].table.to_frame()


def test_speed_up_and_efficiency_are_against_the_smallest_size() -> None:
    table = table_of(scaling([sized(4, 300), sized(1, 100), sized(2, 190)]))
    assert table["devices_count"].tolist() == [1, 2, 4]
    assert table["speedup"].tolist() == [1, 1.9, 3]
    assert table["efficiency_ratio"].tolist() == [1, 0.95, 0.75]
    assert table["ideal_per_s"].tolist() == [100, 200, 400]


def test_any_size_may_be_the_base() -> None:
    table = table_of(scaling([sized(1, 100), sized(2, 190), sized(4, 300)], base=2))
    assert table["efficiency_ratio"].tolist() == pytest.approx([100 / 95, 1, 300 / 380])
    assert table["speedup"].tolist() == pytest.approx([100 / 190, 1, 300 / 190])


def test_a_base_that_is_not_there_is_said() -> None:
    found = scaling([sized(2, 190), sized(4, 300)], base=1)
    assert table_of(found)["efficiency_ratio"].isna().all()
    assert any("without size 1" in text for text in sentences(found.notes))


@pytest.mark.parametrize(
    ("batch", "kind"), [(64, "weak"), (32, "strong"), (48, "mixed"), (None, "unknown")]
)
def test_weak_and_strong_are_told_by_the_batches(batch: float | None, kind: str) -> None:
    table = table_of(scaling([sized(1, 100, batch=32), sized(2, 190, batch=batch)]))
    assert table["scaling"].tolist() == ["base", kind]


def test_the_base_has_the_same_batch_per_device_where_there_is_one() -> None:
    runs = [
        sized(1, 100, batch=16),
        sized(1, 120, batch=32),
        sized(2, 180, batch=32),
        sized(2, 210, batch=64),
    ]
    table = table_of(scaling(runs))
    assert table["scaling"].tolist() == ["base", "base", "weak", "weak"]
    assert table["efficiency_ratio"].tolist() == pytest.approx([1, 1, 0.9, 210 / 240])


@pytest.mark.parametrize(("assumed", "efficiency"), [("weak", 0.8), ("strong", 0.4)])
def test_steps_alone_need_to_be_told_what_they_hold(assumed: str, efficiency: float) -> None:
    runs = [sized(1, steps_per_s=10), sized(2, steps_per_s=8)]
    found = scaling(runs)
    assert isnan(table_of(found)["efficiency_ratio"].iloc[-1])
    assert not found.verdict
    assert any("--scaling weak" in text for text in sentences(found.results["scaling"].notes))
    table = table_of(scaling(runs, assumed=assumed))
    assert table["efficiency_ratio"].iloc[-1] == pytest.approx(efficiency)


def test_repeats_are_averaged_and_give_an_interval() -> None:
    runs = [sized(1, 99), sized(1, 101), sized(2, 179), sized(2, 181)]
    table = table_of(scaling(runs))
    assert table["runs_count"].tolist() == [2, 2]
    assert table["samples_per_s"].tolist() == [100, 180]
    last = table.iloc[-1]
    assert last["low_ratio"] < last["efficiency_ratio"] == 0.9 < last["high_ratio"]


def test_the_interval_of_one_run_is_what_it_says_of_itself() -> None:
    runs = [sized(1, 100, interval=(96, 104)), sized(2, 200, interval=(194, 206))]
    last = table_of(scaling(runs)).iloc[-1]
    assert (last["low_ratio"], last["high_ratio"]) == pytest.approx((0.95, 1.05))


def test_groups_of_labels_have_their_own_base() -> None:
    runs = [
        sized(n, rate, labels={"network": network})
        for network, rates in (("a", (100, 190)), ("b", (50, 80)))
        for n, rate in zip((1, 2), rates, strict=True)
    ]
    table = table_of(scaling(runs))
    assert table["group"].tolist() == ["a", "a", "b", "b"]
    assert table["efficiency_ratio"].tolist() == [1, 0.95, 1, 0.8]


def test_a_run_without_a_label_stands_in_where_a_group_lacks_its_size() -> None:
    runs = [
        sized(1, 100),
        sized(2, 190, labels={"network": "a"}),
        sized(1, 90, labels={"network": "b"}),
        sized(2, 160, labels={"network": "b"}),
    ]
    table = table_of(scaling(runs)).set_index(["group", "devices_count"])
    assert table.loc[("a", 2), "efficiency_ratio"] == 0.95
    assert table.loc[("b", 2), "efficiency_ratio"] == pytest.approx(160 / 180)


def test_runs_that_differ_in_an_ignored_label_are_repeats() -> None:
    runs = [sized(1, 100 + i, labels={"seed": str(i)}) for i in (0, 2)]
    assert len(table_of(scaling(runs))) == 2
    assert table_of(scaling(runs, ignored=["seed"]))["samples_per_s"].tolist() == [101]


def test_nodes_may_be_the_size() -> None:
    runs = [sized(8, 800, nodes_count=1), sized(16, 1200, nodes_count=2)]
    table = table_of(scaling(runs, by=["nodes"]))
    assert table["efficiency_ratio"].tolist() == [1, 0.75]
    assert table["base_count"].tolist() == [1, 1]


def test_what_a_source_prints_stands_beside_what_its_rates_give() -> None:
    runs = [
        sized(1, 226, printed_efficiency_percent=100),
        sized(2, 426, printed_efficiency_percent=95),
        sized(4, 704, printed_efficiency_percent=77),
    ]
    found = scaling(runs)
    table = table_of(found)
    assert table["printed_ratio"].tolist() == [1, 0.95, 0.77]
    assert table["printed_is"].tolist() == [
        "rounded",
        "does not follow from the rates",
        "cut off, not rounded",
    ]
    said = sentences(found.warnings)
    assert "printed efficiency 95%" in said[0]
    assert "94.2%" in said[0]
    assert "printed efficiency 77%" in said[1]
    assert "77.9%" in said[1]


def test_printed_speed_ups_are_over_one_device() -> None:
    runs = [
        sized(2, printed_speedup=1.615, printed_efficiency_percent=80.75),
        sized(6, printed_speedup=4.487, printed_efficiency_percent=74.8),
    ]
    table = table_of(scaling(runs))
    assert table["speedup"].tolist() == [1.615, 4.487]
    assert table["efficiency_ratio"].tolist() == pytest.approx([0.8075, 4.487 / 6])
    assert table["printed_is"].tolist() == ["rounded", "rounded"]


@pytest.mark.parametrize(("collectives", "ranks"), [(0, "independent"), (7, "synchronized")])
def test_ranks_without_collectives_are_independent(collectives: int, ranks: str) -> None:
    found = scaling([sized(1, 100), sized(2, 190, collectives=collectives)])
    assert table_of(found)["ranks"].tolist() == ["one", ranks]
    said = " ".join(sentences(found.results["scaling"].notes))
    assert ("averages them" in said) == (ranks == "independent")


def test_independent_ranks_are_as_fast_as_their_devices() -> None:
    # The host runs ahead: its periods are 10 ms, the devices take 20 ms for 10 samples.
    columns = {"rank": [0] * 5 + [1] * 5, "step": [*range(5)] * 2, "steps_count": [1] * 10}
    times = {"at_ns": [20 * MS * i for i in range(5)] * 2, "period_ns": [10 * MS] * 10}
    spans = {"duration_ns": [1.0 * MS, *[20.0 * MS] * 4] * 2, "samples_count": [10] * 10}
    kinds = {"is_warmup": [False] * 10, "is_counted": [False, *[True] * 4] * 2}
    rows = {**columns, **times, **spans, **kinds, "attempt": [0] * 10}
    run = sized(2, 190, collectives=0)
    run = replace(run, tables={**run.tables, "steps": Table(rows)})
    found = scaling([sized(1, 500), run])
    assert table_of(found)["samples_per_s"].tolist() == pytest.approx([500, 1000])


def test_the_serial_share_is_told() -> None:
    runs = [sized(n, 100 / (0.1 + 0.9 / n)) for n in (1, 2, 4, 8)]
    (law,) = scaling(runs).results["scaling"].to_frame("laws").to_dict("records")
    assert law["serial_ratio"] == pytest.approx(0.1)
    assert law["limit_speedup"] == pytest.approx(10)
    assert law["karp_flatt_last_ratio"] == pytest.approx(0.1)


def test_a_law_that_the_measured_speed_ups_break_is_no_limit() -> None:
    # Small sizes lose half, large ones no more than that: 1/2 + 1/2/n never gives 40 times.
    runs = [sized(n, rate) for n, rate in ((1, 1), (2, 1.2), (128, 40))]
    (law,) = scaling(runs).results["scaling"].to_frame("laws").to_dict("records")
    assert law["limit_speedup"] < 40 and law["is_exceeded"]
    (law,) = scaling(runs[:2]).results["scaling"].to_frame("laws").to_dict("records")
    assert not law["is_exceeded"]


def test_runs_that_tell_nothing_are_refused() -> None:
    with pytest.raises(NotRecordedError, match="no run contains a throughput"):
        scaling([sized(2)])
    with pytest.raises(UsageError, match="pass only one"):
        scaling([sized(2, 100)], by=["gpus", "nodes"])
    with pytest.raises(UsageError, match="weak or strong"):
        scaling([sized(2, 100)], assumed="strange")


def test_runs_left_out_are_named() -> None:
    found = scaling([sized(1, 100), sized(2, 190), sized(4)])
    assert len(table_of(found)) == 2
    assert any("4 GPUs" in text for text in sentences(found.notes))


def test_a_part_of_the_ranks_stands_for_all() -> None:
    one = sized(1, 100, batch=32)
    steps = Table(
        {
            "attempt": 0,
            "rank": 0,
            "step": [0, 1],
            "steps_count": 1,
            "period_ns": 400 * MS,
            "samples_count": 32,
            "is_warmup": False,
        }
    )
    first = sized(4, 80, batch=32, collectives=3)
    first = type(first)(
        "first of four", tables={**first.tables, "steps": steps}, results=first.results
    )
    found = scaling([one, first])
    assert table_of(found)["samples_per_s"].tolist() == [100, 320]
    assert table_of(found)["scaling"].tolist() == ["base", "weak"]
    assert any("1 of 4 ranks" in text for text in sentences(found.notes))


def test_mfu_energy_and_cost_stand_where_runs_know_them() -> None:
    hardware: dict[str, Any] = {"mfu_ratio": 0.3, "step_joules": 64.0, "step_cost": 1e-4}
    found = scaling([sized(1, 100, batch=32, **hardware), sized(2, 190, batch=64)])
    first, last = found.results["scaling"].table.rows()
    assert (first["mfu_ratio"], first["step_joules"], first["sample_joules"]) == (0.3, 64, 2)
    assert first["million_samples_cost"] == pytest.approx(1e6 * 1e-4 / 32)
    names = [*hardware, "sample_joules", "million_samples_cost"]
    assert all(isnan(last[name]) for name in names)
    console = Console(width=100)
    with console.capture() as shown:
        console.print(scaling_view(found.results["scaling"], 5, 100))
    assert "MFU  J/sample  cost/1M" in shown.get()


def test_energy_of_repeats_is_their_mean_and_of_one_that_lacks_it_not_known() -> None:
    runs = [sized(1, 99, step_joules=10), sized(1, 101, step_joules=12)]
    assert scaling(runs).results["scaling"].table.row(0)["step_joules"] == 11
    found = scaling([*runs, sized(1, 100)]).results["scaling"].table.row(0)
    assert isnan(found["step_joules"])


def test_energy_of_some_devices_is_none_of_all() -> None:
    parts = {"compute": 10 * MS}
    one = sized(1, 100, batch=1, parts=parts, step_joules=10)
    labelled = replace(one, labels={"gpus": "8"})
    assert isnan(scaling([labelled]).results["scaling"].table.row(0)["step_joules"])
    assert scaling([one]).results["scaling"].table.row(0)["step_joules"] == 10


def test_unlike_programs_are_not_averaged() -> None:
    runs = [
        replace(sized(n, rate, batch=32 * n), name=f"{program}-{n}", command=f"python {program}.py")
        for program, rates in (("cnn", (136.5, 270.0)), ("gpt", (179.9, 350.0)))
        for n, rate in zip((1, 2), rates, strict=True)
    ]
    found = scaling(runs)
    rows = {row["group"]: row for row in found.results["scaling"].table.rows()[1::2]}
    assert rows["cnn.py"]["efficiency_ratio"] == pytest.approx(270 / 273)
    assert rows["gpt.py"]["efficiency_ratio"] == pytest.approx(350 / 359.8)
    assert any("--ignore program" in text for text in sentences(found.notes))
    together = scaling(runs, ignored=["program"])
    warned = [text for text in sentences(together.warnings) if "differ by a factor" in text]
    assert warned[0] == (
        "1 GPU: the throughput is the mean of cnn-1, gpt-1, which differ by a factor of 1.32. "
        "Their commands differ. Separate unlike runs with --by command, or with labels."
    )
    separated = scaling(runs, by=["command"], ignored=["program"])
    assert not any("differ by a factor" in text for text in sentences(separated.warnings))


def test_repeats_of_one_program_are_averaged_without_a_warning() -> None:
    runs = [
        replace(sized(n, n * rate, batch=32 * n), command=f"python cnn.py --seed {seed}")
        for n in (1, 2)
        for seed, rate in enumerate((100.0, 103.0, 98.0))
    ]
    found = scaling(runs)
    assert len(found.results["scaling"].table) == 2
    assert not sentences(found.warnings)
    assert not any("different programs" in text for text in sentences(found.notes))
