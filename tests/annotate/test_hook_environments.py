"""Rollouts in environments that are written by hand, and in programs that only sample actions."""

import asyncio
import types

import pytest

from tests.annotate.test_hook_rollouts import TORCH, Emitter, Policy, Tensor

pytestmark = pytest.mark.usefixtures("recorded")


class Environment:
    def reset(self):
        return 0

    def step(self, action):
        return action, 1.0, False


class EarlyStopping:
    def reset(self):
        return None

    def step(self, loss):
        return loss > 1


@pytest.fixture
def recorded(runtime, monkeypatch):
    """Return the emitter of an active recording, with the hooks of rollouts and environments."""
    session, rollouts = runtime("session"), runtime("hook_rollouts")
    environments, emitter = runtime("hook_environments"), Emitter()
    monkeypatch.setattr(session, "active", True)
    monkeypatch.setattr(session, "emitter", lambda: emitter)
    monkeypatch.setattr(rollouts.asyncio, "_get_running_loop", lambda: None)
    monkeypatch.setattr(environments, "_is_installed", True)
    torch = types.SimpleNamespace(**vars(TORCH), nn=types.SimpleNamespace(Module=Policy))
    step, stop = Environment.step, EarlyStopping.step

    def run_policy():
        environments.find_environments(torch)  # as from the hook, which is one frame deeper
        rollouts.begin_pass(torch, Policy(), (Tensor(8, 5, dtype="float32"),), {})
        rollouts.end_pass()

    yield types.SimpleNamespace(
        emitter=emitter,
        run_policy=run_policy,
        rollouts=rollouts,
        environments=environments,
        torch=torch,
    )
    Environment.step, EarlyStopping.step = step, stop


def test_an_object_with_reset_and_step_is_an_environment(recorded):
    environment, stopping = Environment(), EarlyStopping()
    for _ in range(3):
        recorded.run_policy()
        assert environment.step(1) == (1, 1.0, False)
    assert stopping.step(2) is True
    recorded.rollouts.begin_training()
    assert recorded.emitter.past == ["environment"] * 3 + ["rollout"]


def test_environments_in_lists_and_attributes_are_found(recorded):
    class Runner:
        def __init__(self):
            self.environments = [Environment(), Environment()]

        def play(self):
            recorded.run_policy()
            for environment in self.environments:
                environment.step(1)

    Runner().play()
    recorded.rollouts.begin_training()
    assert recorded.emitter.past == ["environment", "environment", "rollout"]


def test_random_actions_before_the_first_pass_of_a_policy_are_steps(recorded):
    """A program fills a buffer with random actions; it creates another environment later."""

    class Other(Environment):
        def step(self, action):
            return action, 0.0, True

    class Optimizer:
        def __init__(self):
            self.is_ready = True

    replaced = recorded.environments._wrap_optimizer(recorded.torch, Optimizer.__init__)
    Optimizer.__init__ = replaced
    environment = Environment()
    assert Optimizer().is_ready
    for _ in range(5):
        environment.step(1)
    other = Other()
    recorded.run_policy()
    other.step(1)
    recorded.rollouts.begin_training()
    assert recorded.emitter.past == ["environment"] * 6 + ["rollout"]


def test_passes_after_the_last_step_are_not_part_of_the_rollout(recorded, monkeypatch):
    """An update of Q-learning begins with a pass of the target network."""
    clock = []
    monkeypatch.setattr(recorded.rollouts, "time_ns", lambda: clock[-1])
    monkeypatch.setattr(recorded.environments, "time_ns", lambda: clock[-1])
    environment = Environment()
    for now in (100, 200):
        clock.append(now)
        recorded.run_policy()
        clock.append(now + 50)
        environment.step(1)
    clock.append(400)
    recorded.run_policy()
    clock.append(450)
    recorded.rollouts.begin_training()
    assert recorded.emitter.spans[-1] == (100, 250, "rollout")


def test_a_schedule_of_an_evaluation_is_no_environment(recorded):
    stopping = EarlyStopping()
    for _ in range(3):
        recorded.run_policy()
        stopping.step(0)
    recorded.rollouts.begin_training()
    assert recorded.emitter.past == []


def test_sampled_actions_make_passes_without_gradients_a_rollout(recorded):
    sample = recorded.environments._wrap_sample(lambda: False, lambda: 3)
    for _ in range(2):
        recorded.run_policy()
        assert sample() == 3
    recorded.rollouts.begin_training()
    sample()  # of the loss, after the rollout has ended
    recorded.rollouts.begin_training()
    assert recorded.emitter.past == ["rollout"]


def test_a_compiler_that_traces_samples_no_action(recorded):
    sample = recorded.environments._wrap_sample(lambda: True, lambda: 3)
    recorded.run_policy()
    sample()
    recorded.rollouts.begin_training()
    assert recorded.emitter.past == []


def test_a_rollout_lasts_until_its_event_loop_has_run(recorded, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(recorded.rollouts, "time_ns", lambda: next(clock))
    run = recorded.environments._wrap_loop(asyncio.BaseEventLoop.run_until_complete)
    sample = recorded.environments._wrap_sample(lambda: False, lambda: 3)

    async def play():
        recorded.run_policy()
        sample()

    loop, running = asyncio.new_event_loop(), asyncio._get_running_loop()
    asyncio._set_running_loop(None)  # a worker's thread may already have a loop of Playwright
    try:
        run(loop, play())
    finally:
        asyncio._set_running_loop(running)
        loop.close()
    ended = next(clock) - 1
    recorded.rollouts.begin_training()
    assert [span[1:] for span in recorded.emitter.spans] == [(ended, "rollout")]
