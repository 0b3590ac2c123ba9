"""Time to accuracy, on small runs made by hand."""

from __future__ import annotations

from math import nan
from typing import Any

import pandas as pd
import pytest

from tests.logs.reading import shared
from traceprof.comparison import Comparison
from traceprof.comparison.accuracy import accuracy, short_names
from traceprof.errors import NotRecordedError, UsageError
from traceprof.logs import read_log
from traceprof.model.results import Note
from traceprof.model.summary import SUMMARY, Summary
from traceprof.model.table import Table
from traceprof.render.formatting import note_text
from traceprof.render.registry import Options, render

S = 1e9


def a_run(
    name: str,
    values: list[float],
    every_s: float = 10.0,
    metric: str = "top1",
    **more: Any,
) -> Summary:
    """Return a run that is evaluated after each epoch of 100 samples, from 5 s on."""
    rows = [
        {
            "metric": metric, "attempt": 0, "rank": nan, "step": nan, "epoch": i,
            "at_ns": (5 + i * every_s) * S, "samples_count": nan, "value": value,
            "scope": "run", "over": more.get("over", "run"),
        }
        for i, value in enumerate(values, 1)
    ]  # fmt: skip
    measures = {
        "devices_count": more.get("devices"),
        "global_batch_count": more.get("batch", 10),
        "train_samples_count": 100,
        "samples_per_s": more.get("rate"),
        "printed_samples_per_s": more.get("printed"),
    }
    table = SUMMARY.table("measures")
    frame = table.of_rows(
        [{"measure": key, "value": value} for key, value in measures.items() if value is not None]
    )
    events = [{"event": 0, "kind": "start", "at_ns": 5 * S}]
    return Summary(
        name,
        labels=more.get("labels", {}),
        notes=more.get("notes", ()),
        tables={
            "metrics": SUMMARY.table("metrics").of_rows(rows),
            "measures": frame,
            "events": SUMMARY.table("events").of_rows(events),
        },
    )


def reached(found: Comparison) -> pd.DataFrame:
    return found.results["accuracy"].to_frame("reached").set_index("run")


def said(notes: tuple[Note, ...]) -> str:
    return "\n".join(map(note_text, notes))


def test_the_first_evaluation_that_reaches_it_counts() -> None:
    found = accuracy([a_run("a", [0.5, 0.7, 0.6, 0.8])], target=0.7)
    row = reached(found).loc["a"]
    assert (row["time_ns"], row["epochs"], row["value"]) == (20 * S, 2, 0.7)
    assert (row["steps_count"], row["samples_count"], row["best"]) == (20, 200, 0.8)
    assert "speedup" not in found.results


def test_a_run_that_never_reaches_it_is_told() -> None:
    found = accuracy([a_run("a", [0.5, 0.7]), a_run("b", [0.5, 0.6])], target=0.7)
    table = reached(found)
    assert table["is_reached"].tolist() == [True, False]
    assert table["time_ns"].isna().tolist() == [False, True] and table.loc["b", "best"] == 0.6
    assert "1 of 2 runs did not reach" in said(found.verdict)


def test_of_losses_lower_is_better() -> None:
    found = accuracy([a_run("a", [5.0, 4.0, 3.0], metric="val_loss")], target=4.2)
    assert reached(found).loc["a", "epochs"] == 2
    assert found.title == "val_loss ≤ 4.2"


def test_which_way_is_better_may_be_said_or_seen() -> None:
    falling = a_run("a", [5.0, 4.0, 3.0], metric="fid")
    assert reached(accuracy([falling], target=4.2, metric="fid")).loc["a", "epochs"] == 2
    forced = accuracy([falling], target=4.2, metric="fid", is_lower=False)
    assert reached(forced).loc["a", "epochs"] == 1


def test_without_a_target_it_is_what_all_reach() -> None:
    found = accuracy([a_run("a", [0.5, 0.9]), a_run("b", [0.6, 0.7])])
    assert found.title == "top1 ≥ 0.7"
    assert reached(found)["is_reached"].all()


def test_the_fewest_devices_are_the_base_whatever_the_order() -> None:
    runs = [a_run("n128", [0.8], 1, devices=128), a_run("n8", [0.8], 4, devices=8)]
    found = accuracy([a_run("unknown", [0.8], 2), *runs], target=0.8)
    assert reached(found).index.tolist() == ["n8", "n128", "unknown"]
    assert found.results["speedup"].table.to_frame()["time_speedup"].tolist() == [1, 4, 2]


@pytest.mark.parametrize("base", ["n128", "128"])
def test_another_base_may_be_named(base: str) -> None:
    runs = [a_run("n8", [0.8], 4, devices=8), a_run("n128", [0.8], 1, devices=128)]
    found = accuracy(runs, target=0.8, base=base)
    assert found.results["speedup"].table.to_frame()["time_speedup"].tolist() == [1, 1 / 4]
    with pytest.raises(UsageError, match=r"n8 .8 devices., n128"):
        accuracy(runs, target=0.8, base="n12")


