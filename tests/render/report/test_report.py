"""The report: what it says, that it is one safe file, and that a browser shows it silently."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.conftest import Run
from tests.measures.generated_run import MS, Plan, make_trace_of
from tests.real_traces import NSYS
from tests.render.accessibility import serious_violations
from tests.render.browser import OpenPage
from tests.render.documents import measured
from tests.render.test_escape import HOSTILE
from tests.render.timeline.tasks import Reader
from tests.running import run
from traceprof.formats import open_trace
from traceprof.measures import analysis_names
from traceprof.model.activity import PARTS
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.trace import Trace, TraceInfo
from traceprof.render.briefing import briefing_of
from traceprof.render.palette import HEAT, category_of
from traceprof.render.registry import Options, render
from traceprof.render.report.charts import peer_matrix
from traceprof.render.report.render import render_report
from traceprof.session.answer import page
from traceprof.session.run import run_of
from traceprof.session.verdict import Verdict

ALL = list(analysis_names())
VERDICT = Note.of("A step of {step:ns} is the first sentence.", step=1_000_000)
NAMES = [name for name in HOSTILE if name != "\ud800"]


def _report(trace: Trace, window: str | None = None, title: str = "report", **more: Any) -> str:
    document = measured(trace, ALL, window)
    parts = {}
    if "breakdown" in document.results:
        total = document.results["breakdown"].to_frame("total")
        parts = {part: total[f"{part}_ns"].sum() / total["duration_ns"].sum() for part in PARTS}
    verdict = Verdict("input-bound", (VERDICT,), parts=parts, has_steps=True)
    document = replace(document, verdict=verdict, **more)
    return render_report(document, trace, Options(title=title))


def _training() -> Trace:
    """Four steps of 1 ms: 600 µs of computing, 100 µs of exposed communication, 300 µs idle.

    The first, whose span begins with its work, is cut by an edge: it does not count.
    """
    builder = TraceBuilder().process(1, rank=0).setting("torch", "2.13.0").device(0, "H100")
    for number in range(4):
        t = number * 1_000_000
        builder.step(t, t + 1_000_000, number)
        builder.kernel("gemm", t, t + 600_000, launched_ns=(t, t + 5_000))
        called = (t + 5_000, t + 6_000)
        builder.kernel("ncclAllReduce", t + 500_000, t + 700_000, stream=20, launched_ns=called)
    return builder.build(span=(0, 4_000_000))


def _ranks() -> Trace:
    """Two hosts of two ranks, rank 3 of which takes 40 ms longer backward in each of six steps."""
    extra = {(3, "backward"): 40 * MS}
    return make_trace_of(Plan(n_steps=6, hosts=["<b>a", "<b>a", "b", "b"], extra_ns=extra))


class _Tags(HTMLParser):
    """Counts tags and checks that they close in order."""

    VOID = frozenset({"meta", "rect", "line", "input", "br", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def _tags(html: str) -> dict[str, int]:
    parser = _Tags()
    parser.feed(re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL))
    assert parser.open == []
    return parser.seen


def test_the_first_lines_are_the_verdict_and_where_the_time_goes() -> None:
    html = _report(_training())
    told = html.replace("\N{NO-BREAK SPACE}", " ")
    assert "Input-bound. A step of 1.00 ms is the first sentence.</p>" in told
    legend = re.search(r'<ul class="legend">(.*?)</ul>', html)
    assert legend
    found = re.findall(r"</i>(.*?)</li>", legend.group(1))
    shares = ("60.0%", "10.0%", "0.0%", "0.0%", "30.0%")
    words = [part.replace("_", " ").capitalize() for part in PARTS]
    assert found == [f"{word} {share}" for word, share in zip(words, shares, strict=True)]


def test_the_first_screen_says_what_the_page_of_the_terminal_says() -> None:
    trace = _training()
    document = page(run_of(Ranks.of(trace)))
    html = render_report(document, trace, Options(title="report"))
    words = briefing_of(document)
    assert "H100" in words.workload
    assert words.answer.startswith("GPU-bound, partly host-bound. ")
    assert "GPU time per step of 1.00 ms: " in words.answer
    text = unescape(re.sub(r"<[^>]+>", " ", html[html.index("<h1>") : html.index("<footer>")]))
    said = " ".join(text.split())
    window = f"Window {words.window} {words.times}"
    told = [words.workload_line, window, *words.notes, words.answer]
    for part in [*told, *(text for _, text in words.remarks)]:
        assert " ".join(part.split()) in said
    in_terminal = " ".join(render("text", document, Options(width=10_000)).split())
    assert words.answer in in_terminal
    assert all(text in in_terminal for _, text in words.remarks)


def test_a_slow_step_has_the_command_that_explains_it() -> None:
    builder, at = TraceBuilder(), 0
    for number in range(8):
        length = (50 if number == 5 else 10) * MS
        builder.step(at, at + length, number).kernel("gemm", at + length - 9 * MS, at + length)
        at += length
    trace = builder.build(info=TraceInfo(path="/tmp/a b.sqlite"))
    assert (
        "To explain why step 5 is slow: traceprof explain &#x27;/tmp/a b.sqlite&#x27; step:5"
        in _report(trace)
    )
    assert "To explain why step" not in _report(_training())


def test_advice_is_a_list_with_what_to_do_and_where() -> None:
    html = _report(_training())
    advice = re.search(r'<ol class="findings" start="1".*?</ol>', html, re.DOTALL)
    assert advice
    assert "→ " in advice.group()
    assert "Caveat: " in advice.group()
    assert re.search(
        r'<a href="#at=-?\d+\.\.\d+&amp;mark=\d+\.\.\d+">worst case at ', advice.group()
    )


def test_bars_of_a_device_add_up_to_its_window() -> None:
    html = _report(_training())
    bar = re.search(r'class="bar".*?</div>', html, re.DOTALL)
    assert bar
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", bar.group())]
    assert widths == pytest.approx([60.0, 10.0, 30.0], abs=1e-3)
    assert "Compute 60.0%, Exposed communication 10.0%" in bar.group()


def test_a_trace_without_a_device_is_answered_by_its_phases() -> None:
    builder = TraceBuilder()
    for number in range(3):
        t = number * 1_000
        builder.phase("data", t, t + 100).phase("forward", t + 100, t + 400)
        builder.phase("backward", t + 400, t + 900).phase("optimizer", t + 900, t + 1_000)
    html = _report(builder.build())
    assert ">Not recorded</h2>" in html
    assert "no kernels recorded" in html


def test_the_page_is_well_formed_and_has_headings_captions_and_one_main() -> None:
    seen = _tags(_report(_training()))
    assert seen["h1"] == seen["main"] == seen["nav"] == 1
    assert seen["caption"] == seen["table"]
    assert seen["section"] == seen["h2"]


def _hostile() -> Trace:
    builder = TraceBuilder()
    for i, name in enumerate(NAMES):
        start = i * 1_000
        builder.kernel(name, start, start + 900, launched_ns=(start, start + 10), api=name)
        builder.range(name, start, start + 900).setting(name, name).device(i, name)
    return builder.build(info=TraceInfo(path="x", host=NAMES[0], profiler=NAMES[1]))


def test_hostile_names_are_only_text() -> None:
    seen = _tags(_report(_hostile(), title=NAMES[3]))
    assert not {"img", "iframe", "object", "link"} & set(seen)


def test_who_sends_to_whom_is_a_table_of_ranks_by_ranks() -> None:
    builder = TraceBuilder()
    for rank in range(11):
        builder.process(rank + 1, rank=rank)
        for op, other in (("send", (rank + 1) % 11), ("recv", (rank - 1) % 11)):
            more = {"process": rank + 1, "group_size": 11, "backend": "gloo", "peer_rank": other}
            builder.collective(op, 0, 1000, n_bytes=100 * (min(rank, other) + 1), **more)
    html = peer_matrix(run("peers", builder.build()))
    _tags(html)
    heads = re.findall(r"<th scope=\"row\">(.*?)</th>", html)
    assert heads == [f"rank {rank}" for rank in range(11)]
    cells = re.findall(r"--part:(\d+)%\" title=\"(.*?)\">(.*?)</td>", html)
    assert len(cells) == 11
    assert cells[9] == ("100", "gloo: 1.000 GB/s", "1.000 kB")


def test_the_page_is_bounded() -> None:
    builder = TraceBuilder()
    for i in range(500):
        builder.kernel("kernel " * 200 + str(i), i * 100, i * 100 + 50)
    assert len(_report(builder.build()).encode()) < 4_000_000


@pytest.mark.traces
@pytest.mark.parametrize("name", NSYS[::4])
def test_real_traces_have_a_report(name: str, real_trace: Callable[[str], Path]) -> None:
    html = _report(open_trace(real_trace(name)), title=name)
    _tags(html)
    assert len(html.encode()) < 6_000_000


@pytest.mark.chromium
def test_a_browser_shows_it_without_a_word(open_page: Callable[..., OpenPage]) -> None:
    page = open_page(_report(_hostile(), title=NAMES[3]))
    assert page.complaints == []
    assert all(url.startswith(("file:", "data:")) for url in page.requests)
    assert page.page.locator("#timeline .lane").count() > 3
    assert page.page.locator("h1").inner_text() == NAMES[3]


def test_a_run_has_a_heat_map_and_a_single_rank_has_none() -> None:
    html = _report(_ranks())
    _tags(html)
    section = html[html.index('id="rank-steps"') : html.index('id="hosts"')]
    assert section.count("<title>") == 4 * 5  # the first is cut by an edge
    assert "<title>rank 3, step 2; self time 200.0 ms (+25.0%);" in section
    assert "&lt;b&gt;a" in section
    assert 'class="chart heat"' not in _report(_training())


@pytest.mark.chromium
def test_the_heat_map_in_a_browser_light_and_dark(open_page: Callable[..., OpenPage]) -> None:
    page = open_page(_report(_ranks()))
    assert page.complaints == []
    hot, usual = (
        f"getComputedStyle(document.querySelector('#rank-steps .heat{level} rect')).fill"
        for level in (4, 2)
    )
    assert (page.js(hot), page.js(usual)) == (_rgb(HEAT[4].light), _rgb(HEAT[2].light))
    page.page.evaluate("() => { document.documentElement.dataset.theme = 'dark' }")
    assert (page.js(hot), page.js(usual)) == (_rgb(HEAT[4].dark), _rgb(HEAT[2].dark))
    boxes = page.js(
        "[...document.querySelectorAll('#rank-steps rect')].map((r) => r.getBoundingClientRect())"
        ".map((b) => [b.left, b.top])"
    )
    assert len({tuple(box) for box in boxes}) == 4 * 5


@pytest.mark.chromium
def test_findings_cells_and_rows_lead_into_a_page_that_cannot_hold_every_event(
    open_page: Callable[..., OpenPage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 3 takes 40 ms longer in each step, in step 4 another 100 ms."""
    plan = Plan(
        n_ranks=8,
        n_steps=6,
        extra_ns={(3, "backward"): 40 * MS},
        extra_of_step_ns={(3, "backward", 4): 100 * MS},
    )
    trace = make_trace_of(plan)
    monkeypatch.setattr("traceprof.render.report.render._MAX_ITEMS", 300)
    page = open_page(_report(trace))
    assert page.complaints == []
    assert page.js("traceprof.trace.duration_ns") > 4 * 200 * MS  # not one step alone
    places = page.page.locator("#findings div.place")
    assert places.count() > 0
    assert page.page.locator("#findings div.place p > a").count() == places.count()
    rows = page.page.locator("#rank-steps tbody").first.locator("tr")
    first = rows.first.locator("td").all_inner_texts()
    assert first[:2] == ["3", "4"]
    steps = run("steps", trace).table
    own = steps.take((steps["process"] == 103) & (steps["step"] == 4)).row(0)
    at, length = own["at_ns"], own["duration_ns"]
    selected = "traceprof.selection?.map((t) => t + traceprof.trace.offset_ns)"
    cell = page.page.locator("#rank-steps rect", has_text="rank 3, step 4;")
    for leading in (rows.first.locator("a"), cell):
        page.page.evaluate("() => { location.hash = ''; traceprof.choose(null); }")
        leading.click()
        Reader(page).until(selected)
        assert page.js(selected) == [at, at + length]
    # The page writes its address between the click and the event that tells of it.
    page.page.evaluate("() => { location.hash = ''; }")
    Reader(page).until("traceprof.selection === null")
    page.page.evaluate(
        "(to) => { traceprof.choose(null); location.hash = to; traceprof.address.writeNow(); }",
        cell.get_attribute("data-to"),
    )
    Reader(page).until(selected)
    assert page.js(selected) == [at, at + length]


