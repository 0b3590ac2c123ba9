"""Three and four steps with a warm-up, from files: it is dropped wherever they are judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.formats.test_contract import write_as_kineto
from traceprof.comparison.comparing import compare
from traceprof.comparison.summary.summarize import summarize
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text
from traceprof.session.answer import page
from traceprof.session.run import Run, open_run

US = 1_000
MS = 1_000 * US
Write = Callable[[Trace, Path], None]
WRITERS = {"kineto": write_as_kineto, "nsys": write_nsys}


def steps_of(lengths_ms: Sequence[int], usual_ms: int = 157) -> Trace:
    """Return ProfilerSteps 3, 4, …: what one takes longer than usual it spends in cudaFree.

    Each computes for 145 ms, and waits for that; the first kernel of each runs ahead of cudaFree.
    """
    builder, start = TraceBuilder().device(0, "NVIDIA A100-SXM4-80GB", used=1), 0
    for number, length_ms in enumerate(lengths_ms, 3):
        end = start + length_ms * MS
        builder.range(f"ProfilerStep#{number}", start, end)
        at = start + MS
        builder.kernel("cast", at, at + 10 * US, launched_ns=(at - 10 * US, at - 5 * US))
        if length_ms > 2 * usual_ms:
            free = at + (length_ms - usual_ms) * MS
            builder.api_call("cudaFree", at, free)
            at = free
        ran = at + 20 * US
        for i in range(100):
            called = at + i * 10 * US
            name = "multi_tensor_apply_kernel<FusedAdamMathFunctor>" if i == 99 else f"gemm{i % 5}"
            builder.kernel(name, ran, ran + 1_450 * US, launched_ns=(called, called + 5 * US))
            ran += 1_451 * US
        builder.api_call("cudaStreamSynchronize", at + 1_100 * US, ran + 5 * US)
        start = end
    return builder.build()


@pytest.fixture(params=sorted(WRITERS))
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Sequence[int], str], Run]:
    write: Write = WRITERS[request.param]

    def open_steps(lengths_ms: Sequence[int], name: str = "run") -> Run:
        path = tmp_path / f"{name}{'.json' if write is write_as_kineto else '.sqlite'}"
        write(steps_of(lengths_ms), path)
        return open_run([path])

    return open_steps


FEW = [[497, 157, 156], [497, 157, 156, 157]]


@pytest.mark.parametrize("lengths_ms", FEW, ids=["three", "four"])
def test_the_first_step_is_warmup_everywhere(
    opened: Callable[..., Run], lengths_ms: list[int]
) -> None:
    run = opened(lengths_ms)
    steps = run.within("all").result("steps")
    assert steps.table["is_warmup"].tolist() == [True] + [False] * (len(lengths_ms) - 1)
    assert not any("steps get" in note_text(note) for note in steps.notes)
    document = page(run)
    verdict = document.verdict
    assert verdict is not None
    told = " ".join(map(note_text, verdict.sentences))
    assert f"mean of {len(lengths_ms) - 1} steps" in told
    assert "Step time 15" in told
    assert "497" not in told
    findings = run.result("findings").table
    assert not {"warmup", "allocations", "slow_steps"} & set(findings["rule"].tolist()[:1])
    for row in findings.rows():
        said = " ".join(map(note_text, (row["title"], *row["evidence"])))
        assert "cudaFree" not in said
        assert row["saving_ns"] < 12 * MS


def test_what_the_host_does_ahead_of_the_first_work_is_a_part_of_the_warmup(
    opened: Callable[..., Run],
) -> None:
    verdict = page(opened(FEW[0])).verdict
    assert verdict is not None
    (once,) = verdict.once
    assert once.values["kind"] == "warm-up"
    # From the start of the first step on the host to the end of its work on the device.
    assert note_text(once) == "warm-up 486 ms"


def test_comparing_leaves_it_out(opened: Callable[..., Run]) -> None:
    found = compare([summarize(opened(FEW[1], "a"))], [summarize(opened([157] * 4, "b"))])
    rows = {row["measure"]: row for row in found.results["measures"].table.rows()}
    both = [float(rows["step_period_ns"][side]) for side in ("base", "new")]
    assert both == pytest.approx([157 * MS] * 2, rel=0.03)  # with it: 242 ms
