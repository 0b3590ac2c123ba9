"""The tasks of a reader with their truth, and the same tasks where traces are unusual.

Each task of the list has a test that acts in Chromium and compares what the page says with what was
planted. The tests below repeat them on 512 ranks, without a device, on an empty trace, and on a run
whose ranks have roles: no answer may mislead, and no way may end nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.findings.test_roles import rank_of, run_of
from tests.render.accessibility import serious_violations
from tests.render.browser import OpenPage
from tests.render.timeline.tasks import MS, Reader
from tests.requirements import ROOT
from traceprof.errors import UsageError
from traceprof.measures import analysis_names
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.render.registry import Options
from traceprof.render.report.render import render_report
from traceprof.render.timeline.render import render_timeline
from traceprof.session.answer import page as answer
from traceprof.session.run import run_of as opened_run

TASKS = {
    "Where is the longest gap of a GPU, and what is before and after it?": (
        "render/report/test_reading.py",
        "test_the_longest_gap_of_a_gpu_with_before_and_after_is_one_click_away",
    ),
    "Where does a finding happen?": (
        "render/report/test_reading.py",
        "test_from_a_finding_to_its_place_is_one_click",
    ),
    "Which rank is the straggler?": (
        "render/report/test_reading.py",
        "test_the_straggler_is_seen_at_once_and_is_the_same_everywhere",
    ),
    "How long does this event take?": (
        "render/timeline/test_page.py",
        "test_hover_says_what_the_trace_says",
    ),
    "Which range launched this kernel, also from another thread?": (
        "render/timeline/test_panel.py",
        "test_a_click_on_a_kernel_names_the_ranges_of_all_threads_that_launched_it",
    ),
    "Which kernels did this operator launch?": (
        "render/timeline/test_tasks.py",
        "test_an_operator_lists_what_it_launched_and_not_what_ran_meanwhile",
    ),
    "Which line of the program asked for this kernel?": (
        "render/timeline/test_tasks.py",
        "test_a_kernel_shows_the_line_of_the_program_that_asked_for_it",
    ),
    "How long does the same event take on other ranks?": (
        "render/timeline/test_panel.py",
        "test_the_panel_places_an_event_among_its_name_and_beside_other_ranks",
    ),
    "Which step is this in the tables?": (
        "render/timeline/test_tasks.py",
        "test_a_step_has_one_number_in_the_lane_and_in_the_tables",
    ),
    "Why is this step slow?": (
        "render/timeline/test_panel.py",
        "test_a_slow_step_says_why_as_explain_does_and_leads_there",
    ),
    "Which rank makes this step wait?": (
        "render/timeline/test_panel.py",
        "test_of_a_step_that_waits_the_late_rank_is_named_and_shown",
    ),
    "How many events have this name, and where are they?": (
        "render/timeline/test_panel.py",
        "test_a_search_lists_counts_and_goes_through_its_results",
    ),
    "Where is rank 3?": (
        "render/timeline/test_tasks.py",
        "test_a_search_for_a_rank_leads_to_its_device",
    ),
    "Which GPU waits while the others work?": (
        "render/timeline/test_tasks.py",
        "test_the_row_of_a_gpu_that_waits_alone_leads_to_its_own_gap",
    ),
    "How much time is between two events?": (
        "render/timeline/test_panel.py",
        "test_two_clicks_measure_between_two_events",
    ),
    "What ran in this span, by name and by GPU?": (
        "render/timeline/test_reading.py",
        "test_a_drawn_span_snaps_and_is_summed_per_device",
    ),
    "What is merged in this file, and how do I see it?": (
        "render/timeline/test_tasks.py",
        "test_a_page_says_how_many_events_are_merged_only_where_some_are",
    ),
    "Which ranges take the time of a program without a GPU?": (
        "render/timeline/test_tasks.py",
        "test_without_a_device_the_panel_says_which_ranges_take_the_time",
    ),
    "Which function takes the time, and how much in total?": (
        "render/test_flame.py",
        "test_a_click_zooms_and_a_search_sums_what_it_finds",
    ),
    "What changed between two runs, and where do I see both?": (
        "render/report/test_compared.py",
        "test_every_row_of_a_change_leads_to_both_steps",
    ),
    "What is allocated at this instant?": (
        "render/test_memory_chart.py",
        "test_the_pointer_and_the_arrows_tell_what_is_allocated",
    ),
    "What do I print for my colleagues?": (
        "render/report/test_reading.py",
        "test_the_first_page_of_paper_is_the_answer_with_three_findings",
    ),
}


def test_each_of_the_22_tasks_has_a_test() -> None:
    assert len(TASKS) == 22
    for file, test in TASKS.values():
        assert f"def {test}(" in (ROOT / "tests" / file).read_text("utf-8"), test


def _report(trace: Trace | Ranks) -> str:
    ranks = Ranks.of(trace)
    return render_report(
        answer(opened_run(ranks), analysis_names()), ranks, Options(title="report")
    )


N_RANKS = 512
LATE = 300


def _many() -> Trace:
    """Each rank computes for 6 ms of three steps of 10 ms; rank 300 for 8 ms, in step 1.

    The all-reduce of each step ends at 10 ms. The others wait in it for rank 300.
    """
    builder = TraceBuilder()
    for rank in range(N_RANKS):
        process = rank + 1
        here: dict[str, Any] = {"process": process, "device": rank}
        builder.process(process, rank=rank, name="python").device(rank, "H100")
        for step in range(3):
            t = step * 10 * MS
            late = 2 * MS if (rank, step) == (LATE, 1) else 0
            builder.step(t, t + 10 * MS, step, process=process, thread=process)
            builder.kernel("gemm", t + MS, t + 7 * MS + late, **here)
            builder.kernel("ncclAllReduce", t + 7 * MS + late, t + 10 * MS, stream=20, **here)
    return builder.build()


@pytest.fixture(scope="module")
def many(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    file: Path = tmp_path_factory.mktemp("many") / "many.html"
    file.write_text(render_timeline(_many(), title="many"), "utf-8")
    opened = OpenPage(browser.new_page(viewport={"width": 1400, "height": 900}))
    opened.go(file)
    yield Reader(opened)
    assert opened.complaints == []
    opened.page.close()


@pytest.mark.chromium
def test_of_512_ranks_one_is_found_by_its_number_and_opened(many: Reader) -> None:
    many.begin()
    page = many.page.page
    page.locator(".search input").fill(f"rank {LATE}")
    many.until("document.querySelector('.search .note').textContent === '1 lane'")
    page.locator(".results tbody tr").first.get_by_role("button").click()
    assert f"rank {LATE} " in many.facts["gap"] + " "
    shown = "traceprof.lines.some(({group}) => traceprof.trace.groups[group]?.section.startsWith"
    assert many.page.js(f"{shown}('rank {LATE}'))")


@pytest.mark.chromium
def test_of_512_ranks_the_late_kernel_is_the_longest_of_its_name(many: Reader) -> None:
    many.begin()
    many.page.show_all()
    page = many.page.page
    page.locator(".search input").fill("gemm")
    many.until("document.querySelector('.results caption') !== null")
    page.locator(".results th button", has_text="Duration").click()
    first = page.locator(".results tbody tr").first
    text = first.inner_text().replace("\u00a0", " ").replace("\u202f", " ")
    assert "8.000 ms" in text
    first.get_by_role("button").first.click()
    assert many.facts["duration"] == "8.000 ms (8,000,000 ns)"
    assert many.facts["lane"].startswith(f"rank {LATE} ")
    assert many.facts["position"] == f"the longest of {3 * N_RANKS:,}"


@pytest.mark.chromium
def test_without_a_device_no_way_ends_nowhere(open_page: Callable[..., OpenPage]) -> None:
    builder = TraceBuilder()
    for number in range(4):
        t = number * 10 * MS
        builder.range("load", t, t + 2 * MS).range("find_centers", t + 2 * MS, t + 10 * MS)
    trace = builder.build()
    opened = open_page(_report(trace))
    answered = opened.page.locator("#verdict").inner_text().replace("\u00a0", " ")
    assert "find_centers 80.0%" in answered
    (box,) = opened.page.locator("#tree .boxes button", has_text="find_centers").all()
    opened.page.locator("nav summary", has_text="Idle time and CPU").click()
    opened.page.locator("nav a", has_text="Flame graph").click()
    box.click()
    status = opened.page.locator("#tree [role=status]").inner_text().replace("\u00a0", " ")
    assert status.startswith("find_centers: 32 ms (80% of all), 4×")
    opened.page.get_by_role("button", name="Find in the timeline").click()
    found = "document.querySelector('.search .note').textContent"
    Reader(opened).until(f"{found} === '4 events'")
    opened.page.locator(".results tbody tr").first.get_by_role("button").first.click()
    assert Reader(opened).facts["duration"] == "8.000 ms (8,000,000 ns)"
    assert opened.complaints == []


@pytest.mark.chromium
def test_an_empty_trace_says_so_and_nothing_breaks(open_page: Callable[..., OpenPage]) -> None:
    trace = TraceBuilder().build()
    timeline = open_page(render_timeline(trace, title="empty"))
    for key in ("w", "d", "g", "n", "0", "m", "Escape", "?", "Escape", "ArrowDown", "."):
        timeline.page.keyboard.press(key)
    timeline.page.locator(".search input").fill("gemm")
    Reader(timeline).until("document.querySelector('.search .note').textContent === '0 events'")
    with pytest.raises(UsageError, match="no events to analyze"):
        _report(trace)
    report = open_page(_report(TraceBuilder().device(0, "H100").build(span=(0, MS))))
    text = report.page.locator("main").inner_text()
    assert "No GPU activity was recorded" in text
    assert not re.search(r"\bNaN\b|undefined|\bInfinity\b", text)
    assert report.page.locator(".key-number").count() == 0
    assert serious_violations(report.page) == []
    assert timeline.complaints == report.complaints == []


@pytest.mark.chromium
def test_a_run_with_roles_names_the_role_that_the_others_wait_for(
    open_page: Callable[..., OpenPage],
) -> None:
    """The trainer (rank 0) computes 27% of each step, the rollout (rank 1) 70%."""
    ranks = run_of(rank_of(0, (700, 970), trains=True), rank_of(1, (0, 700), trains=False))
    opened = open_page(_report(ranks))
    findings = opened.page.locator("#findings").inner_text().replace("\u00a0", " ")
    title = "The trainer (rank 0) waits for the rollout (rank 1) for 70.0% of step time"
    assert title in findings
    assert re.search(r"worst case at [\d.]+ \w+, duration 700\.1 ms", findings)
    numbers = opened.page.locator(".key-number").all_inner_texts()
    assert any("1.00 s" in text for text in numbers)
    assert any(title in text.replace("\u00a0", " ") for text in numbers)
    reader = Reader(opened)
    opened.page.locator("nav a", has_text="Timeline").click()
    opened.show_all()
    reader.until("document.querySelector('.details table') !== null")
    opened.page.locator(".details").get_by_role("button", name="rank 0").first.click()
    # The trainer's GPU has nothing to do while the rollout computes.
    assert reader.title == "Idle: 700.0 ms"
    assert reader.facts["gap"].startswith("rank 0 ")
    assert opened.complaints == []
