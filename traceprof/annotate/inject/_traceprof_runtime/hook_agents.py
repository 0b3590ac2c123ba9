"""Hooks for torchrun agents: rendezvous, restarts of workers, and failed workers.

Agents are launchers, not ranks. So their events are written to a separate file, not to the trace.
"""

import functools
import json
import os

from . import settings
from .after_import import call_after_import
from .clock import time_ns
from .identity import identity
from .replaced import replace

_SERVER = "torch.distributed.elastic.agent.server."


def install_agents(_torch):
    """Wrap the methods of the agent, if this process is an agent."""
    call_after_import(_SERVER + "api", _wrap_agent)
    call_after_import(
        _SERVER + "local_elastic_agent",
        lambda module: _wrap(module.LocalElasticAgent, "_monitor_workers", _failure_event),
    )


def _wrap_agent(module):
    _wrap(module.SimpleElasticAgent, "_rendezvous", _rendezvous_event)
    _wrap(module.SimpleElasticAgent, "_restart_workers", _restart_event)


def _wrap(cls, name, make_event):
    """Wrap a method; write the event that ``make_event`` returns after each call, if any.

    ``make_event`` receives the agent, the worker group, the result, and the previous state.
    """
    original = getattr(cls, name)

    @functools.wraps(original)
    def method(self, worker_group, *args, **kwargs):
        start, state = time_ns(), worker_group.state
        result = original(self, worker_group, *args, **kwargs)
        event = make_event(self, worker_group, result, str(getattr(state, "name", state)).lower())
        if event is not None:
            _write(dict(event, start_ns=start, end_ns=time_ns()))
        return result

    replace(cls, name, method)


def _rendezvous_event(agent, group, _result, _state):
    return {
        "kind": "rendezvous",
        "node": group.group_rank,
        "nodes": group.group_world_size,
        "ranks": [worker.global_rank for worker in group.workers],
        "world_size": group.workers[0].world_size if group.workers else None,
        "restart_count": group.spec.max_restarts - agent._remaining_restarts,
    }


def _restart_event(_agent, _group, _result, state):
    """Distinguish a restart after a failure from a restart because nodes joined."""
    return {"kind": "membership" if state == "healthy" else "restart", "state": state}


def _failure_event(_agent, _group, result, _state):
    if not result.is_failed() or not result.failures:
        return None
    failures = result.failures
    codes = {str(failure.pid): failure.exitcode for failure in failures.values()}
    return {"kind": "failure", "ranks": [int(rank) for rank in failures], "exit_codes": codes}


def _write(event):
    """Append one event to the file; a failed write must not stop the agent."""
    try:
        path = os.path.join(settings.DIRECTORY, "agent.%s.jsonl" % identity())
        with open(path, "a") as file:
            file.write(json.dumps(event) + "\n")
    except (OSError, TypeError, ValueError):
        return
