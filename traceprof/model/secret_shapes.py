"""Secrets that are told by their shape, or by a name that stands beside them.

The hooks load this file, too, in the program's own Python: from 3.8 on, without traceprof.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from .secret_names import names_secret

if TYPE_CHECKING:
    from typing import TypeAlias

__all__ = ["spans_beside_names", "spans_of_shapes", "spans_of_tokens"]

_Span: TypeAlias = "tuple[int, int]"

_TOKENS: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[\w-]{8,}|[sr]k_(?:live|test)_\w{8,}|gh[opsur]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}"
    r"|hf_(?=\w*(?:\d|[A-Z]))\w{8,}|xox[abeprs]-[\w-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{20,}"
    r"|eyJ[\w-]{8,}(?:\.[\w-]*){0,4}|npm_\w{20,}|pypi-[\w-]{16,}|dop_v1_\w{16,}|ya29\.[\w-]{8,}"
    r"|SG\.[\w-]{8,}\.[\w-]{8,}|nvapi-[\w-]{8,}|r8_\w{16,}|dckr_pat_[\w-]{8,}|lsv2_\w{16,}"
    r"|wandb_v1_[\w-]{8,}|(?:bot)?\d{6,12}:AA[\w-]{20,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*)",
    re.DOTALL,
)
_LOGIN: Final = re.compile(r"(?<!\w)\w+://(?P<hidden>[^/@\s]+)@")
_HOOK: Final = re.compile(
    r"https?://(?:hooks\.[\w.-]+|discord(?:app)?\.com/api/webhooks|[\w.-]*webhook\.office\.com)"
    r"/(?P<hidden>[^\s\"']+)"
)
_SCHEME: Final = re.compile(
    r"\b(?:bearer|basic|digest|token)[ =:]+(?P<hidden>[^\s\"',;]{6,})", re.I
)
# The name of a secret and its value side by side: rows of a list of variables, arguments, tags
_BESIDE: Final = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"\b(?:name|key)[\"']?\s*[:=]\s*[\"']?(?P<name>[\w.\-]{1,99})[\"']?[\s,;]+"
        r"[\"']?value[\"']?\s*[:=]\s*[\"']?(?P<hidden>[^\"',;\s}]+)",
        r"\bvalue[\"']\s*:\s*[\"'](?P<hidden>[^\"']+)[\"']\s*,\s*"
        r"[\"'](?:name|key)[\"']\s*:\s*[\"'](?P<name>[\w.\-]{1,99})",
        r"[\"'](?P<name>[A-Za-z]\w{0,30}_\w{1,60})[\"']\s*,\s*[\"'](?P<hidden>[^\"']+)",
        r"<(?P<name>[A-Za-z][\w.:\-]{0,99})>(?P<hidden>[^<]+)</",
        r"\b(?P<name>[A-Za-z_]\w{0,99})\(\s*[\"'](?P<hidden>[^\"']+)",
    )
)
_LOGS_IN: Final = re.compile(r"\blogin\(\s*[\"'](?P<hidden>[^\"']+)")
_IN_ADDRESS: Final = re.compile(r"[?&](?:code|hmac)=(?P<hidden>[^&\s\"'#]{12,})")


def spans_of_tokens(text: str) -> Iterator[_Span]:
    """Yield what services give out, and logins in addresses, wherever they stand in ``text``."""
    for found in _TOKENS.finditer(text):
        yield found.span()
    for shape in (_LOGIN, _HOOK):
        for found in shape.finditer(text):
            yield found.span("hidden")


def spans_of_shapes(text: str) -> Iterator[_Span]:
    """Yield these, and what somebody logs in with by a header, a call or an address."""
    yield from spans_of_tokens(text)
    for shape in (_SCHEME, _LOGS_IN, _IN_ADDRESS):
        for found in shape.finditer(text):
            yield found.span("hidden")


def spans_beside_names(text: str) -> Iterator[_Span]:
    """Yield the values in ``text`` that stand beside the name of a secret."""
    for shape in _BESIDE:
        for found in shape.finditer(text):
            if names_secret(found["name"]):
                yield found.span("hidden")
