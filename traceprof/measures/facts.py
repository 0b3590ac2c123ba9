"""Caches computed values with the recording, by function name, because a recording never changes.

There are two kinds. A *fact* is computed from the whole recording, so all windows share it.
`of_window` caches a value per window. The cache key is the name of the function, so a Trace can be
pickled together with its cached values.
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
from traceprof.model.table import Table, in_memory, spill_to_disk
from traceprof.model.trace import Trace

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_NAME: Final = "{0.__module__}.{0.__qualname__}"
"""Cache key of a function. It stays the same when the function is unpickled elsewhere."""
_compute_locks: Final[dict[Hashable, threading.RLock]] = {}
"""One lock for each value that a thread is computing or waiting for."""
_n_users: Final = Counter[Hashable]()
"""Number of threads that hold or wait for each of these locks."""
_lock: Final = threading.Lock()
_R = TypeVar("_R", bound="Trace | Ranks")


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """A cached value whose large arrays are on disk."""

    value: Any


_MAX_ITEMS: Final = 1000
"""Longer collections are not searched for arrays, because none of them contains a large one."""


def _map_arrays(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return ``value`` with ``change`` applied to its arrays; ``value`` itself if unchanged."""
    if isinstance(value, Table):
        return value.on_disk() if change is spill_to_disk else value
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
    """Return the items of a collection or dataclass by key, index, or field; None for others."""
    if isinstance(value, dict | tuple | list):
        if len(value) > _MAX_ITEMS:
            return {}
        return value if isinstance(value, dict) else dict(enumerate(value))
    if not is_dataclass(value) or isinstance(value, type):
        return None
    names = [field.name for field in fields(value)]
    if any(isinstance(getattr(type(value), name, None), property) for name in names):
        return {}  # the value is in another process
    # Include cached properties.
    return {name: getattr(value, name) for name in names} | getattr(value, "__dict__", {})


def _to_disk(value: Any) -> Any:
    """Return ``value`` with its large arrays on disk; ``value`` itself if it has none."""
    found = _map_arrays(value, spill_to_disk)
    return value if found is value else _OnDisk(found)


def _from_disk(cached: Any) -> Any:
    """Return the value that `_to_disk` stored."""
    return _map_arrays(cached.value, in_memory) if isinstance(cached, _OnDisk) else cached


def kept_on_disk(value: _Result) -> Callable[[], _Result]:
    """Move large arrays of ``value`` to disk and return a function that returns ``value``."""
    cached = _to_disk(value) if scratch.files else value
    return lambda: _from_disk(cached)


def fact(
    compute: Callable[Concatenate[_R, _Parameters], _Result], *, is_whole: bool = True
) -> Callable[Concatenate[_R, _Parameters], _Result]:
    """Make ``compute`` run on the whole recording, once per recording and arguments.

    The arguments must be hashable. Arguments and result must be picklable. Callers share the result
    and must not modify it. A thread that computes a value waits only for values that it needs, so
    threads cannot deadlock.
    """
    if compute.__name__ == "<lambda>":
        raise TypeError("a fact needs a name of its own: two lambdas would share their results")
    name = _NAME.format(compute)
    plain_key = (name,)

    @wraps(compute)
    def recall(given: _R, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        of: Any = given.whole if is_whole else given
        key = (name, *args, *sorted(kwargs.items())) if args or kwargs else plain_key
        cache: dict[tuple[Any, ...], Any] = of.facts
        if key not in cache:
            if isinstance(of, Trace) and of.is_remote:
                found: _Result = of.fact(key, recall, args, kwargs)
                return found
            lock_key = (id(cache), key)
            with _lock:
                compute_lock = _compute_locks.setdefault(lock_key, threading.RLock())
                _n_users[lock_key] += 1
            try:
                with compute_lock:
                    if key not in cache:  # another thread may have computed it
                        answer = compute(of, *args, **kwargs)
                        # Only large recordings have scratch files; facts of small ones are small.
                        cache[key] = _to_disk(answer) if scratch.files else answer
            finally:
                with _lock:
                    _n_users[lock_key] -= 1
                    if not _n_users[lock_key]:
                        del _compute_locks[lock_key], _n_users[lock_key]
        found = cache[key]
        return _map_arrays(found.value, in_memory) if isinstance(found, _OnDisk) else found

    return recall


def of_window(
    compute: Callable[Concatenate[_R, _Parameters], _Result],
) -> Callable[Concatenate[_R, _Parameters], _Result]:
    """Make ``compute`` run once per window, that is, per cut Trace or Ranks."""
    return fact(compute, is_whole=False)


def of_rows(
    compute: Callable[Concatenate[Trace, _Parameters], npt.NDArray[Any]],
) -> Callable[Concatenate[Trace, _Parameters], npt.NDArray[Any]]:
    """Make ``compute`` return one cached value per row of a table; return the values in the window.

    The name of the table is the last argument.
    """
    known = fact(compute)

    @wraps(compute)
    def recall(
        trace: Trace, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> npt.NDArray[Any]:
        return known(trace, *args, **kwargs)[trace.rows_in_whole(str(args[-1]))]

    return recall


def without_keeping(recall: Callable[[_R], _Result], of: _R) -> _Result:
    """Return the cached value of an `of_window` function; compute it without caching if absent.

    Use it for large values that are needed once.
    """
    compute: Callable[[_R], _Result] = inspect.unwrap(recall)
    name = _NAME.format(compute)
    cache: dict[tuple[Any, ...], Any] = of.facts
    found: _Result = _from_disk(cache[name,]) if (name,) in cache else compute(of)
    return found
