"""Communication that the host carries out, as gloo and MPI do, is communication."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import findings_of
from tests.requirements import TRACES, require
from tests.running import run
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.session.answer import page
from traceprof.session.run import open_run, run_of

US = 1_000
N_STEPS = 10


def training(*, backend: str = "gloo", is_called: bool = True, at_us: int = 2_000) -> Trace:
    """Return steps of 2 ms of kernels, then 3 ms in which gloo reduces, then 1 ms of kernels."""
    builder = TraceBuilder().device(0, "NVIDIA H100 80GB HBM3")
    for number in range(N_STEPS):
        begin = number * 6_000 * US
        builder.step(begin, begin + 6_000 * US, number)
        end = begin + 2_000 * US
        builder.kernel("gemm", begin + 10 * US, end, launched_ns=(begin, begin + 5 * US))
        if is_called:
            times = begin + at_us * US, begin + 5_000 * US
            builder.collective("all_reduce", *times, backend=backend, n_bytes=10_000_000)
        launched = begin + 5_000 * US, begin + 5_005 * US
        builder.kernel("gemm", begin + 5_010 * US, begin + 6_000 * US, launched_ns=launched)
    return builder.build()


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_waiting_for_it_is_communication_and_no_host_code(backend: str) -> None:
    trace = training(backend=backend)
    found = {own.rule: own for own in findings_of(trace)}
    own = found["host_communication"]
    assert own.saving_ns == pytest.approx(3_000 * US, rel=0.01)
    assert "host_code" not in found
    causes = run("idle", trace).table
    by_cause = dict(zip(causes["cause"].tolist(), causes["total_ns"].tolist(), strict=True))
    assert by_cause["communication"] == 3_000 * US * N_STEPS
    document = page(run_of(Ranks.of(trace)))
    assert document.verdict is not None
    # No device carries it out: the device is idle, and the cause is communication.
    assert document.verdict.parts["exposed_communication"] == 0
    assert document.verdict.idle["communication by the host"] == pytest.approx(0.5, rel=0.02)
    assert document.verdict.bound_by.startswith("communication-bound")
    assert sum(document.verdict.parts.values()) == pytest.approx(1)
    assert "communication" not in document.verdict.fine


def test_what_the_host_does_before_it_communicates_is_its_own() -> None:
    found = {own.rule: own for own in findings_of(training(at_us=4_000))}
    assert found["host_communication"].saving_ns == pytest.approx(1_000 * US, rel=0.02)
    assert found["host_code"].saving_ns == pytest.approx(2_000 * US, rel=0.02)


@pytest.mark.parametrize(("backend", "is_called"), [("nccl", True), ("gloo", False)])
def test_what_devices_carry_out_or_nobody_does_is_none(backend: str, is_called: bool) -> None:
    found = {own.rule for own in findings_of(training(backend=backend, is_called=is_called))}
    assert "host_communication" not in found
    assert "host_code" in found


def test_two_ranks_over_gloo_on_one_h100() -> None:
    require("traces")
    document = page(open_run([TRACES / "h100" / "ddp-gloo-2ranks-embedded"]))
    verdict = document.verdict
    assert verdict is not None
    assert verdict.bound_by == "communication-bound on gloo"
    assert document.hardware == {"NVIDIA H100 80GB HBM3": 1}
    assert not {"communication", "load balance across ranks"} & set(verdict.fine)
    table = document.results["findings"].table
    titles = dict(zip(table["rule"].tolist(), table["title"].tolist(), strict=True))
    assert table["rule"].tolist()[0] == "host_communication"
    assert titles["straggler"].values["slow"] == "rank 1"
    actions = dict(zip(table["rule"].tolist(), table["action"].tolist(), strict=True))
    assert '`init_process_group("nccl")`, with one GPU per rank' in actions["host_communication"]
