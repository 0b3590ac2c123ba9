"""Processes on this machine that hold the Traces of some files, and how far they are."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias

from traceprof.errors import TraceError
from traceprof.processes import PROGRESS, alone, trim, usable_bytes
from traceprof.units import format_duration
from traceprof.workers.holder import Holder
from traceprof.workers.remote import Question
from traceprof.workers.remote_intervals import TimeQuestion, unpacked

Report: TypeAlias = Callable[[int, int], None]
"""Is told how many ranks are done, and of how many."""

_FIRST_AFTER_S: Final = 1.0
_EVERY_S: Final = 0.2
_WIDTH: Final = 79


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


class RankProgress:
    """A line that says how many ranks are done, how many a second, and how long the rest takes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._begun_s = self._shown_s = 0.0
        self._is_shown = False

    def __call__(self, done: int, total: int) -> None:
        """Say that ``done`` of ``total`` ranks are done; the first of them may take a while."""
        if not self._stream.isatty():
            return
        now_s = time.monotonic()
        if done == 0:
            PROGRESS.is_told = True
            self._begun_s = self._shown_s = now_s
        if done == total:
            self._clear()
        elif now_s - self._begun_s > _FIRST_AFTER_S and now_s - self._shown_s > _EVERY_S:
            self._shown_s = now_s
            self._show(done, total, now_s - self._begun_s)

    def _show(self, done: int, total: int, taken_s: float) -> None:
        text = f"traceprof: {done} of {total} ranks"
        if done:
            left = format_duration(round((total - done) * taken_s / done * 1e9))
            text += f", {done / taken_s:.3g} a second, {left} left"
        self._stream.write(f"\r{text:{_WIDTH}}")
        self._stream.flush()
        self._is_shown = True

    def _clear(self) -> None:
        if self._is_shown:
            self._stream.write(f"\r{'':{_WIDTH}}\r")
            self._stream.flush()
        self._is_shown = False


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


_MOST_DEATHS: Final = 3
"""A question whose process died so often is not asked again."""


@dataclass(eq=False)
class _Hand:
    """One process, and what it is still to be asked: by number."""

    process: Any
    connection: Connection
    asked: int | None = None
    waiting: deque[int] = field(default_factory=deque)


class Pool:
    """Processes that answer questions; the questions about one file go to the same one.

    A process that dies is replaced, and what it was asked is asked again.
    """

    def __init__(self, n_processes: int, progress: Report = no_progress) -> None:
        self._n_processes = max(1, n_processes)
        self._progress = progress
        self._hands: list[_Hand] = []
        self._owners: dict[str, _Hand] = {}
        self._is_backwards = True

    def ask(self, questions: Sequence[Asked]) -> list[Any]:
        """Return the answers in the order of the questions (see `Crew`).

        Raises:
            TraceError: processes die of a question.
        """
        if not questions:
            return []
        try:
            return self._answers(questions)
        except BaseException:
            self.close()  # what is half answered would be the answer to the next question
            raise

    def close(self) -> None:
        """End the processes; the next question starts them anew."""
        hands, self._hands = self._hands, []
        self._owners = {}
        for hand in hands:
            hand.connection.close()
            hand.process.kill()
        for hand in hands:
            hand.process.join()

    def _hand(self) -> _Hand:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        args = (theirs, usable_bytes(self._n_processes))
        process = context.Process(target=_work, args=args, daemon=True)
        with alone():
            process.start()
        theirs.close()
        return _Hand(process, ours)

    def _answers(self, questions: Sequence[Asked]) -> list[Any]:
        answers: list[Any] = [None] * len(questions)
        deaths = [0] * len(questions)
        n_done = 0
        self._progress(0, len(questions))
        self._share_out(questions)
        for hand in self._hands:
            self._ask_next(hand, questions)
        trim()  # meanwhile: what the last answers were made into is seldom as large
        while n_done < len(questions):
            busy = {hand.connection: hand for hand in self._hands if hand.asked is not None}
            for connection in wait(list(busy)):
                hand = busy[connection]  # type: ignore[index]
                number = hand.asked
                assert number is not None
                try:
                    text = hand.connection.recv_bytes()
                except (EOFError, OSError):
                    deaths[number] += 1
                    self._replace(hand, questions[number], deaths[number])
                    hand.waiting.appendleft(number)
                else:
                    answers[number] = unpacked(text, self, questions[number])
                    n_done += 1
                    self._progress(n_done, len(questions))
                hand.asked = None
                self._ask_next(hand, questions)
        return answers

    def _share_out(self, questions: Sequence[Asked]) -> None:
        """Give every question to the process that holds its file, of new files to the idlest."""
        while len(self._hands) < min(self._n_processes, len(questions)):
            self._hands.append(self._hand())
        loads = {id(hand): 0 for hand in self._hands}
        for owner in self._owners.values():
            loads[id(owner)] += 1
        # To and fro: a process has in memory what it was asked about last.
        self._is_backwards = not self._is_backwards
        numbered = list(enumerate(questions))
        for number, question in reversed(numbered) if self._is_backwards else numbered:
            root = question.recipe.file
            if root not in self._owners:
                owner = min(self._hands, key=lambda hand: loads[id(hand)])
                self._owners[root] = owner
                loads[id(owner)] += 1
            self._owners[root].waiting.append(number)

    def _ask_next(self, hand: _Hand, questions: Sequence[Asked]) -> None:
        if hand.asked is None and hand.waiting:
            hand.asked = hand.waiting.popleft()
            try:
                _send(hand.connection, questions[hand.asked])
            except OSError:
                return  # it has died, which is found when its answer is read

    def _replace(self, hand: _Hand, question: Asked, n_deaths: int) -> None:
        if n_deaths >= _MOST_DEATHS:
            what = question.recipe.file
            raise TraceError(
                f"{what}: the process that reads it died {n_deaths} times (not enough memory?): "
                "fewer --jobs leave more memory to each"
            )
        hand.connection.close()
        hand.process.join()
        new = self._hand()
        hand.process, hand.connection = new.process, new.connection


def _send(connection: Connection, question: Asked) -> None:
    text, arrays = apart(question)
    connection.send((len(arrays), text))
    for array in arrays:
        connection.send_bytes(array)


def _received(connection: Connection) -> Asked:
    n_arrays, text = connection.recv()
    return together(text, [connection.recv_bytes() for _ in range(n_arrays)])


def _work(connection: Connection, most_bytes: int) -> None:
    """Answer questions until nobody asks any more; Ctrl-C is for who asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    holder = Holder(most_bytes)
    while True:
        try:
            connection.send_bytes(holder.answer(_received(connection)))
        except (EOFError, OSError):
            return
