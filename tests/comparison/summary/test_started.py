"""What one start of a rank did is found in its file."""

from dataclasses import replace

import pytest

from tests.attempts import ZERO
from tests.measures.steps.test_passes import STEP, TRAINS_ONLY, trace_of
from tests.measures.steps.test_phases import LENGTH
from traceprof.comparison.summary.history import read_start
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.ranks import Attempt

BATCH = 8  # of each fetch


@pytest.fixture
def started(tmp_path):
    """What is found of a loop of words that ran until a word of that number, or to its end."""

    def read(text, until=None):
        trace = trace_of(text)
        path = tmp_path / "rank0.sqlite"
        write_nsys(replace(trace, info=replace(trace.info, utc_epoch_ns=ZERO)), path)
        end_ns = ZERO + int(LENGTH * (len(text.split()) if until is None else until))
        found = read_start(Attempt(0, 0, str(path), "here", ZERO, end_ns))
        assert found is not None
        return found

    return read


def words(spans):
    return [tuple((int(at) - ZERO) / LENGTH for at in span) for span in spans]


@pytest.mark.parametrize(
    ("text", "work", "epochs", "n_batches"),
    [
        (TRAINS_ONLY, [(0, 4), (4, 8)], [(0, 8)], 2),
        # what evaluates in the midst of an epoch begins none, and its batches are no samples
        (f"d1 {STEP} d2 e d2 e x2 d1 {STEP} x1", [(0, 4), (9, 13)], [(0, 13)], 2),
        (f"d9 e x9 d1 {STEP} x1 d2 e x2 d3 {STEP} x3", [(3, 7), (11, 15)], [(3, 11), (11, 15)], 2),
        # killed in a step: what was done of it is none
        (f"d1 {STEP} d1 {STEP} d1 f b", [(0, 4), (4, 8)], [(0, 8)], 2),
        (f"{STEP} {STEP}", [(0, 3), (3, 6)], [], 0),
        ("d1 e d1 e x1", [], [], 2),
    ],
)
def test_steps_epochs_and_batches(started, text, work, epochs, n_batches):
    found = started(text)
    assert words(found.work) == work
    assert words(zip(found.epochs["start_ns"], found.epochs["end_ns"], strict=True)) == epochs
    assert found.batches["size"].tolist() == [BATCH] * n_batches
    assert (found.begin_ns is None) == (not work)


def test_nothing_is_later_than_the_end_of_the_process(started):
    """A profiler ends what was open when a process died with its own end."""
    found = started(f"d1 {STEP} d1 {STEP}", until=7.5)
    assert words(found.work) == [(0, 4), (4, 7.5)]
    assert words(zip(found.epochs["start_ns"], found.epochs["end_ns"], strict=True)) == [(0, 7.5)]
    assert found.end_ns == ZERO + 75


def test_what_it_began_shows_how_long_it_lived(started):
    """Of one that was killed the end may be known only from what reached the disk in time."""
    found = started(f"d1 {STEP} d1 {STEP}", until=3)
    assert words(found.work) == [(0, 4), (4, 7)]