def _rgb(color: str) -> str:
    return "rgb({}, {}, {})".format(*(int(color[i : i + 2], 16) for i in (1, 3, 5)))


@pytest.mark.chromium
def test_keys_and_wheel_are_the_page_s_until_the_reader_turns_to_the_timeline(
    open_page: Callable[..., OpenPage],
) -> None:
    page = open_page(_report(_training()))
    whole = page.js("traceprof.t1 - traceprof.t0")
    page.page.keyboard.press("w")
    assert page.js("traceprof.t1 - traceprof.t0") == whole
    page.page.locator(".plot").focus()
    page.page.keyboard.press("w")
    assert page.js("traceprof.t1 - traceprof.t0") == pytest.approx(0.7 * whole)


@pytest.mark.chromium
def test_a_figure_is_drawn_in_both_themes_and_its_bars_lead_into_the_timeline(
    open_page: Callable[..., OpenPage],
) -> None:
    page = open_page(_report(_training()))
    figure = page.page.locator("#steps figure.plotly-chart")
    figure.scroll_into_view_if_needed()
    page.page.locator("#steps figure[data-drawn]").wait_for()
    bars = page.page.locator("#steps .trace.bars").first.locator("path")
    assert bars.count() == 3
    compute = category_of("compute")
    fill = "getComputedStyle(document.querySelector('#steps .trace.bars path')).fill"
    assert page.js(fill) == _rgb(compute.light)
    page.page.evaluate("() => traceprof.toggleTheme()")
    assert page.js(fill) == _rgb(compute.dark)
    box = bars.nth(2).bounding_box()
    before = page.js("traceprof.redraws")
    page.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    Reader(page).until(f"traceprof.redraws > {before}")
    assert "rank=0" in page.js("location.hash") or page.js("location.hash").startswith("#at=")
    shown = page.js("[traceprof.t0, traceprof.t1]")
    assert shown[0] <= 2_000_000 < 2_700_000 <= shown[1]
    assert shown[1] - shown[0] < 3_000_000
    assert page.complaints == []
    assert serious_violations(page.page) == []


