import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from traceprof.cluster.spilled import Spill

LONG = 10_000


def in_file(spill: Spill) -> int:
    assert spill._file is not None
    return os.fstat(spill._file.fileno()).st_size


def test_what_comes_back_is_what_was_laid_down() -> None:
    frame = pd.DataFrame(
        {
            "start_ns": np.arange(LONG),
            "small": np.arange(LONG, dtype=np.int8),
            "name": pd.Categorical(["a", "b"] * (LONG // 2)),
        }
    )
    known: dict[str, Any] = {"frame": frame, "again": frame, "few": np.arange(3), "text": "x"}
    spill = Spill()
    assert spill.lay_down(known)
    back = spill.bring_back()
    pd.testing.assert_frame_equal(back["frame"], frame)
    assert back["again"] is back["frame"]
    assert back["few"].tolist() == [0, 1, 2]
    assert not back["frame"]["start_ns"].to_numpy().flags.writeable


def test_arrays_that_lie_in_the_file_are_not_written_again() -> None:
    spill = Spill()
    assert spill.lay_down([np.arange(LONG)])
    n_bytes = in_file(spill)
    assert n_bytes >= 8 * LONG
    grown = [*spill.bring_back(), np.ones(LONG)]
    grown.append(grown[0][100:9000])
    assert spill.lay_down(grown)
    assert in_file(spill) < n_bytes + 8 * LONG + 100
    old, new, part = spill.bring_back()
    assert old.tolist() == list(range(LONG))
    assert new.sum() == LONG
    assert part.tolist() == list(range(100, 9000))


def test_without_arrays_nothing_is_mapped() -> None:
    spill = Spill()
    assert spill.lay_down({"a": (1, 2)})
    assert spill.bring_back() == {"a": (1, 2)}


def test_a_disk_without_room_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    spill = Spill()
    with Path("/dev/full").open("wb+", buffering=0) as full:
        monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: full)
        assert not spill.lay_down([np.arange(LONG)])


def test_what_does_not_pickle_stays() -> None:
    assert not Spill().lay_down([lambda: 0])
