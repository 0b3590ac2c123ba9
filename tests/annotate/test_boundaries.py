"""The steps that the few hooks of `record --always` find, from fetches and optimizer steps."""

import threading

import pytest


class Program:
    """Calls what the hooks call; each call takes 1 ns."""

    def __init__(self, module, monkeypatch):
        self.now = 0
        monkeypatch.setattr(module, "monotonic_ns", self.tick)
        self.steps = []
        self.found = module.Boundaries(self.steps.append)

    def tick(self):
        self.now += 1
        return self.now

    def fetch(self, n_samples=4, may_train=True):
        self.found.begin_fetch(self.tick(), may_train)
        if may_train:
            self.found.data_ns += self.tick() - self.now + 1
            self.found.n_samples += n_samples

    def turn(self, optimizer=1):
        self.tick()
        self.found.end_turn(optimizer)

    def spans(self):
        return [(start, end) for start, end, _, _ in self.steps]


@pytest.fixture
def program(runtime, monkeypatch):
    return Program(runtime("hook_boundaries"), monkeypatch)


def test_a_step_lasts_from_its_fetch_to_the_next(program):
    for _ in range(4):
        program.fetch()
        program.turn()
    assert program.spans() == [(1, 4), (4, 7), (7, 10)]
    assert {row[2:] for row in program.steps} == {(1, 4)}  # data loading, samples


def test_gradient_accumulation_is_one_step(program):
    for _ in range(4):
        program.fetch()
        program.fetch()
        program.turn()
    assert len(program.steps) == 3
    assert {row[3] for row in program.steps} == {8}


def test_an_evaluation_belongs_to_no_step(program):
    for _ in range(2):
        program.fetch()
        program.turn()
    end = program.now
    for _ in range(50):
        program.fetch(may_train=False)
    program.fetch()
    program.turn()
    program.fetch()
    assert [last - first for first, last in program.spans()] == [3, 3, 3]
    assert program.spans()[1][1] == end + 1


def test_without_a_loader_the_optimizer_ends_steps(program):
    for _ in range(10):
        program.turn()
    assert program.spans() == [(first, first + 2) for first in range(3, 19, 2)]


def test_an_optimizer_that_steps_several_times_per_batch_ends_steps(program):
    for _ in range(20):
        program.fetch()
        for _ in range(4):
            program.turn()
    assert len(program.steps) == 19 * 4  # how the first batch is used is not known yet


@pytest.mark.parametrize("turns", [(1, 2), (1, 1, 1, 2), (2, 1, 1, 1)])
def test_optimizers_that_take_turns_with_a_batch_are_one_step(program, turns):
    for _ in range(20):
        program.fetch()
        for optimizer in turns:
            program.turn(optimizer)
    assert len(program.steps) == 19


@pytest.mark.parametrize("turns", [(1, 2), (1, 1, 2)])
def test_optimizers_that_take_turns_without_a_loader_are_one_step(program, turns):
    for _ in range(40):
        for optimizer in turns:
            program.turn(optimizer)
    assert 37 <= len(program.steps) <= 40


def test_backward_passes_end_steps_until_an_optimizer_steps(runtime, program):
    backward = runtime("hook_boundaries")._BACKWARD
    for _ in range(6):
        program.fetch()
        program.turn(backward)
    assert len(program.steps) == 5
    assert not program.found.has_optimizer()
    program.turn(7)
    assert program.found.has_optimizer()


def test_batches_that_another_thread_fetches_do_not_end_steps(program):
    thread = threading.Thread(target=program.fetch)
    thread.start()
    thread.join()
    for _ in range(10):
        program.turn()
    assert len(program.steps) == 8
    assert program.found.thread == threading.get_ident()


def test_a_fetch_without_a_batch_begins_no_step(program):
    for _ in range(3):
        program.fetch()
        program.turn()
    program.fetch()
    program.found.forget_step()
    program.now += 1000  # the epoch ends; a checkpoint is written
    program.fetch()
    program.turn()
    program.fetch()
    assert max(last - first for first, last in program.spans()) == 3
