"""What was computed of a recording is kept with it, by name: a recording never changes.

Two kinds: a *fact* is computed of the whole recording, whatever window is asked about, so that
every window shares it; `of_window` keeps what belongs to one window. Both are kept under the name
of the function, so that a Trace can be pickled together with what is known of it.
"""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar

import numpy.typing as npt

from traceprof.model.trace import Trace


class _Recording(Protocol):
    """A Trace, or the Ranks of a run."""

    @property
    def whole(self) -> Self:
        """The whole recording."""
        ...

    @property
    def facts(self) -> dict[tuple[Any, ...], Any]:
        """What is kept."""
        ...


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_R = TypeVar("_R", bound=_Recording)


def fact(
    compute: Callable[Concatenate[_R, _Parameters], _Result],
) -> Callable[Concatenate[_R, _Parameters], _Result]:
    """Let ``compute`` see the whole recording and run once for it (and its arguments).

    The arguments must be hashable and, like the result, picklable. Callers share the result: they
    must not modify it.
    """
    return _kept(compute, is_whole=True)


def of_window(
    compute: Callable[Concatenate[_R, _Parameters], _Result],
) -> Callable[Concatenate[_R, _Parameters], _Result]:
    """Let ``compute`` run once for each window (that is, for each cut Trace or Ranks)."""
    return _kept(compute, is_whole=False)


def _kept(
    compute: Callable[Concatenate[_R, _Parameters], _Result], *, is_whole: bool
) -> Callable[Concatenate[_R, _Parameters], _Result]:
    name = _name_of(compute)

    @wraps(compute)
    def recall(given: _R, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        of: Any = given.whole if is_whole else given
        key = (name, *args, *sorted(kwargs.items()))
        kept: dict[tuple[Any, ...], _Result] = of.facts
        if key not in kept:
            if isinstance(of, Trace) and of.is_remote:
                found: _Result = of.fact(key, recall, args, kwargs)
                return found
            with _right_to((id(kept), key)):
                if key not in kept:  # another thread may have been at it
                    kept[key] = compute(of, *args, **kwargs)
        return kept[key]

    return recall


def of_rows(
    compute: Callable[Concatenate[Trace, _Parameters], npt.NDArray[Any]],
) -> Callable[Concatenate[Trace, _Parameters], npt.NDArray[Any]]:
    """Let ``compute`` tell a value for each row of a table as a `fact`; return the window's rows.

    The name of the table is its last argument.
    """
    known = fact(compute)

    @wraps(compute)
    def recall(
        trace: Trace, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> npt.NDArray[Any]:
        return known(trace, *args, **kwargs)[trace.rows_in_whole(str(args[-1]))]

    return recall


def without_keeping(recall: Callable[[_R], _Result], of: _R) -> _Result:
    """Return what a function of `of_window` says of ``of``: as it is kept, else only for now.

    For what is large, and asked once.
    """
    compute: Callable[[_R], _Result] = inspect.unwrap(recall)
    name = _name_of(compute)
    kept: dict[tuple[Any, ...], _Result] = of.facts
    return kept[name,] if (name,) in kept else compute(of)


def _name_of(compute: Callable[..., Any]) -> str:
    """Return the name that results are kept under: of the function, wherever it is unpickled."""
    if compute.__name__ == "<lambda>":
        raise TypeError("a fact needs a name of its own: two lambdas would share their results")
    return f"{compute.__module__}.{compute.__qualname__}"


_rights: Final[dict[Hashable, threading.RLock]] = {}
"""The right to compute each thing that somebody computes."""
_n_threads: Final = Counter[Hashable]()
"""How many threads have or want each."""
_lock: Final = threading.Lock()


@contextmanager
def _right_to(of: Hashable) -> Iterator[None]:
    """Wait until no other thread computes ``of``.

    Who computes one thing waits for what that needs, never the other way round: no two wait for
    each other.
    """
    with _lock:
        right = _rights.setdefault(of, threading.RLock())
        _n_threads[of] += 1
    try:
        with right:
            yield
    finally:
        with _lock:
            _n_threads[of] -= 1
            if not _n_threads[of]:
                del _rights[of], _n_threads[of]
