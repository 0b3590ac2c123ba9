"""Each planted cause is the first finding; a healthy loop has none."""

from dataclasses import replace

import pytest

from tests.findings.found import Found, findings_of
from tests.training import MS, US, Training
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.session.selection import select


def findings_in(trace: Trace, window: str | None = None) -> list[Found]:
    ranks = Ranks.of(trace)
    return findings_of(ranks.within(select(ranks, window).window))


@pytest.mark.parametrize(
    "training",
    [
        Training(),
        Training(n_ranks=2, all_reduce_ns=3 * MS),
        Training(n_ranks=4, all_reduce_ns=2 * MS, n_steps=12),
        Training(jitter_ratio=0.3, stalls_ns={0: 15 * MS}),
        Training(jitter_ratio=0.2, n_ranks=4, all_reduce_ns=2 * MS, stalls_ns={0: 30 * MS}),
    ],
)
def test_a_healthy_loop_has_no_findings(training: Training) -> None:
    assert findings_in(training.build()) == []


@pytest.mark.parametrize(
    ("rule", "training", "window"),
    [
        ("input_bound", Training(data_ns=20 * MS), None),
        ("launch_bound", Training(n_kernels=400, kernel_ns=6 * US, per_launch_ns=14 * US), None),
        ("pageable_copies", Training(pageable=True, batch_bytes=40_000_000, batch_rate=4.0), None),
        (
            "exposed_communication",
            Training(n_ranks=2, all_reduce_ns=5 * MS, overlapped=False),
            None,
        ),
        ("straggler", Training(n_ranks=4, all_reduce_ns=1 * MS, slow_ranks={2: 1.5}), None),
        ("slow_steps", Training(stalls_ns={15: 60 * MS}), None),
        ("warmup", Training(stalls_ns=dict.fromkeys(range(7), 50 * MS)), "all"),
        ("warmup", Training(stalls_ns=dict.fromkeys(range(7), 50 * MS)), None),
        ("host_code", Training(stalls_ns=dict.fromkeys(range(24), 20 * MS)), None),
        (
            "host_sync",
            Training(
                sync_every_step=True,
                n_kernels=8,
                data_ns=20 * US,
                stalls_ns=dict.fromkeys(range(24), 300 * US),
            ),
            None,
        ),
        ("slow_link", Training(batch_bytes=40_000_000, batch_rate=2.0, n_kernels=8), None),
    ],
)
@pytest.mark.parametrize("jitter_ratio", [0.0, 0.2])
def test_the_planted_cause_is_the_first_finding(
    rule: str, training: Training, window: str | None, jitter_ratio: float
) -> None:
    trace = replace(training, jitter_ratio=jitter_ratio).build()
    findings = findings_in(trace, window)
    assert findings
    assert findings[0].rule == rule
    assert findings[0].evidence
    assert findings[0].action
    assert findings[0].caveat
    # What is given to look at can be looked at.
    for finding in findings:
        assert not finding.window or select(Ranks.of(trace), finding.window).window.duration_ns > 0
