import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from traceprof.workers.spill import Spill

LONG = 10_000


def in_file(spill: Spill) -> int:
    assert spill._file is not None
    return os.fstat(spill._file.fileno()).st_size


def test_what_comes_back_is_what_was_spilled() -> None:
    frame = pd.DataFrame(
        {
            "start_ns": np.arange(LONG),
            "small": np.arange(LONG, dtype=np.int8),
            "name": pd.Categorical(["a", "b"] * (LONG // 2)),
        }
    )
    known: dict[str, Any] = {"frame": frame, "again": frame, "few": np.arange(3), "text": "x"}
    spill = Spill()
    assert spill.spill(known)
    back = spill.load()
    pd.testing.assert_frame_equal(back["frame"], frame)
    assert back["again"] is back["frame"]
    assert back["few"].tolist() == [0, 1, 2]
    assert not back["frame"]["start_ns"].to_numpy().flags.writeable


def test_arrays_that_lie_in_the_file_are_not_written_again() -> None:
    spill = Spill()
    assert spill.spill([np.arange(LONG)])
    n_bytes = in_file(spill)
    assert n_bytes >= 8 * LONG
    grown = [*spill.load(), np.ones(LONG)]
    grown.append(grown[0][100:9000])
    assert spill.spill(grown)
    assert in_file(spill) < n_bytes + 8 * LONG + 100
    old, new, part = spill.load()
    assert old.tolist() == list(range(LONG))
    assert new.sum() == LONG
    assert part.tolist() == list(range(100, 9000))


def test_names_that_lie_in_the_file_are_not_written_again() -> None:
    spill = Spill()
    names = pd.Index([f"name {n}" for n in range(LONG)], dtype=object)
    coded = pd.Series(pd.Categorical.from_codes(np.arange(LONG), names))
    assert spill.spill([coded, names])
    n_bytes = in_file(spill)
    for _ in range(2):
        back = spill.load()
        assert back[0].tolist() == back[1].tolist() == names.tolist()
        assert spill.spill(back)
    assert in_file(spill) == n_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux frees a part of a file")
def test_the_disk_gets_back_what_is_gone() -> None:
    spill = Spill()
    size = 1 << 20
    whole, gone, part = np.arange(size), np.ones(size), np.arange(size)
    assert spill.spill([whole, gone, part])
    assert spill._file is not None
    before = os.fstat(spill._file.fileno()).st_blocks * 512
    back = spill.load()
    assert spill.spill([back[0], back[2][10:-10], np.arange(3)])
    assert before - os.fstat(spill._file.fileno()).st_blocks * 512 == pytest.approx(
        gone.nbytes, abs=1 << 16
    )
    del back
    again = spill.load()
    assert again[0].tolist() == whole.tolist()
    assert again[1].tolist() == part[10:-10].tolist()


def test_without_arrays_nothing_is_mapped() -> None:
    spill = Spill()
    assert spill.spill({"a": (1, 2)})
    assert spill.load() == {"a": (1, 2)}


def test_a_disk_without_room_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    spill = Spill()
    with Path("/dev/full").open("wb+", buffering=0) as full:
        monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: full)
        assert not spill.spill([np.arange(LONG)])


def test_what_does_not_pickle_stays() -> None:
    assert not Spill().spill([lambda: 0])
