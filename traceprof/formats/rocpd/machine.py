"""Read machine, processes, and environment from a rocpd database, and find its secrets."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from traceprof.formats.rocpd.file import ProfiledProcess, profiled_processes
from traceprof.formats.shared.launchers import RANK_VARIABLES, TOPOLOGY_VARIABLES
from traceprof.formats.shared.redaction import secrets_of_values
from traceprof.formats.sqlite.database import Database
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, make_table


def json_object(text: object) -> dict[str, Any]:
    """Return the object in a JSON text; an empty object if there is none."""
    try:
        value = json.loads(str(text))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def whole(value: object) -> int:
    """Return a nonnegative whole number, also from digits in a text; `ABSENT` for other values."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else ABSENT


def gpus(processes: Sequence[ProfiledProcess]) -> dict[str, dict[int, int]]:
    """Return suffix of a process's tables → id of an agent → number of its GPU.

    The number is the position among the GPUs, as HIP numbers them.
    """
    found: dict[str, dict[int, int]] = {}
    for process in processes:
        rows = process.rows("info_agent", "id", "type", "type_index", "logical_index")
        agents = [(agent, index, other) for agent, kind, index, other in rows if kind == "GPU"]
        found[process.suffix] = {
            agent: next(n for n in (index, other, place) if isinstance(n, int) and n >= 0)
            for place, (agent, index, other) in enumerate(agents)
        }
    return found


def read_devices(processes: Sequence[ProfiledProcess]) -> Table:
    """Return the GPUs of the machine."""
    rows: dict[int, dict[str, Any]] = {}
    numbers = gpus(processes)
    for process in processes:
        agents = process.rows("info_agent", "id", "product_name", "model_name", "name", "extdata")
        for agent, *names, extdata in agents:
            if (number := numbers[process.suffix].get(agent)) is not None:
                rows[number] = {
                    "device": number,
                    "name": str(next(filter(None, names), "")),
                    "sm_count": whole(json_object(extdata).get("cu_count")),
                }
    columns = {
        name: [row[name] for row in rows.values()] for name in ("device", "name", "sm_count")
    }
    return make_table("devices", columns)


def read_processes(processes: Sequence[ProfiledProcess]) -> Table:
    """Return the processes, with their ranks if a launcher set them in the environment."""
    rows = []
    for process in processes:
        hosts = process.texts("info_node", "hostname", "system_name")
        stored = process.rows("info_process", "pid", "nid", "command", "environment")
        for pid, node, command, environment in stored:
            variables = json_object(environment)
            ranks = {
                name: next(
                    (n for variable in names if (n := whole(variables.get(variable))) >= 0), ABSENT
                )
                for name, names in RANK_VARIABLES.items()
            }
            name = _program(str(command or ""))
            rows.append({"process": whole(pid), "name": name, "host": hosts.get(node, ""), **ranks})
    columns = ("process", "name", "host", *RANK_VARIABLES)
    return make_table("processes", {name: [row[name] for row in rows] for name in columns})


def _program(command: str) -> str:
    """Return the program in a command line and, for an interpreter, the script."""
    program, *arguments = command.split() or [""]
    script = arguments[:1] if arguments and arguments[0].endswith((".py", ".sh")) else []
    return " ".join([program, *script])


def read_threads(processes: Sequence[ProfiledProcess]) -> Table:
    """Return the names of threads."""
    rows = []
    for process in processes:
        pids = dict(process.rows("info_process", "id", "pid"))
        for owner, thread, name in process.rows("info_thread", "pid", "tid", "name"):
            if name:
                rows.append((whole(pids.get(owner, owner)), whole(thread), str(name)))
    columns = dict(zip(("process", "thread", "name"), zip(*rows, strict=True), strict=bool(rows)))
    return make_table("threads", {name: list(values) for name, values in columns.items()})


def read_environment(processes: Sequence[ProfiledProcess]) -> Table:
    """Return the properties of the machine, and the variables that contain rank and location."""
    found: dict[str, str] = {}
    for process in processes:
        for system, release in process.rows("info_node", "system_name", "release"):
            found |= {"os": str(system or ""), "kernel": str(release or "")}
        for command, environment in process.rows("info_process", "command", "environment"):
            found["command"] = str(command or "")
            variables = json_object(environment)
            wanted = [name for names in RANK_VARIABLES.values() for name in names]
            found |= {
                name: variables[name] for name in wanted if str(variables.get(name, "")).isdigit()
            }
            found |= {
                name: str(variables[name]) for name in TOPOLOGY_VARIABLES if name in variables
            }
    found = {name: value for name, value in found.items() if value}
    return make_table("environment", {"name": list(found), "value": list(found.values())})


def told_secrets(path: Path) -> Sequence[str]:
    """Return the secrets in the environments and command lines of a file."""
    found: dict[str, Any] = {}
    with Database(path) as database:
        for process in profiled_processes(database):
            for command, environment in process.rows("info_process", "command", "environment"):
                variables: Mapping[str, Any] = json_object(environment)
                found[f"environment{process.suffix}"] = variables
                found[f"command{process.suffix}"] = _arguments(str(command or ""))
    return secrets_of_values(found)


def _arguments(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
