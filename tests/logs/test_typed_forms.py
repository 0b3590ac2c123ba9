"""Tables in the forms of public READMEs are read, and cells that cannot be read are named."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from traceprof.comparison.accuracy import accuracy
from traceprof.comparison.scaling.compared import scaling
from traceprof.errors import TraceError
from traceprof.logs import read_table
from traceprof.model.summary import Summary

FORMS: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("typed_forms.toml").read_text("utf-8")
)
NAMES: Final = {
    "d": ("devices_count", 1.0),
    "n": ("nodes_count", 1.0),
    "r": ("world_size", 1.0),
    "b": ("batch_per_device_count", 1.0),
    "g": ("global_batch_count", 1.0),
    "s": ("samples_per_s", 1.0),
    "sd": ("samples_per_s_per_device", 1.0),
    "t": ("tokens_per_s", 1.0),
    "td": ("tokens_per_s_per_device", 1.0),
    "it": ("steps_per_s", 1.0),
    "e": ("printed_efficiency_percent", 1.0),
    "u": ("printed_speedup", 1.0),
    "w": ("total_ns", 1e-9),
    "tt": ("time_to_train_ns", 1e-9),
    "p": ("step_period_ns", 1e-6),
    "o": ("epoch_ns", 1e-9),
    "a": ("top1", 1.0),
    "ac": ("accuracy", 1.0),
    "c": ("acc", 1.0),
    "5": ("top5", 1.0),
    "q": ("requests_per_s", 1.0),
    "tf": ("tflop_per_s_per_device", 1.0),
}


def test_models_of_gpus_are_labels_where_several_are_compared(tmp_path: Path) -> None:
    text = FORMS["requests"]["text"]
    labels = [run.labels.get("gpus") for run in runs_of(tmp_path, text)]
    assert labels == ["A100 (40GB)", "A100 (40GB)", "H100 (80GB)"]
    same = runs_of(tmp_path, text.replace("H100", "A100").replace("80GB", "40GB"))
    assert "A100" not in str(same[0].labels)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_read(tmp_path: Path, form: str) -> None:
    text, expected = FORMS[form]["text"], FORMS[form]["rows"]
    path = tmp_path / "page.md"
    path.write_text(text)
    runs = read_table(path)
    assert len(runs) >= len(expected)
    for run, values in zip(runs, expected, strict=False):
        found = {}
        for key in NAMES:
            measure, factor = NAMES[key]
            if (value := run.measure(measure)) is not None:
                found[key] = value * factor
        assert {key: found.get(key) for key in values} == pytest.approx(values), form
        complete = {*"dnrbgst"} & {*found} <= {*values}
        assert complete or values is not expected[0], (form, found)


def runs_of(tmp_path: Path, text: str) -> list[Summary]:
    path = tmp_path / "page.md"
    path.write_text(text)
    return read_table(path)


def notes_of(run: Summary) -> list[tuple[str, dict[str, object]]]:
    return [(note.text, dict(note.values)) for note in run.notes]


@pytest.mark.parametrize(
    "text",
    ["| Library | License |\n|---|---|\n| numpy | BSD |\n| torch | BSD |\n",
     "| Option | Default | Meaning |\n|---|---|---|\n| --lr | 0.1 | rate |\n| --bs | 32 | size |\n",
     "| Step | Training Loss |\n|---|---|\n| 10 | 2.5 |\n| 20 | 2.1 |\n",
     "3056.36 ms | 42.6% bf16 MFU | 190000 tok/s\n2747.19 ms | 47.4% bf16 MFU | 190000 tok/s\n"],
)  # fmt: skip
def test_other_tables_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match="not a table of rates"):
        runs_of(tmp_path, text)


def test_an_unreadable_cell_costs_only_itself_and_is_named(tmp_path: Path) -> None:
    text = "| GPUs | img/s |\n|---|---|\n| 1 | 226 |\n| 2 | see below |\n| 8 | 1,368 |\n"
    runs = runs_of(tmp_path, text)
    assert [run.measure("samples_per_s") for run in runs] == [226, None, 1368]
    assert [len(run.notes) for run in runs] == [0, 1, 0]
    assert notes_of(runs[1])[0][1] == {"cell": "'see below'", "column": "img/s"}


def test_minutes_or_hours_are_not_guessed(tmp_path: Path) -> None:
    text = "| GPUs | Training time |\n|---|---|\n| 1 | 2 h |\n| 2 | 12:30 |\n| 4 | 0:31:00 |\n"
    runs = runs_of(tmp_path, text)
    assert [run.measure("total_ns") for run in runs] == [7200e9, None, 1860e9]
    assert "12:30" in str(notes_of(runs[1])[0][1]["cell"])


@pytest.mark.parametrize(
    ("prose", "devices", "batch"),
    [("All runs use 8 GPUs.", 8, None), ("Trained on 2 nodes with 4 GPUs per node.", 8, None),
     ("Trained on 16 GPUs. The speedup is relative to 1 GPU.", 16, None),
     ("We compare 8 GPUs and 16 GPUs.", None, None), ("On 1, 2, and 4 GPUs.", None, None),
     ("Faster than 8 GPUs.", None, None), ("Per-GPU batch size of 32.", None, 32)],
)  # fmt: skip
def test_sizes_in_the_text_above_count_if_they_are_of_all_rows(
    tmp_path: Path, prose: str, devices: float | None, batch: float | None
) -> None:
    rows = "| Model | img/s |\n|---|---|\n| resnet50 | 2700 |\n| vgg16 | 1100 |\n"
    runs = runs_of(tmp_path, f"{prose}\n\n{rows}")
    assert {run.measure("devices_count") for run in runs} == {devices}
    assert {run.measure("batch_per_device_count") for run in runs} == {batch}


def test_a_batch_without_a_scope_above_a_table_is_not_used(tmp_path: Path) -> None:
    (run,) = runs_of(
        tmp_path, "The batch size is 256.\n\n| GPUs | img/s |\n|---|---|\n| 8 | 100 |\n"
    )
    assert run.measure("batch_per_device_count") is run.measure("global_batch_count") is None
    assert "without its scope" in run.notes[0].text


def test_tables_of_two_clusters_stay_apart(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, FORMS["two clusters"]["text"])
    assert [run.labels["table"] for run in runs] == ["Cluster A"] * 2 + ["Cluster B"] * 2
    found = scaling(runs).results["scaling"].table
    assert found["samples_per_s"].tolist() == [226, 1368, 300, 2300]
    without = FORMS["two clusters"]["text"].replace("Cluster A:", "").replace("Cluster B:", "")
    assert [run.labels["table"] for run in runs_of(tmp_path, without)] == ["1", "1", "2", "2"]


def test_top1_and_top5_feed_accuracy(tmp_path: Path) -> None:
    text = (
        "| Setup | GPUs | Epochs | Time taken (seconds) | Accuracy | top5 |\n"
        "|---|---|---|---|---|---|\n"
        "| 4:0 | 4 | 20 | 2661.8 | 0.5676 | 0.7927 |\n| 8:0 | 8 | 20 | 1648.1 | 0.4675 | 0.706 |\n"
    )
    found = accuracy(runs_of(tmp_path, text), target=0.45)
    reached = found.results["accuracy"].tables["reached"]
    assert reached["time_ns"].tolist() == [2661.8e9, 1648.1e9]
    assert reached["epochs"].tolist() == [20, 20]
    assert not any("No times" in note.text for note in found.notes)


def test_a_speedup_of_one_variant_over_the_other_is_no_scaling_speedup(tmp_path: Path) -> None:
    text = (
        "| GPUs | FP32 img/s | FP16 img/s | Speedup |\n|---|---|---|---|\n"
        "| 1 | 360 | 800 | 2.2x |\n| 8 | 2800 | 6100 | 2.2x |\n"
    )
    runs = runs_of(tmp_path, text)
    assert {run.measure("printed_speedup") for run in runs} == {None}
    assert {run.labels["variant"] for run in runs} == {"FP32", "FP16"}


@pytest.mark.parametrize(
    ("heading", "cells", "why"),
    [("img/s", ["220-230", "1300-1400"], "its cells are not numbers"),
     ("img/s", [">220", ">1300"], "its cells are not numbers"),
     ("Training time", ["12", "1.7"], "it has no unit")],
)  # fmt: skip
def test_a_column_without_numbers_is_named(
    tmp_path: Path, heading: str, cells: list[str], why: str
) -> None:
    text = f"| GPUs | {heading} |\n|---|---|\n| 1 | {cells[0]} |\n| 8 | {cells[1]} |\n"
    run = runs_of(tmp_path, text)[0]
    assert run.measure("samples_per_s") is run.measure("total_ns") is None
    assert notes_of(run)[0][1] == {"column": heading, "why": why, "cell": repr(cells[0])}


@pytest.mark.parametrize(
    ("heading", "cell", "measure", "value"),
    [("GPU hours", "64", "gpu_time_ns", 64 * 3600e9), ("MFU", "45%", "mfu_ratio", 0.45),
     ("Cost ($/h)", "32.7", "cost_ns", None), ("img/s", "226,5", "samples_per_s", 226.5),
     ("Top-1 error (%)", "23.9", "top1", None)],
)  # fmt: skip
def test_headings_that_mean_something_else(
    tmp_path: Path, heading: str, cell: str, measure: str, value: float | None
) -> None:
    (run,) = runs_of(tmp_path, f"| GPUs | {heading} |\n|---|---|\n| 8 | {cell} |\n")
    assert run.measure(measure) == (None if value is None else pytest.approx(value))


def test_names_of_runs_in_columns(tmp_path: Path) -> None:
    text = "| | V100 | A100 |\n|---|---|---|\n| GPUs | 8 | 8 |\n| samples/s | 410 | 980 |\n"
    runs = runs_of(tmp_path, text)
    assert [run.name for run in runs] == ["V100", "A100"]
    assert [run.measure("samples_per_s") for run in runs] == [410, 980]


def test_a_change_is_no_value_of_a_variant(tmp_path: Path) -> None:
    text = "| GPUs | Base (img/s) | Ours (img/s) | Improvement |\n|---|---|---|---|\n"
    runs = runs_of(tmp_path, text + "| 8 | 2700 | 3100 | +14.8% |\n")
    assert [run.measure("improvement_percent") for run in runs] == [None, None]
    assert [run.labels["variant"] for run in runs] == ["Base", "Ours"]


def test_rows_without_sizes_are_no_repeats_if_their_first_column_differs(tmp_path: Path) -> None:
    text = "| Setup | Time (s) | Accuracy |\n|---|---|---|\n"
    runs = runs_of(tmp_path, text + "| 4:0 | 2661 | 0.5 |\n| 8:0 | 1648 | 0.4 |\n")
    assert [run.labels["setup"] for run in runs] == ["4:0", "8:0"]
    runs = runs_of(tmp_path, text + "| 4 GPUs | 2661 | 0.5 |\n| 8 GPUs | 1648 | 0.4 |\n")
    assert [run.labels for run in runs] == [{}, {}]


def test_tables_with_one_heading_have_distinct_labels(tmp_path: Path) -> None:
    one = "| GPUs | img/s |\n|---|---|\n| 1 | 226 |\n\n"
    runs = runs_of(tmp_path, f"# Rates\n\n{one}{one}")
    assert [run.labels["table"] for run in runs] == ["Rates", "Rates (2)"]


@pytest.mark.parametrize(
    ("heading", "cell"),
    [
        ("samples/s", "900 → 1,100"),
        ("samples/s", "93,000-95,000"),
        ("FP32 / AMP (img/s)", "355 / 780"),
        ("ms/image", "2.8"),
        ("Epoch time (mm:ss)", "12:30"),
    ],
)
def test_a_column_that_is_not_read_is_named(tmp_path: Path, heading: str, cell: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"| GPUs | {heading} |\n|---|---|\n| 1 | {cell} |\n| 8 | {cell} |\n")
    first, second = read_table(path)
    assert {*first.table("measures")["measure"].tolist()} == {"devices_count"}
    (note,) = (note for note in first.notes if "did not read" in note.text)
    assert (note.values["column"], note.values["cell"]) == (heading, repr(cell))
    assert second.measure("devices_count") == 8


def test_a_label_is_valid_until_the_next_one_and_a_name_is_not(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    for heading, second in (("Cluster", "A"), ("Name", None)):
        path.write_text(f"| {heading} | GPUs | img/s |\n|---|---|---|\n| A | 1 | 9 |\n| | 2 | 17 |")
        runs = read_table(path)
        assert runs[1].labels.get("cluster") == second
        assert runs[1].name != "A"


def test_numbers_of_gpus_are_no_counts_of_gpus(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("| GPU | samples/s |\n|---|---|\n| 0 | 120 |\n| 1 | 118 |\n")
    assert [run.measure("devices_count") for run in read_table(path)] == [None, None]
