"""What is added is what is got back, by name, by number, by how the name begins."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.summaries import assert_same_runs, full_summary, kernels_result, make_summary
from traceprof.errors import StoreError, UsageError, WritingError
from traceprof.model.results import Note, Result, ResultSpec, TableSpec, Unit, key, same
from traceprof.model.summary import SUMMARY, Summary
from traceprof.model.table import Table, objects
from traceprof.store import Store, as_name, check_name
from traceprof.store.database import writing


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "folder" / "runs.db")


def rows(store: Store, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(store.path)) as database:
        return database.execute(query).fetchall()


@pytest.mark.parametrize("run", [full_summary(), make_summary("small"), Summary("bare")])
def test_a_run_comes_back_as_it_was(store: Store, run: Summary) -> None:
    assert store.add(run) == run.name
    assert_same_runs(store.get(run.name), run)


def test_numbers_keep_their_kind_and_every_bit(store: Store) -> None:
    large = (1 << 62) + 1
    metrics = Table(
        {
            "metric": ["a", "b"],
            "step": objects([large, None]),
            "at_ns": [None, 3],
            "value": [0.1, 8.0],
        }
    )
    run = replace(make_summary(), tables={"metrics": metrics}, started_utc_ns=large)
    store.add(run)
    found = store.get("run")
    assert found.started_utc_ns == large
    table = found.table("metrics")
    assert table["step"].tolist() == [large, None]
    assert table["at_ns"].dtype == np.float64
    assert table["value"].tolist() == [0.1, 8.0]
    steps = make_summary().table("steps")
    store.add(make_summary("other"))
    again = store.get("other").table("steps")
    assert {name: again[name].dtype for name in again} == {
        name: steps[name].dtype for name in steps
    }


def test_an_empty_table_is_known_and_a_missing_one_is_not(store: Store) -> None:
    store.add(full_summary())
    found = store.get("full")
    assert "attempts" in found.tables
    assert list(found.tables["attempts"].to_frame()) == [
        column.name for column in SUMMARY.table("attempts")
    ]
    assert "epochs" not in found.tables


def test_tables_read_well_with_sqlite(store: Store) -> None:
    store.add(full_summary())
    found = rows(store, "SELECT name, labels, world_size, step_period_ms FROM runs_overview")
    assert found == [("full", "cluster=a network=calico", 2, 11.0)]
    found = rows(store, "SELECT name, total_ns, is_new FROM result_kernels WHERE run_id = 1")
    assert found == [("gemm", 1 << 60, 1), ('json:"json: no JSON"', 7, 0), ("“relu”", 5, 1)]
    query = "SELECT value FROM runs_measures WHERE name = 'full' AND measure = 'world_size'"
    assert rows(store, query) == [(2,)]
    assert rows(store, "SELECT scalar, value FROM scalars") == [("best", None), ("median_ns", 12)]
    assert rows(store, "PRAGMA foreign_key_check") == []
    foreign = {row[2] for row in rows(store, "PRAGMA foreign_key_list(result_kernels)")}
    assert foreign == {"runs"}


def test_columns_that_come_later_widen_a_table(store: Store) -> None:
    store.add(replace(make_summary("old"), results={"kernels": kernels_result()}))
    more = ResultSpec(
        (TableSpec("kernels", "", (key("name", ""), same("tensor_core", Unit.TEXT, ""))),)
    )
    frame = Table({"name": ["x"], "tensor_core": ["yes"]})
    newer = Result("kernels", more, {"kernels": frame})
    store.add(replace(make_summary("new"), results={"kernels": newer}))
    assert list(store.get("new").results["kernels"].table.to_frame()) == ["name", "tensor_core"]
    assert_same_runs(
        store.get("old"), replace(make_summary("old"), results={"kernels": kernels_result()})
    )


def test_a_name_that_is_taken(store: Store) -> None:
    store.add(make_summary("a"))
    with pytest.raises(UsageError, match="run 'a' already exists: choose another name, or"):
        store.add(make_summary("a"))
    assert [store.add(make_summary("a"), numbered=True) for _ in range(2)] == ["a-2", "a-3"]
    store.add(make_summary("a", periods_ns=[1]), replaces=True)
    assert store.names() == ["a-2", "a-3", "a"]
    assert store.get("a").steps_count == 1


@pytest.mark.parametrize("name", ["", " a", "a\nb", "12", "#1", "-x", "label:a=b"])
def test_what_cannot_be_a_name(store: Store, name: str) -> None:
    with pytest.raises(UsageError, match="invalid run name"):
        store.add(make_summary(name))
    assert not store.path.exists()


def test_a_run_is_found_by_name_number_and_beginning(store: Store) -> None:
    for name in ("resnet-1gpu", "resnet-8gpu", "bert"):
        store.add(make_summary(name))
    for text, name in (("bert", "bert"), ("3", "bert"), ("#1", "resnet-1gpu"), ("b", "bert")):
        assert store.get(text).name == name
    with pytest.raises(UsageError, match="several runs: resnet-1gpu, resnet-8gpu; type more"):
        store.get("resnet")
    with pytest.raises(StoreError, match=r"no run 'resnet-2gpu'.*did you mean resnet-8gpu, resnet"):
        store.get("resnet-2gpu")
    with pytest.raises(StoreError, match=r"no run '77'.*stored runs: resnet-1gpu"):
        store.get("77")


def test_a_number_is_never_given_again(store: Store) -> None:
    store.add(make_summary("a"))
    store.remove(["a"])
    store.add(make_summary("b"))
    assert [(run.number, run.name) for run in store.listed()] == [(2, "b")]


def test_several_runs_are_added_and_removed_all_or_none(store: Store) -> None:
    with pytest.raises(UsageError, match="already"):
        store.add_all([make_summary("a"), make_summary("a")])
    assert store.names() == []
    store.add_all([make_summary("a"), full_summary("b")])
    with pytest.raises(StoreError, match="no run 'c'"):
        store.remove(["a", "c"])
    assert store.remove(["b", "a"]) == ["b", "a"]
    tables = [name for (name,) in rows(store, "SELECT name FROM sqlite_master WHERE type='table'")]
    left = {name for name in tables if rows(store, f'SELECT * FROM "{name}"')}
    assert left == {"sqlite_sequence", "declarations"}


def test_labels_are_given_changed_taken_and_found_by(store: Store) -> None:
    store.add(make_summary("a", labels={"network": "calico"}))
    store.add(make_summary("b", labels={"network": "flannel"}))
    assert store.label("a", {"network": "cilium", "gpus": "8"}) == {
        "network": "cilium",
        "gpus": "8",
    }
    assert store.label("b", {}, ["network"]) == {}
    with pytest.raises(UsageError, match="b has no label 'network'"):
        store.label("b", {"x": "y"}, ["network"])
    assert store.names({"gpus": "8", "network": "cilium"}) == ["a"]
    assert store.names({"x": "y"}) == []


def test_without_a_file_there_are_no_runs_and_none_is_made(store: Store) -> None:
    assert store.names() == []
    for act in (store.get, lambda text: store.remove([text]), lambda text: store.label(text, {})):
        with pytest.raises(StoreError, match="contains no runs"):
            act("a")
    assert not store.path.parent.exists()


def test_secrets_do_not_get_in(store: Store) -> None:
    run = make_summary(command="train.py --token s3cr3t", environment={"api_key": "s3cr3t"})
    store.add(run)
    assert store.get("run").command == "train.py --token ***"
    assert b"s3cr3t" not in store.path.read_bytes()


def test_text_that_is_no_unicode_and_numbers_that_are_too_large(store: Store) -> None:
    store.add(make_summary("bytes\udcff", notes=(Note.of("{path}", path="\udcff"),)))
    assert store.names() == ["bytes���"]
    huge = Table({"measure": ["x"], "value": objects([1 << 80])})
    with pytest.raises(StoreError, match="too large for SQLite"):
        store.add(make_summary("huge", tables={"measures": huge}))
    assert store.names() == ["bytes���"]


@pytest.mark.skipif(sys.platform == "win32", reason="modes of files are POSIX's")
def test_nobody_else_may_read_it(store: Store) -> None:
    before = os.umask(0)
    try:
        store.add(make_summary())
    finally:
        os.umask(before)
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert store.path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("resnet 8", "resnet 8"),
        (" a\n\tb ", "a b"),
        ("12", "run-12"),
        ("#3", "run-3"),
        ("--x", "x"),
        ("", "run"),
        ("label:a=b", "a=b"),
    ],
)
def test_names_that_nobody_chose_are_made_fit(text: str, name: str) -> None:
    assert as_name(text) == name
    assert check_name(name) == name


def test_a_full_disk_is_an_error_of_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    Store(path).add(Summary("first"))
    is_full = pytest.raises(WritingError, match="the disk is full; nothing was stored")
    with is_full as error, writing(path) as database:
        database.execute("PRAGMA max_page_count = 1")
        database.execute("CREATE TABLE large AS SELECT zeroblob(1 << 20)")
    assert error.value.exit_code == 1
    assert Store(path).get("first").name == "first"
