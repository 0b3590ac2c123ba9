"""CPU times that the hooks read at step boundaries, from a file of the test."""

import pytest


@pytest.fixture
def schedstat(runtime, tmp_path, monkeypatch):
    path = tmp_path / "schedstat"
    monkeypatch.setattr(runtime("hook_processor"), "_SCHEDSTAT", str(path))
    return path


def marks(runtime):
    return [(row[2], row[3]) for row in runtime("session").spool()._rows if "metric:" in row[2]]


def test_both_times_are_recorded_before_the_first_and_after_every_step(runtime, schedstat):
    schedstat.write_text("1000 200 3\n")
    runtime("session").begin()
    runtime("hook_processor").install_processor(None)
    steps = runtime("steps")
    steps.begin_forward(may_train=True)
    schedstat.write_text("1500 900 4\n")
    steps.begin_optimizer(1)
    steps.end_optimizer(1)
    names = ("metric:thread_cpu_ns", "metric:thread_cpu_wait_ns")
    assert marks(runtime) == [
        *zip(names, (1000, 200), strict=True),
        *zip(names, (1500, 900), strict=True),
    ]


@pytest.mark.parametrize("text", ["", "0 0 0\n", "many\n"])
def test_a_system_that_does_not_count_records_nothing(runtime, schedstat, text):
    schedstat.write_text(text)
    runtime("session").begin()
    runtime("hook_processor").install_processor(None)
    runtime("steps").begin_forward(may_train=True)
    assert marks(runtime) == []


def test_nothing_is_read_while_nothing_is_captured(runtime, schedstat):
    """The live status and `--steps` wait for a capture; reading the file takes long."""
    schedstat.write_text("1000 200 3\n")
    session = runtime("session")
    session.begin()
    session.hold()
    runtime("hook_processor").install_processor(None)
    runtime("hook_processor")._read_times_ns = None  # a call fails
    runtime("steps").begin_forward(may_train=True)


def test_the_recorders_own_work_is_left_out(runtime, schedstat):
    schedstat.write_text("1000 200 3\n")
    runtime("session").begin()
    processor = runtime("hook_processor")
    processor.install_processor(None)
    steps = runtime("steps")
    steps.begin_forward(may_train=True)
    processor.leave_out(schedstat.write_text)("1400 800 4\n")  # 400 ns on a core, 600 ns waiting
    schedstat.write_text("1500 900 5\n")
    steps.begin_optimizer(1)
    steps.end_optimizer(1)
    assert [ns for _, ns in marks(runtime)] == [1000, 200, 1100, 300]
