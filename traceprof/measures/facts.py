"""What was computed of a recording is kept with it, by name: a recording never changes.

Two kinds: a *fact* is computed of the whole recording, whatever window is asked about, so that
every window shares it; `of_window` keeps what belongs to one window. Both are kept under the name
of the function, so that a Trace can be pickled together with what is known of it.
"""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import numpy.typing as npt

from traceprof.cache import scratch
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table, in_memory, set_aside
from traceprof.model.trace import Trace

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_NAME: Final = "{0.__module__}.{0.__qualname__}"
"""What results are kept under: the name of the function, wherever it is unpickled."""
_compute_locks: Final[dict[Hashable, threading.RLock]] = {}
"""The right to compute each thing that somebody computes."""
_n_users: Final = Counter[Hashable]()
"""How many threads have or want each."""
_lock: Final = threading.Lock()
_R = TypeVar("_R", bound="Trace | Ranks")


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """What is known, with its large arrays on the disk."""

    known: Any


_MAX_ITEMS: Final = 1000
"""Arrays are looked for in collections of at most so many: of more, none is large."""


def _map_arrays(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return ``value`` with ``change`` made to the arrays in it; itself where that changes none."""
    if isinstance(value, Table):
        return value.on_disk() if change is set_aside else value
    if (parts := _parts_of(value)) is None:
        return change(value)
    made = {name: _map_arrays(part, change) for name, part in parts.items()}
    if all(made[name] is part for name, part in parts.items()):
        return value
    if isinstance(value, dict):
        return made
    if isinstance(value, tuple | list):
        return (
            type(value)(*made.values()) if hasattr(value, "_fields") else type(value)(made.values())
        )
    found = object.__new__(type(value))
    for name, part in made.items():
        object.__setattr__(found, name, part)
    return found


def _parts_of(value: Any) -> Mapping[Any, Any] | None:
    """Return what a collection or dataclass is made of, by name or place; None of anything else."""
    if isinstance(value, dict | tuple | list):
        if len(value) > _MAX_ITEMS:
            return {}
        return value if isinstance(value, dict) else dict(enumerate(value))
    if not is_dataclass(value) or isinstance(value, type):
        return None
    names = [field.name for field in fields(value)]
    if any(isinstance(getattr(type(value), name, None), property) for name in names):
        return {}  # it lies in another process
    # What was worked out of them, too.
    return {name: getattr(value, name) for name in names} | getattr(value, "__dict__", {})


def _to_disk(known: Any) -> Any:
    found = _map_arrays(known, set_aside)
    return known if found is known else _OnDisk(found)


def apart(known: _Result) -> Callable[[], _Result]:
    """Return what gives ``known`` again; meanwhile its large arrays are on the disk."""
    kept: Any = _to_disk(known) if scratch.files else known
    return lambda: _map_arrays(kept.known, in_memory) if isinstance(kept, _OnDisk) else kept


def fact(
    compute: Callable[Concatenate[_R, _Parameters], _Result], *, is_whole: bool = True
) -> Callable[Concatenate[_R, _Parameters], _Result]:
    """Let ``compute`` see the whole recording and run once for it (and its arguments).

    The arguments must be hashable and, like the result, picklable. Callers share the result: they
    must not modify it. Who computes one thing waits for what that needs, never the other way
    round: no two threads wait for each other.
    """
    if compute.__name__ == "<lambda>":
        raise TypeError("a fact needs a name of its own: two lambdas would share their results")
    name = _NAME.format(compute)
    plain_key = (name,)

    @wraps(compute)
    def recall(given: _R, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        of: Any = given.whole if is_whole else given
        key = (name, *args, *sorted(kwargs.items())) if args or kwargs else plain_key
        kept: dict[tuple[Any, ...], Any] = of.facts
        if key in kept:
            known: _Result = kept[key]
            return _map_arrays(known.known, in_memory) if isinstance(known, _OnDisk) else known
        if isinstance(of, Trace) and of.is_remote:
            found: _Result = of.fact(key, recall, args, kwargs)
            return found
        lock_key = (id(kept), key)
        with _lock:
            compute_lock = _compute_locks.setdefault(lock_key, threading.RLock())
            _n_users[lock_key] += 1
        try:
            with compute_lock:
                if key not in kept:  # another thread may have been at it
                    answer = compute(of, *args, **kwargs)
                    # What is known of small tables is small.
                    kept[key] = _to_disk(answer) if scratch.files else answer
        finally:
            with _lock:
                _n_users[lock_key] -= 1
                if not _n_users[lock_key]:
                    del _compute_locks[lock_key], _n_users[lock_key]
        known = kept[key]
        return _map_arrays(known.known, in_memory) if isinstance(known, _OnDisk) else known

    return recall


def of_window(
    compute: Callable[Concatenate[_R, _Parameters], _Result],
) -> Callable[Concatenate[_R, _Parameters], _Result]:
    """Let ``compute`` run once for each window (that is, for each cut Trace or Ranks)."""
    return fact(compute, is_whole=False)


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
    name = _NAME.format(compute)
    kept: dict[tuple[Any, ...], _Result] = of.facts
    known = kept[name,] if (name,) in kept else compute(of)
    return _map_arrays(known.known, in_memory) if isinstance(known, _OnDisk) else known
