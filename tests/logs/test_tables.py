"""Tables of rates, as people keep them of their benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.logs.reading import shared
from traceprof.comparison.scaling.compared import scaling
from traceprof.comparison.scaling.laws import ABSENT_BASE, NOT_FROM_RATES
from traceprof.errors import TraceError
from traceprof.logs import read_table
from traceprof.model.summary import Summary
from traceprof.render.registry import render


def table(folder: Path, text: str) -> list[Summary]:
    path = folder / "rates.csv"
    path.write_text(text)
    return read_table(path)


def test_columns_are_known_by_their_names(tmp_path: Path) -> None:
    runs = table(
        tmp_path,
        "name,model,GPUs,Nodes,images/sec,step (ms),batch size,network,printed_efficiency_percent\n"
        "a,resnet50,1,1,226,12.5,64,,100\n"
        ",resnet50,2,1,426,,64,calico,95\n",
    )
    first, second = runs
    assert (first.name, second.name) == ("a", "rates:2")
    assert first.labels == {"model": "resnet50"}
    assert second.labels == {"model": "resnet50", "network": "calico"}
    names = ("devices_count", "nodes_count", "samples_per_s", "batch_per_device_count")
    assert [first.measure(name) for name in names] == [1, 1, 226, 64]
    assert first.measure("step_period_ns") == 12.5e6
    assert second.measure("step_period_ns") is None
    assert second.measure("printed_efficiency_percent") == 95


@pytest.mark.parametrize(
    ("column", "measure"),
    [("samples_per_s", "samples_per_s"), ("img/s", "samples_per_s"),
     ("images_per_sec", "samples_per_s"),
     ("throughput (samples/s)", "samples_per_s"), ("tokens_per_second", "tokens_per_s"),
     ("it/s", "steps_per_s"), ("tokens/s per gpu", "tokens_per_s_per_device")],
)  # fmt: skip
def test_rates(tmp_path: Path, column: str, measure: str) -> None:
    assert table(tmp_path, f"{column};label\n1,5e1;x\n".replace(",", ""))[0].measure(measure) == 150


def test_a_number_with_a_text_among_it_is_a_label(tmp_path: Path) -> None:
    runs = table(tmp_path, "gpus,samples_per_s,ring\n1,10,5\n1,20,tree\n")
    assert [run.labels for run in runs] == [{"ring": "5"}, {"ring": "tree"}]


@pytest.mark.parametrize(
    ("column", "cells", "labels"),
    [("notes", "a;b;b", []), ("log", "x.txt;y.txt;z.txt", []), ("hint", "a;b;c", []),
     ("hint", "a;a;b", ["hint"]), ("network", "a;b;c", ["network"]),
     ("hint", "[a](b);[a](b);[a](b)", []), ("stages", "3;4;5", []), ("stages", "3;3;4", ["stages"]),
     ("description", "1 P100;2 P100;4 P100", []),
     ("description", "VGG, 1 GPU;VGG, 2 GPUs;ResNet, 4 GPUs", ["description"])],
)  # fmt: skip
def test_what_differs_in_every_row_is_a_note_and_no_label(
    tmp_path: Path, column: str, cells: str, labels: list[str]
) -> None:
    rows = zip((1, 2, 4), cells.split(";"), strict=True)
    text = f"gpus;img/s;{column}\n" + "".join(f"{n};{9 * n};{cell}\n" for n, cell in rows)
    assert {name for run in table(tmp_path, text) for name in run.labels} == set(labels)


@pytest.mark.parametrize(
    ("heading", "cell", "measure", "value"),
    [("rate", "226 images/sec", "samples_per_s", 226),
     ("processing rate (images/sec)", "1,226", "samples_per_s", 1226),
     ("speed (tokens/s/gpu)", "1.5e3", "tokens_per_s_per_device", 1500),
     ("throughput per GPU", "80 img/s", "samples_per_s_per_device", 80),
     ("expected images/s", "220", "expected_samples_per_s", 220),
     ("Scaling efficiency", "95%", "printed_efficiency_percent", 95),
     ("efficiency", "0.95", "printed_efficiency_percent", 95),
     ("efficiency (%)", "1.5", "printed_efficiency_percent", 1.5),
     ("speed-up", "4.487x", "printed_speedup", 4.487),
     ("top-1", "73.2", "top1", 0.732), ("top5 accuracy", "0.91", "top5_accuracy", 0.91),
     ("memory", "15.5G", "memory_bytes", 15.5e9),
     ("training time", "58m", "total_ns", 3480e9),
     ("duration (h)", "2", "duration_ns", 7200e9), ("step (ms)", "12.5", "step_period_ns", 12.5e6),
     ("# of servers", "2", "nodes_count", 2)],
)  # fmt: skip
def test_units_stand_in_headings_and_cells(
    tmp_path: Path, heading: str, cell: str, measure: str, value: float
) -> None:
    (run,) = table(tmp_path, f"gpus\t{heading}\n8\t{cell}\n")
    assert run.measure(measure) == pytest.approx(value)


def test_semicolons_part_cells_with_decimal_commas(tmp_path: Path) -> None:
    runs = table(tmp_path, "gpus;speedup;rate (img/s)\n6;4,487;1.346,1\n2;1,615;484,5\n")
    assert [run.measure("printed_speedup") for run in runs] == [4.487, 1.615]
    assert [run.measure("samples_per_s") for run in runs] == [1346.1, 484.5]
    assert "decimal points" in runs[0].notes[0].text
    (other,) = table(tmp_path, "gpus;rate (img/s)\n6;1,226.5\n")
    assert other.measure("samples_per_s") == 1226.5


MARKDOWN = """# Notes

