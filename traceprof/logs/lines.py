"""Read the lines of a text file of any size, remove prefixes of launchers, and parse timestamps."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections import deque
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
"""Maximum length of a line in characters; the rest of a longer line is not read."""

DAMAGED: Final = (
    "the file is damaged or truncated; traceprof read the part before the damage ({why})"
)
"""The note on a file that is damaged, with its `RawLines.damage`."""
_CHUNK_BYTES: Final = 1 << 20
_GZIP: Final = b"\x1f\x8b"
_ENCODINGS: Final = (
    *((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16")),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# A carriage return or several backspaces move back in the line; the next text overwrites it.
_BREAKS: Final = re.compile(r"\r*+\n|\r++|\x08++")
_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]|\x1b"
)
# Pasted text often lost its ESC. In the middle of a line the rest may have another meaning.
_BARE_COLOR: Final = re.compile(r"^(?:\[[0-9;]{1,8}m)+")
_MPI: Final = r"\[(?:\d+,)?(?P<{name}>\d+)(?:,\d+)?\]<std(?:out|err|diag)>:"
_PREFIXES: Final = (
    # mpirun --tag-output, horovodrun; --timestamp-output adds a date in front
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]{8} \d{4} *)?" + _MPI.format(name="mpi") + " ?",
    # torchrun --tee, torch tracebacks
    r"\[rank(?P<rank>\d+)\]:\s?",
    r"\[[A-Za-z_]+(?P<local>\d+)\]:\s?",
    # srun --label
    r"\s{0,5}(?P<srun>\d{1,6}): ",
    # pdsh, DeepSpeed launcher
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
    # systemd journal
    r"[A-Z][a-z]{2} [ \d]\d [\d:]{8} (?P<journal>[\w.-]+) [\w./-]+(?:\[\d+\])?: ",
    r"std(?:out|err): ",
    r"> ",
)
_PREFIX: Final = re.compile("|".join(_PREFIXES))
_TRAILING_TAG: Final = re.compile(_MPI.format(name="mpi") + r"\s*$")
_RANKS: Final = ("mpi", "rank", "local", "srun", "ray")
_NODES: Final = ("host", "service", "pod", "ip", "replica", "journal")
_MAX_PREFIXES: Final = 5
_MONTH_NAMES: Final = (
    "Jan",
    "Feb",
    "Mar",
    "Apr",
    "May",
    "Jun",
    "Jul",
    "Aug",
    "Sep",
    "Oct",
    "Nov",
    "Dec",
)
_MONTHS: Final = {name: i + 1 for i, name in enumerate(_MONTH_NAMES)}
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
_MAX_STAMP_CHARS: Final = 600
_LEAP_YEAR: Final = 2000
_HALF_A_YEAR_S: Final = 182 * 86_400
_DURATION: Final = re.compile(
    r"(?:(?P<d>\d+) days?,? *|(?P<d2>\d+)[d-] *)?(?:(?:(?P<h>\d+):)?(?P<min>\d+):)?"
    r"(?P<s>\d+(?:\.\d+)?)"
)


@dataclass(slots=True)
class RawLines:
    """The lines of a text file, unchanged except for bytes that cannot be decoded.

    Memory use is bounded for any file. After reading, ``damage`` says why it ended early ("" if it
    did not), and ``cut_count`` is the number of lines that were too long.
    """

    path: Path
    limit: int | None = None
    damage: str = field(default="", init=False)
    cut_count: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[str]:
        """Yield the lines, including redrawn ones, of the first ``limit`` characters.

        Raises:
            TraceError: the file cannot be read.
        """
        rest, is_cut, seen = "", False, 0
        for chunk in self._chunks():
            seen += len(chunk)
            text = rest + chunk
            # A carriage return at the end may belong to a newline at the start of the next chunk.
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
        """Return the first ``limit`` characters of the text, with lines of any length.

        Raises:
            TraceError: the file cannot be read.
        """
        found, seen = [], 0
        for chunk in self._chunks():
            found.append(chunk)
            seen += len(chunk)
            if self.limit is not None and seen >= self.limit:
                break
        return "".join(found)

    def _chunks(self) -> Iterator[str]:
        """Yield the decoded text in chunks; set ``damage`` if the file ends early."""
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
                # Not read(): for a truncated gzip file it would return nothing.
                while data := file.read1(_CHUNK_BYTES):
                    yield decoder.decode(data).replace("\0", "")
                yield decoder.decode(b"", final=True).replace("\0", "")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.damage = str(error) or "the file is truncated"
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read ({error.strerror or error})") from error


def damage_of(path: Path) -> str:
    """Return why a gzip file cannot be read to its end; "" if it can, and for other files."""
    with path.open("rb") as file:
        is_packed = file.read(len(_GZIP)) == _GZIP
    lines = RawLines(path)
    if is_packed:
        deque(lines, maxlen=0)
    return lines.damage


class LogLine(NamedTuple):
    """One line: ``text`` without prefixes of launchers, ``raw`` with prefixes but without colors.

    ``rank`` and ``node`` come from the prefixes (None and "" if unknown). Of several prefixes the
    last one counts, because it is closest to the program.
    """

    text: str
    raw: str
    rank: int | None = None
    node: str = ""


def cleaned(raw_lines: Iterable[str]) -> Iterator[LogLine]:
    """Yield clean lines; skip empty ones.

    mpirun tags text after each newline. Between redraws its tag is at the end of a line and applies
    to the next line.
    """
    tagged: int | None = None
    for raw in raw_lines:
        line = clean(raw)
        rank = line.rank if line.rank is not None else tagged
        tagged, text = None, line.text
        if text.endswith(":") or text[-1:].isspace():
            at_end = _TRAILING_TAG.search(text)
            if at_end is not None:
                tagged, text = int(at_end["mpi"]), text[: at_end.start()]
        if text.strip():
            yield LogLine(text, line.raw, rank, line.node)


def clean(raw: str) -> LogLine:
    """Return one line without escape sequences, colors, and prefixes of launchers."""
    if "\x1b" in raw:
        raw = _ESCAPES.sub("", raw)
    raw = _BARE_COLOR.sub("", raw)
    at, rank, node = 0, None, ""
    for _ in range(_MAX_PREFIXES):
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
    """Parse the timestamps of one log, in seconds after the first one.

    ``base_s`` is the first timestamp, in whole seconds since 1970 on the log's own clock. A
    timestamp without a year gets the year of the last timestamp that had one. The year increases by
    one when timestamps jump back by more than half a year, because the log then spans New Year.
    """

    def __init__(self) -> None:
        self.base_s: int | None = None
        self._year: int | None = None
        self._last_s: int | None = None

    def read(self, text: str) -> float | None:
        """Return the timestamp of ``text`` in seconds after the first one; None if it has none."""
        text = text[:_MAX_STAMP_CHARS]
        for stamp in _STAMPS:
            match = stamp.search(text)
            if match is None:
                continue
            found = self._seconds(match)
            if found is not None:
                return found
        return None

    def since(self, whole_s: int, part_s: float) -> float:
        """Return the seconds after the first time, of a time since 1970 in whole and part."""
        if self.base_s is None:
            self.base_s = whole_s
        return whole_s - self.base_s + part_s

    def _seconds(self, match: re.Match[str]) -> float | None:
        """Return the time of a matched timestamp; None if it is no valid date."""
        groups = match.groupdict()
        month = _MONTHS.get(groups["name"]) if groups.get("name") else int(groups["mon"])
        year = int(groups["y"]) if groups.get("y") else (self._year or _LEAP_YEAR)
        if month is None:
            return None
        try:
            seconds = _unix_seconds(groups, year, month)
            if groups.get("y"):
                self._year = year
            elif self._last_s is not None and seconds < self._last_s - _HALF_A_YEAR_S:
                self._year = year + 1
                seconds = _unix_seconds(groups, year + 1, month)
        except ValueError:
            return None
        self._last_s = seconds
        return self.since(seconds, float(f"0.{groups['part']}") if groups.get("part") else 0.0)


def _unix_seconds(groups: dict[str, str], year: int, month: int) -> int:
    day, hour, minute, second = (int(groups[name]) for name in ("d", "h", "min", "s"))
    return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())


def seconds_of(text: str) -> float | None:
    """Return a duration such as "1:42:42", "1 day, 2:03:04", or "12.5" in seconds, or None."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    days = match["d"] or match["d2"] or 0
    hours, minutes = match["h"] or 0, match["min"] or 0
    return int(days) * 86_400 + int(hours) * 3600 + int(minutes) * 60 + float(match["s"])
