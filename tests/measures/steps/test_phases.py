"""Loops written as words: each word is a phase of 10 ns, with nothing between them.

d: a fetch, x: one that finds no more batches, f: forward, e: an evaluation's forward, b: backward,
o, o2 …: the step of an optimizer, s: one that was left out, k: gradients are kept, p: the profiler,
g: a rollout or another generation, l: log-probabilities,
u: a training pass reads generated sequences.
"""

import pytest

from tests.builders import THREAD, TraceBuilder, plain
from traceprof.measures.steps.find import find_steps

NAMES = {"d": "data", "f": "forward", "e": "eval", "b": "backward", "o": "optimizer"}
NAMES |= {
    "s": "optimizer.skipped",
    "k": "gradients.kept",
    "g": "generation",
    "l": "logprobs",
    "u": "rollout.used",
    "n": "rollout.unused",
}
LENGTH = 10


def loop(text, thread=THREAD, at=0):
    builder = TraceBuilder()
    add(builder, text, thread, at)
    return builder


def add(builder, text, thread=THREAD, at=0):
    for place, word in enumerate(text.split()):
        start = at + LENGTH * place
        kind, number = word[0], word[1:]
        if kind == "x":
            builder.phase("data", start, start + LENGTH - 1, thread=thread)
            builder.phase("data.end", start + LENGTH - 1, start + LENGTH, thread=thread)
        elif kind == "p":
            builder.phase("traceprof.window.stop", start, start + LENGTH, thread=thread)
        else:
            name = NAMES[kind] + (f"#{number}" if number else "")
            builder.phase(name, start, start + LENGTH, thread=thread)


def steps_of(builder):
    return find_steps(builder.build())


