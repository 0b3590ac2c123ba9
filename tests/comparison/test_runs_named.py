"""What a name of a run may be: files by their content, names and labels in the database."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders import TraceBuilder
from tests.summaries import assert_same_runs, full_summary, make_summary
from traceprof.comparison.runs_named import name_of, summaries_of, traces_named
from traceprof.errors import StoreError, TraceError, TraceprofError, UsageError
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.summary import SourceFile, Summary
from traceprof.session.run import Run
from traceprof.store import Store, exported_runs


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "runs.db")
    store.add(make_summary("resnet-8gpu", labels={"network": "calico", "gpus": "8"}))
    store.add(make_summary("resnet-1gpu", labels={"network": "calico", "gpus": "1"}))
    store.add(make_summary("bert"))
    return store


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, where a trace, a table, a log and other things lie."""
    folder = tmp_path / "here"
    folder.mkdir()
    write_nsys(TraceBuilder().kernel("gemm", 0, 10).build(), folder / "trace.sqlite")
    (folder / "rates.csv").write_text("gpus,images_per_s\n1,100\n")
    (folder / "train.log").write_text("step 1 loss 2\n")
    (folder / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    (folder / "bert").mkdir()  # the source of the program, no traces
    (folder / "runs.json").write_text(exported_runs([full_summary("a"), full_summary("b")]))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summaries of traces, tables and logs, that tell by which way they came."""

    def summarize(run: Run, *, name: str, labels: Mapping[str, str]) -> Summary:
        assert len(run.of_ranks()) > 0
        return Summary(name, origin="trace", labels=labels)

    def read_table(path: Path) -> list[Summary]:
        if "," not in path.read_text("latin-1"):
            raise TraceError(f"{path}: no columns")
        return [Summary("1"), Summary("2")]

    def read_log(path: Path) -> list[Summary]:
        if "loss" not in path.read_text("latin-1"):
            raise UsageError(f"{path}: of no known program")
        return [Summary(name_of(path), origin="log:fake")]

    def read_document(path: Path) -> list[Summary]:
        return []

    for module, names in (
        ("traceprof.logs.documents", {"read_document": read_document}),
        ("traceprof.comparison.summary.summarize", {"summarize": summarize}),
        ("traceprof.logs.rates", {"read_table": read_table}),
        ("traceprof.logs", {"read_log": read_log}),
    ):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**names))


def named(store: Store, *texts: str | Path) -> list[tuple[str, str]]:
    return [(run.name, run.origin) for run in summaries_of(texts, db=store.path)]


def test_files_are_known_by_their_content(store: Store, folder: Path) -> None:
    assert named(store, "trace.sqlite") == [("trace", "trace")]
    assert named(store, folder / "trace.sqlite", "train.log") == [
        ("trace", "trace"),
        ("train", "log:fake"),
    ]
    assert named(store, "rates.csv") == [("1", ""), ("2", "")]
    assert named(store, "runs.json") == [("a", "nsys"), ("b", "nsys")]
    (folder / "run.json").write_text(
        json.dumps({"traceprof_run": 1, "ranks": [{"rank": 0, "file": "trace.sqlite"}]})
    )
    assert named(store, "run.json") == [("run", "trace")]
    assert named(store, ".") == [("here", "trace")]
    assert named(store, "tra*.sqlite") == [("tra", "trace")]


def test_names_and_labels_are_those_of_the_database(store: Store, folder: Path) -> None:
    (found,) = summaries_of(["resnet-8"], db=store.path)
    assert_same_runs(found, store.get("resnet-8gpu"))
    both = [("resnet-8gpu", "nsys"), ("resnet-1gpu", "nsys")]
    assert named(store, "label:network=calico") == both
    assert named(store, "label:network=calico,gpus=1", "#3") == [both[1], ("bert", "nsys")]


def test_a_label_may_hold_commas(store: Store) -> None:
    store.label("bert", {"nodes": "a1,a2", "gpus": "8"})
    assert named(store, "label:nodes=a1,a2,gpus=8") == [("bert", "nsys")]


def test_a_folder_that_holds_no_trace_does_not_hide_a_run(store: Store, folder: Path) -> None:
    assert named(store, "bert") == [("bert", "nsys")]
    with pytest.raises(TraceError, match="bert: no traces found"):
        summaries_of([folder / "bert"], db=store.path)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("gpt", StoreError, "no run 'gpt': no such file, and no run with this name in"),
        ("resnet", UsageError, "matches several runs: resnet-8gpu, resnet-1gpu"),
        ("label:gpus", UsageError, "expected label:KEY=VALUE"),
        ("label:gpus=4", StoreError, "no run in .* has this label"),
        (Path("missing.sqlite"), TraceError, "missing.sqlite: No such file"),
        (
            "photo.jpg",
            TraceError,
            "photo.jpg: not a trace and not exported runs; as a table of rates: no columns; "
            "as a log: of no known program",
        ),
        ("runs.db", TraceError, "a SQLite database without profiler tables"),
    ],
)
def test_what_is_none_of_these_is_said_with_what_was_tried(
    store: Store, folder: Path, text: str | Path, error: type[TraceprofError], message: str
) -> None:
    Store(folder / "runs.db").add(make_summary())
    with pytest.raises(error, match=message):
        summaries_of([text], db=store.path)


def test_a_damaged_export_is_not_taken_for_a_log(store: Store, folder: Path) -> None:
    (folder / "runs.json").write_text('{"schema": "traceprof.runs/1", "loss": 3')
    with pytest.raises(StoreError, match="corrupt export"):
        summaries_of(["runs.json"], db=store.path)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("night/", "night"),
        ("/data/trace.sqlite", "trace"),
        ("rank0.pt.trace.json.gz", "rank0"),
        ("resnet-1.5.nsys-rep", "resnet-1.5"),
        ("run/*.json", "run"),
        ("run.v2/rank*.sqlite", "rank"),
        (".sqlite", "sqlite"),
    ],
)
def test_names_that_follow_from_files(path: str, name: str) -> None:
    assert name_of(path) == name


def test_traces_of_stored_runs_are_found_by_name_and_label(store: Store, folder: Path) -> None:
    trace = (folder / "trace.sqlite").absolute()
    stored = make_summary("node-1", labels={"job": "j"})
    store.add(replace(stored, sources=(SourceFile(str(trace)),)))
    assert traces_named(["node-1", "trace.sqlite"], store.path) == [
        ("node-1", [trace]),
        ("trace", [Path("trace.sqlite")]),
    ]
    assert traces_named(["label:job=j"], store.path) == [("node-1", [trace])]
    trace.unlink()
    with pytest.raises(TraceError, match=r"only a summary of run 'node-1'.*does not exist"):
        traces_named(["node-1"], store.path)
