"""`traceprof runs`, `analyze --save` and `record --save` as a user meets them."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result as Done
from typer.testing import CliRunner

import traceprof as tp
from tests.builders import TraceBuilder
from tests.measures.generated_run import Plan, make_run
from tests.requirements import ROOT
from tests.summaries import MS, assert_same_runs, full_summary, make_summary
from traceprof import recording
from traceprof.cli import app
from traceprof.cli.commands import COMMANDS
from traceprof.errors import UsageError
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.summary import SUMMARY, SourceFile, Summary
from traceprof.model.table import Table
from traceprof.recording import Recording, RecordRequest
from traceprof.session.run import Run
from traceprof.store import VARIABLE, Store

(RUNS,) = (command for command in COMMANDS if command.name == "runs")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store(tmp_path / "data" / "runs.db")
    monkeypatch.setenv(VARIABLE, str(store.path))
    return store


@pytest.fixture
def two(store: Store) -> Store:
    """A database of two runs."""
    store.add(full_summary("resnet-2gpu"))
    labels = {"network": "flannel"}
    store.add(make_summary("bert", n_ranks=4, periods_ns=[8 * MS] * 2, labels=labels))
    return store


@pytest.fixture(autouse=True)
def readers(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Summaries that need no steps to be found; the list gets how logs were asked for."""
    asked: list[dict[str, Any]] = []

    def summarize(run: Run, *, name: str, labels: Mapping[str, str]) -> Summary:
        sources = (SourceFile(str(run.paths[0]), "nsys"), SourceFile("s3://bucket/trace"))
        label = run.selection.label
        return make_summary(name, labels=labels, window=label, sources=sources)

    def read_log(path: Path, **how: Any) -> list[Summary]:
        asked.append(how)
        return [Summary(path.stem, origin="log:fake")]

    monkeypatch.setitem(
        sys.modules, "traceprof.comparison.summary.summarize", SimpleNamespace(summarize=summarize)
    )
    documents = SimpleNamespace(read_log_or_document=read_log, read_document=lambda _: [])
    monkeypatch.setitem(sys.modules, "traceprof.logs.documents", documents)
    return asked


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "night.sqlite"
    write_nsys(TraceBuilder().kernel("gemm", 0, 10).build(), path)
    return path


def run(*arguments: object) -> Done:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, list(map(str, arguments)))


def printed(*arguments: object) -> str:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(code: int, *arguments: object) -> str:
    done = run(*arguments)
    assert done.exit_code == code, done.output
    assert done.stderr.count("\n") == 1
    return done.stderr


def rows_of(text: str, result: str) -> list[dict[str, Any]]:
    tables = json.loads(text)["results"][result]["tables"]
    rows: list[dict[str, Any]] = tables[result]["rows"]
    return rows


def test_the_help_lists_every_command_below_it() -> None:
    lines = printed("runs", "--help").splitlines()
    assert max(map(len, lines)) <= 80
    first = lines.index("Commands:") + 1
    listed = [line.split()[0] for line in lines[first : first + len(RUNS.commands)]]
    assert listed == [command.name for command in RUNS.commands]
    for name in listed:
        text = printed("runs", name, "--help")
        assert max(map(len, text.splitlines())) <= 80
        assert "Usage: " in text


