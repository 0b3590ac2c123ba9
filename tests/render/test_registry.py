"""The ways out: one module and one line each; text, CSV, Markdown and HTML of a document."""

from __future__ import annotations

import csv
import io
import re
import sys
from html.parser import HTMLParser
from types import ModuleType

import pandas as pd
import pytest

from tests.builders import TraceBuilder
from tests.render.documents import document_of_results, measured
from tests.render.test_escape import HOSTILE
from tests.render.test_json import hand_made
from traceprof.errors import UsageError
from traceprof.model.results import Note
from traceprof.model.trace import Trace, TraceInfo
from traceprof.render import registry
from traceprof.render.registry import RENDERERS, Options, Renderer, render
from traceprof.session.answer import Document
from traceprof.session.verdict import Verdict

NAMES = [name for name in HOSTILE if name != "\ud800"]
FORMS = [renderer.name for renderer in RENDERERS]


def two_kernels(*names: str) -> Trace:
    builder = TraceBuilder().device(0, "H100")
    for i, name in enumerate(names or ("gemm", "relu")):
        builder.kernel(name, 100 * i, 100 * i + 50 - i)
    return builder.build(info=TraceInfo(path="/tmp/x.sqlite", profiler="nsys"))


def document(*names: str) -> Document:
    return measured(two_kernels(*names), ["breakdown", "kernels"])


def test_a_renderer_is_one_module_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fake_renderer")
    module.render_fake = lambda document, options: f"{[*document.results]} {options.rows}"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_renderer", module)
    fake = Renderer("fake", "for this test", "fake_renderer:render_fake")
    monkeypatch.setattr(registry, "RENDERERS", RENDERERS.with_more(fake))
    assert render("fake", document(), Options(rows=3)) == "['breakdown', 'kernels'] 3"


def test_a_form_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="unknown format 'pdf'; use text, json, csv"):
        render("pdf", document())


@pytest.mark.parametrize("renderer", RENDERERS, ids=lambda renderer: renderer.name)
def test_every_line_says_what_it_is_for(renderer: Renderer) -> None:
    assert renderer.summary


@pytest.mark.parametrize("form", [form for form in FORMS if form != "csv"])
def test_every_form_says_everything_that_must_be_read(form: str) -> None:
    trace = two_kernels()
    told = document_of_results(
        trace,
        {"edges": hand_made()},
        missing={"memory": "no samples recorded"},
        verdict=Verdict("", (Note.of("a step of {step:ns}", step=1_500),)),
    )
    text = render(form, told, Options(is_full=True))
    for words in ("a step of 1.50 µs", "– lost"):
        assert words in text.replace("\N{NO-BREAK SPACE}", " ")
    assert form == "text" or "no samples recorded" in text


def test_a_page_of_text_has_the_width_that_is_asked_for() -> None:
    long = document("void " + "very_long_name_of_a_kernel<" * 9, "relu")
    for width in (80, 120):
        text = render("text", long, Options(width=width))
        assert max(map(len, text.splitlines())) <= width
        assert "\x1b" not in text
    assert "\x1b[" in render("text", long, Options(colors="truecolor"))


def test_text_shows_the_parts_as_bars_and_the_table_with_what_is_hidden() -> None:
    lines = render("text", document(), Options(rows=1, width=80)).splitlines()
    assert lines[0] == "x.sqlite  recorded by nsys"
    assert lines[1] == "Window active  149 ns, from 0 ns to 149 ns of 149 ns"
    bar = next(line for line in lines if "█" * 10 in line)
    assert bar.strip() == "█" * 40 + "░" * 20
    assert "1 more row (--rows N, --csv, --json)" in lines
    assert any(re.match(r"gemm +gemm +1 +50 ns +50\.5%", line) for line in lines)


