"""Tables of rates, as people keep them of their benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.logs.reading import shared
from traceprof.errors import TraceError
from traceprof.logs import read_table
from traceprof.model.summary import Summary


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
    assert first.measure("step_ns") == 12.5e6
    assert second.measure("step_ns") is None
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
    runs = table(tmp_path, "gpus,samples_per_s,note\n1,10,5\n2,20,cold\n")
    assert [run.labels for run in runs] == [{"note": "5"}, {"note": "cold"}]


@pytest.mark.parametrize(
    "text", ["", "a\n", "a,b\n1,2\n", "gpus,samples_per_s\n", "step 1, loss 2\nstep 2, loss 3, 4\n",
             "gpus,gpus\n1,2\n"]
)  # fmt: skip
def test_what_is_no_table_of_rates(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match="no table of rates"):
        table(tmp_path, text)


def test_the_tables_beside_the_checkout() -> None:
    runs = read_table(shared("scaling-tables.csv"))
    assert len(runs) == 21
    calico = [run for run in runs if run.labels["table"] == "ddl-real"]
    assert [run.measure("samples_per_s") for run in calico] == [226, 426, 704, 1368, 2576]
    assert [run.measure("devices_count") for run in calico] == [1, 2, 4, 8, 16]
    assert runs[-1].labels["model"] == "pipe+ddp chunks8 bs320 15.5G 61min"