def words_of(text):
    """Return from which to which word each step goes."""
    table = steps_of(loop(text)).table.to_frame()
    return [(start // LENGTH, end // LENGTH) for start, end in plain(table, "start_ns", "end_ns")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d f b o d f b o x", [(0, 4), (4, 8)]),
        ("f b o f b o", [(0, 3), (3, 6)]),
        ("d f b d f b o d f b d f b o x", [(0, 7), (7, 14)]),  # gradients accumulate
        ("d d f b o d f b o x f b o", [(0, 5), (5, 9), (10, 13)]),  # one batch ahead
        # a GAN, with and without a loader
        ("d f b o f b o2 d f b o f b o2 x", [(0, 7), (7, 14)]),
        ("f b o f b o2 f b o f b o2", [(0, 6), (6, 12)]),
        # its critic more often than its generator
        ("f b o f b o f b o2 f b o f b o f b o2", [(0, 3), (3, 9), (9, 12), (12, 18)]),
        # two models in turn
        ("f b o f b o f b o f b o2 f b o2 f b o2", [(n, n + 3) for n in range(0, 18, 3)]),
        # two optimizers of one model
        ("f b o o2 f b o o2", [(0, 4), (4, 8)]),
        # a loop without a loader follows one with, and the other way round
        ("d f b o x f b o f b o", [(0, 4), (5, 8), (8, 11)]),
        ("f b o f b o d f b o d f b o x", [(0, 3), (3, 6), (6, 10), (10, 14)]),
        # batches made by hand, and a validation with a loader
        ("f b o f b o d e d e x f b o f b o", [(0, 3), (3, 6), (11, 14), (14, 17)]),
        # an evaluation in the midst without a loader
        ("f b o e e e f b o f b o", [(0, 3), (6, 9), (9, 12)]),
        # several steps on one batch
        ("d f b o f b o d f b o f b o x", [(0, 4), (4, 7), (7, 11), (11, 14)]),
        # a critic that learns several times from each batch, and a generator
        ("d f b o f b o f b o2 d f b o f b o f b o2 x", [(0, 10), (10, 20)]),
        # batches of its own for the critic
        ("d f b o d f b o f b o2 d f b o d f b o f b o2 x", [(0, 4), (4, 11), (11, 15), (15, 22)]),
        # an actor and a critic that take several turns with each batch
        (
            "d f b o f b o2 f b o f b o2 d f b o f b o2 f b o f b o2 x",
            [(0, 7), (7, 13), (13, 20), (20, 26)],
        ),
        # a teacher in every step
        ("d e f b o d e f b o x", [(0, 5), (5, 10)]),
        ("e f b o e f b o", [(0, 4), (4, 8)]),
        # trained in the mode for evaluation
        ("e b o e b o", [(0, 3), (3, 6)]),
        # an optimizer's state is made before anything is learned; one that learns without gradients
        ("o f b o f b o", [(1, 4), (4, 7)]),
        ("f o f o f o", [(0, 2), (2, 4), (4, 6)]),
        # the profiler stops the loop: the step ends before
        ("d f b o p d f b o x", [(0, 4), (5, 9)]),
        ("f b o p f b o", [(0, 3), (4, 7)]),
        # an update by hand
        ("f b f b f b", [(0, 2), (2, 4), (4, 6)]),
        ("d f b d f b x", [(0, 3), (3, 6)]),
        ("d f b f b d f b f b x", [(0, 5), (5, 10)]),
        # one that adds up the gradients of several passes
        ("f b f k b f b f k b", [(0, 5), (5, 10)]),
        ("d f b d f k b d f b d f k b x", [(0, 7), (7, 14)]),
        ("f b" + 70 * " f k b", [(0, 2), *((n, n + 3) for n in range(2, 212, 3))]),  # reset unseen
        # steps that are left out: gradients were not finite
        ("f b s f b o f b o", [(0, 3), (3, 6), (6, 9)]),
        ("d f b o d f b s d f b o x", [(0, 4), (4, 8), (8, 12)]),
        ("f b o f b s2 f b o f b o2", [(0, 6), (6, 12)]),
    ],
)
def test_loops(text, expected):
    assert words_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g f b o g f b o", [(0, 4), (4, 8)]),
        ("g l f b o f b o g l f b o f b o", [(0, 8), (8, 16)]),
        ("g f b o f b o g f b o f b o", [(0, 7), (7, 14)]),
        # a batch of prompts, then a loader over the rollout
        ("d g l d f b o d f b o x d g l d f b o d f b o x", [(0, 11), (12, 23)]),
        ("g d u f b o d u f b o x g d u f b o d u f b o x", [(0, 11), (12, 23)]),  # without scores
        ("d g l f b f b o d g l f b f b o", [(0, 8), (8, 16)]),  # gradients accumulate
        ("g l f b o f b o2 g l f b o f b o2", [(0, 8), (8, 16)]),  # actor and critic
        # generation that evaluates: it follows training, or the steps have batches of their own
        ("f b o f b o g f b o f b o g", [(0, 3), (3, 6), (7, 10), (10, 13)]),
        ("g d f b o d f b o g d f b o x", [(1, 5), (5, 9), (10, 14)]),
        # updates on many more sequences than were generated
        ("g f b o n f b o g f b o n f b o", [(1, 4), (5, 8), (9, 12), (13, 16)]),
        # a sample before the training
        ("g f b o f b o f b o", [(1, 4), (4, 7), (7, 10)]),
    ],
)
def test_a_step_of_post_training_is_a_rollout_and_its_updates(text, expected):
    assert words_of(text) == expected


def test_generation_within_an_evaluation_is_no_rollout():
    builder = TraceBuilder()
    for start in (0, 100):
        builder.phase("eval", start, start + 50).phase("generation", start + 10, start + 40)
        for at in (start + 50, start + 70):
            builder.phase("forward", at, at + 5).phase("backward", at + 5, at + 10)
            builder.phase("optimizer", at + 10, at + 20)
    assert steps_of(builder).source == "recorded phases"