@pytest.mark.chromium
def test_both_axes_of_steps_have_round_ticks(open_page: Callable[..., OpenPage]) -> None:
    """Bars of 3.4 to 4.6 ms, of which plotly makes ticks by one; rates about 7 000 samples/s."""
    builder = TraceBuilder().process(1, rank=0).device(0, "H100")
    t = 0
    for number in range(14):
        length = 3_400_000 + 100_000 * (number % 13)
        builder.step(t, t + length, number).batch(t, 28)
        builder.kernel("gemm", t, t + length - 50_000, launched_ns=(t, t + 5_000))
        t += length
    page = open_page(_report(builder.build(span=(0, t))))
    page.page.locator("#steps figure.plotly-chart").scroll_into_view_if_needed()
    page.page.locator("#steps figure[data-drawn]").wait_for()
    for axis in ("xtick", "ytick", "y2tick"):
        texts = page.page.locator(f"#steps .{axis} text").all_text_contents()
        values = [float(text.replace(",", "")) for text in texts]  # "2,000", as in the text
        step = values[1] - values[0]
        assert f"{step:.0e}"[0] in "125", values
        assert float(f"{step:.0e}") == pytest.approx(step), values
        assert values == pytest.approx([values[0] + i * step for i in range(len(values))])
        assert len(values) > 2
        assert values[0] % step == pytest.approx(0)


