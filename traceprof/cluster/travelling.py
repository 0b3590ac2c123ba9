"""Questions on their way to another process: their large arrays apart, from where they lie.

Questions and answers may lie in files, where both processes have one disk.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from traceprof.model.elsewhere import Question
from traceprof.model.intervals_elsewhere import TimeQuestion

__all__ = ["Asked", "apart", "is_written", "laid_down", "picked_up", "together"]

Asked: TypeAlias = Question | TimeQuestion

_LARGE_BYTES: Final = 1 << 16
"""Arrays of so many are sent from where they are, not copied first."""


def apart(question: Asked) -> tuple[bytes, list[memoryview]]:
    """Return a question as text, and what of it is large."""
    arrays: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _LARGE_BYTES:
            arrays.append(raw)
        return raw.nbytes < _LARGE_BYTES

    text = pickle.dumps(question, pickle.HIGHEST_PROTOCOL, buffer_callback=is_small)
    return text, arrays


def together(text: bytes, arrays: Sequence[bytes]) -> Asked:
    """Return the question that was taken apart."""
    question: Asked = pickle.loads(text, buffers=arrays)
    return question


def laid_down(question: Asked, file: Path) -> bool:
    """Write a question to ``file``; False where there is no room."""
    text, arrays = apart(question)
    head = pickle.dumps((text, [array.nbytes for array in arrays]))
    return _are_written([head, *arrays], file)


def is_written(answer: bytes, file: Path) -> bool:
    """Write an answer to ``file``; False where there is no room."""
    return _are_written([answer], file)


def _are_written(parts: Iterable[bytes | memoryview], file: Path) -> bool:
    try:
        with file.open("wb") as out:
            for part in parts:
                out.write(part)
    except OSError:
        with suppress(OSError):
            file.unlink()
        return False
    return True


def picked_up(file: Path) -> Asked:
    """Return the question that lies in ``file``."""
    with file.open("rb") as own:
        text, sizes = pickle.load(own)
        return together(text, [own.read(n_bytes) for n_bytes in sizes])
