"""Lines of scripts that name a step, with time stamps or the elapsed time and without a rate."""

from __future__ import annotations

from pathlib import Path

from tests.logs.reading import one_run, rows

S = 1e9


def test_time_stamps_give_step_times(tmp_path: Path) -> None:
    """Ten steps in 2.5 s, then ten steps in 5 s; a line less than 1 s later is joined."""
    text = """\
2026-11-30 12:00:00,000 INFO trainer: step=0 d_loss=0.7
2026-11-30 12:00:02,500 INFO trainer: step=10 d_loss=0.7
2026-11-30 12:00:03,000 INFO trainer: step=11 d_loss=0.7
2026-11-30 12:00:07,500 INFO trainer: step=20 d_loss=0.7
"""
    run = one_run(tmp_path, text)
    assert run.origin == "log:script-times"
    assert rows(run, "step_period_ns")["value"].tolist() == [0.25 * S, 0.5 * S]


def test_whole_seconds_give_step_times_of_long_intervals_only(tmp_path: Path) -> None:
    lines = [f"2026-11-30 12:{i // 2:02d}:{30 * (i % 2):02d} step {10 * i} done" for i in range(5)]
    run = one_run(tmp_path, "\n".join(lines) + "\n")
    assert rows(run, "step_period_ns")["value"].tolist() == [3 * S, 3 * S]  # of 60 s each


def test_the_loop_of_a_gan(tmp_path: Path) -> None:
    lines = [
        f"[{epoch}/2][{i}/200]\tLoss_D: 0.5 Loss_G: 1.25 elapsed {(200 * epoch + i) / 4:.1f}s"
        for epoch in range(2)
        for i in (0, 50, 100, 150)
    ]
    run = one_run(tmp_path, "\n".join(lines) + "\n")
    assert set(rows(run, "step_period_ns")["value"].tolist()) == {0.25 * S}
    assert rows(run, "loss_g")["step"].tolist() == [1, 51, 101, 151, 201, 251, 301, 351]


def test_a_restarted_counter_has_no_step_time(tmp_path: Path) -> None:
    text = "step 90 elapsed 10.5s\nstep 0 elapsed 0.5s\nstep 10 elapsed 3.0s\n"
    run = one_run(tmp_path, text)
    assert rows(run, "step_period_ns")["value"].tolist() == [0.25 * S]
