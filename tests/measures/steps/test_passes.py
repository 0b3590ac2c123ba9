"""Passes over loaders, in loops of words: d1 is a fetch of pass 1, x1 finds no batch left."""

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.measures.steps.test_phases import LENGTH, add
from traceprof.measures.steps.epochs import epochs_of_loaders, passes_of_loaders
from traceprof.measures.steps.measured import measured_steps
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow


def trace_of(text):
    builder = TraceBuilder()
    begun = set()
    for place, word in enumerate(text.split()):
        kind, number = word[0], word[1:]
        at = LENGTH * place
        if kind in "dx":
            if number not in begun:
                builder.phase("data.start", at, at + 1)
                begun.add(number)
            builder.mark("data.pass", at, float(number), domain="traceprof")
        add(builder, kind if kind in "dx" else word, at=at)
        if kind == "d":
            builder.mark("batch", at + LENGTH - 1, 8.0, domain="traceprof")
    return builder.build()


STEP = "f b o"
TRAINS_ONLY = f"d1 {STEP} d1 {STEP} x1"


@pytest.mark.parametrize(
    ("text", "training", "epochs"),
    [
        (TRAINS_ONLY, [1], 1),
        # an evaluation in the midst of an epoch, and at its end
        (f"d1 {STEP} d2 e d2 e x2 d1 {STEP} x1 d3 e x3", [1], 1),
        (f"d1 {STEP} d2 e d1 {STEP} x1", [1], 1),  # left after its first batch
        # between the batches of one step
        ("d1 f b d2 e d2 e x2 d1 f b o d1 f b d1 f b o x1", [1], 1),
        # a forward pass ahead of all
        (f"f d1 {STEP} d1 {STEP} x1 d2 {STEP} d2 {STEP} x2", [1, 2], 2),
        # a second loader beside the first one, which begins again
        (f"d1 d2 {STEP} d1 d2 {STEP} d1 x2 d3 {STEP} d1 d3 {STEP} x1", [1, 2, 3], 1),
        # of the second one a batch is used before the first one's is fetched
        (f"d1 f d2 {STEP} d1 f d2 {STEP} d1 f d2 {STEP} x1", [1, 2], 1),
        # one batch ahead
        (f"d1 d1 {STEP} d1 {STEP} x1 {STEP} d2 d2 e x2 e", [1], 1),
        # an endless loader of which a batch is evaluated now and then
        (f"d1 {STEP} d1 {STEP} d1 {STEP} d9 e " * 3 + "d9 e", [1], 1),
    ],
)
def test_which_passes_train(text, training, epochs):
    trace = trace_of(text)
    passes = passes_of_loaders(trace)
    assert sorted(passes["number"][passes["is_training"]]) == training
    assert len(epochs_of_loaders(trace)) == epochs


def known(values):
    """Return the values, with None for those that are not known."""
    return [None if value != value else value for value in values.tolist()]


def test_samples_of_a_step_are_those_that_it_trains_with():
    trace = trace_of(f"d1 {STEP} d2 e d2 e x2 d1 {STEP} x1 d3 e x3")
    assert measured_steps(Ranks.of(trace)).table.to_frame()["samples_count"].tolist() == [8, 8]


def test_what_a_thread_fetches_ahead_is_of_the_next_step():
    builder = TraceBuilder()
    for place, size in enumerate((8, 8, 2)):  # two of them before the first step begins
        builder.mark("batch", 10 * place + 5, float(size), domain="traceprof", thread=2)
    add(builder, "f b o f b o f b o", at=20)
    trace = builder.build()
    table = measured_steps(Ranks.of(trace)).table.to_frame()
    assert known(table["samples_count"]) == [18, None, None]
    second = trace.within(TimeWindow(50, 110))
    assert known(measured_steps(Ranks.of(second)).table.to_frame()["samples_count"]) == [None, None]


def test_the_rate_of_several_steps_for_each_batch_is_from_batch_to_batch():
    trace = trace_of("d1 f b o f b o d1 f b o f b o d1 f b o f b o d1 f b o x1")
    measured = measured_steps(Ranks.of(trace))
    assert known(measured.table.to_frame()["samples_count"]) == [8, None, 8, None, 8, None, 8]
    rates = known(measured.table.to_frame()["samples_per_s"])
    assert [rate is None for rate in rates] == [False, True, False, True, False, True, False]
    # Two steps have one batch of 8: the last batch, of which one step is known, does not count.
    scalars = measured.scalars
    assert scalars["samples_per_s"] == pytest.approx(4 * scalars["steps_per_s"])


def test_passes_of_threads_that_fetch_side_by_side_are_told_apart():
    builder = TraceBuilder()
    for thread in (1, 2):
        builder.mark("data.pass", 0, float(thread), domain="traceprof", thread=thread)
        add(builder, "d d d", thread, at=thread)
    add(builder, "f b o f b o f b o", at=5)
    passes = passes_of_loaders(builder.build())
    assert np.array_equal(passes["number"], [1, 2])
    assert np.array_equal(passes["fetches_count"], [3, 3])