def test_speed_ups_of_time_and_of_throughput() -> None:
    base = a_run("one", [0.5, 0.8], 10, devices=8, rate=100, batch=10)
    many = a_run("many", [0.5, 0.6, 0.7, 0.8], 1, devices=64, rate=1000, batch=80, printed=5000)
    found = accuracy([base, many], target=0.8)
    row = found.results["speedup"].table.to_frame().to_dict("records")[1]
    assert row["time_speedup"] == 5 and row["time_efficiency_ratio"] == 5 / 8
    assert row["rate_speedup"] == 10 and row["rate_efficiency_ratio"] == 10 / 8
    assert row["work_factor"] == 2
    assert note_text(row["remark"]).startswith("printed rate is 5.00×")
    assert "5 times as fast as one" in said(found.verdict)
    assert "2 times the samples" in said(found.verdict)


def test_runs_of_the_same_labels_are_repeats() -> None:
    labels = {"network": "ib"}
    runs = [a_run(f"r{i}", [0.5, *[0.6] * i, 0.8], devices=8, labels=labels) for i in range(3)]
    other = a_run("x", [0.8], devices=16, labels=labels)
    found = accuracy([*runs, other], target=0.8)
    spread = found.results["accuracy"].to_frame("spread")
    assert spread[["runs_count", "reached_count"]].to_numpy().tolist() == [[3, 3]]
    assert spread[["least_ns", "median_ns", "most_ns"]].to_numpy()[0].tolist() == [
        20 * S,
        30 * S,
        40 * S,
    ]
    assert found.results["speedup"].table.to_frame()["time_speedup"].tolist() == [1, 3]


def test_runs_of_which_nothing_is_known_are_no_repeats() -> None:
    found = accuracy([a_run("a", [0.8], batch=None), a_run("b", [0.8], batch=None)])
    assert "spread" not in found.results["accuracy"].tables


def test_single_steps_are_smoothed() -> None:
    values = [5.0, 5.0, 1.0, 5.0, 5.0, 3.0, 2.0, 2.0, 2.0, 2.0]
    found = accuracy([a_run("a", values, metric="loss", over="step")], target=2.0)
    assert reached(found).loc["a", "epochs"] == 9
    assert "median of five" in said(found.notes)


def test_what_traces_tell_needs_no_more_than_values_and_times() -> None:
    rows = [
        {"metric": "top1", "attempt": 0, "rank": rank, "at_ns": i * S, "value": i / 10}
        for i in range(9)
        for rank in (0, 1)
    ]
    run = Summary("traced", tables={"metrics": Table.of_rows(rows)})
    row = reached(accuracy([run], target=0.5)).loc["traced"]
    assert (row["time_ns"], row["evaluations_count"]) == (5 * S, 9)


def test_metrics_and_targets_that_cannot_be() -> None:
    run = a_run("a", [0.5])
    with pytest.raises(UsageError, match="available metrics: top1"):
        accuracy([run], metric="bleu")
    with pytest.raises(UsageError, match=r"0\.76"):
        accuracy([run], target=76)
    with pytest.raises(NotRecordedError, match="no run has an accuracy"):
        accuracy([Summary("empty")])
    assert accuracy([run], metric="accuracy", target=0.5).title == "top1 ≥ 0.5"


def test_runs_without_the_metric_are_named() -> None:
    found = accuracy([a_run("a", [0.5]), Summary("empty")], target=0.5)
    assert found.missing == {"empty": "does not contain metric top1"}
    assert list(reached(found).index) == ["a"]


@pytest.mark.parametrize("form", ["text", "json", "csv", "markdown", "html"])
def test_it_is_shown_in_every_form(form: str) -> None:
    runs = [a_run("a", [0.5], devices=8, rate=1, printed=9), a_run("b", [0.5], devices=16)]
    assert "0.5" in str(render(form, accuracy(runs), Options()))


def test_names_that_are_long_are_shown_without_what_all_share() -> None:
    names = [f"mlperf-v2.0-dgxa100{size}_ngc22.04_mxnet-resnet" for size in ("", "_n8", "_n527")]
    assert short_names(names) == ["dgxa100", "dgxa100_n8", "dgxa100_n527"]
    assert short_names(["a-1", "a-2"]) == ["a-1", "a-2"]
    same = ["a-very-long-name-of-a-run-1"] * 2
    assert short_names(same) == same


def test_resnet_of_mlperf_on_1_to_527_nodes() -> None:
    names = ("", "_n8", "_n128", "_n527")
    files = [shared(f"mlperf-v2.0-dgxa100{name}_ngc22.04_mxnet-resnet.txt") for name in names]
    found = accuracy([run for file in files for run in read_log(file)], target=0.759)
    table = reached(found)
    assert (table["time_ns"] / S).round(1).tolist() == [1704.6, 270.1, 31.8, 19.1]
    # The clock of the benchmark stops up to a millisecond after the evaluation.
    assert (table["time_to_train_ns"] - table["time_ns"]).between(0, 1_000_000).all()
    assert table["epochs"].tolist() == [35, 35, 56, 86]
    speedup = found.results["speedup"].table.to_frame()
    assert speedup["time_speedup"].round(1).tolist() == [1, 6.3, 53.7, 89.3]
    assert speedup["rate_speedup"].round(1).tolist() == [1, 6.2, 86.8, 232.8]
    assert speedup["remark"].notna().tolist() == [False, False, False, True]


def test_where_no_name_tells_what_is_better_the_way_that_values_go_does() -> None:
    runs = [a_run("a", [5.0, 3.0, 2.0], metric="oddness"), a_run("b", [5.0, 4.0], metric="oddness")]
    assert accuracy(runs, metric="oddness").title == "oddness ≤ 4"