def test_the_source_of_steps_names_rollouts():
    source = steps_of(loop("g f b o f b o g f b o f b o")).source
    assert source == "recorded phases, a rollout and 2 updates per step"
    assert "rollout" not in steps_of(loop("f b o f b o g f b o f b o g")).source


def test_phases_inside_the_optimizer_are_of_its_step():
    builder = TraceBuilder()
    for start in (0, 100):
        builder.phase("optimizer", start, start + 90)
        for at in (10, 40):
            builder.phase("forward", start + at, start + at + 10)
            builder.phase("backward", start + at + 10, start + at + 20)
    assert plain(steps_of(builder).table.to_frame(), "start_ns", "end_ns") == [(0, 90), (100, 190)]


def test_optimizers_inside_the_backward_pass_are_one_step():
    builder = TraceBuilder()
    for start in (0, 100):
        builder.phase("forward", start, start + 10).phase("backward", start + 10, start + 90)
        builder.phase("optimizer#2", start + 20, start + 30)
        builder.phase("optimizer", start + 40, start + 50)
    steps = steps_of(builder)
    assert plain(steps.table.to_frame(), "start_ns", "end_ns") == [(0, 90), (100, 190)]
    assert steps.source == "recorded phases, 2 optimizers per step"


def test_an_optimizer_that_another_one_uses_is_none_of_its_own():
    builder = loop("f b o2 f b o2")
    for start in (20, 50):
        builder.phase("optimizer", start + 2, start + 8)
    assert steps_of(builder).source == "recorded phases"
    assert len(steps_of(builder)) == 2


def test_batches_that_a_thread_fetches_ahead_do_not_cut_steps():
    builder = loop("f b o f b o f b o")
    add(builder, "d d d d", THREAD + 1, at=5)
    assert plain(steps_of(builder).table.to_frame(), "start_ns", "end_ns") == [
        (0, 30),
        (30, 60),
        (60, 90),
    ]


def test_of_two_threads_that_train_the_one_with_more_steps_counts():
    builder = loop("f b o f b o f b o")
    add(builder, "f b o2 f b o2", THREAD + 1, at=5)
    assert len(steps_of(builder)) == 3


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("f b o f b o", "recorded phases"),
        ("f b o f b o2 f b o f b o2", "recorded phases, 2 optimizers per step"),
        ("f b f b", "backward passes (no PyTorch optimizer found)"),
    ],
)
def test_what_a_step_is_is_said(text, source):
    assert steps_of(loop(text)).source == source


def test_steps_that_were_asked_for_win():
    builder = loop("f b o f b o")
    for number in (7, 8, 9):
        builder.phase("step:backward", 20 * number, 20 * number + 20, payload=float(number))
    steps = steps_of(builder)
    assert steps.source == "--step-from backward"
    assert steps.table.to_frame()["step"].tolist() == [7, 8, 9]
    builder.phase("step.left", 199, 199, payload=9.0)  # the program ended in its midst
    assert steps_of(builder).table.to_frame()["step"].tolist() == [7, 8]


def test_the_time_of_the_profiler_is_of_no_step():
    steps = steps_of(loop("f b o p p p f b o"))
    assert plain(steps.table, "start_ns", "next_ns", "recorder_ns") == [(0, 60, 30), (60, 90, 0)]
    assert steps.periods_ns.tolist() == steps.durations_ns.tolist() == [30, 30]


def test_steps_of_a_part_bear_the_numbers_that_they_had():
    builder = TraceBuilder()
    for at, number in ((0, 5), (100, 6)):
        builder.phase("forward", at, at + 10, payload=float(number))
        builder.phase("backward", at + 10, at + 20, payload=float(number))
        builder.phase("optimizer", at + 20, at + 30, payload=float(number))
    assert steps_of(builder).table.to_frame()["step"].tolist() == [0, 1]
    builder.phase("traceprof.capture", 0, 130, payload=0.0, kind="start_end")
    assert steps_of(builder).table.to_frame()["step"].tolist() == [5, 6]