no table | of ours

## Real data

| Description | Cluster | processing rate | Scaling efficiency | Notes |
|-------------|:--------|----------------:|:------------------:|-------|
| 1 P100      | Prod    | 226 images/sec  | 100%               | [log](a_b.txt) |
| 2 P100      | Prod    | 426 images/sec  | 95%                |       |
| 4 P100      | Prod    | 704 images/sec  | 77%                | a\\|b |

### Pipelines

GPUs | Batch Size | Memory | images/second
--- | --- | --- | ---
6 | 64 | 14G | 260
6 | 128 | OOM | -
"""


def test_markdown_tables_stand_in_a_text(tmp_path: Path) -> None:
    runs = table(tmp_path, MARKDOWN)
    assert [run.measure("devices_count") for run in runs] == [1, 2, 4, 6, 6]
    assert [run.measure("samples_per_s") for run in runs] == [226, 426, 704, 260, None]
    assert [run.labels["table"] for run in runs] == ["Real data"] * 3 + ["Pipelines"] * 2
    assert [run.labels.get("cluster") for run in runs] == ["Prod"] * 3 + [None] * 2
    assert runs[2].table("typed")["cell"].tolist() == ["4 P100", "Prod", "704 images/sec", "77%",
                                                        "a|b"]  # fmt: skip


def test_bold_cells_and_columns_that_say_the_same(tmp_path: Path) -> None:
    text = (
        "| **GPUs** | **Batch size / GPU** | Throughput - TF32 | Throughput - mixed | network |\n"
    )
    text += "|---|---|---|---|---|\n| **1** | 64 | **226 img/s** | 500 img/s | `host` |\n"
    text += "| **8** | 64 | 1,368 img/s | 3000 img/s | **host** |\n"
    runs = table(tmp_path, text)
    names = ("devices_count", "batch_per_device_count", "samples_per_s")
    assert [[run.measure(name) for name in names] for run in runs] == [
        *([1, 64, 226], [1, 64, 500], [8, 64, 1368], [8, 64, 3000]),
    ]
    assert [run.labels["variant"] for run in runs] == ["TF32", "mixed"] * 2
    assert {run.labels["network"] for run in runs} == {"host"}
    found = scaling(runs).results["scaling"].table
    assert found["efficiency_ratio"].tolist() == pytest.approx(
        [1, 1368 / 8 / 226, 1, 3000 / 8 / 500]
    )


def test_batch_sizes_of_whom_are_said_to_be_those_of_a_device(tmp_path: Path) -> None:
    runs = table(tmp_path, MARKDOWN)
    assert runs[3].measure("batch_per_device_count") == 64
    assert runs[3].notes[0].text.startswith("{column} is assumed to be the batch size per GPU")
    assert not runs[0].notes


def test_a_run_out_of_memory_is_a_result(tmp_path: Path) -> None:
    runs = table(tmp_path, MARKDOWN)
    assert runs[4].table("events")["text"].tolist() == ["out of memory (Memory: OOM)"]
    found = scaling(runs[3:])
    (row,) = found.results["scaling"].tables["failures"].rows()
    assert (row["run"], row["devices_count"], row["why"]) == (
        *("rates:5", 6, "out of memory (Memory: OOM)"),
    )
    assert any("{why}" in note.text for note in found.notes)


def test_expected_rates_are_held_against_those_that_came(tmp_path: Path) -> None:
    text = "description,storage,summary\n"
    text += '"1 Node, 2 GPUs",COS,"Throughput is about 140 images/s, expected 220 images/s. Slow"\n'
    (run,) = table(tmp_path, text)
    assert [run.measure(name) for name in ("nodes_count", "devices_count", "samples_per_s")] == [
        *(1, 2, 140),
    ]
    found = scaling([run])
    assert found.results["scaling"].table["expected_ratio"].tolist() == [140 / 220]
    assert any("of the expected" in note.text for note in found.notes)


def test_efficiencies_of_a_base_that_is_not_in_the_table(tmp_path: Path) -> None:
    text = "gpus,img/s,efficiency\n2,424,95%\n4,652,74%\n8,1240,70%\n"
    found = scaling(table(tmp_path, text))
    printed = found.results["scaling"].table["printed_is"].tolist()
    assert printed == [ABSENT_BASE] * 3
    assert not any("The rates give" in note.text for note in (*found.notes, *found.warnings))
    assert "of another" in render("text", found)
    (note,) = (note for note in (*found.notes, *found.warnings) if "size 1" in note.text)
    assert note.values["rate"] == pytest.approx(221.3, abs=0.5)


def test_one_efficiency_that_contradicts_the_others_is_named(tmp_path: Path) -> None:
    text = "gpus,img/s,efficiency\n2,424,95%\n4,652,88%\n8,1240,70%\n16,2410,68%\n"
    found = scaling(table(tmp_path, text))
    printed = found.results["scaling"].table["printed_is"].tolist()
    assert printed == [ABSENT_BASE, NOT_FROM_RATES, ABSENT_BASE, ABSENT_BASE]
    (note,) = (note for note in (*found.notes, *found.warnings) if "The rates give" in note.text)
    assert note.values["computed"] == pytest.approx(0.737, abs=0.01)


def test_two_efficiencies_that_contradict_each_other_accuse_none(tmp_path: Path) -> None:
    found = scaling(table(tmp_path, "gpus,img/s,efficiency\n2,426,95%\n4,704,60%\n"))
    assert found.results["scaling"].table["printed_is"].tolist() == ["", ""]


def test_a_base_in_the_table_is_compared(tmp_path: Path) -> None:
    runs = table(tmp_path, "gpus,img/s,efficiency\n1,220,100%\n2,424,95%\n4,704,60%\n")
    printed = scaling(runs).results["scaling"].table["printed_is"].tolist()
    assert printed[0] == "rounded"
    assert printed[2] == NOT_FROM_RATES


def test_records_without_a_rate_are_kept(tmp_path: Path) -> None:
    text = "Description,Storage options,Workload,Expected results\n"
    text += "first,COS w S3FS,DDL,as local\nsecond,NFS,DDL,slower\n"
    runs = table(tmp_path, text)
    assert [run.labels for run in runs] == [
        {"storage_options": "COS w S3FS", "workload": "DDL"},
        {"storage_options": "NFS", "workload": "DDL"},
    ]
    assert all(not len(run.table("measures")) for run in runs)


@pytest.mark.parametrize(
    "text", ["", "a\n", "time: 1, data: 2\ntime: 2, data: 3\n", "time=1,data=2\ntime=1,data=3\n",
             "a,b\n1,2\n", "gpus,samples_per_s\n", "step 1, loss 2\nstep 2, loss 3, 4\n",
             "gpus,gpus\n1,2\n"]
)  # fmt: skip
def test_what_is_no_table_of_rates(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match="not a table of rates"):
        table(tmp_path, text)


def test_the_tables_beside_the_checkout() -> None:
    runs = read_table(shared("scaling-tables.csv"))
    assert len(runs) == 21
    calico = [run for run in runs if run.labels["table"] == "ddl-real"]
    assert [run.measure("samples_per_s") for run in calico] == [226, 426, 704, 1368, 2576]
    assert [run.measure("devices_count") for run in calico] == [1, 2, 4, 8, 16]
    assert runs[-1].labels["model"] == "pipe+ddp chunks8 bs320 15.5G 61min"
