"""Read a rocpd database: its tables, machine, processes, and environment; find its secrets.

Each profiled process has its own set of tables, with its own ids.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.rocpd.format import PREFIX
from traceprof.formats.shared.launchers import RANK_VARIABLES, TOPOLOGY_VARIABLES
from traceprof.formats.shared.redaction import secrets_of_values
from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.schema import quoted
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT, make_table

_LATEST_NS: Final = 1 << 62
_PROCESSES: Final = f"{PREFIX}info_process"


class ProfiledProcess:
    """The tables of one process, by their plain names, for example "kernel_dispatch"."""

    def __init__(self, database: Database, suffix: str) -> None:
        self.database = database
        self.suffix = suffix
        self.left_out = Counter[str]()

    def table(self, name: str) -> str:
        """Return the name of a table in the file."""
        return f"{PREFIX}{name}{self.suffix}"

    def columns(self, name: str) -> frozenset[str]:
        """Return the columns of a table; none if the table does not exist."""
        return self.database.columns(self.table(name))

    def numbers(self, name: str, *columns: str) -> Table:
        """Return whole-number columns of a table; `NULL` for missing values."""
        if self.columns(name).isdisjoint(columns):
            return Table(dict.fromkeys(columns, np.empty(0, np.int64)), 0)
        wanted = dict.fromkeys(columns, ColumnType.INTEGER)
        found = self.database.read_columns(self.table(name), wanted, optional=columns)
        return Table({c: np.asarray(values, np.int64) for c, values in found.items()})

    def spans(self, name: str, *columns: str) -> Table:
        """Return the rows of a table with a valid ``start`` and ``end``; count the others."""
        rows = self.numbers(name, "start", "end", *columns)
        starts, ends = rows["start"], rows["end"]
        is_valid = (starts > -_LATEST_NS) & (starts <= ends) & (ends < _LATEST_NS)
        self.left_out[name] += int((~is_valid).sum())
        return rows if is_valid.all() else rows.take(is_valid)

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of a small table; None for missing values and columns."""
        present = self.columns(name)
        if not present:
            return []
        selected = [quoted(column) if column in present else "NULL" for column in columns]
        return self.database.rows(f"SELECT {', '.join(selected)} FROM {quoted(self.table(name))}")

    def texts(self, name: str, *columns: str) -> dict[int, str]:
        """Return id → the first value among ``columns`` that is not empty."""
        found = self.rows(name, "id", *columns)
        return {key: str(next((text for text in texts if text), "")) for key, *texts in found}

    def messages(self, categories: Iterable[int]) -> dict[int, str]:
        """Return event → the text of its marker, for the events of these ``categories``."""
        if "extdata" not in self.columns("event"):
            return {}
        listed = ", ".join(str(key) for key in categories if is_id(key)) or "NULL"
        rows = self.database.rows(
            f"SELECT id, extdata FROM {quoted(self.table('event'))} WHERE category_id IN ({listed})"
        )
        return {key: str(json_object(extdata).get("message", "")) for key, extdata in rows}

    def arguments(self, events: npt.NDArray[np.int64]) -> dict[int, dict[str, str]]:
        """Return event → name → value of the arguments of its call, for RCCL calls."""
        found: dict[int, dict[str, str]] = {}
        if not len(events) or not {"event_id", "name", "value"} <= self.columns("arg"):
            return found
        rows = self.database.rows(
            f"SELECT event_id, name, value FROM {quoted(self.table('arg'))} "
            f"WHERE event_id BETWEEN {int(events.min())} AND {int(events.max())} AND name IN "
            "('count', 'sendcount', 'recvcount', 'datatype', 'peer', 'comm')"
        )
        for event, name, value in rows:
            found.setdefault(event, {})[str(name)] = str(value)
        return found


def profiled_processes(database: Database) -> list[ProfiledProcess]:
    """Return the processes whose tables are in the file."""
    suffixes = [
        name.removeprefix(_PROCESSES)
        for name in sorted(database.tables)
        if name.startswith(_PROCESSES)
    ]
    return [ProfiledProcess(database, suffix) for suffix in suffixes]


def is_id(value: object) -> bool:
    """Return whether a value can be an id: a whole number of 64 bits."""
    return isinstance(value, int) and -(1 << 63) <= value < 1 << 63


def look_up(
    keys: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], values: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the value of each key; `ABSENT` for keys that ``ids`` lacks."""
    if not len(ids):
        return np.full(len(keys), ABSENT)
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[order], keys), len(ids) - 1)
    at = order[place]
    return np.where((ids[at] == keys) & (values[at] != NULL), values[at], ABSENT)


def names_by_key(keys: npt.NDArray[np.int64], name: Callable[[int], str]) -> Names:
    """Return the name of each key; ``name`` is called once per distinct key."""
    distinct, codes = np.unique(keys, return_inverse=True)
    return Names.coded([name(int(key)) for key in distinct], codes.ravel())


def json_object(text: object) -> dict[str, Any]:
    """Return the object in a JSON text; an empty object if there is none."""
    try:
        value = json.loads(str(text))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def whole_or_absent(value: object) -> int:
    """Return a nonnegative whole number, also from digits in a text; `ABSENT` for other values."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else ABSENT


def gpu_numbers(processes: Sequence[ProfiledProcess]) -> dict[str, dict[int, int]]:
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
    numbers = gpu_numbers(processes)
    for process in processes:
        agents = process.rows("info_agent", "id", "product_name", "model_name", "name", "extdata")
        for agent, *names, extdata in agents:
            if (number := numbers[process.suffix].get(agent)) is not None:
                rows[number] = {
                    "device": number,
                    "name": str(next(filter(None, names), "")),
                    "sm_count": whole_or_absent(json_object(extdata).get("cu_count")),
                }
    columns = ("device", "name", "sm_count")
    return make_table("devices", {name: [row[name] for row in rows.values()] for name in columns})


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
                    (
                        n
                        for variable in names
                        if (n := whole_or_absent(variables.get(variable))) >= 0
                    ),
                    ABSENT,
                )
                for name, names in RANK_VARIABLES.items()
            }
            name = _program(str(command or ""))
            rows.append(
                {
                    "process": whole_or_absent(pid),
                    "name": name,
                    "host": hosts.get(node, ""),
                    **ranks,
                }
            )
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
                rows.append(
                    (whole_or_absent(pids.get(owner, owner)), whole_or_absent(thread), str(name))
                )
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


def find_secrets(path: Path) -> Sequence[str]:
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
    """Return the words of a command line; badly quoted ones are split at spaces."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
