"""The little that is written otherwise than it was: clipped times, and secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from traceprof.formats.kineto.batch import Batch
from traceprof.formats.kineto.cut_rules import DEVICE, Related, Rules
from traceprof.formats.kineto.parse import Event
from traceprof.formats.shared import redaction
from traceprof.model.cutting import REMOVED
from traceprof.secrets import masked_text

__all__ = ["clipped", "header_shown", "parsed", "without_secrets", "without_told"]

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENVIRONMENT: Final = re.compile(r"env(s|iron(ment)?)?([_ ]?var(iable)?s?)?", re.IGNORECASE)


def clipped(
    text: bytes, event: Event, batch: Batch, index: int, rules: Rules, related: Related
) -> bytes:
    """Return an event of which only the part in the window is left; all but its times as it was.

    On the host the first launch counts as the border, where it lies before the window.
    """
    if event.ph != "X":
        return text
    start, duration = int(batch.start_ns[index]), int(batch.duration_ns[index])
    end = start + max(duration, 0)
    lower = rules.window.start_ns
    if event.cat not in DEVICE and related.first_ns is not None:
        lower = min(lower, related.first_ns)
    first, last = max(start, lower), min(end, rules.window.end_ns)
    if (first, last) == (start, end) or first > last:
        return text
    members = _MEMBERS.decode(text)
    written = {key: bytes(value) for key, value in members.items()}
    written |= {"ts": _microseconds(first), "dur": _microseconds(last - first)}
    pairs = (msgspec.json.encode(key) + b": " + value for key, value in written.items())
    return b"{" + b", ".join(pairs) + b"}"


def _microseconds(ns: int) -> bytes:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    full, fraction = divmod(ns, 1000)
    return (f"{sign}{full}.{fraction:03d}" if fraction else f"{sign}{full}").encode()


def parsed(text: bytes) -> Any:
    """Return the JSON value ``text``; bytes in it that are no UTF-8 become U+FFFD, as in reading.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text.decode("utf-8", "replace"), strict=False)


def header_shown(key: bytes, text: bytes) -> bytes:
    """Return a value beside the events without environments and secrets."""
    name = parsed(key)
    if _ENVIRONMENT.fullmatch(name):
        return json.dumps(REMOVED).encode()
    if text.startswith(b'"'):
        pair = without_secrets(b"{%b: %b}" % (key, text))
        if pair.startswith(b"{" + key):
            return pair[len(key) + 3 : -1]
        (shown,) = parsed(pair).values()  # all of it was written anew
        return json.dumps(shown).encode()
    return without_secrets(text)


def without_secrets(text: bytes) -> bytes:
    """Return a JSON value with the secrets in its texts masked, and its environments removed.

    All else, numbers above all, stays as it is written.
    """
    try:
        value = parsed(text)
    except (ValueError, RecursionError):
        return text
    return _with(text, value, dict(_replaced(value)))


def without_told(text: bytes, secrets: Sequence[str]) -> bytes:
    """Return a JSON value without ``secrets`` in its texts; all else stays as it is written."""
    if not any(written in text for secret in secrets for written in _written(secret)):
        return text
    try:
        value = parsed(text)
    except (ValueError, RecursionError):
        return text
    texts = _texts(value, with_keys=True)
    shown = {one: redaction.without_secrets(one, secrets) for one in texts}
    return _with(text, value, {old: new for old, new in shown.items() if old != new})


@cache
def _written(secret: str) -> Sequence[bytes]:
    """Return the ways to write a text inside another in JSON."""
    texts = (json.dumps(secret, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False))
    return tuple({text.encode("utf-8", "surrogatepass") for text in texts})


def _with(text: bytes, value: Any, replaced: Mapping[str, str]) -> bytes:
    """Return the JSON ``text`` of ``value`` with some of its texts replaced."""
    if not replaced:
        return text
    for old, new in replaced.items():
        for is_ascii in (True, False):
            written = json.dumps(old, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
            text = text.replace(written, json.dumps(new).encode())
    if not replaced.keys().isdisjoint(_texts(parsed(text), with_keys=True)):
        return json.dumps(_rewritten(value, replaced)).encode()
    return text


def _replaced(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text that must not be passed on, with what stands in its place."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if _ENVIRONMENT.fullmatch(key):
                yield from ((one, REMOVED) for one in _texts(inner))
            else:
                yield from _replaced(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _replaced(inner, name)
    elif isinstance(value, str) and (shown := _shown(value, name)) != value:
        yield value, shown


def _shown(value: str, name: str) -> str:
    """Return a text without its secrets, the name of which may tell that it is one."""
    shown = masked_text(value)
    if shown == value and name and value:
        shown = masked_text(f"{name}={value}").removeprefix(f"{name}=")
    return shown


def _texts(value: Any, *, with_keys: bool = False) -> set[str]:
    if isinstance(value, dict):
        keys = {*value} if with_keys else set()
        return keys.union(*(_texts(one, with_keys=with_keys) for one in value.values()))
    if isinstance(value, list):
        return set().union(*(_texts(one, with_keys=with_keys) for one in value))
    return {value} if isinstance(value, str) else set()


def _rewritten(value: Any, replaced: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {replaced.get(k, k): _rewritten(inner, replaced) for k, inner in value.items()}
    if isinstance(value, list):
        return [_rewritten(inner, replaced) for inner in value]
    return replaced.get(value, value) if isinstance(value, str) else value
