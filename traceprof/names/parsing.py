"""Parse the name of a kernel: its identifier, the scope that declares it, and its functors.

``void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::FillFunctor
<float> >(…)::{lambda(int)#1}>(int, …)`` is the identifier ``elementwise_kernel`` in the scope
``at::native``, which applies ``gpu_kernel_impl`` and ``FillFunctor``. Round brackets contain
argument types, which say nothing about the work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

import pydemumble

_CLONE: Final = re.compile(r"(?<!\s)\s*+(\[clone [^\[\]]*+\]|\(\.kd\)|\.kd)\s*+$")
_UNNAMED: Final = re.compile(
    r"(\(anonymous namespace\)|<unnamed>|\{anonymous\}|_GLOBAL__N_\w{0,200})::"
)
_INSTANCE: Final = re.compile(r"\(instance \d+\)")
_RETURNS: Final = re.compile(r"^(?:\S*(?:void|::type|enable_if_t)\s+)+")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+|\s+|-+")
_PAIRS: Final = {"<": ">", "(": ")", "[": "]", "{": "}"}
_CLOSING: Final = frozenset(_PAIRS.values())
_BRACKET: Final = re.compile(r"[<>()\[\]{}]")
_ROUND: Final = re.compile(r"[()\[\]{}]")
_BUILT_IN: Final = frozenset(
    {"void", "bool", "char", "short", "int", "long", "unsigned", "signed", "float", "double"}
    | {"const", "true", "false", "operator", "lambda", "u", "ul", "ull", "l"}
)
_NAME: Final = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*")
_BEFORE_LAMBDA: Final = re.compile(r"\s*::(?:\s|$)")
"""Text after a function whose parameters and whose lambda were removed."""
_INNER_DIGITS: Final = re.compile(r"(?<=[^A-Za-z0-9]\d\d)\d+(?=\d\d)")
_MAX_NAME_CHARACTERS: Final = 20_000
"""Longer names are cut: the longest template names repeat themselves."""
_MAX_IDENTIFIER_CHARACTERS: Final = 2_000


@dataclass(frozen=True, slots=True)
class KernelName:
    """The parts of a kernel name.

    ``plain`` is the demangled name and ``scope`` the namespaces of the ``identifier``. ``words``
    are the words of the identifier in lower case. ``template`` is the text of its template
    arguments, and ``functors`` the names in it, outermost first, without the contents of round
    brackets. ``lambdas`` are the functions that contain lambdas among them. ``arguments`` is the
    text of its argument types.
    """

    plain: str
    scope: str
    identifier: str
    words: str
    template: str
    functors: tuple[str, ...]
    lambdas: tuple[str, ...]
    arguments: str


def shortened_numbers(name: str) -> str:
    """Return a name with only the two outer digits on each side of numbers that begin a word.

    More digits determine no class or precision (``s16816`` begins with a letter). Few distinct
    names remain.
    """
    return name if name.startswith("_Z") else _INNER_DIGITS.sub("", name)


@lru_cache(maxsize=1 << 14)  # class, precision, and matrix units parse the same names
def parse_name(name: str) -> KernelName:
    """Return the parts of a kernel name, mangled (Itanium) or not."""
    plain = _demangled(name) if name.startswith("_Z") else name
    text = _CLONE.sub("", plain[:_MAX_NAME_CHARACTERS].strip())
    text = _INSTANCE.sub("", _UNNAMED.sub("", text))
    head, template, arguments = _split(text)
    scope, _, identifier = head.rpartition("::")
    return KernelName(
        plain,
        scope,
        identifier,
        words_of(identifier[:_MAX_IDENTIFIER_CHARACTERS]),
        template,
        *_functors(template),
        arguments,
    )


def _demangled(name: str) -> str:
    try:
        return pydemumble.demangle(name) or name
    except (TypeError, UnicodeEncodeError):  # half a surrogate pair, which JSON may contain
        return name


def words_of(identifier: str) -> str:
    """Return the words of an identifier: ``RMSNormKernel`` → ``rms norm kernel``."""
    return " ".join(filter(None, _HUMP.split(identifier))).lower()


def _split(text: str) -> tuple[str, str, str]:
    """Return head, template arguments, and arguments of a declaration.

    If there are several template arguments (of a return type, a scope), the last before the
    arguments counts.
    """
    flat: list[str] = []
    template = arguments = ""
    done = 0
    for start, end in _bracketed(text):
        flat.append(text[done:start])
        done = end
        inner = text[start + 1 : end - 1 if end < len(text) or text[-1] in _CLOSING else end]
        if text[start] == "<":
            template = inner
        elif text[start] == "(" and "".join(flat).strip():
            arguments = inner
            break
    else:
        flat.append(text[done:])
    # The declared name without its return type.
    return _RETURNS.sub("", "".join(flat).strip()).strip(), template, arguments


def _bracketed(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each outermost bracket pair; an unclosed one ends with the text."""
    closing: list[str] = []
    first = 0
    for found in _BRACKET.finditer(text):
        bracket = found.group()
        if bracket in _PAIRS:
            if not closing:
                first = found.start()
            closing.append(_PAIRS[bracket])
        elif bracket in closing and (bracket != ">" or closing[-1] == ">"):
            # ``>`` in ``(((8)>(0)))`` and in ``->`` closes nothing.
            while closing.pop() != bracket:
                pass
            if not closing:
                yield first, found.end()
    if closing:
        yield first, len(text)


def _functors(template: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names in template arguments outside round brackets, and those with a lambda.

    Both are ordered outermost first. ``f(int)::{lambda()#1}`` is a lambda in ``f``.
    """
    kept: list[str] = []
    depth = done = 0
    for found in _ROUND.finditer(template):
        if depth == 0:
            kept.append(template[done : found.start()])
        depth = max(depth + (1 if found.group() in "([{" else -1), 0)
        done = found.end()
    if depth == 0:
        kept.append(template[done:])
    text = " ".join(kept)
    names = [*_NAME.finditer(text)]
    with_lambda = [name for name in names if _BEFORE_LAMBDA.match(text, name.end())]
    return _distinct(names), _distinct(with_lambda)


def _distinct(found: Iterable[re.Match[str]]) -> tuple[str, ...]:
    names = (name.group() for name in found)
    return tuple(dict.fromkeys(name for name in names if name not in _BUILT_IN))


@dataclass(eq=False)
class _Pattern:
    """A regular expression that is compiled on first use."""

    _expression: str
    _flags: int = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._expression, self._flags), name)
        setattr(self, name, found)
        return found


pattern: Final = cast("Callable[..., re.Pattern[str]]", _Pattern)
"""Return a regular expression that behaves like a compiled one, and is compiled on first use."""
