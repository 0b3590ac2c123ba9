"""What makes a step longer stands first, and all of it adds up to the ns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.builders import PROCESS, TraceBuilder
from tests.comparison.explaining.planted import MS, US, Loop, three_ranks
from traceprof.comparison.explaining import explain
from traceprof.errors import NotRecordedError, UsageError
from traceprof.model.activity import PARTS
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import Trace
from traceprof.render.formatting import sentences
from traceprof.render.registry import Options, render
from traceprof.session.run import run_of


def explained(trace: Trace, text: str = "step:3", against: str | None = None) -> Result:
    return explain(run_of(Ranks.of(trace)), text, against).results["explain"]


def first(result: Result) -> dict[str, Any]:
    return {str(name): value for name, value in result.table.to_frame().iloc[0].items()}


def adds_up(result: Result) -> bool:
    parts, causes, scalars = result.to_frame("parts"), result.table.to_frame(), result.scalars
    for name in ("explained_ns", "reference_ns", "difference_ns"):
        sums = causes.groupby("part")[name].sum().reindex(list(PARTS), fill_value=0)
        if sums.tolist() != parts[name].tolist() or parts[name].sum() != scalars[name]:
            return False
    both = causes["from_count_ns"] + causes["from_duration_ns"]
    told = both.isna() | (both == causes["difference_ns"])
    return bool(told.all()) and scalars["difference_ns"] == (
        scalars["explained_ns"] - scalars["reference_ns"]
    )


def test_kernels_that_take_longer_stand_first() -> None:
    result = explained(Loop(longer_ns=2 * MS).trace())
    row = first(result)
    assert (row["part"], row["kind"], row["name"]) == ("compute", "kernel", "gemm")
    assert (row["difference_ns"], row["from_duration_ns"], row["from_count_ns"]) == (
        2 * MS,
        2 * MS,
        0,
    )
    assert (row["explained_ns"], row["reference_ns"], row["explained_count"]) == (5 * MS, 3 * MS, 1)
    assert (result.scalars["explained_ns"], result.scalars["reference_ns"]) == (12 * MS, 10 * MS)
    assert adds_up(result)


def test_more_kernels_are_told_from_longer_ones() -> None:
    result = explained(Loop(more=2).trace())
    row = first(result)
    assert (row["name"], row["explained_count"], row["reference_count"]) == ("relu", 3, 1)
    assert (row["difference_ns"], row["from_duration_ns"], row["from_count_ns"]) == (
        2 * MS,
        0,
        2 * MS,
    )
    assert result.scalars["difference_ns"] == 2 * MS
    assert adds_up(result)


def test_a_gap_is_told_by_what_the_host_was_in() -> None:
    result = explained(Loop(host_ns=2 * MS).trace())
    row = first(result)
    assert (row["part"], row["kind"], row["name"]) == ("idle", "host", "tokenize")
    assert row["difference_ns"] == result.scalars["difference_ns"] == 2 * MS
    phases = result.to_frame("phases").set_index("phase")["difference_ns"]
    assert phases["forward"] == 2 * MS
    assert phases.sum() == 0  # the host's period is 10 ms in every step
    assert adds_up(result)


def test_copies_that_nothing_hides_have_their_direction_and_bytes() -> None:
    row = first(result := explained(Loop(copy_ns=3 * MS).trace()))
    assert (row["part"], row["kind"], row["name"]) == ("exposed_transfer", "copy", "h2d pageable")
    assert (row["difference_ns"], row["explained_bytes"]) == (3 * MS, 4096)
    assert np.isnan(row["reference_bytes"])
    assert adds_up(result)


def test_whom_the_others_wait_for_is_named() -> None:
    row = first(result := explained(three_ranks(late_ns=3 * MS)))
    assert (row["part"], row["kind"], row["name"]) == ("exposed_communication", "waiting", "rank 1")
    assert row["difference_ns"] == 2 * MS  # two of three devices wait 3 ms
    second = result.table.to_frame().iloc[1]
    assert (second["name"], second["difference_ns"]) == ("gemm", MS)
    assert np.isnan(row["device"])  # devices 0 and 2 wait alike
    assert second["device"] == 1
    assert result.scalars["difference_ns"] == 3 * MS
    assert result.scalars["devices_count"] == 3
    assert adds_up(result)


def test_the_step_after_a_long_one_is_shorter() -> None:
    result = explained(Loop(longer_ns=2 * MS).trace(), "step:4")
    assert (first(result)["part"], first(result)["difference_ns"]) == ("idle", -2 * MS)
    assert result.scalars["difference_ns"] == -2 * MS
    assert adds_up(result)


def test_typical_is_the_steady_step_of_median_length() -> None:
    result = explained(Loop(longer_ns=2 * MS).trace())
    assert (result.scalars["explained"], result.scalars["reference"]) == ("step 3", "step 1")
    assert sentences(result.notes) == ["step 1 has the median length of 4 other usual steps."]


def test_what_to_hold_it_against_can_be_said() -> None:
    trace = Loop(longer_ns=2 * MS).trace()
    same = explained(trace, "step:2", "step:2")
    assert same.scalars["difference_ns"] == 0
    assert not same.table.to_frame()["difference_ns"].any()
    spans = explained(trace, "30ms..40ms", "10ms..20ms")
    assert (spans.scalars["explained_ns"], spans.scalars["difference_ns"]) == (10 * MS, 0)
    assert first(spans)["name"] == "gemm"
    assert adds_up(spans)
    mixed = explained(trace, "step:2", "10ms..15ms")
    assert "regardless of the step" in sentences(mixed.notes)[0]


def test_the_slowest_step_is_found() -> None:
    assert explained(Loop(slow=2, more=1).trace(), "slowest").scalars["explained"] == "step 2"


def test_the_slowest_is_one_in_which_devices_were_recorded() -> None:
    builder = TraceBuilder().range("traceprof.window", 0, 41 * MS, domain=TRACEPROF_DOMAIN)
    for i in range(8):  # the last three take longest, on the host: what devices did is not known
        at, length = (10 * MS * i, 10 * MS) if i < 5 else (50 * MS + 90 * MS * (i - 5), 80 * MS)
        builder.step(at, at + length, i)
        if i < 4:
            end = at + 4 * MS + (MS if i == 2 else 0)
            builder.kernel("gemm", at + MS, end, launched_ns=(at + US, at + 2 * US))
    result = explained(builder.build(), "slowest")
    assert (result.scalars["explained"], result.scalars["difference_ns"]) == ("step 2", 2 * MS)


def test_the_document_is_about_the_step() -> None:
    found = explain(run_of(Ranks.of(Loop(longer_ns=2 * MS).trace())), "step:3")
    assert (found.selection.window.start_ns, found.selection.window.end_ns) == (25 * MS, 37 * MS)


@pytest.mark.parametrize(
    ("text", "against", "said"),
    [
        ("10ms..20ms", None, "choose a reference window"),
        ("step:2..3", None, "choose a reference window"),
        ("step:77", None, "no step 77"),
        ("step:3", "nonsense", "invalid window"),
    ],
)
def test_what_cannot_be_held_against_anything_is_said(
    text: str, against: str | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        explained(Loop().trace(), text, against)


def test_a_single_step_has_no_typical_one() -> None:
    with pytest.raises(UsageError, match="the trace has no other step to compare with step 0"):
        explained(Loop(steps=1).trace(), "step:0")


def test_without_devices_and_phases_nothing_is_explained() -> None:
    with pytest.raises(NotRecordedError, match="no kernels recorded"):
        explained(TraceBuilder().step(0, 10, 0).step(10, 20, 1).build(), "step:1")


def test_without_devices_it_is_the_phases_of_the_host() -> None:
    builder = TraceBuilder()
    for i, (start, wait) in enumerate(((0, 2), (10, 2), (20, 7), (35, 2))):
        builder.step(start, start + 8 + wait, i)
        builder.phase("data", start, start + wait)
        builder.phase("forward", start + wait, start + wait + 6)
    result = explained(builder.build(), "step:2")
    phases = result.to_frame("phases").set_index("phase")
    assert phases.loc["data", ["explained_ns", "reference_ns", "difference_ns"]].tolist() == [
        7,
        2,
        5,
    ]
    assert (result.scalars["explained_ns"], result.scalars["difference_ns"]) == (15, 5)
    assert result.table.to_frame().empty
    assert "No GPU activity was recorded" in sentences(result.notes)[-1]
    document = explain(run_of(Ranks.of(builder.build())), "step:2")
    text = render("text", document)
    assert "step 2 is 5 ns longer than step" in text
    assert "data" in text


def test_a_delay_is_charged_to_where_it_began() -> None:
    """In step 3 rank 0 is late in group a; rank 1, that waited for it, then is late in b."""
    late, builder = 3 * MS, TraceBuilder()
    for rank in range(3):
        builder.process(10 + rank, rank=rank).device(rank)
    for i in range(6):
        at, lost = 10 * MS * i, late if i == 3 else 0
        for rank in range(3):
            builder.step(at, at + 10 * MS, i, process=10 + rank, thread=10 + rank)
        starts = {("a", 0): at + MS + lost, ("a", 1): at + MS}
        starts |= {("b", 1): at + 3 * MS + lost, ("b", 2): at + 3 * MS}
        for (group, rank), start in starts.items():
            end = at + (2 if group == "a" else 4) * MS + lost
            more: dict[str, Any] = {"process": 10 + rank, "thread": 10 + rank}
            number = 1000 * i + 10 * rank + (group == "b")
            called = at + (100 if group == "a" else 200) * US
            builder.collective(
                "all_reduce",
                called,
                called + 30 * US,
                group=group,
                group_size=2,
                n_bytes=8,
                sequence=i,
                correlation=number,
                **more,
            )
            builder.kernel(
                "ncclDevKernel_AllReduce",
                start,
                end,
                launched_ns=(called + 5 * US, called + 10 * US),
                correlation=number,
                device=rank,
                **more,
            )
    waits = (
        explained(builder.build()).table.to_frame().query("kind == 'waiting' and explained_ns > 0")
    )
    assert waits["name"].tolist() == ["rank 0"]
    assert waits["difference_ns"].tolist() == [2 * MS]  # ranks 1 and 2 wait 3 ms each, of three


def test_idle_time_that_nobody_holds_up_has_a_name() -> None:
    builder = TraceBuilder()
    for i in range(6):
        at = 10 * MS * i
        builder.step(at, at + 10 * MS, i)
        builder.kernel("a", at + MS, at + 2 * MS, launched_ns=(at + 10, at + 20))
        start = at + (5 if i == 2 else 3) * MS
        builder.kernel("b", start, start + MS, launched_ns=(at + 30, at + 40))
    row = first(explained(builder.build(), "step:2"))
    assert (row["kind"], row["name"]) == ("queued", "(launched, not begun yet)")


def random_trace(seed: int) -> Trace:
    """Steps of two processes with kernels, collectives and copies anywhere, on several streams."""
    random = np.random.default_rng(seed)
    builder = TraceBuilder()
    for process in (1, 2):
        builder.process(process, rank=process - 1)
        for i in range(5):
            at = 1000 * US * i
            builder.step(at, at + 1000 * US, i, process=process)
            builder.range("work", at, at + int(random.integers(1, 900)) * US, process=process)
            for _ in range(int(random.integers(1, 8))):
                launch = at + int(random.integers(0, 900_000))
                start = launch + int(random.integers(0, 400_000))
                end = start + int(random.integers(1, 300_000))
                where: dict[str, Any] = {
                    "launched_ns": (launch, launch + 1000),
                    "device": int(random.integers(0, 2)) + 2 * (process - 1),
                    "stream": int(random.integers(1, 4)),
                    "process": process,
                }
                kind = int(random.integers(0, 5))
                if kind < 2:
                    builder.kernel(("gemm", "relu")[kind], start, end, **where)
                elif kind == 2:
                    builder.kernel("ncclDevKernel_AllReduce", start, end, **where)
                else:
                    builder.copy(("h2d", "d2d")[kind - 3], start, end, n_bytes=100, **where)
    return builder.build()


@pytest.mark.parametrize("seed", range(8))
def test_rows_add_up_whatever_ran(seed: int) -> None:
    trace = random_trace(seed)
    for text, against in (("step:2", None), ("step:4", "step:1"), ("1ms..3ms", "500us..900us")):
        result = explained(trace, text, against)
        assert adds_up(result)
        assert (result.to_frame("parts")[["explained_ns", "reference_ns"]] >= 0).all(axis=None)
    whole = explained(trace, "1ms..3ms", "2ms..3ms")
    assert (whole.scalars["explained_ns"], whole.scalars["reference_ns"]) == (2 * MS, MS)


def test_the_times_stay_in_sight_where_names_are_whole() -> None:
    builder = TraceBuilder()
    names = ("gemm", "k" * 900)
    for i in range(6):
        at, end = 10 * MS * i, 10 * MS * i + MS
        builder.step(at, at + 10 * MS, i)
        for place, name in enumerate(names):
            called, begin = at + (5 + 10 * place) * US, end
            end = begin + (3 * MS if i == 3 else MS)
            builder.kernel(name, begin, end, launched_ns=(called, called + US))
    document = explain(run_of(Ranks.of(builder.build())), "step:3")
    options = Options(is_whole=True, has_full_names=True)
    lines = render("text", document, options).splitlines()
    (own,) = (line for line in lines if line.startswith("  gemm"))
    (other,) = (line for line in lines if line.startswith("  kkk"))
    assert len(own) < 180
    assert other.split()[:3] == ["k" * 900, "×1", "3.000"]
    # A pipe has no width, but names are shortened there, too.
    lines = render("text", document, Options(is_whole=True)).splitlines()
    (cut,) = (line for line in lines if line.startswith("  kkk"))
    assert 180 < len(cut) < 240
    assert "…" in cut


def test_where_no_step_was_slow_the_answer_says_so() -> None:
    """The slowest takes 0.01 ms longer than the others, which last 10 ms."""
    result = explained(Loop(longer_ns=10 * US, steps=12).trace(), "slowest")
    assert (
        result.scalars["answer"]
        == "No step of the window was slow: the slowest is 0.1% longer than the median."
    )
    assert result.scalars["is_usual"]
    document = explain(run_of(Ranks.of(Loop(longer_ns=10 * US, steps=12).trace())), "slowest")
    assert "█" not in render("text", document)
    one = explained(Loop(longer_ns=10 * US, steps=12).trace(), "step:3")
    assert one.scalars["answer"] == "Step 3 is not slow: it is 0.1% longer than the median."
    slow = explained(Loop(longer_ns=6 * MS, steps=12).trace(), "slowest")
    assert slow.scalars["answer"] == "step 3 is 6.00 ms longer than step 6"
    assert not slow.scalars["is_usual"]


def host_steps(lengths_ms: list[int], waits_ms: list[int]) -> TraceBuilder:
    """Steps on the host: a forward pass, and how long the thread waits for a CPU core."""
    builder, at, waited = TraceBuilder(), MS, 0
    source = f"process:{PROCESS}"
    for metric in ("thread_cpu_ns", "thread_cpu_wait_ns"):
        builder.sample(metric, MS // 2, 0, source=source)
    for i, (length, wait) in enumerate(zip(lengths_ms, waits_ms, strict=True)):
        end = at + length * MS
        builder.step(at, end, i).phase("forward", at, end - MS)
        waited += wait
        builder.sample("thread_cpu_ns", end - MS // 2, 0, source=source)
        builder.sample("thread_cpu_wait_ns", end - MS // 2, waited * MS, source=source)
        at = end
    return builder


def test_a_wait_for_a_cpu_core_is_named() -> None:
    builder = host_steps([10] * 5 + [60] + [10] * 6, [1] * 5 + [45] + [1] * 6)
    result = explained(builder.build(), "slowest")
    assert result.scalars["answer"] == (
        "step 5 is 50.0 ms longer than step 6\n"
        "The training thread waits for a CPU core for 45.0 ms, and in step 6 for 1.00 ms."
    )
    without = explained(host_steps([10] * 5 + [60] + [10] * 6, [1] * 12).build(), "slowest")
    assert "CPU core" not in without.scalars["answer"]


def test_the_recorders_own_work_is_no_part_of_a_step() -> None:
    """It closes a window for 8 ms, of which 5 ms in step 5: `show steps` has 52 ms."""
    builder = host_steps([10] * 5 + [60] + [10] * 6, [0] * 12)
    at = MS + 50 * MS
    builder.range("traceprof.window.stop", at + 20 * MS, at + 28 * MS, domain=TRACEPROF_DOMAIN)
    run = run_of(Ranks.of(builder.build()))
    document = explain(run, "slowest")
    assert document.results["explain"].scalars["explained_ns"] == 52 * MS
    assert "profiler" not in set(document.results["explain"].to_frame("phases")["phase"])
    assert document.selection.window.duration_ns == 52 * MS
