"""Questions with large arrays, on their way."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import numpy as np
import pytest

from traceprof.model.intervals import Intervals
from traceprof.workers.pool import apart, is_written, laid_down, picked_up, together
from traceprof.workers.remote import Plan, PlanStep, Question


def measure() -> None:
    """Nothing: it travels by its name."""


def question_with(n: int) -> Question:
    starts = np.arange(n, dtype=np.int64) * 10
    return Question(Plan((PlanStep(measure, ("a",)),)), measure, (Intervals(starts, starts + 5),))


def test_large_arrays_are_not_copied_into_the_text() -> None:
    asked = question_with(100_000)
    text, arrays = apart(asked)
    assert len(text) < 10_000
    assert [array.nbytes for array in arrays] == [800_000, 800_000]
    found = together(text, [bytes(array) for array in arrays])
    assert found == asked
    assert isinstance(found, Question)
    assert found.args[0].starts.tolist() == asked.args[0].starts.tolist()


@pytest.mark.parametrize("n", [0, 10, 100_000])
def test_a_question_lies_in_a_file(tmp_path: Path, n: int) -> None:
    file, asked = tmp_path / "0", question_with(n)
    assert laid_down(asked, file)
    found = picked_up(file)
    assert isinstance(found, Question)
    assert found.args[0].ends.tolist() == asked.args[0].ends.tolist()


def test_an_answer_lies_in_a_file(tmp_path: Path) -> None:
    file, text = tmp_path / "0", bytes(2_000_000)
    assert is_written(text, file)
    assert file.read_bytes() == text


def test_nothing_is_left_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not laid_down(question_with(10), tmp_path / "absent" / "0")
    assert not is_written(b"text", tmp_path / "absent" / "1")
    monkeypatch.setattr(Path, "open", _in_part)
    assert not laid_down(question_with(100_000), tmp_path / "0")
    assert not is_written(bytes(1000), tmp_path / "1")
    assert not list(tmp_path.iterdir())


class _Full(io.RawIOBase):
    def write(self, _: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def _in_part(path: Path, _: str) -> io.RawIOBase:
    path.touch()
    return _Full()
