import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing import Pipe, active_children

import pytest

from tests.formats.kineto_file import columns_of, document
from traceprof.formats.compiled import library
from traceprof.formats.kineto import events as reading
from traceprof.formats.kineto import parsers as module
from traceprof.formats.kineto.events import read_kineto_events
from traceprof.formats.kineto.parsers import Parsers, Run, n_parsers
from traceprof.formats.kineto.rows import is_taken


@pytest.fixture(autouse=True)
def without_compiled(monkeypatch):
    """Processes help where nothing is compiled."""
    monkeypatch.setattr(library, "is_there", lambda: False)


def parse(text):
    """Return who parsed a text to what; what is in the text may be bad for a process."""
    if multiprocessing_child() and b"die" in text:
        os.kill(os.getpid(), signal.SIGKILL)
    if b"large" in text:
        return os.getpid(), bytes(module._SLOT_BYTES + 1)
    return None if b"no array" in text else (os.getpid(), json.loads(text))


def multiprocessing_child():
    return module.multiprocessing.parent_process() is not None


class Ready(Parsers):
    """Waits for its processes: else small documents are parsed before these are there."""

    def start(self):
        super().start()
        for one in list(self._processes):
            assert module._has_answered(one, 120)
            self._receive(one)
        assert all(one.is_ready for one in self._processes)


def parsed(parsers, texts):
    runs = [Run(text) for text in texts]
    for run in runs:
        parsers.give(run)
    return [parsers.take(run) for run in runs]


def test_runs_are_parsed_elsewhere_and_here():
    with Ready(parse, 1) as parsers:
        parsers.start()
        path = parsers._path
        found = parsed(parsers, [b"[%d]" % number for number in range(10)])
        assert [items for _, items in found] == [[number] for number in range(10)]
        child = parsers._processes[0].process.pid
        assert found[0][0] == child
        assert {pid for pid, _ in found} <= {child, os.getpid()}
        assert parsed(parsers, [b"no array", b"[1]"]) == [None, (child, [1])]
        # What does not fit into the file is parsed here.
        assert parsed(parsers, [b"large"])[0][0] == os.getpid()
        assert parsed(parsers, [b"[2]"]) == [(child, [2])]
        # So is what a process dies of, and what was to follow it there.
        found = parsed(parsers, [b'["die"]', b"[3]"])
        assert [items for _, items in found] == [["die"], [3]]
        assert {pid for pid, _ in found} == {os.getpid()}
        assert not parsers._processes
    assert not path.exists()
    assert not active_children()


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="Windows stops no process")
def test_a_process_that_stopped_is_not_waited_for(monkeypatch):
    with Ready(parse, 1) as parsers:
        parsers.start()
        os.kill(parsers._processes[0].process.pid, signal.SIGSTOP)
        monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
        assert parsed(parsers, [b"[1]"]) == [(os.getpid(), [1])]
        assert not active_children()


def test_whatever_breaks_off_the_reading_ends_the_processes():
    with pytest.raises(KeyboardInterrupt), Ready(parse, 1) as parsers:
        parsers.start()
        path = parsers._path
        parsers.give(Run(b"[1]"))
        raise KeyboardInterrupt
    assert not path.exists()
    assert not active_children()


def test_a_process_whose_parent_was_killed_ends_and_tidies_up(tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    path = tmp_path / "runs"
    path.write_bytes(b"[1]")
    ours, theirs = Pipe()
    ours.send((0, 3))
    ours.close()
    module._work(theirs, path, pickle.dumps(parse))
    assert not path.exists()


class Unnamed:
    """Parses, but cannot be sent to a process."""

    def __call__(self, text):
        return parse(text)

    def __reduce__(self):
        raise TypeError("not to be sent")


def refuse(*_args, **_more):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("lacking", ["room", "processes", "what can be sent"])
def test_what_cannot_be_started_is_done_without(monkeypatch, lacking):
    how = parse
    if lacking == "room":
        monkeypatch.setattr(tempfile, "mkstemp", refuse)
    elif lacking == "processes":
        monkeypatch.setattr(module.multiprocessing.get_context("spawn").Process, "start", refuse)
    else:
        how = Unnamed()
    with Parsers(how, 2) as parsers:
        parsers.start()
        assert not parsers._processes
        assert parsed(parsers, [b"[1]", b"[2]"]) == [(os.getpid(), [1]), (os.getpid(), [2])]
    assert not active_children()


PROGRAM = """
import json
from traceprof.formats.kineto.parsers import Parsers, Run, _has_answered
print("once")
with Parsers(json.loads, 1) as parsers:
    parsers.start()
    assert _has_answered(parsers._processes[0], 120)
    run = Run(b"[1]")
    parsers.give(run)
    print(parsers.take(run))
"""


def test_a_program_that_opens_a_trace_is_not_run_again(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, program]
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert (done.stdout.decode().split("\n"), done.stderr) == (["once", "[1]", ""], b"")


def test_how_many_processes_are_worth_it(monkeypatch):
    monkeypatch.setattr(module, "n_processors", lambda: 3)
    assert n_parsers(1 << 30) == 2
    assert n_parsers(1 << 20) == 0
    in_thread = []
    thread = threading.Thread(target=lambda: in_thread.append(n_parsers(1 << 30)))
    thread.start()
    thread.join()
    assert in_thread == [0]
    monkeypatch.setattr(module, "n_processors", lambda: 1)
    assert n_parsers(1 << 30) == 0
    monkeypatch.setattr(module, "n_processors", lambda: 64)
    assert n_parsers(1 << 30) == module._MOST
    monkeypatch.setattr(module.multiprocessing, "parent_process", object)
    assert n_parsers(1 << 30) == 0


TEXT = document(20_000)


@pytest.mark.parametrize("change", ["whole", "packed", "damaged", "cut off"])
def test_events_are_the_same_however_many_read_them(tmp_path, monkeypatch, change):
    path = tmp_path / "trace.json"
    middle = TEXT.index(b"}, {", len(TEXT) // 2)
    texts = {
        "whole": TEXT,
        "packed": gzip.compress(TEXT, 1),
        "damaged": TEXT[:middle] + b"}" + TEXT[middle:],
        "cut off": TEXT[: middle + 20],
    }
    path.write_bytes(texts[change])
    monkeypatch.setattr(reading, "Parsers", Ready)
    found = []
    for n_processes in (0, 1):
        monkeypatch.setattr(reading, "n_parsers", lambda _, n=n_processes: n)
        found.append(read_kineto_events(path, is_taken, ("X", "i"), with_shapes=True))
    assert columns_of(found[0]) == columns_of(found[1])
    assert len(found[0]) > 5000
    assert found[0].is_complete == (change in ("whole", "packed"))
    assert not active_children()
