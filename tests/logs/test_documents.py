"""Documents with several runs: columns, tables, blocks of code, and headings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.requirements import require
from traceprof.comparison.elastic import elastic
from traceprof.comparison.runs_named import summaries_of
from traceprof.comparison.scaling.compared import scaling
from traceprof.errors import TraceError
from traceprof.logs.documents import read_document, read_log_or_document
from traceprof.model.summary import Summary

COLUMNS = """|Epoch |Fixed |Perf |Elastic |Perf |
|--- |--- |--- |--- |--- |
|0 |Epoch 0 took 100.0 loss: 3.0 accuracy: 0.10 |100.0 |Epoch 0 took 200.0 loss: 3.5 accuracy: 0.30 |200.0 |
|1 |Epoch 1 took 100.0 loss: 2.0 accuracy: 0.20 |100.0 |Epoch 1 took 200.0 loss: 2.5 accuracy: 0.40 |200.0 |
| | | |Epoch time lost 50.0 |50.0 |
|2 |Epoch 2 took 100.0 loss: 1.0 accuracy: 0.30 |100.0 |Epoch 2 took 200.0 loss: 1.5 accuracy: 0.50 |200.0 |
|3 |Total train time is 300.0 |300.0 |Total train time is 650.0 |650.0 |
"""  # noqa: E501 (a table as it is written)


def horovod(n: int, rate: float) -> str:
    return (
        f"Model: ResNet50\nBatch size: 32\nNumber of GPUs: {n}\n"
        "Running warmup...\nRunning benchmark...\n"
        f"Iter #0: {rate / n:.1f} img/sec per GPU\nIter #1: {rate / n:.1f} img/sec per GPU\n"
        f"Img/sec per GPU: {rate / n:.1f} +-0.5\nTotal img/sec on {n} GPU(s): {rate:.1f} +-4.0\n"
    )


def document(tmp_path: Path, text: str, name: str = "notes.md") -> list[Summary]:
    path = tmp_path / name
    path.write_text(text)
    return read_document(path)


def test_two_columns_are_two_runs(tmp_path: Path) -> None:
    fixed, changed = document(tmp_path, COLUMNS)
    assert (fixed.name, changed.name) == ("notes:Fixed", "notes:Elastic")
    assert [run.measure("total_ns") for run in (fixed, changed)] == [300e9, 650e9]
    for run, values in ((fixed, [0.1, 0.2, 0.3]), (changed, [0.3, 0.4, 0.5])):
        metrics = run.table("metrics").to_frame()
        assert metrics[metrics["metric"] == "top1"]["value"].tolist() == values


def test_lost_time_outside_of_epochs_is_not_taken_from_an_epoch(tmp_path: Path) -> None:
    parts = elastic(document(tmp_path, COLUMNS)).results["parts"].table
    found = dict(zip(parts["part"], parts["duration_ns"].tolist(), strict=True))
    assert found == {"epochs, typical length": 600e9, "lost: cause unknown": 50e9, "total": 650e9}


def test_a_column_with_two_runs_beside_another_is_refused(tmp_path: Path) -> None:
    line = "|0 |Epoch 0 took 90.0 |1 |Epoch 0 took 90.0 |1 |\n|1 |Epoch 1 took 90.0 |1 |x |1 |\n"
    with pytest.raises(TraceError, match="column 'Fixed' go back to the start"):
        document(tmp_path, COLUMNS + line)


def test_headings_separate_runs(tmp_path: Path) -> None:
    text = f"# Page\n\n## 24 ranks\n\n```\n{horovod(24, 4800)}```\n\n"
    text += f"## 8 ranks\n\n```\n{horovod(8, 1700)}```\n"
    runs = document(tmp_path, text)
    assert [run.name for run in runs] == ["notes:24 ranks", "notes:8 ranks"]
    assert [run.measure("samples_per_s") for run in runs] == [4800, 1700]
    assert [run.measure("devices_count") or run.measure("world_size") for run in runs] == [24, 8]
    table = scaling(runs).results["scaling"].table
    assert table["samples_per_s"].tolist() == [1700, 4800]


def test_a_heading_gives_the_ranks_that_a_log_lacks(tmp_path: Path) -> None:
    log = "step 10 loss 2.0\n".join(f"Epoch {i} took {20 + i}.0\n" for i in range(4))
    runs = document(tmp_path, f"## 24 ranks\n\n{log}\n## 8 ranks\n\n{log}")
    assert [run.measure("world_size") for run in runs] == [24, 8]
    assert "come from the heading" in runs[0].notes[-1].text


def test_a_document_drops_no_part_in_silence(tmp_path: Path) -> None:
    text = f"""# Notes

