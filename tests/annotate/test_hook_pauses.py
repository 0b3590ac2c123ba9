"""Collections of garbage and compilations become ranges."""

import gc
import json

import pytest


@pytest.fixture
def names(runtime, tmp_path):
    """Return a function that returns the names of the ranges so far."""
    session = runtime("session")
    session.begin()
    session.spool()  # the program has left events

    def read():
        session.spool().flush()
        (path,) = tmp_path.glob("events.*.jsonl")
        return [json.loads(line)[2] for line in path.read_text().splitlines()[1:]]

    return read


def test_full_collections_are_ranges_and_those_of_the_young_are_not(runtime, names):
    pauses = runtime("hook_calls")
    before = list(gc.callbacks)
    pauses.install_pauses(None)
    try:
        gc.collect(0)
        gc.collect()
    finally:
        gc.callbacks[:] = before
    assert names().count("gc") == 1


def test_what_compiles_is_a_range(runtime, names):
    class Callback:
        def on_compile_start(self, function):
            self.start = function

        def on_compile_end(self, function):
            self.end = function

    callback = Callback()
    runtime("hook_calls")._watch_compiler(callback)
    callback.start("facts")
    callback.end("facts")
    assert names() == ["compile"]


def test_an_old_compiler_that_tells_nobody_is_left_alone(runtime):
    runtime("hook_calls")._watch_compiler(object())


def test_a_process_that_leaves_nothing_else_leaves_no_pauses(runtime, tmp_path):
    runtime("session").begin()
    runtime("hook_calls")._note_collection("start", {"generation": 2})
    runtime("hook_calls")._note_collection("stop", {"generation": 2})
    assert list(tmp_path.glob("events.*")) == []
