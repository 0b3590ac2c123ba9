"""What of command lines and variables may be shown: secrets are masked.

A secret is told by its name (an option, an assignment, a header, a parameter of an address, a key
of JSON) or by its shape (a login in an address, the tokens of well-known services). A doubt is
masked: the name of an option that is lost costs less than a token that is kept.

The hooks load this file, too, in the program's own Python: from 3.8 on, without traceprof.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

from .text import storable

if TYPE_CHECKING:
    from typing import TypeAlias

__all__ = [
    "MASK",
    "Secret",
    "kept_variables",
    "masked_command",
    "masked_text",
    "secrets_of",
    "without_login",
]

_Span: TypeAlias = "tuple[int, int]"

MASK: Final = "***"

_KEPT: Final = re.compile(
    r"(NCCL|RCCL|GLOO|TORCH|PYTORCH|CUDA|CUBLAS|CUDNN|OMP|MKL|KMP|UCX|UCC|FI|PMI)_\w+"
    r"|(OMPI_COMM_WORLD|I_MPI|MPICH|MV2|MVP)_\w+|OMPI_MCA_(btl|pml|mtl|coll|osc|io|op)\w*"
    r"|SLURM_(JOB_ID|NNODES|NTASKS|PROCID|LOCALID|NODEID|JOB_NODELIST|TOPOLOGY_ADDR(_PATTERN)?|GPUS\w*)"
    r"|(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|NVIDIA_VISIBLE_DEVICES"
)

_SECRET_WORDS: Final = frozenset(
    {"auth", "authentication", "authorization", "bearer", "cookie", "credential", "credentials"}
    | {"creds", "dsn", "jwt", "key", "license", "mfa", "oauth", "otp", "pass", "passcode"}
    | {"passphrase", "passwd", "password", "pat", "psk", "pw", "pwd", "sas", "secret", "secrets"}
    | {"sid", "sig", "signature", "token", "totp", "webhook"}
)
_ALSO_OF_MODELS: Final = frozenset({"token", "key"})
_SMALL: Final = re.compile(r"-?\d{1,8}(?:\.\d*)?")
_SECRET_ENDS: Final = (
    *("apikey", "accesskey", "secretkey", "privatekey", "sharedkey", "signingkey", "accountkey"),
    *("accesstoken", "authtoken", "refreshtoken", "idtoken", "apitoken", "authkey", "userpwd"),
    *("clientsecret", "sharedsecret", "passwd", "password", "passphrase", "authorization"),
)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_TOKENS: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[\w-]{8,}|[sr]k_(?:live|test)_\w{8,}|gh[opsur]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}"
    r"|hf_(?=\w*(?:\d|[A-Z]))\w{8,}|xox[abeprs]-[\w-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{20,}"
    r"|eyJ[\w-]{8,}(?:\.[\w-]*){0,4}|npm_\w{20,}|pypi-[\w-]{16,}|dop_v1_\w{16,}|ya29\.[\w-]{8,}"
    r"|SG\.[\w-]{8,}\.[\w-]{8,}|nvapi-[\w-]{8,}|r8_\w{16,}|dckr_pat_[\w-]{8,}|lsv2_\w{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*)",
    re.DOTALL,
)
_LOGIN: Final = re.compile(r"(?<!\w)\w+://(?P<hidden>[^/@\s]+)@")
_HOOK: Final = re.compile(
    r"https?://(?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks"
    r"|[\w.-]*webhook\.office\.com)/(?P<hidden>[^\s\"']+)"
)
_SCHEME: Final = re.compile(
    r"\b(?:bearer|basic|digest|token)[ =:]+(?P<hidden>[^\s\"',;]{6,})", re.I
)
# A name is tried once, from its beginning: one of megabytes takes seconds from each of its letters.
# What is looked ahead to is taken whole (`*+` is of Python 3.11, programs run under older ones).
_NAMED: Final = re.compile(
    r"(?<![\w.\-\[\]/])(?=(?P<before>(?:(?![A-Za-z_])[\w.\-\[\]/])*))(?P=before)"
    r"(?=(?P<name>[A-Za-z_][\w.\-\[\]/]*))(?P=name)"
    r"[\"']?\s*(?:=>|:=|=|:(?!//))\s*(?=[^\s&;,}])"
)
_VALUE: Final = re.compile(
    r"(?:\"(?P<double>(?:\\.|[^\"\\])*)\"?|'(?P<single>(?:\\.|[^'\\])*)'?|(?P<plain>[^\s&;,\"'}]+))"
)
_HEADER: Final = re.compile(r"\s*(?P<name>[A-Za-z][\w-]*)\s*:(?!//)\s*(?P<hidden>\S.*)", re.DOTALL)
_OPTION: Final = re.compile(r"[-/+]{0,3}(?P<name>[A-Za-z_][^\s=]*?)=(?P<value>.*)", re.DOTALL)
_PIECE: Final = re.compile(r"\"(?:\\.|[^\"\\])*\"|'[^']*'|[^\s\"']+")
_ASKS_FOR_PASSWORD: Final = re.compile(r"-p(?P<hidden>(?=.*[^a-z\-_]).+|.+)", re.DOTALL)
_PASSWORD_PROGRAMS: Final = frozenset(
    {"mysql", "mysqldump", "mysqladmin", "mysqlimport", "mariadb", "sshpass", "7z", "zip", "unzip"}
)
_PORT: Final = re.compile(r"[\d:.]+")
_USERS: Final = frozenset({"-u", "--user", "--proxy-user", "-U"})
_BARE_KEY: Final = re.compile(r"[0-9a-fA-F]{32,}|[\w\-]{40,}")


class Secret(NamedTuple):
    """An argument that holds secrets: as it is, as it may be shown, and the secrets alone."""

    argument: str
    shown: str
    hidden: tuple[str, ...]


def kept_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are about training, without those that may hold a secret."""
    return {
        name: masked_text(value)
        for name, value in sorted(environment.items())
        if _KEPT.fullmatch(name) and not _names_secret(name)
    }


