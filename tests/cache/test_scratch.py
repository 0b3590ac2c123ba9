"""Large arrays on the disk: the same to whoever looks, and nothing of them stays behind."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from traceprof.cache import scratch
from traceprof.cache.scratch import DiskArray, reserved, store_on_disk
from traceprof.model.compact import CompactTable
from traceprof.model.table import Names, Table

MANY = 2_000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of its own for each test, in which small arrays lie, too."""
    monkeypatch.setenv("TRACEPROF_CACHE", str(tmp_path))
    monkeypatch.setattr(scratch, "files", [])
    monkeypatch.setattr(scratch, "MIN_DISK_BYTES", 1_000)
    monkeypatch.setattr(scratch, "MAX_KEPT_BYTES", 0)
    monkeypatch.setattr(scratch, "_kept", {})
    return tmp_path


def aside(values: np.ndarray) -> DiskArray:
    found = store_on_disk(values)
    assert found is not None
    return found


def test_an_array_is_the_same_again_and_nobody_can_change_it() -> None:
    values = np.arange(MANY) * 3
    one, other = aside(values), aside(values.astype(np.int16))
    assert one.open().tolist() == values.tolist()
    assert one.open().dtype == np.int64
    assert other.open().dtype == np.int16
    assert other.open().tolist() == values.tolist()
    assert one[:3].open().tolist() == [0, 3, 6]
    with pytest.raises(ValueError, match="read-only"):
        one.open()[0] = 1


def test_what_is_small_has_no_rows_of_its_own_or_is_no_number_stays() -> None:
    assert store_on_disk(np.arange(10)) is None
    assert store_on_disk(np.array(["a"] * MANY, object)) is None
    assert store_on_disk(np.zeros((MANY, 2))) is None


def test_large_arrays_stay_in_memory_up_to_a_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "MAX_KEPT_BYTES", 2 * MANY * 8)
    first, second, third = (np.arange(MANY) for _ in range(3))
    assert store_on_disk(first) is None
    assert store_on_disk(first[:1_000]) is None  # it is part of what stays
    assert store_on_disk(second) is None
    assert not scratch.files
    assert store_on_disk(third) is not None
    del second  # its memory is free again
    assert store_on_disk(np.arange(MANY)) is None


def test_a_part_of_what_is_on_the_disk_is_not_written_again() -> None:
    whole = aside(np.arange(MANY)).open()
    file = scratch.files[0]
    assert file is not None
    n_bytes = os.fstat(file.number).st_size
    parts = [aside(whole[first : first + 1_000]) for first in range(0, 1_000, 10)]
    assert [part.open()[0] for part in parts] == list(range(0, 1_000, 10))
    assert os.fstat(file.number).st_size == n_bytes
    assert aside(whole[::2]).open().tolist() == list(range(0, MANY, 2))  # it is written: no run
    del whole
    gc.collect()
    assert [len(part.open()) for part in parts] == [1_000] * 100


def test_its_place_is_free_when_nobody_has_it() -> None:
    n_bytes = MANY * 8
    kept = aside(np.full(MANY, 7))
    seen = kept.open()
    del kept
    for number in range(100):
        assert aside(np.full(MANY, number)).open().tolist() == [number] * MANY
    file = scratch.files[0]
    assert file is not None
    assert os.fstat(file.number).st_size <= max(scratch._GROWTH_BYTES, 4 * n_bytes)
    assert seen.tolist() == [7] * MANY  # whoever looks has it


def test_parts_are_written_in_any_order() -> None:
    found = reserved(MANY, np.int64)
    assert found is not None
    found[1_000:] = np.arange(1_000, MANY)
    found[:1_000] = np.arange(1_000, dtype=np.int32)
    assert found.open().tolist() == list(range(MANY))
    assert reserved(10, np.int64) is None


def test_what_leaves_memory_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_MAX_MAPPED_BYTES", 0)
    arrays = [aside(np.full(MANY, number)).open() for number in range(20)]
    assert [set(own.tolist()) for own in arrays] == [{number} for number in range(20)]


def test_a_file_has_no_name_and_belongs_to_one_process(folder: Path) -> None:
    own = aside(np.arange(MANY))
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert pickle.loads(pickle.dumps(own)).tolist() == list(range(MANY))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked there")
def test_a_forked_process_reads_it_and_writes_elsewhere() -> None:
    own = aside(np.arange(MANY))
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()

    def look() -> None:
        aside(np.zeros(MANY))
        found.put((own.open().tolist() == list(range(MANY)), scratch.files[0] is not file))

    file = scratch.files[0]
    process = context.Process(target=look)
    process.start()
    assert found.get() == (True, True)
    process.join()
    assert own.open().tolist() == list(range(MANY))


@pytest.mark.parametrize("kind", ["no room", "cannot be written", "no folder", "cannot be mapped"])
def test_what_no_disk_takes_stays_in_memory(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    if kind == "no room":
        usage = SimpleNamespace(free=1 << 20)
        monkeypatch.setattr("traceprof.cache.scratch.shutil.disk_usage", lambda _: usage)
    elif kind == "cannot be written":
        monkeypatch.setattr(scratch._File, "write", full)
    elif kind == "no folder":
        monkeypatch.setattr("traceprof.cache.scratch.tempfile.TemporaryFile", full)
    else:
        monkeypatch.setattr("traceprof.cache.scratch.mmap.mmap", full)
    assert store_on_disk(np.arange(MANY)) is None
    table = Table({"a": np.arange(MANY)}).on_disk()
    assert table["a"].tolist() == list(range(MANY))


def test_tables_look_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {
        "number": np.arange(MANY),
        "name": Names.of(["b", "a"] * (MANY // 2)),
        "text": np.array(["t"] * MANY, object),
    }
    table = Table(columns)
    monkeypatch.setattr(scratch, "MIN_DISK_BYTES", 1)
    monkeypatch.setattr(scratch, "MAX_KEPT_BYTES", 0)
    for own in (table.on_disk(), CompactTable(columns).on_disk()):
        assert [*own] == [*table]
        assert own.rows() == table.rows()
        assert own.take(slice(3, 9)).rows() == table.take(slice(3, 9)).rows()
        assert own.in_order("name", "-number").rows() == table.in_order("name", "-number").rows()
        assert own.select("name").assign(one=1).rows()[1] == {"name": "a", "one": 1}
        assert own.to_frame().astype(str).equals(table.to_frame().astype(str))
        assert pickle.loads(pickle.dumps(own)).rows() == table.rows()
        assert own.get("number").tolist() == list(range(MANY))
        assert own.get("nothing", 3) == 3
    small = Table({"number": np.arange(3)})
    monkeypatch.setattr(scratch, "MIN_DISK_BYTES", 1_000)
    assert small.on_disk() is small


def test_what_may_not_be_mapped_is_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `ulimit -v`: the command says that, and ends."""
    own = aside(np.arange(MANY))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(scratch._Mapped, "__new__", refuse)
    with pytest.raises(MemoryError):
        own.open()
