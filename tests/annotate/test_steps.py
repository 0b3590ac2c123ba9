"""Steps as they are seen while the program runs; loops are words as in the test of the analysis.

d: a fetch, x: one that finds no more batches, f: forward, e: an evaluation's, b: backward, o, o2 …:
the step of an optimizer, s: one that is left out.
"""

import json
import threading
from types import SimpleNamespace

import pytest

from tests.measures.steps import test_phases


@pytest.fixture
def begun(runtime):
    """Return the module ``steps`` of a process that records."""
    runtime("session").begin()
    return runtime("steps")


def play(steps, text):
    """Call what the hooks call, and return the number of the step at the end of each word."""
    numbers = []
    for word in text.split():
        kind, optimizer = word[0], int(word[1:] or 1)
        if kind in "dx":
            steps.begin_fetch(may_train=kind == "d")
            steps.end_fetch() if kind == "d" else steps.end_batches()
        elif kind in "fe":
            steps.begin_forward(may_train=kind == "f")
            steps.end_forward()
        elif kind == "b":
            steps.begin_backward()
            steps.end_backward()
        else:
            steps.begin_optimizer(optimizer)
            steps.end_optimizer(optimizer)
        numbers.append(steps.number)
    return numbers


def make_optimizers(steps, text):
    for word in text.split():
        if word[0] == "o":
            steps.add_optimizer(int(word[1:] or 1))


LOOPS = next(
    mark.args[1] for mark in test_phases.test_loops.pytestmark if mark.name == "parametrize"
)
# That an optimizer made only its state, or that another joins it now and then, shows afterwards.
KNOWN_AFTERWARDS = {"o f b o f b o", "f b o f b o f b o2 f b o f b o f b o2"}


@pytest.mark.parametrize(
    "text",
    [text for text, _ in LOOPS if not {"p", "k"} & set(text) and text not in KNOWN_AFTERWARDS],
)
def test_as_many_steps_are_seen_as_the_analysis_finds(begun, text):
    make_optimizers(begun, text)
    play(begun, text)
    begun.finish()
    assert begun.number == len(test_phases.words_of(text))


def test_with_a_loader_a_step_lasts_to_the_next_fetch(begun):
    begun.add_optimizer(1)
    assert play(begun, "d f b o d f b o x") == [0, 0, 0, 0, 1, 1, 1, 1, 2]


def test_without_a_loader_it_ends_with_the_optimizer(begun):
    begun.add_optimizer(1)
    assert play(begun, "f f b o f b o") == [0, 0, 0, 1, 1, 1, 2]


def test_a_loader_that_was_seen_once_does_not_decide_for_ever(begun):
    begun.add_optimizer(1)
    assert play(begun, "f b o d e d e x f b o f b o")[-4:] == [2, 2, 2, 3]


def test_a_critic_with_more_turns_than_its_generator_is_known_from_the_second_time_on(begun):
    cycle = "f b o f b o f b o2 "
    make_optimizers(begun, cycle)
    play(begun, 5 * cycle)
    # Of the first one the turn of the generator seems to be a step of its own.
    assert begun.number == 5 * 2 + 1


def test_optimizers_that_take_turns_are_one_step_from_the_second_time_on(begun):
    begun.add_optimizer(1)
    begun.add_optimizer(2)
    assert play(begun, "f b o f b o2 f b o f b o2") == [0] * 5 + [1] * 6 + [2]


def test_optimizers_inside_the_backward_pass_do_not_end_the_step(begun):
    begun.add_optimizer(1)
    begun.add_optimizer(2)
    for _ in range(2):
        begun.begin_forward(may_train=True)
        begun.begin_backward()
        for number in (1, 2):
            begun.begin_optimizer(number)
            begun.end_optimizer(number)
        before = begun.number
        begun.end_backward()
        assert begun.number == before + 1


def test_an_optimizer_that_fails_makes_no_step(begun):
    begun.add_optimizer(1)
    begun.begin_forward(may_train=True)
    begun.begin_optimizer(1)
    begun.end_optimizer(1, is_done=False)
    begun.begin_forward(may_train=True)
    assert begun.number == 0


def test_an_optimizer_that_is_gone_is_not_waited_for(begun):
    begun.add_optimizer(1)
    begun.add_optimizer(2)
    begun.remove_optimizer(2)
    assert play(begun, "f b o f b o") == [0, 0, 1, 1, 1, 2]


def test_optimizers_that_are_there_but_never_step_do_not_hide_the_steps(begun):
    begun.add_optimizer(1)
    play(begun, "f b " * 70)
    assert begun.number == 7


def test_what_other_threads_do_is_not_of_the_step(begun):
    begun.add_optimizer(1)
    play(begun, "f b o")
    others = [threading.Thread(target=play, args=(begun, "d d f")) for _ in range(2)]
    for other in others:
        other.start()
        other.join()
    assert play(begun, "f b o") == [1, 1, 2]


def test_a_thread_that_goes_on_after_the_first_has_ended_is_followed(begun):
    begun.add_optimizer(1)
    for count in (2, 4):
        trainer = threading.Thread(target=play, args=(begun, "f b o f b o"))
        trainer.start()
        trainer.join()
        assert begun.number == count


