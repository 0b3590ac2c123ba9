import os
import signal

from traceprof.recording.orphans import StartLimit, Watchdog
from traceprof.recording.program import Program


class FakeProcess:
    def __init__(self):
        self.sent = []

    def send_signal(self, number):
        self.sent.append(number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def watch(folder, times):
    process, said = FakeProcess(), []
    clock = iter(times)
    watchdog = Watchdog(folder, said.append, patience_s=10, clock=lambda: next(clock))
    return process, said, lambda: watchdog(Program(process))


def test_a_profiler_that_hangs_is_interrupted_and_then_killed(tmp_path):
    (tmp_path / "process.999999999.json").write_text("{}")
    # Each look reads the clock once, the first that finds them gone twice.
    process, said, look = watch(tmp_path, [0, 0, 9, 11, 15, 21, 22])
    look()
    look()
    assert process.sent == []
    look()
    assert process.sent == [signal.SIGINT]
    look()
    look()
    assert process.sent == [signal.SIGINT, signal.SIGKILL]
    assert len(said) == 2


def test_nothing_happens_while_a_process_lives_or_none_is_known(tmp_path):
    process, said, look = watch(tmp_path, [])
    look()
    (tmp_path / "started").write_text("")  # the program's id is about to be written
    look()
    (tmp_path / "started").write_text(f"{os.getpid()} {os.getppid()}")
    look()
    (tmp_path / f"process.{os.getpid()}.json").write_text("{}")
    look()
    assert process.sent == said == []


def start_limit(folder, times):
    process, clock = FakeProcess(), iter(times)
    limit = StartLimit(folder / "started", patience_s=10, clock=lambda: next(clock))
    return process, limit


def test_a_profiler_that_does_not_start_the_program_is_told_to_end_and_then_killed(tmp_path):
    process, limit = start_limit(tmp_path, [0, 10, 11, 15, 17])
    program = Program(process)
    limit(program)
    limit(program)
    assert not limit.is_exceeded
    limit(program)
    assert process.sent == [signal.SIGTERM]
    limit(program)
    limit(program)
    assert process.sent == [signal.SIGTERM, signal.SIGKILL]
    assert limit.is_exceeded


def test_it_has_less_time_after_a_signal(tmp_path):
    process, limit = start_limit(tmp_path, [0, 1, 6.5])
    program = Program(process)
    limit(program)
    program.signal_passed = signal.SIGTERM
    limit(program)
    assert process.sent == []
    limit(program)
    assert process.sent == [signal.SIGTERM]


def test_a_program_that_was_started_may_take_as_long_as_it_likes(tmp_path):
    process, limit = start_limit(tmp_path, [])
    (tmp_path / "started").write_text("")
    limit(Program(process))
    assert process.sent == []
