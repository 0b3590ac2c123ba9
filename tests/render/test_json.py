"""The JSON document: its schema holds, is fresh, and its numbers are those of the tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.reference import declared_specs, reference_of, runs_page, schema_of
from tests.builders import TraceBuilder
from tests.real_traces import KINETO, NSYS, NVPROF
from tests.render.documents import document_of_results, measured
from tests.requirements import ROOT
from traceprof.formats import open_trace
from traceprof.measures import analysis_names
from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    key,
    same,
    total,
)
from traceprof.model.table import Table
from traceprof.model.trace import TraceInfo
from traceprof.render.escape import visible_text
from traceprof.render.formatting import plain, to_json
from traceprof.render.registry import Options, render
from traceprof.session.verdict import Verdict

SCHEMA = ROOT / "docs" / "schema" / "analysis-2.json"
SPECS = declared_specs()
WITHOUT_TIME = "nvprof/zero-kernels.sql"
SOME = [name for name in (*NSYS[::2], *KINETO[::3], *NVPROF) if name != WITHOUT_TIME]


SPEC = ResultSpec(
    (
        TableSpec(
            "edges",
            "who sends to whom",
            (
                key("process", "who", Unit.NUMBER),
                key("step", "when", Unit.NUMBER),
                same("remark", Unit.TEXT, "what is odd"),
                same("at_ns", Unit.AT_NS, "when it starts"),
                total("size_bytes", Unit.BYTES, "how much"),
                same("is_late", Unit.FLAG, "whether it came last"),
            ),
        ),
        TableSpec("total", "all of them", (total("size_bytes", Unit.BYTES, "how much"),)),
    ),
    (total("lost_ns", Unit.NS, "what is lost"),),
)


def hand_made() -> Result:
    rows = [
        (1, 0, "", 5, 10.0, True),
        (2, 0, Note.of("{n:count} of them", n=3), 6, math.nan, False),
        (2, 0, (Note("a"), "b"), np.int64(7), 3.0, False),
    ]
    columns = [column.name for column in SPEC.tables[0]]
    edges = Table.of_rows([dict(zip(columns, row, strict=True)) for row in rows])
    return Result(
        "edges",
        SPEC,
        {"edges": edges, "total": Table({"size_bytes": [13]})},
        {"lost_ns": np.int64(4)},
        (Note.of("{lost:ns} lost", lost=math.nan),),
    )


def in_json(document: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(render("json", document))
    return found


def validator(specs: dict[str, ResultSpec]) -> jsonschema.Draft202012Validator:
    schema = schema_of(specs)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_every_row_has_a_key_of_its_own() -> None:
    trace = TraceBuilder().process(1, rank=7).process(2, rank=8).kernel("k", 0, 10).build()
    document = document_of_results(trace, {"edges": hand_made()}, ranks={1: 7, 2: 8})
    found = in_json(document)["results"]["edges"]
    rows = found["tables"]["edges"]["rows"]
    assert [row["key"] for row in rows] == [
        "rank=7 step=0",
        "rank=8 step=0",
        "rank=8 step=0 #2",
    ]
    assert list(rows[0]) == ["key", "rank", *(column.name for column in SPEC.tables[0])]
    assert found["tables"]["total"] == {
        "keys": [],
        "columns": [
            {"name": "size_bytes", "unit": "bytes", "combine": "sum", "meaning": "how much"}
        ],
        "rows": [{"key": "all", "size_bytes": 13}],
    }


def test_unknown_is_null_and_notes_keep_their_numbers() -> None:
    trace = TraceBuilder().kernel("k", 0, 10).build()
    found = in_json(document_of_results(trace, {"edges": hand_made()}))["results"]["edges"]
    first, second, third = found["tables"]["edges"]["rows"]
    assert (first["size_bytes"], second["size_bytes"], first["is_late"]) == (10.0, None, True)
    assert second["remark"] == {
        "text": "3 of them",
        "template": "{n:count} of them",
        "values": {"n": 3},
    }
    assert third["remark"] == [{"text": "a", "template": "a", "values": {}}, "b"]
    assert found["scalars"] == {"lost_ns": {"value": 4, "unit": "ns"}}
    assert found["notes"] == [
        {"text": "– lost", "template": "{lost:ns} lost", "values": {"lost": None}}
    ]


def test_every_time_counts_from_the_start_of_the_run() -> None:
    builder = TraceBuilder().kernel("a", 1_000, 1_100).kernel("b", 1_300, 1_500)
    trace = builder.build(info=TraceInfo(utc_epoch_ns=10**18), span=(900, 2_000))
    found = in_json(measured(trace, ["breakdown", "kernels"], "active"))
    assert found["clock"] == {
        "zero": "start of the run",
        "utc_epoch_ns": 10**18 + 900,
        "trace_clock_ns": 900,
        "duration_ns": 1_100,
    }
    window = found["window"]
    assert (window["start_ns"], window["end_ns"], window["duration_ns"]) == (100, 600, 500)
    assert found["schema"] == "traceprof.analysis/2"


def test_a_hand_made_document_follows_the_schema() -> None:
    trace = TraceBuilder().kernel("k", 0, 10).build()
    verdict = Verdict("", (Note.of("{n:count}", n=1),), next_command="traceprof show kernels TRACE")
    document = document_of_results(
        trace, {"edges": hand_made()}, ranks={1: 7, 2: 8}, verdict=verdict, missing={"x": "why"}
    )
    validator({"edges": SPEC}).validate(in_json(document))
    validator({}).validate(in_json(document))


@pytest.mark.parametrize("breach", ["text", "number", "column", "table"])
def test_the_schema_notices_what_was_not_declared(breach: str) -> None:
    document = in_json(
        document_of_results(TraceBuilder().kernel("k", 0, 10).build(), {"edges": hand_made()})
    )
    tables = document["results"]["edges"]["tables"]
    row = tables["edges"]["rows"][0]
    changes: dict[str, Callable[[], object]] = {
        "text": lambda: row.update(size_bytes="10"),
        "number": lambda: row.update(remark=3),
        "column": lambda: row.update(color="red"),
        "table": lambda: tables.update(more=tables["total"]),
    }
    changes[breach]()
    assert not validator({"edges": SPEC}).is_valid(document)


@pytest.mark.traces
@pytest.mark.parametrize("name", SOME)
def test_what_analyses_say_of_real_traces_follows_the_published_schema(
    name: str, real_trace: Callable[[str], Path]
) -> None:
    trace = open_trace(real_trace(name))
    found = in_json(measured(trace, analysis_names()))
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8"))).validate(found)
    for result in found["results"].values():
        for table in result["tables"].values():
            keys = [row["key"] for row in table["rows"]]
            assert len(keys) == len(set(keys))
            assert not [one for one in keys if " #" in one and one.rsplit(" #")[1].isdigit()]


def test_the_published_schema_and_reference_are_fresh() -> None:
    fresh = "run scripts/schema"
    assert SCHEMA.read_text("utf-8") == to_json(schema_of(SPECS)), fresh
    assert (ROOT / "docs" / "tables.md").read_text("utf-8") == reference_of(SPECS), fresh
    runs = (ROOT / "docs" / "runs.md").read_text("utf-8")
    assert runs == runs_page(runs), fresh


@pytest.mark.parametrize("name", SPECS)
def test_every_declaration_says_what_it_is(name: str) -> None:
    for table in SPECS[name].tables:
        assert table.about
        assert len({column.name for column in table}) == len(table.columns)
        assert all(column.meaning and column.name != "key" for column in table)
    assert all(column.meaning for column in SPECS[name].scalars)


def test_values_become_plain() -> None:
    assert plain({"a": np.float64("inf"), 1: (np.nan, np.int64(3), True)}) == {
        "a": None,
        "1": [None, 3, True],
    }


def test_nothing_is_left_out_whatever_the_options() -> None:
    trace = TraceBuilder().kernel("k", 0, 10).build()
    document = document_of_results(trace, {"edges": hand_made()})
    assert render("json", document, Options(rows=1)) == render("json", document)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # No controls: these are escaped.
    | st.text(st.characters(min_codepoint=32, max_codepoint=0x17F, exclude_characters="\x7f")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(min_codepoint=32, max_codepoint=126)), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_the_text_is_that_of_json(document: Any) -> None:
    wanted = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    assert to_json(document) == visible_text(wanted) + "\n"


@pytest.mark.parametrize("value", [float("nan"), [1, float("inf")], {"a": {"b": float("nan")}}])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        to_json(value)
