"""Ways to damage a file: its bytes, the rows of a database, the values of a document, its lines."""

from __future__ import annotations

import gzip
import json
import random
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from tests.formats.xplane_file import varint

_PAGE: Final = 4096
NUMBERS: Final[tuple[Any, ...]] = (
    *(None, -1, 0, 1, 2**31, -(2**31), 2**53 + 1, 2**61, 2**62, -(2**62), 2**63 - 1, -(2**63)),
    *(0.5, -0.0, 1e300, -1e300, "", "12", "1e5", "text", "\u0967\u0968", b"\x00\xff", 4 * 10**18),
)
TEXTS: Final = (
    *("", " ", "\x00", "\x1b[2J\x1b]0;x\x07", "\u202egnp.exe", "</script><script>alert(1)", "=1+1"),
    *(
        "\uff1d1+1",
        "' OR 1=1 --",
        '"; DROP TABLE StringIds; --',
        "../../etc/passwd",
        "|a|b|\n# c",
        "é" * 9,
    ),
    *("\ufeffx", "%s%n%{x}", "$x^2$", "[x](javascript:alert(1))", "A" * 100_000, "nccl" * 2_000),
)
SPELLINGS: Final = (
    *("null", "true", "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 400, "1e-400"),
    *('""', '"x"', "[]", "{}", "[[[[]]]]", "9223372036854775808", "-9223372036854775809", "0.1e19"),
    *("4611686018427387904", '"\\ud800"', "1.5.2", "0x10", "'x'", "-", "+1", "01", '"\\u0000"'),
)
"""What stands in JSON in place of a value, allowed or not."""


def damaged(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Return the name of a way to damage bytes, and what becomes of ``data``."""
    name, change = rng.choice(_OF_BYTES)
    return name, change(data, rng)


def _spot(data: bytes, rng: random.Random) -> int:
    """Return where to damage ``data``: seldom where there is nothing."""
    at = 0
    for _ in range(9):
        at = rng.randrange(len(data))
        if data[at]:
            break
    return at


def _truncated(data: bytes, rng: random.Random) -> bytes:
    return data[: len(data) * rng.randrange(100) // 100]


def _with_flips(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        changed[_spot(data, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _with_bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    at = _spot(data, rng)
    chosen = rng.choice((b"\x00", b"\xff", b"\x80\xff\xff", rng.randbytes(8), b"\xed\xa0\x80"))
    changed[at : at + rng.choice((0, len(chosen)))] = chosen
    return bytes(changed)


def _with_pages(data: bytes, rng: random.Random) -> bytes:
    pages = [data[at : at + _PAGE] for at in range(0, len(data), _PAGE)]
    one, other = rng.randrange(len(pages)), rng.randrange(len(pages))
    way = rng.choice(("swap", "zero", "noise", "drop", "double", "same"))
    if way == "swap":
        pages[one], pages[other] = pages[other], pages[one]
    elif way == "zero":
        pages[one] = bytes(len(pages[one]))
    elif way == "noise":
        pages[one] = rng.randbytes(len(pages[one]))
    elif way == "drop":
        del pages[one]
    elif way == "double":
        pages.insert(one, pages[other])
    else:
        pages[one] = pages[other]
    return b"".join(pages)


def _with_header(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[rng.randrange(min(200, len(changed)))] = rng.randrange(256)
    return bytes(changed)


def _with_tail(data: bytes, rng: random.Random) -> bytes:
    return data + rng.choice((b"\x00" * 5000, data, rng.randbytes(100), b"\n", b"}}]"))


_OF_BYTES: Final[tuple[tuple[str, Callable[[bytes, random.Random], bytes]], ...]] = (
    ("truncated", _truncated),
    ("bits flipped", _with_flips),
    ("bytes put in", _with_bytes),
    ("pages moved", _with_pages),
    ("header", _with_header),
    ("tail", _with_tail),
)


def change_database(path: Path, rng: random.Random) -> str:
    """Change rows, columns or tables of the database ``path``; return how."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        tables = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")
            if not name.startswith("sqlite_")
        ]
        filled = [one for one in tables if database.execute(f'SELECT 1 FROM "{one}"').fetchone()]
        table = rng.choice(filled if filled and rng.random() < 0.9 else tables)
        columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
        column = rng.choice(columns)
        way = rng.choice(_OF_DATABASES)
        with suppress(sqlite3.Error):  # a key cannot be NULL, a column cannot go: no change
            for statement, values in _statements(way, table, column, columns, rng):
                database.execute(statement, values)
    return way


