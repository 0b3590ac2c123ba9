"""Mask secrets in command lines, variables, and names.

traceprof recognizes a secret by its name (an option, an assignment, a header, a URL parameter, a
JSON key) or by its shape (a login in a URL, tokens of well-known services). Doubtful values are
masked: a lost option value costs less than a leaked token.

The hooks also load this file in the program's own Python: 3.8 or later, without traceprof.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

# Relative import: inside a recorded program, this file belongs to another package.
from .secret_names import BARE_KEY, is_plainly_secret, looks_random, names_secret
from .tokens import (
    BEGINNINGS,
    HOOK,
    LOGIN,
    LOGIN_PROGRAMS,
    ORACLE,
    PASSWORD_PROGRAMS,
    PLACES_OF_PASSWORDS,
    SHORT,
    TOKENS,
)

if TYPE_CHECKING:
    from typing import TypeAlias


_SCHEME: Final = re.compile(
    r"\b(?:bearer|basic|digest|token)[ =:]+(?P<hidden>[^\s\"',;]{6,})", re.I
)
# Name and value of a secret side by side: list entries, arguments, tags
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
_Span: TypeAlias = "tuple[int, int]"
_Programs: TypeAlias = "set[str] | frozenset[str]"
MASK: Final = "***"
_KEPT: Final = re.compile(
    r"(NCCL|RCCL|GLOO|TORCH|PYTORCH|CUDA|CUBLAS|CUDNN|OMP|MKL|KMP|UCX|UCC|FI|PMI)_\w+"
    r"|(OMPI_COMM_WORLD|I_MPI|MPICH|MV2|MVP)_\w+|OMPI_MCA_(btl|pml|mtl|coll|osc|io|op)\w*"
    r"|SLURM_(JOB_ID|NNODES|NTASKS|PROCID|LOCALID|NODEID|JOB_NODELIST|TOPOLOGY_ADDR(_PATTERN)?|GPUS\w*)"
    r"|(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|NVIDIA_VISIBLE_DEVICES"
)
# Match a name only from its beginning: trying every letter of a name of megabytes takes minutes.
# Lookaheads emulate possessive quantifiers, which need Python 3.11; programs may run older ones.
_NAMED: Final = re.compile(
    r"(?:(?<![\w.\-\[\]/%])|(?<=%[0-9A-Fa-f][0-9A-Fa-f]))"
    r"(?=(?P<before>(?:(?![A-Za-z_])[\w.\-\[\]/])*))(?P=before)"
    r"(?=(?P<name>[A-Za-z_][\w.\-\[\]/]*))(?P=name)"
    r"(?:\\*[\"']|%2[27])?\s*(?:\]\s*)?(?:=>|:=|<<<|=|:(?!//)|%3[ADad])\s*(?=[^\s&;,}])"
)
_QUOTED: Final = re.compile(
    r"\"(?P<double>(?:\\.|[^\"\\])*)\"?|'(?P<single>(?:\\.|[^'\\])*)'?", re.DOTALL
)
# Characters that end an unquoted value, and brackets, which extend it to their closing bracket
_STOP: Final = re.compile(r"\\|[\s&;,\"'()\[\]{}]")
# Text that a range name with a secret contains; and the prefixes of module names
_SUSPECT: Final = re.compile(f"[=:]|PRIVATE KEY|{BEGINNINGS}")
_OF_MODULES: Final = ("layer:", "layer.backward:")
_HEADER: Final = re.compile(r"\s*(?P<name>[A-Za-z][\w-]*)\s*:(?!//)\s*(?P<hidden>\S.*)", re.DOTALL)
_OPTION: Final = re.compile(r"[-/+]{0,3}(?P<name>[A-Za-z_][^\s=]*?)=(?P<hidden>.*)", re.DOTALL)
_PIECE: Final = re.compile(r"\"(?:\\.|[^\"\\])*\"|'[^']*'|[^\s\"']+")
_ASKS_FOR_PASSWORD: Final = re.compile(r"-p(?P<hidden>(?=.*[^a-z\-_]).+|.+)", re.DOTALL)
_PLACING: Final = frozenset(program for program, _, _ in PLACES_OF_PASSWORDS)
_ADDRESS: Final = re.compile(r"(?:localhost|\[.*\]|\d+(?:\.\d+){3}|):\d{1,5}")
_PORT: Final = re.compile(r"[\d:.]+")
_SEPARATORS: Final = frozenset(":%,")
_USERS: Final = frozenset({"-u", "--user", "--proxy-user", "-U"})
_USER: Final = re.compile(r"(?:--(?:proxy-)?user=|-[uU])?[^:%\s/=]*[:%](?P<hidden>\S+)")
_IDS: Final = re.compile(r"(?<![^=uU])\d*:\d+$")  # user and group IDs, as in docker
_HAS_VALUE: Final = re.compile(r"=|:.")
_BARE_NAME: Final = re.compile(r"[A-Za-z_][\w.]*(?:-\w+)*:?")
_SCHEMES: Final = frozenset({"bearer", "basic", "digest"})
_LONG: Final = re.compile(r"[A-Za-z0-9]{32,}")
_KINDS: Final = re.compile(r"[a-z]+|[A-Z]+|[0-9]+")
_FEWEST_CHANGES: Final = 0.45


def spans_of_tokens(text: str) -> Iterator[_Span]:
    """Yield the spans of service tokens and of logins in URLs anywhere in ``text``."""
    for found in TOKENS.finditer(text):
        yield found.span()
    for found in SHORT.finditer(text):
        if _n_changes(found["rest"]) > _FEWEST_CHANGES * len(found["rest"]):
            yield found.span()
    for shape in (LOGIN, ORACLE, HOOK):
        for found in shape.finditer(text):
            yield found.span("hidden")


def storable(text: str) -> str:
    """Return ``text`` in a form that UTF-8 can encode; bytes that it cannot encode become "�"."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


