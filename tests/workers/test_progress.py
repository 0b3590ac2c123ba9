import io

import pytest

from traceprof.workers import choice
from traceprof.workers.choice import RankProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(choice.time, "monotonic", lambda: now[0])
    return now


def test_rate_and_time_left(clock: list[float]) -> None:
    terminal = Terminal()
    tell = RankProgress(terminal)
    tell(0, 64)
    clock[0] += 4
    tell(16, 64)
    assert terminal.getvalue().strip() == "traceprof: 16 of 64 ranks, 4 ranks/s, 12.00 s left"
    tell(64, 64)
    assert terminal.getvalue().endswith("\r")


def test_what_is_soon_done_says_nothing(clock: list[float]) -> None:
    terminal = Terminal()
    tell = RankProgress(terminal)
    for done in range(4):
        tell(done, 3)
    assert terminal.getvalue() == ""


def test_nobody_looks(clock: list[float]) -> None:
    log = io.StringIO()
    tell = RankProgress(log)
    tell(0, 64)
    clock[0] += 4
    tell(16, 64)
    assert log.getvalue() == ""
