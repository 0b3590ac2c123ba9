"""The report as a person reads it: one screen, its index, from a finding to its place, paper."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pypdfium2
import pytest

from tests.measures.generated_run import MS, Plan, make_trace_of
from tests.render.accessibility import serious_violations
from tests.render.browser import OpenPage
from tests.requirements import ROOT
from traceprof import measures
from traceprof.comparison.comparing import compare_named
from traceprof.measures.device.times import device_times
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.palette import category_of
from traceprof.render.registry import Options
from traceprof.render.report.compared import render_compared
from traceprof.render.report.places import StillPictures
from traceprof.render.report.render import SUBJECTS, render_report
from traceprof.session.answer import page as answer
from traceprof.session.run import Run, open_run, run_of
from traceprof.units import format_duration, parse_duration

pytestmark = pytest.mark.chromium

WINDOW = {"width": 1280, "height": 900}
PAPER_PX = {"A4": 710, "Letter": 733}  # the width between the margins


def _written(run: Run, folder: Path) -> Path:
    file = folder / "report.html"
    html = render_report(
        answer(run, measures.analysis_names()),
        run.within("all").trace(),
        Options(title="a run", rows=4),
    )
    file.write_text(html, "utf-8")
    return file


@pytest.fixture(scope="module")
def run() -> Run:
    """The run of the example notebook: two GPUs that wait for data and for copies."""
    return open_run([ROOT / "fixtures" / "traces" / "before.sqlite.gz"])


@pytest.fixture(scope="module")
def report(run: Run, browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenPage]:
    """Its report, opened once, in the dark."""
    context = browser.new_context(viewport=WINDOW, color_scheme="dark")
    opened = OpenPage(context.new_page())
    opened.go(_written(run, tmp_path_factory.mktemp("report")))
    yield opened
    context.close()


def _longest_gap(trace: Trace, window: TimeWindow, device: int) -> tuple[int, int]:
    """Return where the longest gap of a device is, by brute force."""
    work = sorted(
        (max(start, window.start_ns), min(end, window.end_ns))
        for name in ("kernels", "copies")
        for start, end, own in trace.table(name)
        .to_frame()[["start_ns", "end_ns", "device"]]
        .to_numpy()
        if own == device and end > window.start_ns and start < window.end_ns
    )
    until, gaps = window.start_ns, []
    for start, end in work:
        gaps.append((start - until, until))
        until = max(until, end)
    length, at = max(gaps)
    return at, at + length


def test_the_longest_gap_of_a_gpu_with_before_and_after_is_one_click_away(
    report: OpenPage, run: Run
) -> None:
    trace = run.within("all").trace()
    start, end = _longest_gap(trace, run.selection.window, 1)
    report.page.locator("nav summary", has_text="Idle").click()
    report.page.locator("nav a", has_text="Gaps").click()
    heads = report.page.locator("#gaps thead").first.locator("th").all_inner_texts()
    rows = [
        dict(zip(heads, row.locator("td").all_inner_texts(), strict=True))
        for row in report.page.locator("#gaps table").first.locator("tbody tr").all()
    ]
    first = next(row for row in rows if row["device"] == "1")
    assert first["duration"] == format_duration(end - start)
    assert first["at"] == format_duration(start - trace.span.start_ns)
    kernels = trace.kernels.to_frame()[trace.kernels.to_frame()["device"] == 1]
    before = kernels.loc[kernels["end_ns"] == start, "name"].item()
    assert first["before"].split("::")[-1].split("<")[0] in before
    assert first["after"] == "h2d"
    box = report.page.locator("#gaps h2").bounding_box()
    assert 0 <= box["y"] < WINDOW["height"]


def test_from_a_finding_to_its_place_is_one_click(report: OpenPage, run: Run) -> None:
    finding = run.result("findings").table.to_frame().iloc[0]
    start, end = map(parse_duration, finding["window"].split(".."))
    link = report.page.locator("#findings .place a:not([tabindex])").first
    assert link.inner_text().startswith(f"worst case at {format_duration(start)}, duration ")
    before = report.js("traceprof.redraws")
    link.click()  # the only action
    for _ in range(500):
        if report.js("traceprof.redraws") > before:
            break
        report.page.wait_for_timeout(10)
    shown = report.js("[traceprof.t0, traceprof.t1].map((t) => t + traceprof.trace.offset_ns)")
    assert shown[0] <= start
    assert end <= shown[1] <= end + 2 * (end - start)


def test_the_index_fits_the_screen_and_leads_to_every_part(report: OpenPage) -> None:
    box = report.page.locator("nav").bounding_box()
    assert box["height"] <= WINDOW["height"]
    assert report.js(
        "(({scrollHeight: s, clientHeight: c}) => s <= c)(document.querySelector('nav'))"
    )
    links = [link.get_attribute("href") for link in report.page.locator("nav a").all()]
    parts = [f"#{part.get_attribute('id')}" for part in report.page.locator("main > section").all()]
    assert links == parts
    assert report.js("document.documentElement.scrollWidth") <= WINDOW["width"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_keeps_anybody_from_reading_it(report: OpenPage, theme: str) -> None:
    report.page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    assert serious_violations(report.page) == []
    report.page.evaluate("document.documentElement.dataset.theme = 'dark'")


def test_it_fits_a_phone_however_long_the_words_are(report: OpenPage) -> None:
    report.page.set_viewport_size({"width": 390, "height": 844})
    try:
        assert report.js("document.documentElement.scrollWidth") <= 390
        assert serious_violations(report.page) == []
    finally:
        report.page.set_viewport_size(WINDOW)


def test_keys_alone_lead_to_a_part_and_through_wide_tables(report: OpenPage) -> None:
    link = report.page.locator("nav a", has_text="Kernels")
    link.focus()
    report.page.keyboard.press("Enter")
    assert 0 <= report.page.locator("#kernels h2").bounding_box()["y"] < WINDOW["height"]
    stops = report.js(
        "[...document.querySelectorAll('.scroll')]"
        ".map((e) => [e.tabIndex, e.scrollWidth > e.clientWidth])"
    )
    assert {(0, True), (-1, False)} == {tuple(stop) for stop in stops}


def test_every_analysis_has_its_subject() -> None:
    listed = [key for _, keys in SUBJECTS for key in keys]
    assert len(listed) == len(set(listed))
    assert set(measures.analysis_names()) <= set(listed)


@pytest.mark.parametrize("paper", PAPER_PX)
def test_paper_has_everything_in_color_on_white(report: OpenPage, paper: str, run: Run) -> None:
    assert report.js("document.documentElement.dataset.theme") == "dark"
    document = pypdfium2.PdfDocument(report.page.pdf(format=paper))
    printed = _letters("".join(page.get_textpage().get_text_bounded() for page in document))
    pictures = [page.render(scale=0.5).to_numpy().reshape(-1, 3) for page in document]
    document.close()
    cells = report.js(
        "[...document.querySelectorAll('main td:not(#traceprof-timeline td):not(.part td)')]"
        ".map((cell) => (cell.querySelector('.brief') ?? cell).textContent)"
    )
    assert len(cells) > 500
    assert [cell for cell in cells if _letters(cell) not in printed] == []
    for part in ("#findings li", "h2", "details li", ".remarks dd"):
        texts = report.page.locator(part).all_text_contents()
        assert texts
        assert [text for text in texts if _first_letters(text) not in printed] == []
    assert "rank0·GPU0" in printed
    colors = np.concatenate(pictures)
    assert (colors == 255).all(axis=1).mean() > 0.6  # on white
    for part in ("compute", "exposed_transfer", "exposed_communication", "idle"):
        assert (colors == _bgr(category_of(part).light)).all(axis=1).sum() > 500, part
    assert not (colors == _bgr(category_of("compute").dark)).all(axis=1).any()
    lines = report.page.locator("#timeline .printed svg text", has_text="rank").all_text_contents()
    assert lines == [f"rank {n} · GPU {n}" for n in device_times(run.within("all").trace())]


def test_the_first_page_of_paper_is_the_answer_with_three_findings(report: OpenPage) -> None:
    document = pypdfium2.PdfDocument(report.page.pdf(format="A4"))
    first = _letters(document[0].get_textpage().get_text_bounded())
    second = _letters(document[1].get_textpage().get_text_bounded())
    colored = (document[0].render(scale=1).to_numpy() != 255).any(axis=2).mean(axis=1) > 0.05
    document.close()
    for part in (".answer", "#verdict .printed h3", "#verdict .printed .action", "#verdict dd"):
        texts = report.page.locator(part).all_text_contents()
        assert texts
        assert [text for text in texts if _first_letters(text) not in first] == []
    n_findings = report.page.locator("#findings .findings > li").count()
    assert report.page.locator("#verdict .printed li").count() == min(3, n_findings) > 1
    assert report.page.locator("#verdict .printed svg").count() > 0
    assert colored.any()
    assert second.startswith("Findings")


def test_no_word_is_broken_on_paper_and_wide_tables_are_several(report: OpenPage) -> None:
    report.page.set_viewport_size({"width": PAPER_PX["A4"], "height": 1000})
    report.page.emulate_media(media="print")
    try:
        report.page.locator("table.part").first.wait_for(state="attached")
        parts = report.js(
            "[...document.querySelectorAll('table.part')].map((t) => t.rows[0].cells.length)"
        )
        assert len(parts) > 4
        assert max(parts) <= 11
        # Headings have no more lines than words.
        broken = report.js(
            "[...document.querySelectorAll('main th')].filter((th) => th.offsetParent)"
            ".filter((th) => { const range = document.createRange(); range.selectNodeContents(th);"
            " const tops = new Set([...range.getClientRects()].map((r) => Math.round(r.top)));"
            " return tops.size > 2 * th.textContent.trim().split(/\\s+/).length; })"
            ".map((th) => th.textContent)"
        )
        assert broken == []
        assert report.js(
            "[...document.querySelectorAll('main td.number')].filter((td) => td.offsetParent)"
            ".every((td) => td.getClientRects().length && td.offsetHeight > 0)"
        )
        kernels = report.page.locator("#kernels td .brief").all_inner_texts()
        assert kernels
        assert max(map(len, kernels)) < 90
    finally:
        report.page.emulate_media(media="null")
        report.page.set_viewport_size(WINDOW)


def test_a_click_on_the_head_of_a_column_sorts_its_rows(report: OpenPage) -> None:
    report.js("document.querySelector('#gaps details').open = true")
    table = report.page.locator("#gaps table").first
    head = table.locator("th", has_text="duration")
    column = head.evaluate("(th) => th.cellIndex")

    def cells() -> list[float]:
        texts = table.locator(f"tbody td:nth-child({column + 1})").all_inner_texts()
        return [float(parse_duration(text)) for text in texts]

    before = cells()
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert cells() == sorted(before, reverse=True)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert cells() == sorted(before)


@pytest.mark.parametrize(("paper", "width"), PAPER_PX.items())
def test_paper_cuts_nothing_off(report: OpenPage, paper: str, width: int) -> None:
    report.page.set_viewport_size({"width": width, "height": 1000})
    report.page.emulate_media(media="print")
    try:
        assert report.js("document.documentElement.scrollWidth") <= width
        hidden = report.js(
            "[...document.querySelectorAll('main :is(td, th, p, li, svg)')]"
            ".filter((e) => e.getBoundingClientRect().right > innerWidth + 1).length"
        )
        assert hidden == 0
    finally:
        report.page.emulate_media(media="null")  # "screen" would stay for paper, too
        report.page.set_viewport_size(WINDOW)


def _letters(text: str) -> str:
    """Return a text without what lines are broken at."""
    return re.sub(r"[\s\xad\u2010\ufffe-]", "", unicodedata.normalize("NFKC", text))


def _bgr(color: str) -> list[int]:
    return [int(color[i : i + 2], 16) for i in (5, 3, 1)]


def _first_letters(text: str) -> str:
    return _letters(text)[:30]


def test_the_straggler_is_seen_at_once_and_is_the_same_everywhere(
    browser: Any, tmp_path: Path
) -> None:
    plan = Plan(n_steps=6, extra_ns={(3, "backward"): 40 * MS})
    run = run_of(Ranks.of(make_trace_of(plan)))
    (late,) = run.result("stragglers").table.to_frame().query("is_straggler")["rank"].tolist()
    assert late == 3
    opened = OpenPage(browser.new_page(viewport=WINDOW))
    opened.go(_written(run, tmp_path))
    finding = opened.page.locator("#findings h3", has_text="Straggler").first
    assert "the other ranks wait for rank 3" in finding.inner_text()
    box = finding.bounding_box()
    assert box["y"] + box["height"] <= WINDOW["height"]  # no action
    notes = opened.page.locator("#rank-steps .note b").all_inner_texts()
    assert notes == ["rank 3", "rank 3"]
    first = opened.page.locator("#stragglers tbody tr").first.locator("td").first
    assert first.inner_text() == "3"
    picture = opened.page.locator("#findings svg").first.get_attribute("aria-label")
    assert "rank 3 · GPU 3" in picture
    opened.page.close()


def test_shares_of_a_still_picture_are_the_parts_of_the_device() -> None:
    trace = make_trace_of(Plan(n_ranks=2, n_steps=2))
    stills = StillPictures(Ranks.of(trace))
    html = stills.of_whole(trace.span, [("0", trace.span.start_ns)])
    assert html.count('text-anchor="end">rank ') == 2
    height = {0: 0.0, 1: 0.0}
    for x, y, width, tall in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)", html):
        del x
        height[int(float(y) // 19)] += float(width) * float(tall)
    for area in height.values():
        assert area == pytest.approx(592 * 15, rel=0.01)  # the five parts fill the line


def test_the_page_of_a_comparison_is_for_everybody_too(browser: Any, tmp_path: Path) -> None:
    traces = [ROOT / "fixtures" / "traces" / f"{name}.sqlite.gz" for name in ("before", "after")]
    file = tmp_path / "compared.html"
    file.write_text(
        render_compared(compare_named(*([path] for path in traces)), Options()), "utf-8"
    )
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(file.as_uri())
    assert "less time" in page.locator("#answer").inner_text()
    assert serious_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()