class Secret(NamedTuple):
    """An argument that contains secrets: the original, the masked form, and the secret parts."""

    argument: str
    shown: str
    hidden: tuple[str, ...]


def kept_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables related to training, without those that may hold a secret."""
    return {
        name: masked_text(value)
        for name, value in sorted(environment.items())
        if _KEPT.fullmatch(name) and not names_secret(name)
    }


@lru_cache(maxsize=1 << 12)  # the files of a run repeat the same texts
def masked_text(text: str) -> str:
    """Return ``text`` with the secrets masked that names and shapes reveal."""
    return _masked(text, _hidden_in(text))


def masked_name(name: str) -> str:
    """Return the name of a range with clear secrets masked.

    Range names come from the program and its models. A word with other meanings ("token", "key") is
    masked only if its value looks like a secret.
    """
    if not _SUSPECT.search(name) or name.startswith(_OF_MODULES):
        return name
    plain = (
        (first, end)
        for first, end, of in _named_in(name)
        if is_plainly_secret(of) or looks_random(name[first:end])
    )
    return _masked(name, _joined([*spans_of_tokens(name), *plain]))


def masked_command(command: Sequence[str]) -> list[str]:
    """Return ``command`` with its secrets masked."""
    return [_masked(argument, spans) for argument, spans in _spans_of(list(map(storable, command)))]


def secrets_of(command: Sequence[str]) -> list[Secret]:
    """Return the arguments of ``command`` that `masked_command` masks, with their secrets."""
    return [
        Secret(
            argument, _masked(argument, spans), tuple(argument[first:end] for first, end in spans)
        )
        for argument, spans in _spans_of(list(map(storable, command)))
        if spans
    ]


def without_login(url: str) -> str:
    """Return a URL without its user name and password."""
    return re.sub(r"(?<!\w)(\w+://)[^/@\s]+@", r"\1", url)


def _masked(text: str, spans: Sequence[_Span]) -> str:
    for first, end in reversed(spans):
        text = text[:first] + MASK + text[end:]
    return text


def _spans_of(command: Sequence[str]) -> Iterator[tuple[str, list[_Span]]]:
    """Yield each argument with the spans to mask."""
    programs = {PurePath(argument).name for argument in command}
    places = set() if _PLACING.isdisjoint(programs) else _places_of_passwords(command, programs)
    before = ""
    for place, argument in enumerate(command):
        is_at_place = place in places and argument
        spans = [(0, len(argument))] if is_at_place else _of_argument(argument, before, programs)
        yield argument, spans
        before = argument


def _places_of_passwords(words: Sequence[str], programs: _Programs) -> set[int]:
    """Return the indices of ``words`` that are passwords because of their position."""
    plain = [place for place, word in enumerate(words) if not word.startswith("-")]
    names = [PurePath(words[place]).name for place in plain]
    found = set()
    for program, called, number in PLACES_OF_PASSWORDS:
        if program not in programs:
            continue
        sought = called.split()
        for first in range(len(plain) - len(sought) - number + 1):
            if names[first : first + len(sought)] == sought:
                found.add(plain[first + len(sought) + number - 1])
    return found


def _of_argument(argument: str, before: str, programs: _Programs) -> list[_Span]:
    """Return the spans to mask in an argument that follows the argument ``before``."""
    if not argument:
        return []
    if _is_secret(argument, before, programs):
        return [(0, len(argument))]
    spans = [*_hidden_in(argument), *_drawn_in(argument)]
    if not _SEPARATORS.isdisjoint(argument):
        spans += _logins_in(argument, before, programs)
    glued = _ASKS_FOR_PASSWORD.fullmatch(argument)
    if glued and _is_password(glued["hidden"], programs):
        spans.append(glued.span("hidden"))
    if re.search(r"\s", argument):
        spans += _of_line(argument, programs)
    return _joined(spans)


def _logins_in(argument: str, before: str, programs: _Programs) -> Iterator[_Span]:
    """Yield the span of a password behind a user name: ``-u me:PASSWORD``."""
    is_glued = argument.startswith(("-u", "-U", "--user=", "--proxy-user="))
    user = _USER.fullmatch(argument) if before in _USERS or is_glued else None
    if user and "://" not in argument and not _IDS.search(argument):
        yield user.span("hidden")
    for option, separator, known in LOGIN_PROGRAMS:
        if known.isdisjoint(programs):
            continue
        skipped = len(option) if argument.startswith(option) else 0
        login = argument[skipped:]
        first = login.find(separator) + 1
        is_login = first and (skipped or before == option) and "://" not in login
        if is_login and not _ADDRESS.fullmatch(login):
            yield skipped + first, len(argument)


def _drawn_in(argument: str) -> Iterator[_Span]:
    """Yield the spans of random text: long words with upper case, lower case, and digits.

    This is the last resort. In random text three of five characters differ in kind from the one
    before, in names one of six. Hashes have no upper case.
    """
    for found in _LONG.finditer(argument):
        kinds = {"0" if c.isdecimal() else "A" if c.isupper() else "a" for c in found[0]}
        if _n_changes(found[0]) > _FEWEST_CHANGES * len(found[0]) and len(kinds) == 3:
            yield found.span()


def _n_changes(text: str) -> int:
    """Return the number of runs of letters of one case, or of digits, in ``text``."""
    return len(_KINDS.findall(text))


def _of_line(text: str, programs: _Programs) -> Iterator[_Span]:
    """Yield the spans to mask in a shell line, or in another text of several words."""
    before = ""
    pieces = list(_PIECE.finditer(text))
    words = [_unquoted(piece[0]) for piece in pieces]
    known = {*programs, *(PurePath(word).name for word in words)}
    places = set() if _PLACING.isdisjoint(known) else _places_of_passwords(words, known)
    for place, word in enumerate(words):
        piece = pieces[place]
        shift = piece.start() + (len(word) < len(piece[0]))
        if place in places:
            yield shift, shift + len(word)
        elif len(word) < len(text):
            for first, end in _of_argument(word, before, known):
                yield shift + first, shift + end
        before = word


def _unquoted(piece: str) -> str:
    is_quoted = len(piece) > 1 and piece[0] == piece[-1] and piece[0] in "\"'"
    return piece[1:-1] if is_quoted else piece


def _is_secret(value: str, before: str, programs: _Programs) -> bool:
    """Return whether all of ``value`` is a secret: of an option, a name, or ``wandb login``."""
    if before in PASSWORD_PROGRAMS:
        is_secret = not programs.isdisjoint(PASSWORD_PROGRAMS[before])
    elif before.startswith("-"):
        is_secret = not _HAS_VALUE.search(before) and names_secret(before, value)
    elif value.startswith("-") or not _BARE_NAME.fullmatch(before):
        is_secret = False
    elif before.rstrip(":").lower() in _SCHEMES:
        is_secret = looks_random(value)
    else:
        is_clear = (before.isupper() and "_" in before) or is_plainly_secret(before)
        is_secret = names_secret(before, value) and (is_clear or looks_random(value))
    if is_secret or "login" not in programs or value.startswith("-") or before in _USERS:
        return is_secret
    return bool(BARE_KEY.fullmatch(value)) or looks_random(value)


def _is_password(value: str, programs: _Programs) -> bool:
    """Return whether the text glued to ``-p`` is a password, not a port or a single-dash option."""
    if not programs.isdisjoint(PASSWORD_PROGRAMS["-p"]):
        return True
    return not _PORT.fullmatch(value) and bool(re.search(r"[^a-z\-_=]", value.partition("=")[0]))


def _hidden_in(text: str) -> list[_Span]:
    """Return the spans to mask in ``text``, independent of its context."""
    spans = list(spans_of_tokens(text))
    for shape in (_SCHEME, _LOGS_IN, _IN_ADDRESS):
        spans += [found.span("hidden") for found in shape.finditer(text)]
    beside = (found for shape in _BESIDE for found in shape.finditer(text))
    spans += [found.span("hidden") for found in beside if names_secret(found["name"])]
    named = filter(None, (_HEADER.fullmatch(text), _OPTION.fullmatch(text)))
    spans += [
        match.span("hidden") for match in named if names_secret(match["name"], match["hidden"])
    ]
    spans += [(first, end) for first, end, _ in _named_in(text)]
    return _joined(spans)


def _named_in(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end, and name of each value in ``text`` whose name denotes a secret.

    The value of another name may contain names itself, such as an assignment inside an option.
    """
    place = 0
    while found := _NAMED.search(text, place):
        place = found.end()
        # Parse only values that may be masked: in a chain of names each value contains the next.
        if not names_secret(found["name"]):
            continue
        first, end = _value_at(text, place)
        if text[first:end].lower() in _SCHEMES:
            end = _value_at(text, min(end + 1, len(text)))[1]
        if first < end and names_secret(found["name"], text[first:end]):
            yield first, end, found["name"]
            place = end


def _value_at(text: str, place: int) -> _Span:
    """Return the span of the value that begins at ``place``, including its brackets."""
    quoted = _QUOTED.match(text, place)
    if quoted and quoted.lastgroup:
        return quoted.span(quoted.lastgroup)
    depth, end = 0, place
    while found := _STOP.search(text, end):
        end = found.start()
        if found[0] == "\\":
            end += 2
            continue
        if found[0] in ")]}":
            depth -= 1
        if depth < 0 or (depth == 0 and found[0] not in "()[]{}"):
            return place, end
        depth += found[0] in "([{"
        end += 1
    return place, len(text)


def _joined(spans: Sequence[_Span]) -> list[_Span]:
    """Return the non-empty spans in order, with touching ones merged."""
    joined: list[_Span] = []
    for first, end in sorted(span for span in spans if span[0] < span[1]):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined
