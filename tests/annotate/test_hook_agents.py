"""What torchrun's agents do is noted beside the spool: with agents that only look like them."""

import json
from types import SimpleNamespace

import pytest


def fake_group(state="HEALTHY"):
    return SimpleNamespace(
        state=SimpleNamespace(name=state),
        group_rank=1,
        group_world_size=2,
        workers=[SimpleNamespace(global_rank=rank, world_size=4) for rank in (2, 3)],
        spec=SimpleNamespace(max_restarts=5),
    )


def make_agent():
    class SimpleElasticAgent:
        _remaining_restarts = 3

        def _rendezvous(self, group):
            group.met = True

        def _restart_workers(self, group):
            self._rendezvous(group)

        def _monitor_workers(self, _group):
            return self.result

    return SimpleElasticAgent


@pytest.fixture
def agent(runtime):
    hooks = runtime("hook_agents")
    cls = make_agent()
    hooks._wrap_agent(SimpleNamespace(SimpleElasticAgent=cls))
    hooks._wrap(cls, "_monitor_workers", hooks._failure_event)
    return cls()


def events(folder):
    (path,) = folder.glob("agent.*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("state", "kind"), [("HEALTHY", "membership"), ("FAILED", "restart"), ("UNHEALTHY", "restart")]
)
def test_meeting_and_starting_again(agent, tmp_path, state, kind):
    group = fake_group(state)
    agent._restart_workers(group)
    assert group.met
    met, restarted = events(tmp_path)
    assert (met["kind"], met["nodes"], met["ranks"], met["world_size"]) == (
        "rendezvous",
        2,
        [2, 3],
        4,
    )
    assert met["restart_count"] == 2
    assert (restarted["kind"], restarted["state"]) == (kind, state.lower())
    assert restarted["start_ns"] <= met["start_ns"] <= met["end_ns"] <= restarted["end_ns"]


def test_failures_with_their_exit_codes(agent, tmp_path):
    failure = SimpleNamespace(pid=77, exitcode=-9)
    agent.result = SimpleNamespace(is_failed=lambda: True, failures={3: failure})
    assert agent._monitor_workers(fake_group()) is agent.result
    (event,) = events(tmp_path)
    assert (event["kind"], event["ranks"], event["exit_codes"]) == ("failure", [3], {"77": -9})
    agent.result = SimpleNamespace(is_failed=lambda: False, failures={})
    agent._monitor_workers(fake_group())
    assert len(events(tmp_path)) == 1


def test_an_agent_goes_on_where_nothing_can_be_written(agent, monkeypatch, runtime):
    monkeypatch.setattr(runtime("settings"), "DIRECTORY", "/nowhere")
    group = fake_group()
    agent._rendezvous(group)
    assert group.met