| Option | Default |
|---|---|
| --lr | 0.1 |

| GPUs | img/s |
|---|---|
| 1 | 226 |

```
{horovod(8, 1700)}```

| Step | Training Loss |
|---|---|
| 10 | 2.5 |
| 20 | 2.1 |
"""
    runs = document(tmp_path, text)
    assert [run.origin for run in runs] == ["table", "log:table", "log:horovod"]
    assert [dict(note.values) for note in runs[0].notes] == [
        {"n": 1, "names": "'Option | Default'"},
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.log", horovod(8, 1700)), ("a.csv", "gpus,img/s\n1,226\n"), ("a.md", "# Only\n\nwords\n")],
)
def test_other_files_are_no_documents(tmp_path: Path, name: str, text: str) -> None:
    assert document(tmp_path, text, name) == []


def test_every_command_refuses_what_is_not_clear(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    line = "|0 |Epoch 0 took 90.0 |1 |Epoch 0 took 90.0 |1 |\n|1 |Epoch 1 took 90.0 |1 |x |1 |\n"
    path.write_text(COLUMNS + line)
    for read in (read_log_or_document, lambda path: summaries_of([path])):
        with pytest.raises(TraceError, match="go back to the start"):
            read(path)
    path.write_text("# Only\n\nwords\n")
    with pytest.raises(TraceError, match="contains no table of runs"):
        summaries_of([path])


LISTS = """## Is it usable?

- 7gforce:
  - best scaling: 4.487x
    - 6 GPUs on inception3
  - least overhead: 80.75% of ideal scaling at 1.615x speed-up
    - for 2 GPUs
- az-2x-m60:
  - almost 2x scaling for 2 GPUs
- 3x speed-up over the baseline on 8 GPUs
- logs can be big (100MB+)
"""


def test_results_in_lists(tmp_path: Path) -> None:
    runs = document(tmp_path, LISTS)
    names = ("devices_count", "printed_speedup", "printed_efficiency_percent")
    assert [[run.measure(name) for name in names] for run in runs] == [
        *([6, 4.487, None], [2, 1.615, 80.75], [2, 2, None]),
    ]
    assert [run.labels["item"] for run in runs] == ["7gforce", "7gforce", "az-2x-m60"]
    assert runs[2].notes[0].values["item"] == "'almost 2x scaling for 2 GPUs'"


def notes(number: int) -> list[Summary]:
    path = Path(require("traces")).parent / "notes" / f"{number:03}.md"
    return summaries_of([path])


def test_the_notes_beside_the_checkout() -> None:
    assert [run.measure("printed_speedup") for run in notes(1)] == [4.487, 1.615, 2]
    pipes, jobs, tables = notes(2), notes(3), notes(4)
    assert [run.measure("devices_count") for run in pipes] == [6] * 4 + [8] * 4 + [None] * 2
    assert [run.measure("samples_per_s") for run in pipes][-2:] == [200, 240]
    assert [run.measure("total_ns") for run in jobs] == pytest.approx(
        [1e9 * s for s in (5211.07127, 2661.813, 1648.06877, 2772.40931, 3498.80775)]
        + [1648.0687718391418e9, 2772.4093136787415e9]
    )
    assert [len(run.table("epochs")) for run in jobs] == [0] * 5 + [20, 20]
    assert [run.measure("batch_per_device_count") for run in tables][5:9] == [128, 64, 32, 32]
    assert len(tables) == 19
