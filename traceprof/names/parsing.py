"""The name of a kernel taken apart: its own identifier, where it is declared, what it applies.

``void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::FillFunctor
<float> >(…)::{lambda(int)#1}>(int, …)`` is the identifier ``elementwise_kernel`` in the scope
``at::native``, which applies ``gpu_kernel_impl`` and ``FillFunctor``. What stands in round brackets
are types of arguments; they say nothing about the work.
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
"""What follows a function whose parameters, and the lambda behind them, were taken out."""
_INNER_DIGITS: Final = re.compile(r"(?<=[^A-Za-z0-9]\d\d)\d+(?=\d\d)")
_MAX_NAME_CHARACTERS: Final = 20_000
"""Characters of a name that are looked at: the longest of templates repeat themselves."""
_MAX_IDENTIFIER_CHARACTERS: Final = 2_000


@dataclass(frozen=True, slots=True)
class KernelName:
    """A name taken apart.

    ``plain`` is the demangled name, ``scope`` the namespaces of the ``identifier``, ``words`` the
    words of the identifier in lower case, ``template`` the text of its template arguments,
    ``functors`` what these name, outermost first, without what stands in round brackets,
    ``lambdas`` the functions in which the lambdas among them are written, and ``arguments`` the
    text of the types of its arguments.
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
    """Return a name with four digits at most, the outer ones, of each number that begins a word.

    No class or precision is told by more (``s16816`` begins with a letter); few names are left.
    """
    return name if name.startswith("_Z") else _INNER_DIGITS.sub("", name)


@lru_cache(maxsize=1 << 14)  # class, precision and tensor cores ask for the same names
def parse_name(name: str) -> KernelName:
    """Return the name of a kernel taken apart, mangled (Itanium) or not."""
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
    except (TypeError, UnicodeEncodeError):  # half of a surrogate pair, as JSON may hold
        return name


def words_of(identifier: str) -> str:
    """Return the words of an identifier: ``RMSNormKernel`` → ``rms norm kernel``."""
    return " ".join(filter(None, _HUMP.split(identifier))).lower()


def _split(text: str) -> tuple[str, str, str]:
    """Return head, template arguments and arguments of a declaration.

    Of several template arguments (a return type, a scope) the last before the arguments count.
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
    # The declared name without what it returns.
    return _RETURNS.sub("", "".join(flat).strip()).strip(), template, arguments


def _bracketed(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each outermost pair of brackets; an open one ends with the text."""
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
    """Return the names in template arguments that are not in round brackets, outermost first.

    With them those of which a lambda follows: ``f(int)::{lambda()#1}`` is of ``f``.
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
    """Stands for a compiled expression, of which it has the methods once they are asked for."""

    _expression: str
    _flags: int = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._expression, self._flags), name)
        setattr(self, name, found)
        return found


pattern: Final = cast("Callable[..., re.Pattern[str]]", _Pattern)
"""Makes of an expression, and flags, what has the methods of a compiled one."""
