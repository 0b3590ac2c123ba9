"""Questions on their way to workers that may die: what was asked of one is asked of another."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count
from queue import Empty, SimpleQueue
from typing import Final, Protocol, TypeAlias

from traceprof.cluster.travelling import Asked
from traceprof.errors import TraceError

__all__ = ["DIED", "Cluster", "Round", "Sent"]

DIED: Final = (
    "the workers that read it died (not enough memory?): fewer workers leave more memory to each"
)
_MOST_DEATHS: Final = 3
"""A question whose worker died so often is not asked again."""
_AHEAD: Final = 2
"""Questions that a worker is given at a time: one to answer, one to go on with."""
_LOOKS_EVERY_S: Final = 1.0


class Sent(Protocol):
    """A question that a worker was sent."""

    def text(self, most_s: float) -> bytes:
        """Return the answer, which is there.

        Raises:
            TimeoutError: it does not come; it may have been lost with who had it.
        """
        ...

    def drop(self) -> None:
        """Forget the question and its answer."""
        ...


_Tell: TypeAlias = Callable[[], None]


class Cluster(Protocol):
    """The workers that answer questions."""

    def living(self) -> Collection[str]:
        """Return the workers that there are now."""
        ...

    def owners_of(self, files: Sequence[str]) -> Sequence[str]:
        """Return the worker that looks at each of ``files``; of one that died it is another."""
        ...

    def send(self, question: Asked, owner: str, tell: _Tell) -> Sent:
        """Send a question to a worker; ``tell`` is called from any thread once it is answered."""
        ...


class Round:
    """Some questions, until all are answered.

    Few are asked at a time: a scheduler keeps what it was asked and the answers that nobody has
    taken, and one that was started here does so in this process. Who has died is looked for every
    second, since nobody says so: a scheduler holds what was meant for a worker that is no more.
    """

    def __init__(self, cluster: Cluster, questions: Sequence[Asked]) -> None:
        self._cluster, self._questions = cluster, questions
        self._waiting: dict[str, deque[int]] = defaultdict(deque)
        self._asked: dict[int, tuple[str, int, Sent]] = {}
        self._answered: SimpleQueue[int] = SimpleQueue()
        self._deaths: Counter[int] = Counter()
        self._tickets = count()
        self._looked_s = time.monotonic()

    def begin(self, order: Iterable[int]) -> None:
        """Ask the first of the questions, whose numbers are given in the ``order`` to ask them."""
        self._share_out([*order])

    def answers(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of each question and its answer as it travels.

        Raises:
            TraceError: workers die of a question.
        """
        while self._asked:
            if time.monotonic() - self._looked_s >= _LOOKS_EVERY_S:
                self._look_for_deaths()
            try:
                ticket = self._answered.get(timeout=_LOOKS_EVERY_S)
            except Empty:
                continue
            if ticket not in self._asked:
                continue  # it was asked again meanwhile
            owner, number, sent = self._asked[ticket]
            text = self._text(owner, sent)
            if text is None:
                self._ask_again({owner})
                continue
            del self._asked[ticket]
            sent.drop()
            self._ask_next(owner)
            yield number, text

    def _text(self, owner: str, sent: Sent) -> bytes | None:
        """Return an answer; None: it was lost with the worker that had it."""
        most_s = _LOOKS_EVERY_S
        while True:
            try:
                return sent.text(most_s)
            except TimeoutError:
                if owner not in self._cluster.living():
                    return None
            most_s *= 2  # a large one takes as long as it takes

    def _look_for_deaths(self) -> None:
        living = self._cluster.living()
        busy = {owner for owner, _, _ in self._asked.values()}
        dead = {owner for owner in busy if owner not in living}
        if dead:
            self._ask_again(dead)
        self._looked_s = time.monotonic()

    def _ask_again(self, dead: Collection[str]) -> None:
        """Ask others what was asked of workers that died, and what these were still to be asked."""
        numbers: list[int] = []
        for owner in dead:
            tickets = [ticket for ticket, (own, _, _) in self._asked.items() if own == owner]
            lost = [self._asked.pop(ticket) for ticket in tickets]
            for _, number, sent in lost:
                sent.drop()
                numbers.append(number)
            self._count_death(lost[0][1])  # the others it had not begun with
            numbers.extend(self._waiting.pop(owner, ()))
        self._share_out(numbers)

    def _count_death(self, number: int) -> None:
        self._deaths[number] += 1
        if self._deaths[number] >= _MOST_DEATHS:
            raise TraceError(f"{self._questions[number].recipe.file}: {DIED}")

    def _share_out(self, numbers: Sequence[int]) -> None:
        owners = self._cluster.owners_of([self._questions[one].recipe.file for one in numbers])
        for number, owner in zip(numbers, owners, strict=True):
            self._waiting[owner].append(number)
        for owner in dict.fromkeys(owners):
            n_asked = sum(own == owner for own, _, _ in self._asked.values())
            for _ in range(_AHEAD - n_asked):
                self._ask_next(owner)

    def _ask_next(self, owner: str) -> None:
        if not self._waiting[owner]:
            return
        number, ticket = self._waiting[owner].popleft(), next(self._tickets)
        sent = self._cluster.send(
            self._questions[number], owner, lambda: self._answered.put(ticket)
        )
        self._asked[ticket] = owner, number, sent
