"""Lines of a file of any size, without what terminals and launchers add, and their times."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from traceprof.errors import TraceError
from traceprof.files import special_file_kind

if TYPE_CHECKING:
    from io import BufferedReader


LONGEST: Final = 1 << 16
"""Characters of a line that are read; what lies behind is left out."""

_CHUNK: Final = 1 << 20
_GZIP: Final = b"\x1f\x8b"
_ENCODINGS: Final = (
    *((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16")),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# A carriage return and a run of backspaces both go back in the line: what follows is drawn over it.
_BREAKS: Final = re.compile(r"\r*+\n|\r++|\x08++")
_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]|\x1b"
)
# Text that was pasted often lost its ESC; in the middle of a line it may be something else.
_BARE_COLOR: Final = re.compile(r"^(?:\[[0-9;]{1,8}m)+")
_MPI: Final = r"\[(?:\d+,)?(?P<{name}>\d+)(?:,\d+)?\]<std(?:out|err|diag)>:"
_PREFIXES: Final = (
    # mpirun --tag-output, horovodrun; --timestamp-output writes the date before it
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]{8} \d{4} *)?" + _MPI.format(name="mpi") + " ?",
    # torchrun --tee, and the tracebacks of torch
    r"\[rank(?P<rank>\d+)\]:\s?",
    r"\[[A-Za-z_]+(?P<local>\d+)\]:\s?",
    # srun --label
    r"\s{0,5}(?P<srun>\d{1,6}): ",
    # pdsh, and the launcher of DeepSpeed
    r"(?P<host>(?:worker|node|host|compute|gpu|instance|dgx|nid|ip|hgx|cn)(?:[^\W\d]|[.-])*+\d[\w.-]*+"
    r"|\d{1,3}(?:\.\d{1,3}){3}): ",
    # docker compose, kubectl logs --prefix, containerd
    r"(?P<service>[A-Za-z][\w.-]*[_-]\d+) +\| ?",
    r"\[pod/(?P<pod>[\w.-]+)/[\w.-]+\] ",
    r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] ",
    # Ray, SkyPilot
    r"\((?:[\w.:-]+,? )?(?:rank=(?P<ray>\d+), )?pid=\d+(?:, ip=(?P<ip>[\d.]+))?\)\s?",
    # torchx, nemo-run: role and replica
    r"(?P<replica>(?=[\w.-]*[A-Za-z])[\w.-]+/\d+) (?=\S| )",
    # the journal
    r"[A-Z][a-z]{2} [ \d]\d [\d:]{8} (?P<journal>[\w.-]+) [\w./-]+(?:\[\d+\])?: ",
    r"std(?:out|err): ",
    r"> ",
)
_PREFIX: Final = re.compile("|".join(_PREFIXES))
_AT_THE_END: Final = re.compile(_MPI.format(name="mpi") + r"\s*$")
_RANKS: Final = ("mpi", "rank", "local", "srun", "ray")
_NODES: Final = ("host", "service", "pod", "ip", "replica", "journal")
_MOST_PREFIXES: Final = 5
_NAMES: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS: Final = {name: i + 1 for i, name in enumerate(_NAMES)}
_TIME: Final = r"(?P<h>\d\d):(?P<min>\d\d):(?P<s>\d\d)(?:[.,](?P<part>\d{1,9}))?"
_STAMPS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<y>(?:19|20)\d\d)[-/](?P<mon>\d\d)[-/](?P<d>\d\d)[ T_,]" + _TIME,
        r"(?P<name>[A-Z][a-z]{2}) +(?P<d>\d{1,2}) " + _TIME + r" (?P<y>(?:19|20)\d\d)",
        r"(?P<d>\d{1,2}) (?P<name>[A-Z][a-z]{2}) (?P<y>(?:19|20)\d\d) " + _TIME,
        r"(?<![\w/])(?P<mon>\d\d)/(?P<d>\d\d) " + _TIME,
        r"(?<!\w)[DIWEF](?P<mon>\d\d)(?P<d>\d\d) " + _TIME,
        r"(?P<name>[A-Z][a-z]{2}) +(?P<d>\d{1,2}) " + _TIME,
    )
)
_WHERE: Final = 600
_LEAP_YEAR: Final = 2000
_HALF_A_YEAR_S: Final = 182 * 86_400
_CLOCK: Final = re.compile(
    r"(?:(?P<d>\d+) days?,? *|(?P<d2>\d+)[d-] *)?(?:(?:(?P<h>\d+):)?(?P<min>\d+):)?"
    r"(?P<s>\d+(?:\.\d+)?)"
)


@dataclass(slots=True)
class RawLines:
    """The lines of a text file, as they are but for what cannot be decoded.

    Memory is bounded whatever the file holds. ``damage`` says why reading ended early, once it has.
    """

    path: Path
    limit: int | None = None
    damage: str = field(default="", init=False)
    cut_count: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[str]:
        """Yield the lines, those that were drawn over too; of the first ``limit`` characters.

        Raises:
            TraceError: the file cannot be read.
        """
        rest, is_cut, seen = "", False, 0
        for chunk in self._chunks():
            seen += len(chunk)
            text = rest + chunk
            # A return at the end may belong to the newline that begins the next chunk.
            held = len(text) - len(text.rstrip("\r"))
            whole = text[: len(text) - held]
            parts = _BREAKS.split(whole) if "\r" in whole or "\x08" in whole else whole.split("\n")
            for part in parts[:-1]:
                if not is_cut:
                    yield part[:LONGEST]
                is_cut = False
            last = parts[-1]
            if len(last) > LONGEST:
                if not is_cut:
                    self.cut_count += 1
                    yield last[:LONGEST]
                last, is_cut = "", True
            rest = last + "\r" * min(held, 1)
            if self.limit is not None and seen >= self.limit:
                return
        rest = rest.rstrip("\r")
        if rest and not is_cut:
            yield rest[:LONGEST]

    def text(self) -> str:
        """Return the whole text, of the first ``limit`` characters, lines of any length in it."""
        found, seen = [], 0
        for chunk in self._chunks():
            found.append(chunk)
            seen += len(chunk)
            if self.limit is not None and seen >= self.limit:
                break
        return "".join(found)

    def _chunks(self) -> Iterator[str]:
        if kind := special_file_kind(self.path):
            raise TraceError(f"{self.path}: {kind}, expected a file")
        try:
            with self.path.open("rb") as plain:
                head = plain.read(4)
                plain.seek(0)
                is_packed = head.startswith(_GZIP)
                file = cast("BufferedReader", gzip.GzipFile(fileobj=plain)) if is_packed else plain
                if is_packed:
                    head = file.read(4)
                    file.seek(0)
                names = (name for mark, name in _ENCODINGS if head.startswith(mark))
                decoder = codecs.getincrementaldecoder(next(names, "utf-8"))("replace")
                # Not read(): of a packed file that ends too early it returns nothing at all.
                while data := file.read1(_CHUNK):
                    yield decoder.decode(data).replace("\0", "")
                yield decoder.decode(b"", final=True).replace("\0", "")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.damage = str(error) or "the file is truncated"
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read ({error.strerror or error})") from error


class LogLine(NamedTuple):
    """One line: ``text`` without what was put before it, ``raw`` with it, but without colors.

    ``rank`` and ``node`` are what the prefixes say (None, "": nothing); of several prefixes the
    last one, which is closest to the program.
    """

    text: str
    raw: str
    rank: int | None = None
    node: str = ""


def cleaned(raw_lines: Iterable[str]) -> Iterator[LogLine]:
    """Yield ``raw_lines`` clean, without those that are empty.

    mpirun tags what ends with a newline: between redraws its tag stands at the end of a line, and
    tells of the next one.
    """
    tagged: int | None = None
    for raw in raw_lines:
        line = clean(raw)
        rank = line.rank if line.rank is not None else tagged
        tagged, text = None, line.text
        if text.endswith(":") or text[-1:].isspace():
            at_end = _AT_THE_END.search(text)
            if at_end is not None:
                tagged, text = int(at_end["mpi"]), text[: at_end.start()]
        if text.strip():
            yield LogLine(text, line.raw, rank, line.node)


def clean(raw: str) -> LogLine:
    """Return one line clean."""
    if "\x1b" in raw:
        raw = _ESCAPES.sub("", raw)
    raw = _BARE_COLOR.sub("", raw)
    at, rank, node = 0, None, ""
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(raw, at)
        if match is None:
            break
        at = match.end()
        name = match.lastgroup
        if name in _RANKS:
            rank = int(match[name][:9])
        elif name in _NODES:
            node = match[name]
    return LogLine(raw[at:], raw, rank, node)


class LogClock:
    """Reads the time stamps of one log, in seconds after the first of them.

    ``base_s`` is that first one, in whole seconds since 1970 on the log's own clock.

    Stamps without a year get that of the last one that had one, and a later one where they jump
    back by months: logs over New Year.
    """

    def __init__(self) -> None:
        self.base_s: int | None = None
        self._year: int | None = None
        self._last_s: int | None = None

    def read(self, text: str) -> float | None:
        """Return the time at which ``text`` says that it was written; None where it does not."""
        text = text[:_WHERE]
        for stamp in _STAMPS:
            match = stamp.search(text)
            if match is None:
                continue
            found = self._seconds(match)
            if found is not None:
                return found
        return None

    def since(self, whole_s: int, part_s: float) -> float:
        """Return a time, given as whole and part of a second since 1970, after the first one."""
        if self.base_s is None:
            self.base_s = whole_s
        return whole_s - self.base_s + part_s

    def _seconds(self, match: re.Match[str]) -> float | None:
        own = match.groupdict()
        month = _MONTHS.get(own["name"]) if own.get("name") else int(own["mon"])
        year = int(own["y"]) if own.get("y") else (self._year or _LEAP_YEAR)
        if month is None:
            return None
        try:
            seconds = _instant(own, year, month)
            if own.get("y"):
                self._year = year
            elif self._last_s is not None and seconds < self._last_s - _HALF_A_YEAR_S:
                self._year = year + 1
                seconds = _instant(own, year + 1, month)
        except ValueError:
            return None
        self._last_s = seconds
        return self.since(seconds, float(f"0.{own['part']}") if own.get("part") else 0.0)


def _instant(own: dict[str, str], year: int, month: int) -> int:
    day, hour, minute, second = (int(own[name]) for name in ("d", "h", "min", "s"))
    return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())


def seconds_of(text: str) -> float | None:
    """Return what "1:42:42", "00:08", "1 day, 2:03:04" or "12.5" are in seconds; else None."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        return None
    days = match["d"] or match["d2"] or 0
    hours, minutes = match["h"] or 0, match["min"] or 0
    return int(days) * 86_400 + int(hours) * 3600 + int(minutes) * 60 + float(match["s"])