_OF_DATABASES: Final = (
    *("value", "value", "value", "values", "text", "column gone", "table gone", "table empty"),
    *("doubled", "other case", "view", "column more", "without rowid", "reversed", "vacuumed"),
)


def _statements(
    way: str, table: str, column: str, columns: list[str], rng: random.Random
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    t, c = f'"{table}"', f'"{column}"'
    listed = ", ".join(f'"{one}"' for one in columns)
    if way == "value":
        row = f"(SELECT rowid FROM {t} LIMIT 1 OFFSET {rng.randrange(20)})"
        yield f"UPDATE {t} SET {c} = ? WHERE rowid = {row}", (rng.choice(NUMBERS),)
    elif way == "values":
        yield f"UPDATE {t} SET {c} = ?", (rng.choice(NUMBERS),)
    elif way == "text":
        yield f"UPDATE {t} SET {c} = ? WHERE typeof({c}) = 'text'", (rng.choice(TEXTS),)
        yield "UPDATE StringIds SET value = ? WHERE id % 3 = 0", (rng.choice(TEXTS),)
    elif way == "column gone":
        yield f"ALTER TABLE {t} DROP COLUMN {c}", ()
    elif way == "table gone":
        yield f"DROP TABLE {t}", ()
    elif way == "table empty":
        yield f"DELETE FROM {t}", ()
    elif way == "doubled":
        yield f"INSERT INTO {t} ({listed}) SELECT {listed} FROM {t}", ()
    elif way == "other case":
        yield f"ALTER TABLE {t} RENAME TO {table.swapcase()}_x", ()
        yield f'ALTER TABLE "{table.swapcase()}_x" RENAME TO {table.lower()}', ()
    elif way == "view":
        yield f"ALTER TABLE {t} RENAME TO hidden", ()
        yield f"CREATE VIEW {t} AS SELECT * FROM hidden", ()
    elif way == "column more":
        yield (
            f"ALTER TABLE {t} ADD COLUMN more DEFAULT {rng.choice(('NULL', '7', chr(39) * 2))}",
            (),
        )
    elif way == "without rowid":
        yield f"CREATE TABLE n ({listed}, key PRIMARY KEY) WITHOUT ROWID", ()
        yield f"INSERT INTO n SELECT *, rowid FROM {t}", ()
        yield f"DROP TABLE {t}", ()
        yield f"ALTER TABLE n RENAME TO {t}", ()
    elif way == "reversed":
        yield f"CREATE TABLE n AS SELECT * FROM {t} ORDER BY rowid DESC", ()
        yield f"DROP TABLE {t}", ()
        yield f"ALTER TABLE n RENAME TO {t}", ()
    else:
        yield f"PRAGMA page_size = {rng.choice((512, 1024, 8192, 65536))}", ()
        yield f"PRAGMA auto_vacuum = {rng.randrange(3)}", ()
        yield "VACUUM", ()


def changed_document(text: str, rng: random.Random) -> tuple[str, str]:
    """Return how a JSON text was changed, and the text."""
    way = rng.choice(_OF_DOCUMENTS)
    if way == "spelling":
        spots = list(re.finditer(r"(?<=: )(-?[\d.]+|\"[^\"]*\"|null|true)", text))
        if not spots:
            return way, text + "x"
        spot = rng.choice(spots)
        return way, text[: spot.start()] + rng.choice(SPELLINGS) + text[spot.end() :]
    if way == "nested":
        depth = rng.choice((50, 5_000, 100_000))
        inner = rng.choice(("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth))
        return way, text.replace("{", '{"deep": ' + inner + ", ", 1)
    document = json.loads(text)
    places = list(_places(document))
    if not places:
        return way, text
    holder, key = rng.choice(places)
    if way == "key gone":
        del holder[key]
    elif way == "doubled":
        chosen = next((one for one, at in places if isinstance(one, list)), None)
        if chosen:
            chosen.extend(chosen * rng.choice((1, 3)))
    elif way == "text":
        holder[key] = rng.choice(TEXTS)
    elif way == "shuffled":
        for one in {id(held): held for held, _ in places if isinstance(held, list)}.values():
            rng.shuffle(one)
    else:
        value = rng.choice(NUMBERS)
        holder[key] = value.decode("latin-1") if isinstance(value, bytes) else value
    return way, json.dumps(document, ensure_ascii=rng.random() < 0.5)


_OF_DOCUMENTS: Final = (
    *(
        "value",
        "value",
        "spelling",
        "spelling",
        "key gone",
        "doubled",
        "text",
        "shuffled",
        "nested",
    ),
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in list(inner):
        yield value, key
        if isinstance(one, dict | list):
            yield from _places(one)


def changed_lines(text: str, rng: random.Random) -> tuple[str, str]:
    """Return how a text of lines was changed (a log, TOML, a table), and the text."""
    lines = text.split("\n")
    way = rng.choice(
        ("line gone", "doubled", "swapped", "number", "word", "joined", "long", "ends")
    )
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    if way == "line gone":
        del lines[one]
    elif way == "doubled":
        lines[one:one] = lines[min(one, other) : max(one, other) + 1]
    elif way == "swapped":
        lines[one], lines[other] = lines[other], lines[one]
    elif way == "number":
        new = rng.choice(("nan", "inf", "-1", "1e400", "9" * 30, "", "0", "1_0", "\u0663", "0x1"))
        lines[one] = re.sub(r"\d+(\.\d+)?", new, lines[one], count=rng.choice((1, 0)))
    elif way == "word":
        lines[one] = re.sub(r"[A-Za-z_]+", lambda _: rng.choice(TEXTS)[:9_000], lines[one], count=1)
    elif way == "joined":
        lines[one : one + 2] = ["".join(lines[one : one + 2])]
    elif way == "long":
        lines[one] = lines[one] * rng.choice((2, 500))
    else:
        return way, rng.choice(("\r", "\r\n", "\n\n", "\x00")).join(lines)
    return way, "\n".join(lines)


def packed(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Return how ``data`` was gzipped, well or badly, and the bytes."""
    whole = gzip.compress(data, mtime=0)
    way = rng.choice(("well", "two members", "crc", "damaged", "zeros behind", "bomb", "twice"))
    if way == "two members":
        middle = rng.randrange(len(data))
        whole = gzip.compress(data[:middle], mtime=0) + gzip.compress(data[middle:], mtime=0)
    elif way == "crc":
        whole = whole[:-8] + rng.randbytes(8)
    elif way == "damaged":
        whole = damaged(whole, rng)[1]
    elif way == "zeros behind":
        whole += bytes(rng.randrange(1, 3_000))
    elif way == "bomb":
        blank = rng.choice((b" ", b"\x00", b"["))
        whole = gzip.compress(data[:-1] + blank * rng.choice((10**6, 10**8)) + data[-1:], mtime=0)
    elif way == "twice":
        whole = gzip.compress(whole, mtime=0)
    return way, whole


def changed_message(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Return how a field of a message (protobuf), or of one in it, was changed, and the bytes."""
    fields = list(_fields(data))
    if not fields:
        return "empty", data + b"\x0a\x00"
    at = rng.randrange(len(fields))
    number, kind, value = fields[at]
    inner = isinstance(value, bytes) and [*_fields(value)]
    if inner and rng.random() < 0.8:
        how, value = changed_message(bytes(value), rng)
        fields[at] = number, kind, value
    else:
        how, changed = _changed_field(number, kind, value, rng)
        fields[at : at + 1] = changed
    if how == "shuffled":
        rng.shuffle(fields)
    return how, b"".join(_field(*one) for one in fields)


def _changed_field(
    number: int, kind: int, value: int | bytes, rng: random.Random
) -> tuple[str, list[tuple[int, int, int | bytes]]]:
    way = rng.choice(("number", "number", "text", "gone", "doubled", "kind", "other", "shuffled"))
    text = rng.choice((*TEXTS, "a\rb", "\u202e")).encode()
    if way == "number":
        whole = [one for one in NUMBERS if isinstance(one, int)]
        return way, [(number, 0, rng.choice(whole) & (2**64 - 1))]
    if way == "text":
        return way, [(number, 2, rng.choice((text, b"\xff\xfe", b"")))]
    if way == "gone":
        return way, []
    if way == "doubled":
        return way, [(number, kind, value)] * rng.choice((2, 50))
    if way == "kind":
        return way, [(number, *rng.choice(((0, 7), (1, bytes(8)), (2, text), (5, bytes(4)))))]
    if way == "other":
        return way, [(rng.choice((1, 2, 3, 4, 7, 15, 2**29 - 1)), kind, value)]
    return way, [(number, kind, value)]


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield number, kind and value of each field; nothing where ``data`` is no message."""
    found: list[tuple[int, int, int | bytes]] = []
    at = 0
    while 0 <= at < len(data):
        key, at = _varint(data, at)
        kind, size = key & 7, {1: 8, 5: 4}.get(key & 7, 0)
        if kind == 0:
            value, at = _varint(data, at)
            found.append((key >> 3, kind, value))
            continue
        if kind == 2:
            size, at = _varint(data, at)
        if kind not in (1, 2, 5) or at < 0 or at + size > len(data):
            return
        found.append((key >> 3, kind, data[at : at + size]))
        at += size
    if at >= 0:
        yield from found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends; there −1 if it does not."""
    value = 0
    for shift in range(0, 70, 7):
        if not 0 <= at < len(data):
            return 0, -1
        value |= (data[at] & 127) << shift
        at += 1
        if not data[at - 1] & 128:
            return value, at
    return 0, -1


def _field(number: int, kind: int, value: int | bytes) -> bytes:
    head = varint(number << 3 | kind)
    if isinstance(value, int):
        return head + varint(value)
    return head + (varint(len(value)) if kind == 2 else b"") + value


def changed_values(document: Any, rng: random.Random) -> str:
    """Change one value of what lists and dictionaries hold, in place; return how."""
    way = rng.choice(("value", "value", "value", "text", "key gone", "doubled", "shuffled", "kind"))
    holder, key = rng.choice(list(_places(document)))
    if way == "key gone":
        del holder[key]
    elif way == "text":
        holder[key] = rng.choice(TEXTS)
    elif way == "doubled" and isinstance(holder, list):
        holder[key:key] = [holder[key]] * rng.choice((1, 40))
    elif way == "shuffled" and isinstance(holder, list):
        rng.shuffle(holder)
    elif way == "kind":
        holder[key] = rng.choice(([], {}, [None], {"a": 1}, (1, 2), b"x", 1.5, "1", True, {1: 2}))
    else:
        holder[key] = rng.choice((*NUMBERS, *(10**n for n in (25, 400)), float("nan")))
    return way


_SCALARS: Final = (
    *("true", "false", "0", "-1", "9223372036854775807", "9" * 30, "0x7f", "1_000", "inf", "-nan"),
    *(
        "1e400",
        "0.1",
        "1979-05-27T07:32:00Z",
        "1979-05-27",
        "07:32:00",
        '""',
        "''",
        '"a"',
        '"gemm"',
    ),
    *(
        '"\\u0000"',
        '"\\u202e"',
        "'''\na\n'''",
        '"""\\\n  b"""',
        '"moe"',
        '"(a+)+$"',
        '"0-1"',
        '"100Gb/s"',
    ),
    *("[]", "{}", '"n[0-999999999]"', '"' + "A" * 5_000 + '"'),
)


def document_of_toml(tables: Mapping[str, Sequence[str]], rng: random.Random) -> tuple[str, str]:
    """Return a document of TOML with ``tables``, whose keys have any values, and what is odd."""
    lines: list[str] = []
    for table in rng.choices([*tables, "other"], k=rng.randrange(1, 5)):
        keys = [*tables.get(table, ()), "other", '"a b"', "''"]
        head = rng.choice((f"[{table}]", f"[[{table}]]", f"[[{table}]]", f"[{table}.more]", ""))
        lines.append(head)
        for key in rng.sample(keys, rng.randrange(len(keys) + 1)):
            dotted = f"{key}.x" if rng.random() < 0.1 else key
            lines.append(f"{dotted} = {_toml_value(rng, 0)}")
    return "values of TOML", "\n".join(lines) + "\n"


def _toml_value(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth > 3 or kind < 0.7:
        return rng.choice(_SCALARS)
    parts = [_toml_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind < 0.85:
        return f"[{', '.join(parts)}]"
    if kind < 0.87:
        return "[" * 3_000 + "]" * 3_000
    return "{" + ", ".join(f"k{number} = {part}" for number, part in enumerate(parts)) + "}"


def any_pattern(rng: random.Random, depth: int = 0) -> str:
    """Return a regular expression, of those that Python would never end, too."""
    if depth > 4 or rng.random() < 0.3:
        return rng.choice(
            ("a", "b", "[ab]", ".", r"\w", r"\d+", "a|aa", "[^b]", "(?i)A", "é", "(", r"\1")
        )
    inner = any_pattern(rng, depth + 1)
    return rng.choice(
        (
            *(
                f"({inner})+",
                f"({inner})*",
                f"(?:{inner})+$",
                f"({inner}{inner})+",
                f"{inner}?{inner}",
            ),
            *(
                f"({inner}|{inner})*",
                f"(?={inner})",
                f"{inner}{{0,99}}",
                f"^{inner}",
                f"{inner}*?b",
            ),
            *(f"(?P<n{rng.randrange(9)}>{inner})", f"{inner}++", f"(?:{inner}){{2000}}"),
        )
    )
