"""Runs as a file: what is written is read again, by this version and by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.summaries import assert_same_runs, full_summary, make_summary
from traceprof.errors import StoreError
from traceprof.model.results import Result, ResultSpec, TableSpec, key
from traceprof.model.summary import Summary
from traceprof.model.table import Table
from traceprof.store import Store, exported_runs, is_exported, read_exported


def test_runs_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    runs = [full_summary(), make_summary("small"), Summary("bare")]
    path.write_text(exported_runs(runs), "utf-8")
    assert is_exported(path)
    found = read_exported(path)
    assert len(found) == len(runs)
    for one, other in zip(found, runs, strict=True):
        assert_same_runs(one, other)


def test_the_file_is_plain(tmp_path: Path) -> None:
    document = json.loads(exported_runs([full_summary()]))
    assert document["schema"] == "traceprof.runs/1"
    (run,) = document["runs"]
    assert run["labels"] == {"cluster": "a", "network": "calico"}
    assert run["sources"][0]["ranks"] == [0, 1]
    assert run["tables"]["steps"]["period_ns"][:2] == [10_000_000, 12_000_000]
    assert run["results"]["kernels"]["tables"]["kernels"]["total_ns"] == [1 << 60, 7, 5]


def test_secrets_are_not_given_away() -> None:
    assert "s3cr3t" not in exported_runs([make_summary(command="train --password s3cr3t")])


def test_a_file_by_hand_needs_but_a_name(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text('{"schema": "traceprof.runs/1", "runs": [{"name": "mine"}]}')
    (found,) = read_exported(path)
    assert_same_runs(found, Summary("mine"))


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "traceprof.analysis/2"}', "loss: 3"])
def test_other_files_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other"
    path.write_text(text)
    assert not is_exported(path)
    assert not is_exported(tmp_path / "missing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": "traceprof.runs/7", "runs": []}', "traceprof.runs/7, but this traceprof"),
        ('{"schema": "traceprof.runs/1"', "corrupt export"),
        ('{"schema": "traceprof.runs/1"}', "corrupt export"),
        ('{"schema": "traceprof.runs/1", "runs": [{"name": 3}]}', "Expected `str`, got `int`"),
        ('{"schema": "traceprof.runs/1", "runs": [[]]}', "corrupt export"),
        (
            '{"schema": "traceprof.runs/1", "runs": [{"name": "a", "tables": {"measures": '
            '{"measure": ["a"], "value": []}}}]}',
            "differ in length",
        ),
        (
            '{"schema": "traceprof.runs/1", "runs": [{"name": "a", "labels": {"a": 1}}]}',
            "Expected `str`, got `int`",
        ),
    ],
)
def test_damaged_and_newer_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "runs.json"
    path.write_text(text)
    assert is_exported(path)
    with pytest.raises(StoreError, match=message):
        read_exported(path)


def test_names_in_a_file_of_strangers_are_but_names(tmp_path: Path) -> None:
    evil = 'a"; DROP TABLE runs; --'
    spec = ResultSpec((TableSpec(evil, "", (key(evil, ""), key("row", ""))),))
    frame = Table({evil: ["x"], "row": ["y"]})
    runs = [replace(make_summary(), results={evil: Result(evil, spec, {evil: frame})})]
    path, store = tmp_path / "runs.json", Store(tmp_path / "runs.db")
    store.add(make_summary("mine"))
    path.write_text(exported_runs(runs), "utf-8")
    with pytest.raises(StoreError, match="duplicate column name: row"):
        store.add_all(read_exported(path))
    path.write_text(path.read_text("utf-8").replace('"row"', '"rows"'), "utf-8")
    store.add_all(read_exported(path))
    assert store.get("run").results[evil].table.to_frame()[evil].tolist() == ["x"]
    assert store.names() == ["mine", "run"]