@pytest.mark.parametrize(
    ("asked", "text", "expected"),
    [
        ("backward", "d f b f b o x", [0, 0, 1, 1, 2, 2, 2]),
        ("optimizer", "f b o f b o2", [0, 0, 1, 1, 1, 2]),
        ("loader", "d f d f x", [0, 0, 1, 1, 2]),
        ("every-forward", "d e d f b o f x", [0, 1, 1, 2, 2, 2, 3, 3]),
        ("range:epoch", "d f b o f b o x", [0] * 8),
    ],
)
def test_what_a_step_is_can_be_chosen(runtime, monkeypatch, asked, text, expected):
    monkeypatch.setenv("TRACEPROF_STEP_FROM", asked)
    runtime("session").begin()
    steps = runtime("steps")
    make_optimizers(steps, text)
    assert play(steps, text) == expected


def test_ranges_of_a_name_can_be_the_steps(runtime, monkeypatch):
    monkeypatch.setenv("TRACEPROF_STEP_FROM", "range:turn")
    runtime("session").begin()
    steps, explicit = runtime("steps"), runtime("explicit")
    seen = []
    for name in ("turn", "other", "turn"):
        span = explicit.Range(name, 0)
        play(steps, "f b")
        span.end()
        seen.append(steps.number)
    assert seen == [1, 1, 2]


def test_boundaries_are_told_before_the_first_step_and_after_each(begun):
    numbers = []
    begun.on_boundary(numbers.append)
    begun.add_optimizer(1)
    play(begun, "d f b o d f b o x")
    begun.finish()
    assert numbers == [0, 1, 2]


def test_while_no_step_is_seen_what_happens_is_told(begun):
    told = []
    begun.on_activity(lambda: told.append(begun.number))
    play(begun, "e e d")
    assert told == [0, 0, 0]
    play(begun, "f e")
    assert told == [0, 0, 0]


def test_steps_that_the_program_names_take_the_place_of_those_found(runtime):
    session, steps, explicit = runtime("session"), runtime("steps"), runtime("explicit")
    session.begin()
    steps.begin_forward(may_train=True)
    step = explicit.Step(41, 8)
    play(steps, "f b o")
    assert steps.number == 41
    step.end()
    assert steps.number == 42
    assert steps._open_step is None


def test_a_capture_by_steps_holds_the_others_back(runtime, monkeypatch):
    monkeypatch.setenv("TRACEPROF_STEPS", "1..2")
    session, steps, start = runtime("session"), runtime("steps"), runtime("install")
    assert start.start()
    captured = []
    steps.add_optimizer(1)
    for _ in range(5):
        steps.begin_forward(may_train=True)
        captured.append(session.is_capturing())
        play(steps, "b o")
    assert captured == [False, True, True, False, False]
    assert not start.start()  # torch that is imported later asks again: nothing begins anew


class Parameter:
    """What the hooks see of a parameter, and of a loss that hangs on it."""

    def __init__(self):
        self.grad = None
        self.grad_fn = SimpleNamespace(next_functions=((SimpleNamespace(variable=self), 0),))

    def learn(self, steps, gradients):
        """Do what the hook of backward passes does around one."""
        followed, adds = gradients.begin_pass([self])
        steps.begin_backward(adds)
        version = 0 if self.grad is None else self.grad._version + 1
        self.grad = SimpleNamespace(_version=version, data_ptr=lambda: 7)
        gradients.end_pass(followed)
        steps.end_backward()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("f b f b r f b f b r f b", [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]),
        # that every pass is a step is known from the second one on
        ("f b r f b r f b r f b r", [0, 0, 0, 1, 2, 2, 2, 3, 3, 3, 4, 4]),
        ("d f b d f b r d f b d f b r d f b", 7 * [0] + 7 * [1] + 3 * [2]),
    ],
)
def test_what_is_added_to_the_same_gradients_is_one_step(begun, runtime, text, numbers):
    """r: gradients are reset."""
    parameter, found = Parameter(), []
    for word in text.split():
        if word == "r":
            parameter.grad = None
        elif word == "b":
            parameter.learn(begun, runtime("gradients"))
        else:
            play(begun, word)
        found.append(begun.number)
    assert found == numbers
    begun.finish()
    assert begun.number == text.count("r") + text.endswith("b")


def test_where_gradients_are_reset_unseen_every_pass_is_a_step(begun, runtime):
    parameter = Parameter()
    for _ in range(200):
        parameter.learn(begun, runtime("gradients"))
    assert begun.number == 200 - 64


def test_without_a_parameter_nothing_is_followed(runtime):
    gradients = runtime("gradients")
    assert gradients.begin_pass([SimpleNamespace(grad_fn=None), None]) == (None, False)
    assert not gradients.keeps_step_open()


def test_one_optimizer_of_several_can_be_asked_for(runtime, monkeypatch):
    monkeypatch.setenv("TRACEPROF_STEP_FROM", "optimizer#2")
    runtime("session").begin()
    steps = runtime("steps")
    make_optimizers(steps, "o o2")
    assert play(steps, "f b o f b o f b o2 f b o2") == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2]


def test_turns_that_could_be_steps_are_counted(begun):
    make_optimizers(begun, "o o2")
    play(begun, "f b o f b o2 f b o f b o2")
    seen = begun.summary()
    assert (seen["steps"], seen["joined"], seen["turns"]) == (2, 2, {1: 2, 2: 2})


def test_a_step_that_was_begun_and_left_is_said(begun, tmp_path, runtime):
    begun.add_optimizer(1)
    play(begun, "d f b o d f b")
    begun.finish()
    runtime("session").close()
    (path,) = tmp_path.glob("events.*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [(row[2], row[3]) for row in rows] == [("step", 0), ("step", 1), ("step.left", 1)]