def test_the_help_needs_no_pandas() -> None:
    program = (
        "import sys, traceprof.cli\n"
        "try: traceprof.cli.app(['runs', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'pandas', 'numpy', 'sqlite_utils'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "import-log" in done.stdout


def test_what_is_added_is_listed(store: Store, trace: Path) -> None:
    done = run("runs", "add", trace, "--label", "network=calico", "-l", "self=8")
    assert done.exit_code == 0
    assert (
        f"saved as night in {store.path}; show it with `traceprof runs show night`" in done.stderr
    )
    assert "saved as night-2" in run("runs", "add", trace).stderr
    assert "run 'night' already exists" in refused(2, "runs", "add", trace, "--name", "night")
    run("runs", "add", trace, "--name", "night", "--force")
    assert [(kept.name, dict(kept.labels)) for kept in store.listed()] == [
        ("night-2", {}),
        ("night", {}),
    ]
    assert "names one run, but there are several" in refused(
        2, "runs", "add", trace, trace, "--name", "x"
    )


def test_a_list_has_key_measures_by_label_in_any_order(two: Store) -> None:
    (row,) = rows_of(printed("runs", "list", "-l", "network=flannel", "--json"), "runs")
    assert (row["name"], row["world_size"], row["step_period_ns"]) == ("bert", 4, 8 * MS)
    assert row["samples_per_s"] == 4 * 32 * 125
    assert row["labels"] == "network=flannel"
    text = printed("runs", "list", "--sort", "samples_per_s", "--reverse", "--csv")
    assert [line["name"] for line in csv.DictReader(io.StringIO(text))] == ["bert", "resnet-2gpu"]
    names = [row["name"] for row in rows_of(printed("runs", "list", "--json"), "runs")]
    assert names == ["resnet-2gpu", "bert"]
    screen = printed("runs", "list")
    assert "2 runs in" in screen
    assert max(map(len, screen.splitlines())) <= 80
    assert "available: name, labels" in refused(2, "runs", "list", "--sort", "color")
    assert "no run has measure 'top1'" in refused(2, "runs", "list", "-m", "top1")
    assert "expected KEY=VALUE" in refused(2, "runs", "list", "-l", "network")


def test_a_record_has_the_environment_beside_the_results(two: Store) -> None:
    text = printed("runs", "show", "resnet", "bert", "--json")
    rows = {row["environment"]: row for row in rows_of(text, "environment")}
    assert rows["gpu"]["resnet-2gpu"] == rows["gpu"]["bert"] == "NVIDIA H100 80GB HBM3"
    measures = {row["measures"]: row for row in rows_of(text, "measures")}
    assert measures["step_period_ns"]["bert"]["text"] == "8.000 ms"
    assert measures["step_period_ns"]["bert"]["values"] == {"value": 8 * MS}
    labels = {row["labels"]: row for row in rows_of(text, "labels")}
    assert (labels["cluster"]["resnet-2gpu"], labels["cluster"]["bert"]) == ("a", None)
    screen = printed("runs", "show", "1")
    assert "/data/run.sqlite" in screen
    assert "note: prints 95.0 /s, its times say 94.2 /s" in screen
    assert "kernels" in screen


def test_any_table_that_was_kept_is_shown(two: Store) -> None:
    text = printed("runs", "show", "resnet", "bert", "--table", "steps", "--csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["run"] for row in rows] == ["resnet-2gpu"] * 6 + ["bert"] * 8
    assert rows[-1]["period_ns"] == str(8 * MS)
    (first, *_) = rows_of(printed("runs", "show", "resnet", "-t", "kernels", "--json"), "kernels")
    assert (first["name"], first["total_ns"]) == ("gemm", 1 << 60)
    assert printed("runs", "export", "resnet", "-t", "kernels") == printed(
        "runs", "show", "resnet", "-t", "kernels", "--csv"
    )
    assert "available: attempts, events" in refused(2, "runs", "show", "resnet", "-t", "colors")


def test_labels_are_given_and_taken(two: Store) -> None:
    assert printed("runs", "tag", "bert", "gpus=8", "network=cilium") == "gpus=8\nnetwork=cilium\n"
    assert printed("runs", "tag", "bert", "--drop", "gpus") == "network=cilium\n"
    assert "no label 'gpus'" in refused(2, "runs", "tag", "bert", "-d", "gpus")


def test_only_what_is_named_wholly_is_removed(two: Store) -> None:
    assert "no run 'res'" in refused(3, "runs", "rm", "bert", "res")
    assert "removed bert from" in run("runs", "rm", "bert").stderr
    assert two.names() == ["resnet-2gpu"]


def test_runs_go_to_another_database_by_a_file(two: Store, tmp_path: Path) -> None:
    path, other = tmp_path / "runs.json", Store(tmp_path / "other.db")
    assert "wrote" in run("runs", "export", "-o", path).stderr
    assert "exists" in refused(2, "runs", "export", "-o", path)
    assert run("runs", "add", path, "--db", other.path, "-l", "from=afar").exit_code == 0
    assert other.names() == ["resnet-2gpu", "bert"]
    assert_same_runs(other.get("bert"), two.get("bert").labelled(**{"from": "afar"}))
    assert "run 'resnet-2gpu' already exists" in refused(2, "runs", "add", path, "--db", other.path)
    assert json.loads(printed("runs", "export", "bert"))["runs"][0]["name"] == "bert"


def test_logs_are_kept(store: Store, tmp_path: Path, readers: list[dict[str, Any]]) -> None:
    log = tmp_path / "train.log"
    log.touch()
    pattern = r"loss=(?P<loss>.*)"
    for more in ([], ["--source", "timm", "--pattern", pattern, "--name", "b"]):
        assert run("runs", "import-log", log, *more).exit_code == 0
    assert readers == [
        {"source": None, "patterns": None, "columns": {}},
        {"source": "timm", "patterns": {"0": pattern}, "columns": {}},
    ]
    assert store.names() == ["train", "b"]
    other = tmp_path / "other.log"
    other.touch()
    done = run("runs", "import-log", log, other)
    assert f"saved 2 runs in {store.path}; list them with `traceprof runs list`" in done.stderr
    assert store.names() == ["train", "b", "train-2", "other"]
    assert "names one run, but there are several" in refused(
        2, "runs", "import-log", log, other, "--name", "x"
    )


def test_a_dry_run_shows_what_would_be_kept(store: Store, tmp_path: Path) -> None:
    log = tmp_path / "my_train.log"
    log.write_text("Epoch 0 took 10.0 loss: 2.0\nEpoch 1 took 10.0 loss: 1.0\n")
    text = printed("runs", "import-log", "--dry-run", log, "--label", "net=calico")
    assert "calico" in text and "my_train" in text
    assert store.names() == []


def test_of_several_files_those_that_can_be_read_are_kept(store: Store, trace: Path) -> None:
    wrong = trace.with_name("wrong.sqlite")
    wrong.write_bytes(trace.read_bytes()[:-1000])
    done = run("runs", "add", wrong, trace, trace.with_name("missing"))
    assert done.exit_code == 3
    kept, *failed = done.stderr.splitlines()
    assert f"saved as night in {store.path}" in kept
    assert ["wrong.sqlite: " in failed[0], "missing: No such file" in failed[1]] == [True, True]
    assert store.names() == ["night"]


def test_a_database_that_is_none_is_said_in_one_line(trace: Path, tmp_path: Path) -> None:
    message = refused(3, "runs", "list", "--db", trace)
    assert "an SQLite file, but not a run database" in message
    assert "contains no runs" in refused(3, "runs", "show", "a", "--db", tmp_path / "none.db")


def test_an_empty_database_says_how_to_keep_a_run(two: Store, tmp_path: Path) -> None:
    said = "".join(printed("runs", "list", "--db", tmp_path / "none.db").split())  # paths are long
    assert f"{tmp_path / 'none.db'}containsnoruns.Addarunwith`traceprofrunsaddTRACE`" in said
    assert "window" not in said
    said = " ".join(printed("runs", "list", "--label", "network=pigeon").split())
    assert "None of the 2 runs in" in said
    assert "has network=pigeon. List all: `traceprof runs list`" in said


def test_what_recorded_a_run_and_how_its_program_ended_is_told(store: Store) -> None:
    told = {"profiler": "traceprof", "recorder": "cupti", "exit_code": "3"}
    command = "/usr/bin/python3 -u src/train.py --epochs 2"
    store.add(make_summary("bad", environment=told, command=command, started_utc_ns=0))
    store.add(make_summary("good", environment={"profiler": "nsys", "exit_code": "0"}))
    attempts = {
        "attempt": [0, 0],
        "rank": [0, 1],
        "node": ["n", "n"],
        "ended": ["finished", "killed"],
    }
    tables = {"attempts": SUMMARY.table("attempts").of_rows(Table(attempts))}
    store.add(make_summary("ranks", command="python -m pkg.train", tables=tables))
    store.add(make_summary("unknown"))
    rows = list(csv.DictReader(printed("runs", "list", "--csv").splitlines()))
    assert [row["ended"] for row in rows] == [
        *("failed (exit code 3)", "finished", "1 of 2 starts killed", "")
    ]
    assert [row["recorded_by"] for row in rows] == ["traceprof (cupti)", "nsys", "", ""]
    assert [row["program"] for row in rows] == ["train.py", "train.py", "pkg.train", "train.py"]
    assert rows[0]["started"] == ""  # nothing was recorded in 1970
    record = printed("runs", "show", "bad")
    assert "1970" not in record
    assert re.search(r"format +nsys\n", record)
    assert re.search(r"recorded by +traceprof \(cupti\)", record)
    assert re.search(r"ended +failed \(exit code 3\)", record)


def test_measures_are_words_for_people_and_names_for_programs(two: Store) -> None:
    record = printed("runs", "show", "resnet-2gpu")
    assert re.search(r"\nstep period +\d", record)
    assert "step_period_ns" not in record
    assert "step_period_ns" in printed("runs", "show", "resnet-2gpu", "--json")
    for name in ("step period", "step-period", "step_period_ns"):
        assert printed("runs", "list", "--sort", name) == printed(
            "runs", "list", "--sort", "step_period_ns"
        )


def test_where_the_traces_lie_is_kept_whole(
    store: Store, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trace.parent)
    run("runs", "add", trace.name)
    run("analyze", trace.name, "--name", "b")
    tp.runs().add(trace.name, "c")
    for name in ("night", "b", "c"):
        paths = [source.path for source in store.get(name).sources]
        assert paths == [str(trace), "s3://bucket/trace"]


def test_analyze_keeps_the_run_after_its_page(store: Store, trace: Path) -> None:
    plain = printed("analyze", trace)
    done = run("analyze", trace, "--save", "--label", "gpus=8", "-w", "all")
    assert "saved as night" in done.stderr
    assert printed("analyze", trace, "--name", "best") == plain
    found = store.get("night")
    assert (found.window, found.labels) == ("all", {"gpus": "8"})
    assert store.names() == ["night", "best"]
    assert "already" in refused(2, "analyze", trace, "--name", "best")
    assert "invalid run name" in refused(2, "analyze", trace, "--name", "12")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, trace: Path) -> Path:
    """The trace that every recording leaves; the program ends with 7."""

    def record(request: RecordRequest) -> Recording:
        return Recording(7, "nsys", trace, n_processes=1)

    monkeypatch.setattr(recording, "record", record)
    return trace


def test_record_keeps_the_run(store: Store, recorded: Path) -> None:
    arguments = ("record", "--save", "--name", "train", "-l", "gpus=8", "--", "python")
    done = run(*arguments)
    assert done.exit_code == 7
    assert "saved as train in" in done.stderr
    assert store.get("train").labels == {"gpus": "8"}
    # Nobody wants to lose an hour of training to a name: this time it gets a number.
    assert "saved as train-2" in run(*arguments).stderr
    assert run("record", "--", "python").exit_code == 7
    assert store.names() == ["train", "train-2"]


def test_a_recording_is_not_lost_with_the_database(
    store: Store, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.path.parent.mkdir()
    store.path.write_text("no database")
    before = recorded.read_bytes()
    done = run("record", "--save", "--", "python")
    assert done.exit_code == 7
    assert "the run was not saved: " in done.stderr
    assert f"to retry: traceprof runs add {recorded}" in done.stderr
    assert recorded.read_bytes() == before

    def fails(*_: object, **__: object) -> Summary:
        raise ZeroDivisionError("a bug of ours")

    summarizing = SimpleNamespace(summarize=fails)
    monkeypatch.setitem(sys.modules, "traceprof.comparison.summary.summarize", summarizing)
    done = run("record", "--save", "--", "python")
    assert (done.exit_code, "ZeroDivisionError: a bug of ours" in done.stderr) == (7, True)


def test_runs_from_python(two: Store, trace: Path) -> None:
    kept = tp.runs()
    assert kept.list(network="flannel")["name"].tolist() == ["bert"]
    assert kept.get("resnet").steps_count == 3
    assert kept.add(trace, gpus="8") == "night"
    assert kept.add(tp.open(trace), "again") == "again"
    assert kept.add(kept.get("bert"), "copy", more="yes") == "copy"
    assert kept.get("copy").labels == {"network": "flannel", "more": "yes"}
    with pytest.raises(UsageError, match="already"):
        kept.add(trace, "again")
    kept.remove("copy")
    assert two.names() == ["resnet-2gpu", "bert", "night", "again"]
    assert repr(kept) == f"<traceprof runs in {two.path}>"
    assert tp.runs(two.path.with_name("other.db")).list().empty


def test_files_of_one_run_are_called_as_their_folder(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "12"
    folder.mkdir()
    for member in make_run(Plan(n_ranks=2)):
        write_nsys(member.trace, folder / f"rank{member.rank}.sqlite")
    assert "saved as run-12" in run("analyze", *sorted(folder.iterdir()), "--save").stderr
    assert "saved as run-12-2" in run("runs", "add", folder).stderr


def test_csv_is_the_form_of_a_table(two: Store, tmp_path: Path) -> None:
    assert "exported as JSON" in refused(2, "runs", "export", "-o", tmp_path / "x.csv")
    assert not (tmp_path / "x.csv").exists()
    run("runs", "export", "-o", tmp_path / "x.csv", "--table", "measures")
    assert (tmp_path / "x.csv").read_text().startswith("run,")


def test_what_is_not_read_is_printed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "traceprof.logs.documents", raising=False)
    path = tmp_path / "notes.md"
    path.write_text(
        "| Option | Default |\n|---|---|\n| --lr | 0.1 |\n\n"
        "| GPUs | img/s |\n|---|---|\n| 1 | 226 |\n| 8 | soon |\n| 16 | 2500 |\n"
    )
    said = run("runs", "add", path).stderr
    assert "did not read 1 table of the document: 'Option | Default'" in said
    assert "did not read 'soon' in column img/s" in said
    assert len(store.names()) == 3
