"""What big tables hold, against a look at every row."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traceprof.formats.nsys.schema import process_of
from traceprof.formats.sqlite.columns import NULL
from traceprof.formats.sqlite.conditions import is_one_of
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.pages.totals import Counted, Scan, TableExtent
from traceprof.formats.sqlite.survey import RowSource, scan_each

PROCESS = "coalesce(pid >> 24 & 16777215, -1)"
OWNER = {"process": PROCESS, "device": "device"}
WITH_ENDS = RowSource("events", **OWNER)
INSTANTS = RowSource("events", end="", **OWNER)
SOME = RowSource("events", where="kind = 1", **OWNER)
COUNTED = Counted(
    "start", "end", "pid", "device", process_of, 24, is_one_of("kind", (1,)), ("start", "end")
)
IN_PAGES = RowSource("events", where="kind = 1", counted=COUNTED, **OWNER)

rows = st.lists(
    st.tuples(
        st.integers(-5, 60),
        st.none() | st.integers(-5, 70),
        st.none() | st.sampled_from([7 << 24, (7 << 24) + 3, 8 << 24, (1 << 48) + (7 << 24)]),
        st.none() | st.integers(0, 2),
        st.integers(0, 1),
    ),
    max_size=30,
)


def brute(found, source):
    kept = [row for row in found if not source.where or row[4] == 1]
    if not kept:
        return Scan(TableExtent(), [])
    ends = [row[1] for row in kept if source.end and row[1] is not None]
    starts = [row[0] for row in kept]
    n_open = sum(row[1] is None for row in kept) if source.end else 0
    owners = {(-1 if row[2] is None else row[2] >> 24 & 0xFFFFFF, row[3]) for row in kept}
    return Scan(TableExtent(len(kept), n_open, min(starts), max(starts + ends)), list(owners))


def stored(path, found):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE IF EXISTS events")
        database.execute("CREATE TABLE events (start, end, pid, device, kind)")
        database.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", found)
        database.execute("DELETE FROM events WHERE start = 13")
    return [row for row in found if row[0] != 13]


@pytest.mark.parametrize("source", [WITH_ENDS, INSTANTS, SOME, IN_PAGES])
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(found=rows)
def test_what_a_table_holds(tmp_path_factory, source, found):
    path = tmp_path_factory.getbasetemp() / "scan.sqlite"
    kept = stored(path, found)
    (told,) = scan_each(Database(path), [source])
    expected = brute(kept, source)
    assert told.extent == expected.extent
    owners = [(process, None if device == NULL else device) for process, device in told.owners]
    assert sorted(owners, key=repr) == sorted(expected.owners, key=repr)
    if told.n_of is not None:
        assert sum(told.n_of.values()) == told.extent.n_rows


def test_a_file_that_starts_late_is_moved(tmp_path):
    stored(tmp_path / "a.sqlite", [(100, 120, 7 << 24, 0, 1), (90, 95, 7 << 24, 0, 1)])
    (told,) = scan_each(Database(tmp_path / "a.sqlite"), [WITH_ENDS], 90)
    assert told == Scan(TableExtent(2, 0, 0, 30), [(7, 0)])
