import os
import signal

from traceprof.recording.processes.program import Program
from traceprof.recording.processes.watchdog import Watchdog


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
    (tmp_path / "started").write_text(str(os.getpid()))
    look()
    (tmp_path / f"process.{os.getpid()}.json").write_text("{}")
    look()
    assert process.sent == said == []