def test_a_table_that_is_too_wide_says_which_columns_it_hides() -> None:
    told = measured(two_kernels("x" * 60), ["kernels"])
    text = render("text", told, Options(width=60))
    (hidden,) = re.findall(r"hidden columns: (.*) \(--wide", " ".join(text.split()))
    assert hidden.startswith("share %, ")
    assert "x" * 60 not in text
    heading = next(line for line in text.splitlines() if "count" in line)
    assert not {*hidden.split(", ")} & {*re.split(r" {2,}", heading)}
    whole = render("text", told, Options(width=60, is_whole=True))
    assert "share %" in whole
    assert "x" * 60 in whole
    assert "--wide" not in whole
    shortened = [render("text", told, Options(width=width)) for width in (70, 110)]
    assert "--wide" in shortened[0]
    assert "--full-names" in shortened[1]


def test_very_long_names_are_shortened_unless_full_names_are_requested() -> None:
    told = measured(two_kernels("x" * 3000), ["kernels"])
    pipe = render("text", told, Options(is_whole=True))
    assert max(map(len, re.findall(r"x+…x+", pipe))) == 120
    assert "(--full-names shows all of them)" in pipe
    full = render("text", told, Options(is_whole=True, has_full_names=True))
    assert "x" * 3000 in full
    assert "--full-names" not in full
    assert "x" * 3000 in render("csv", told, Options(is_whole=True))


def test_long_names_stand_last_where_nothing_is_cut() -> None:
    told = measured(two_kernels("x" * 2_000), ["kernels"])
    whole = render("text", told, Options(is_whole=True, has_full_names=True))
    assert re.search(r"\n\w+ +1 .* x{2000}\n", whole)


def test_csv_is_the_table_as_it_is() -> None:
    one = measured(two_kernels(), ["kernels"])
    rows = list(csv.DictReader(io.StringIO(render("csv", one))))
    assert [row["name"] for row in rows] == ["gemm", "relu"]
    assert rows[0]["total_ns"] == "50"
    assert list(rows[0])[:4] == ["name", "activity", "count", "total_ns"]


def test_csv_holds_one_table_only() -> None:
    with pytest.raises(UsageError, match="--csv prints only one table"):
        render("csv", document())
    one = document_of_results(two_kernels(), {"edges": hand_made()})
    assert render("csv", one, Options(tables=("total",))) == "size_bytes\n13\n"
    with pytest.raises(UsageError, match="no table 'x'; use edges, total"):
        render("csv", one, Options(tables=("x",)))
    cells = list(csv.DictReader(io.StringIO(render("csv", one))))
    assert [cell["remark"] for cell in cells] == ["", "3 of them", "a; b"]
    assert [cell["size_bytes"] for cell in cells] == ["10.0", "", "3.0"]


@pytest.mark.parametrize(
    "name",
    [
        *("=1+1", "+cmd", "-x", "@SUM(A1)", " =x"),
        *(
            "\uff1d1+1",
            "\uff0bcmd",
            "\uff0dx",
            "\uff20SUM(A1)",
            "\ufe661",
            "\u22121",
            "\u200b=x",
            "\ufeff =x",
        ),
    ],
)
def test_no_name_is_a_formula(name: str) -> None:
    table = pd.read_csv(io.StringIO(render("csv", measured(two_kernels(name), ["kernels"]))))
    assert table["name"][0].startswith("'")


def test_markdown_is_a_table_in_which_names_are_text() -> None:
    text = render("markdown", document("a|b*c*", "[x](http://evil)"))
    assert "| a\\|b\\*c\\* |" in text
    assert "\\[x\\](http://evil)" in text
    rules = [line for line in text.splitlines() if line.startswith("| ---") or "| :---" in line]
    assert rules[-1].startswith("| :--- | :--- | ---: |")
    assert "## GPU time by kernel name" in text


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_text_in_every_form(name: str) -> None:
    told = document(name, name + "2")
    parser = _Tags()
    parser.feed(render("html", told, Options(title=name)))
    assert not {"script", "img", "svg", "iframe", "object", "link", "span"} & parser.seen
    for form in ("text", "markdown", "html"):
        assert not set(render(form, told)) & {"\x1b", "\u202e", "\u2028"}


def test_the_page_of_tables_runs_nothing() -> None:
    html = render("html", document())
    assert "script-src 'none'" in html
    assert html.count("<table>") == html.count("<caption>") == 3
    assert '<td class="number" style="--part:' in html
