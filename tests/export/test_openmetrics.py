"""Gauges, validated by the parser of prometheus_client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.builders import TraceBuilder
from tests.measures.generated_run import Plan, make_ranks_of
from traceprof.errors import UsageError
from traceprof.export import exporter_called
from traceprof.export.request import Request
from traceprof.measures import analysis_names
from traceprof.model.ranks import Ranks
from traceprof.session.run import run_of

MS = 1_000_000
NAME = 'a "quoted" \\ name\nof two lines \x1b[31m'


def export(of: Ranks, output: Path, window: str | None = "all", **more: Any) -> str:
    run = run_of(of).within(window)
    exporter_called("openmetrics").load()(run, Request(output, **more))
    return output.read_text("utf-8")


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(family: Metric) -> dict[tuple[tuple[str, str], ...], float]:
    return {tuple(sample.labels.items()): sample.value for sample in family.samples}


@pytest.fixture
def ranks() -> Ranks:
    builder = TraceBuilder().step(0, 10 * MS, 1).kernel("gemm", 0, 4 * MS, launched_ns=(0, 10))
    builder.copy("h2d", 4 * MS, 9 * MS + 1, n_bytes=1000, launched_ns=(20, 30), device=0)
    return Ranks.of(builder.kernel("gemm", 0, 2 * MS, device=1).build())


def test_parts_of_each_device_are_gauges_with_units(ranks: Ranks, tmp_path: Path) -> None:
    text = export(ranks, tmp_path / "out.txt")
    assert text.endswith("\n# EOF\n")
    found = families(text)
    compute = found["traceprof_breakdown_devices_compute_seconds"]
    assert (compute.type, compute.unit) == ("gauge", "seconds")
    assert compute.documentation == "time in which compute kernels ran"
    assert values(compute) == {(("device", "0"),): 0.004, (("device", "1"),): 0.002}
    assert values(found["traceprof_window_seconds"]) == {(): 0.01}
    (info,) = found["traceprof_trace"].samples
    assert info.labels["window"] == "all"


def test_seconds_keep_all_nanoseconds_and_rates_their_unit(ranks: Ranks, tmp_path: Path) -> None:
    text = export(ranks, tmp_path / "out.txt")
    assert 'traceprof_copies_busy_seconds{device="0",direction="h2d",' in text
    assert "} 0.005000001\n" in text
    rate = families(text)["traceprof_copies_rate_bytes_per_second"]
    assert rate.unit == "bytes_per_second"
    assert list(values(rate).values()) == pytest.approx([1000 / 0.005000001])


def test_what_is_not_known_has_no_sample(tmp_path: Path) -> None:
    ranks = Ranks.of(TraceBuilder().kernel("gemm", 0, 5).build(recorded=["kernels"]))
    found = families(export(ranks, tmp_path / "out.txt"))
    assert not [name for name in found if name.startswith("traceprof_copies")]
    # Nothing was communicated, so that no share of it is hidden.
    assert "traceprof_breakdown_devices_communication_overlap_ratio" not in found


def test_names_are_escaped(tmp_path: Path) -> None:
    ranks = Ranks.of(TraceBuilder().kernel(NAME, 0, 5).kernel("gemm", 7, 9).build())
    text = export(ranks, tmp_path / "out.txt", results=("kernels",))
    assert "\x1b" not in text
    busy = values(families(text)["traceprof_kernels_total_seconds"])
    names = {dict(labels)["name"] for labels in busy}
    assert names == {NAME.replace("\x1b", "\\u001b"), "gemm"}


def test_processes_have_ranks(tmp_path: Path) -> None:
    ranks = make_ranks_of(Plan(n_ranks=2, n_steps=4))
    found = families(export(ranks, tmp_path / "out.txt", results=("phases",)))
    labels = [dict(one) for one in values(found["traceprof_phases_host_seconds"])]
    assert {one["rank"] for one in labels} == {"0", "1"}


def test_the_parser_takes_every_analysis(tmp_path: Path) -> None:
    ranks = make_ranks_of(Plan(n_ranks=2, n_steps=6))
    found = families(export(ranks, tmp_path / "out.txt", None, results=tuple(analysis_names())))
    assert len(found) > 100


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"tables": ["kernels"]}, "--tables"),
        ({"ranks": {0}}, "--ranks"),
        ({"results": ("network",)}, "nothing to write"),
    ],
)
def test_mistakes_leave_nothing(
    more: dict[str, Any], told: str, ranks: Ranks, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=told):
        export(ranks, tmp_path / "out.txt", **more)
    assert not list(tmp_path.iterdir())
