"""Signals while a trace is being written: the first one waits, a second one ends it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

__all__ = ["WRITING", "undisturbed"]

WRITING: Final = "the program has ended and its trace is being written: once more to leave it"
"""What is said to the first signal that comes then."""

_NUMBERS: Final = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def undisturbed(say: Callable[[str], None]) -> Iterator[None]:
    """Have the first SIGINT, SIGTERM or SIGHUP only say what is being done.

    Raises:
        KeyboardInterrupt: from within the block, at the second one.
    """
    n_signals = 0

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal n_signals
        n_signals += 1
        if n_signals > 1:
            raise KeyboardInterrupt
        say(WRITING)

    numbers = [getattr(signal, name) for name in _NUMBERS if hasattr(signal, name)]
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