def masked_text(text: str) -> str:
    """Return ``text`` without the secrets that its names and shapes tell."""
    return _masked(text, _hidden_in(text))


def masked_command(command: Sequence[str]) -> list[str]:
    """Return ``command`` with its secrets masked."""
    return [_masked(argument, spans) for argument, spans in _spans_of(list(map(storable, command)))]


def secrets_of(command: Sequence[str]) -> list[Secret]:
    """Return what `masked_command` does not show of ``command``, by argument."""
    return [
        Secret(
            argument, _masked(argument, spans), tuple(argument[first:end] for first, end in spans)
        )
        for argument, spans in _spans_of(list(map(storable, command)))
        if spans
    ]


def without_login(url: str) -> str:
    """Return an address without the name and password in it."""
    return re.sub(r"(\w+://)[^/@\s]+@", r"\1", url)


def _masked(text: str, spans: Sequence[_Span]) -> str:
    for first, end in reversed(spans):
        text = text[:first] + MASK + text[end:]
    return text


def _spans_of(command: Sequence[str]) -> Iterator[tuple[str, list[_Span]]]:
    """Yield each argument with the parts of it that are hidden."""
    programs = {PurePath(argument).name for argument in command}
    before = ""
    for argument in command:
        spans = _of_argument(argument, before, programs)
        yield argument, spans
        before = argument


def _of_argument(argument: str, before: str, programs: set[str] | frozenset[str]) -> list[_Span]:
    """Return what is hidden of an argument that stands behind ``before``."""
    if not argument:
        return []
    if _asks_for_secret(before, argument, programs) or (
        before == "login" and _BARE_KEY.fullmatch(argument)
    ):
        return [(0, len(argument))]
    if before in _USERS and ":" in argument and "://" not in argument:
        return [(argument.index(":") + 1, len(argument))]
    spans = list(_hidden_in(argument))
    glued = _ASKS_FOR_PASSWORD.fullmatch(argument)
    if glued and _is_password(glued["hidden"], programs):
        spans.append(glued.span("hidden"))
    if re.search(r"\s", argument):
        spans += _of_line(argument, programs)
    return _joined(spans)


def _of_line(text: str, programs: set[str] | frozenset[str]) -> Iterator[_Span]:
    """Yield what is hidden in a line of a shell, or another text of several words."""
    before = ""
    pieces = list(_PIECE.finditer(text))
    known = {*programs, *(PurePath(piece[0]).name for piece in pieces)}
    for piece in pieces:
        word, shift = piece[0], piece.start()
        if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'":
            word, shift = word[1:-1], shift + 1
        if len(word) < len(text):
            for first, end in _of_argument(word, before, known):
                yield shift + first, shift + end
        before = word


def _asks_for_secret(option: str, value: str, programs: set[str] | frozenset[str]) -> bool:
    """Return whether ``value``, which follows ``option``, is a secret."""
    if option == "-p":
        return not programs.isdisjoint(_PASSWORD_PROGRAMS)
    return option.startswith("-") and "=" not in option and _names_secret(option, value)


def _is_password(value: str, programs: set[str] | frozenset[str]) -> bool:
    """Return whether what is glued to ``-p`` is a password: no port, and no option of one dash."""
    if not programs.isdisjoint(_PASSWORD_PROGRAMS):
        return True
    return not _PORT.fullmatch(value) and bool(re.search(r"[^a-z\-_=]", value.partition("=")[0]))


def _hidden_in(text: str) -> list[_Span]:
    """Return what is hidden of ``text``, whatever stands around it."""
    spans = [found.span() for found in _TOKENS.finditer(text)]
    for shape in (_LOGIN, _HOOK, _SCHEME):
        spans += [found.span("hidden") for found in shape.finditer(text)]
    header = _HEADER.fullmatch(text)
    if header and _names_secret(header["name"], header["hidden"]):
        spans.append(header.span("hidden"))
    option = _OPTION.fullmatch(text)
    if option and _names_secret(option["name"], option["value"]):
        spans.append(option.span("value"))
    spans += _named_in(text)
    return _joined(spans)


def _named_in(text: str) -> Iterator[_Span]:
    """Yield the values in ``text`` whose names tell that they are secrets.

    The value of another name may hold names itself, as an assignment in an option does.
    """
    place = 0
    while found := _NAMED.search(text, place):
        place = found.end()
        # Only what may be hidden is read to its end: a chain of names is one value in another.
        value = _VALUE.match(text, place) if _names_secret(found["name"]) else None
        if value and value.lastgroup and _names_secret(found["name"], value[value.lastgroup]):
            yield value.span(value.lastgroup)
            place = value.end()


def _joined(spans: Sequence[_Span]) -> list[_Span]:
    """Return the spans in order, those that touch as one; empty ones are none."""
    joined: list[_Span] = []
    for first, end in sorted(span for span in spans if span[0] < span[1]):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


def _names_secret(name: str, value: str = "") -> bool:
    """Return whether a whole word of ``name`` stands for a secret ("num-keys" does not).

    Models have tokens and keys, too: small numbers (``--pad-token 0``) are none.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    told = _SECRET_WORDS.intersection(words)
    if told <= _ALSO_OF_MODELS and _SMALL.fullmatch(value):
        return False
    return bool(told) or any(word.endswith(_SECRET_ENDS) for word in (*words, "".join(words[-2:])))