@pytest.mark.chromium
def test_it_fits_a_phone(open_page: Callable[..., OpenPage]) -> None:
    page = open_page(_report(_training()), width=390)
    assert page.js("document.documentElement.scrollWidth") <= 390


@pytest.mark.chromium
def test_a_row_leads_to_its_place_in_the_timeline(open_page: Callable[..., OpenPage]) -> None:
    page = open_page(_report(_training()))
    link = page.page.locator("td a[href^='#at=']").first
    address = link.get_attribute("href")
    page.redrawn(f"location.hash = {address!r}")
    start, end = map(int, re.findall(r"-?\d+", str(address))[:2])
    offset = page.js("traceprof.trace.offset_ns")
    assert page.js("traceprof.t0") + offset <= max(offset, start)
    last = page.js("traceprof.trace.duration_ns") + offset
    assert page.js("traceprof.t1") + offset >= min(end, last)


@pytest.mark.traces
def test_the_command_writes_one_file(
    run_traceprof: Run, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    trace = real_trace("nsys/2025.1-llm-17k-kernels.sqlite")
    done = run_traceprof("report", trace, "-o", "r.html")
    assert done.returncode == 0, done.stderr
    assert "wrote r.html" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    assert run_traceprof("report", trace, "-o", "r.html").returncode == 2


@pytest.mark.chromium
def test_the_timeline_looks_the_same_inside_a_report(open_page: Callable[..., OpenPage]) -> None:
    page = open_page(_report(_training()))
    for box in ("canvas", ".figure svg"):
        left = page.js(f"document.querySelector('.plot {box}').getBoundingClientRect().left")
        assert left == page.js("document.querySelector('.plot').getBoundingClientRect().left")


def test_long_names_take_few_lines_on_paper(open_page: Callable[..., OpenPage]) -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::" + "functor<float>" * 14
    builder = TraceBuilder()
    for i in range(4):
        builder.kernel(name, 1_000_000 * i, 1_000_000 * i + 400_000)
    page = open_page(_report(builder.build()), width=710).page
    page.emulate_media(media="print")
    tallest = page.evaluate(
        "() => Math.max(...[...document.querySelectorAll('#gaps tr')]"
        ".map((row) => row.getBoundingClientRect().height))"
    )
    assert 10 < tallest < 60  # of 260 letters twice, which are short there
