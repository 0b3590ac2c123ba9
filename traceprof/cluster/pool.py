"""A crew of processes on this machine: each holds the Traces of some files."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import field
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from traceprof.cluster.memory import trim, usable_bytes
from traceprof.cluster.progress import Report, no_progress
from traceprof.cluster.travelling import Asked, apart, together
from traceprof.cluster.worker import Holder
from traceprof.errors import TraceError
from traceprof.model.intervals_elsewhere import unpacked
from traceprof.processes import alone
from traceprof.values import dataclass

__all__ = ["Pool"]

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
