"""Hosts and racks: their ranks together, and which of them is late as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.builders import TraceBuilder, plain
from tests.measures.generated_run import MS, Clock, Plan, make_ranks_of
from tests.reading import rows, said
from tests.running import run
from traceprof.errors import NotRecordedError
from traceprof.measures.collectives.clocks import align_clocks
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result
from traceprof.model.timing import TimeWindow
from traceprof.model.topology import Topology


def run_on(
    hosts: Sequence[str], late: Mapping[int, int], phase: str = "backward", **more: object
) -> Ranks:
    """Return a run of 10 steps in which the ranks ``late`` take so many ms longer."""
    extra = {(rank, phase): ms * MS for rank, ms in late.items()}
    return make_ranks_of(Plan(n_ranks=len(hosts), hosts=hosts, extra_ns=extra, **more))  # type: ignore[arg-type]


def groups(result: Result) -> list[Any]:
    """Return the groups in the order of their names; the table has those that are late first."""
    kind = result.spec.tables[0].keys[0]
    return sorted(rows(result), key=lambda row: str(getattr(row, kind)))


TWO = ["a"] * 4 + ["b"] * 4


def test_a_host_whose_ranks_are_all_late_is_the_straggler_and_not_its_ranks() -> None:
    trace = run_on(TWO, {4: 40, 5: 41, 6: 42, 7: 43})
    a, b = groups(run("hosts", trace))
    assert (a.is_straggler, b.is_straggler, b.late_ranks, b.phase) == (False, True, 4, "backward")
    # The lower median of 40, 41, 42 and 43 ms, in 10 steps without the first.
    assert (a.cost_ns, b.cost_ns) == (0, 369 * MS)
    assert b.excess_ns == 373_500_000
    assert (b.last_ratio, a.last_ratio) == (1.0, 0.0)
    result = run("hosts", trace)
    assert result.table.to_frame()["host"].tolist() == ["b", "a"]
    assert plain(result.to_frame("late_groups"), "kind", "group", "verdict", "late_ranks") == [
        ("host", "b", "straggler", 4)
    ]
    stragglers = run("stragglers", trace)
    assert not any(rank.is_straggler for rank in rows(stragglers))
    assert said(stragglers)[0].startswith("host b is a straggler: 4 of its 4 ranks are late.")


def test_a_note_says_which_times_are_means_and_which_are_totals() -> None:
    result = run("hosts", run_on(TWO, {}))
    (host, _) = rows(result)
    (ranks, *_) = rows(run("ranks", run_on(TWO, {})))
    assert host.compute_ns == ranks.compute_ns  # a total of the window, the same on all ranks
    assert host.step_ns == ranks.step_ns
    assert said(result)[-1].startswith("The step times and the skew are means per step.")
    assert said(result)[-1].endswith("window (9 usual steps), averaged over the ranks.")


def test_one_late_rank_is_not_its_host() -> None:
    trace = run_on(TWO, {6: 40})
    a, b = groups(run("hosts", trace))
    assert (a.is_straggler, b.is_straggler, b.late_ranks, b.cost_ns) == (False, False, 1, 0)
    assert any(
        "host b arrives last because of rank 6" in note for note in said(run("hosts", trace))
    )
    assert [r.rank for r in rows(run("stragglers", trace)) if r.is_straggler] == [6]


def test_of_two_ranks_on_a_host_both_must_be_late() -> None:
    hosts = ["a", "a", "b", "b"]
    assert not any(host.is_straggler for host in groups(run("hosts", run_on(hosts, {3: 40}))))
    both = groups(run("hosts", run_on(hosts, {2: 40, 3: 40})))
    assert [host.is_straggler for host in both] == [False, True]


def test_a_late_rank_on_a_late_host_is_measured_apart_from_it() -> None:
    b = groups(run("hosts", run_on(TWO, {4: 20, 5: 20, 6: 20, 7: 60})))[1]
    assert (b.is_straggler, b.cost_ns) == (False, 180 * MS)
    b = groups(run("hosts", run_on(TWO, {4: 20, 5: 20, 6: 20, 7: 30})))[1]
    assert (b.is_straggler, b.cost_ns) == (True, 180 * MS)


def test_since_when_a_host_is_late() -> None:
    late = dict.fromkeys(range(4, 8), 40)
    b = groups(run("hosts", run_on(TWO, late, since_step=4)))[1]
    # Step 4 begins 800 ms after the trace; the all-reduce is reached 130 ms later.
    assert b.late_from_ns == 930 * MS


def test_a_host_with_another_clock_is_not_late() -> None:
    clocks = [Clock()] * 4 + [Clock(10 * MS, 20.0)] * 4
    trace = run_on(TWO, {}, clocks=clocks, n_steps=30, jitter_ns=1000)
    not_aligned = run("hosts", trace)
    assert not any(host.is_straggler for host in groups(not_aligned))
    assert "Use --align collectives to align the clocks" in said(not_aligned)[0]
    assert not any(rank.is_straggler for rank in rows(run("stragglers", trace)))
    aligned = groups(run("hosts", align_clocks(trace)))
    assert not any(host.is_straggler for host in aligned)
    late = run_on(TWO, dict.fromkeys(range(4), 40), clocks=clocks, n_steps=30, jitter_ns=1000)
    a, b = groups(run("hosts", align_clocks(late)))
    assert (a.is_straggler, b.is_straggler) == (True, False)
    assert a.cost_ns == pytest.approx(1160 * MS, rel=1e-3)


def test_clocks_show_in_the_collectives_that_hosts_share_only() -> None:
    """The clock of b is 10 ms ahead; inside a host there are many collectives, across few."""
    builder = TraceBuilder()
    for rank in range(4):
        builder.process(10 + rank, rank=rank, host="ab"[rank // 2])
        ahead = 10 * MS * (rank // 2)
        for step in range(20):
            more = {"process": 10 + rank, "backend": "gloo"}
            at = 100 * MS * step + ahead
            for part in range(4):
                inside = {"group": f"tp{rank // 2}", "group_size": 2, **more}
                builder.collective("all_reduce", at + part * MS, at + part * MS + 1, **inside)
            builder.collective(
                "all_reduce", at + 50 * MS, at + 60 * MS, group="dp", group_size=4, **more
            )
    result = run("hosts", builder.build())
    assert not any(host.is_straggler for host in groups(result))
    assert said(result)[0] == (
        "host b appears 190 ms late in total, but the ends of the same collectives differ by "
        "190 ms. Use --align collectives to align the clocks."
    )
    assert not any(rank.is_straggler for rank in rows(run("stragglers", builder.build())))


def test_parts_are_the_means_of_the_ranks_of_a_host() -> None:
    trace = run_on(["a", "b", "b"], {2: 30}, n_steps=2)
    devices = rows(run("breakdown", trace))
    a, b = groups(run("hosts", trace))
    for part in (
        "compute_ns",
        "exposed_communication_ns",
        "exposed_transfer_ns",
        "device_memory_ns",
        "idle_ns",
    ):
        assert getattr(a, part) == getattr(devices[0], part)
        both = getattr(devices[1], part) + getattr(devices[2], part)
        assert getattr(b, part) == both / 2
    assert (a.ranks, b.ranks) == (1, 2)
    # In the second step: the first holds the skew of the starts.
    assert (a.waited_ns, b.waited_ns) == (30 * MS, 15 * MS)
    # The first step begins with its host, and takes 130 ms; the second one lasts
    # from the end of that to its own, 200 ms. Rank 1 waits 30 ms of both, rank 2 none.
    assert (a.step_ns, a.step_without_waits_ns, b.step_without_waits_ns) == (
        165 * MS,
        135 * MS,
        150 * MS,
    )
    assert b.skew_ns == 0


def test_collectives_inside_a_host_and_across_hosts() -> None:
    """0 and 1 are on a, 2 and 3 on b; 10 ns inside a, 20 inside b, 40 across; sizes known."""
    builder = TraceBuilder()
    for rank in range(4):
        builder.process(10 + rank, rank=rank, host="ab"[rank // 2])
    for group, ranks, start, end in (("a", (0, 1), 0, 10), ("b", (2, 3), 0, 20)):
        for rank in ranks:
            more = {"process": 10 + rank, "group": group, "group_size": 2, "backend": "gloo"}
            builder.collective("all_reduce", start, end, n_bytes=1000, **more)
    for rank in range(4):
        more = {"process": 10 + rank, "group": "w", "group_size": 4, "backend": "gloo"}
        builder.collective("all_reduce", 100, 140, n_bytes=1000, **more)
    result = run("hosts", builder.build())
    shown = [(h.inside_count, h.inside_ns, h.across_count, h.across_ns) for h in groups(result)]
    assert shown == [(1, 10, 1, 40), (1, 20, 1, 40)]
    # Of two ranks busbw is algbw: 2000 bytes in 30 ns; of four it is 1.5 of 1000 in 40 ns.
    assert "Within a host: 2 collectives, 30 ns without waiting, bus bandwidth 66.7 GB/s" in said(
        result
    )
    assert "Across hosts: 1 collectives, 40 ns without waiting, bus bandwidth 37.5 GB/s" in said(
        result
    )


def test_a_collective_with_ranks_that_have_no_trace_is_neither_inside_nor_across() -> None:
    builder = TraceBuilder()
    for process in (1, 2):
        builder.process(process, rank=process - 1, host="a")
        more = {"process": process, "backend": "gloo", "group_size": 4}
        builder.collective("all_reduce", 0, 50, **more)
    result = run("hosts", builder.build())
    assert [(h.inside_count, h.across_count) for h in groups(result)] == [(0, 0)]
    assert "1 collectives have ranks without a trace, whose host is unknown." in said(result)
    assert said(result)[0].startswith("All ranks share one host")


def test_a_window_without_collectives_still_has_its_hosts() -> None:
    ranks = run_on(TWO, {})
    start = ranks.span.start_ns
    result = run("hosts", ranks.within(TimeWindow(start, start + MS)))
    assert [(h.host, h.ranks, h.across_count) for h in groups(result)] == [("a", 4, 0), ("b", 4, 0)]
    assert result.to_frame("scopes").empty


def test_hosts_that_nobody_names_are_not_guessed() -> None:
    with pytest.raises(
        NotRecordedError, match=r"the host of the ranks is unknown: .*--cluster FILE"
    ):
        run("hosts", run_on([""] * 4, {}))
    with pytest.raises(NotRecordedError, match=r"the rack of the ranks is unknown: .*--rack r1="):
        run("racks", run_on(TWO, {}))


def test_ranks_without_a_host_are_named() -> None:
    result = run("hosts", run_on(["a", "a", "", ""], {}))
    assert [host.host for host in groups(result)] == ["a", "not known"]
    assert "The host of rank 2, rank 3 is unknown." in said(result)


def test_one_rank_has_nobody_to_be_compared_with() -> None:
    result = run("hosts", TraceBuilder().process(1, rank=0, host="a").kernel("k", 0, 9).build())
    assert groups(result) == []
    assert result.table.empty
    assert said(result)


def racked(late: Mapping[int, int]) -> Ranks:
    """Four hosts of two ranks, two hosts a rack."""
    trace = run_on([f"n{rank // 2}" for rank in range(8)], late)
    return Topology().with_rack("r0=n[0-1]").with_rack("r1=n[2-3]").placed(trace)


def test_a_rack_whose_hosts_are_all_late_is_the_straggler_and_not_its_hosts() -> None:
    trace = racked({4: 40, 5: 40, 6: 40, 7: 42})
    r0, r1 = groups(run("racks", trace))
    assert (r0.is_straggler, r1.is_straggler, r1.late_ranks) == (False, True, 4)
    hosts = run("hosts", trace)
    assert not any(host.is_straggler for host in groups(hosts))
    assert said(hosts)[0].startswith("rack r1 is a straggler: 4 of its 4 ranks are late.")
    assert said(run("stragglers", trace))[0].startswith("rack r1 is a straggler")


def test_one_late_host_is_not_its_rack() -> None:
    trace = racked({6: 40, 7: 40})
    assert not any(rack.is_straggler for rack in groups(run("racks", trace)))
    assert [h.host for h in groups(run("hosts", trace)) if h.is_straggler] == ["n3"]
    assert "rack r1 arrives last because of rank 6, rank 7" in " ".join(said(run("racks", trace)))
