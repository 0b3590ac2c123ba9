"""The hosts and racks of ranks, as the user specifies them. Nothing is guessed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np

from traceprof.errors import UsageError
from traceprof.files import parse_toml
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace

_LIST: Final = re.compile(r"\[([^\[\]]*)\]")
_SPAN: Final = re.compile(r"(\d+)(?:-(\d+))?")
_MAX_NUMBERS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Topology:
    """The ranks of hosts and the hosts of racks.

    ``hosts`` maps a host name to its ranks, ``racks`` a rack name to its hosts: names or Slurm
    patterns (``node[01-16,20]``), where ``*`` and ``?`` match any characters. A host matches by its
    full name or by the part before the first dot.
    """

    hosts: Mapping[str, frozenset[int]] = field(default_factory=dict)
    racks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def with_rack(self, text: str) -> Self:
        """Return the same cluster with a rack in the user's notation: ``r1=node[1-4],node9``.

        Raises:
            UsageError: the text is not RACK=HOSTS.
        """
        name, equals, hosts = text.partition("=")
        if not (name.strip() and equals and hosts.strip()):
            raise UsageError(f"invalid rack {text!r}: expected RACK=HOSTS, such as r1=node[1-4]")
        return self._with_rack(name.strip(), hosts)

    def _with_rack(self, name: str, hosts: str) -> Self:
        patterns = tuple(_split(hosts))
        for pattern in patterns:
            _pattern(pattern)
        known = self.racks.get(name, ())
        return replace(self, racks={**self.racks, name: (*known, *patterns)})

    def placed(self, ranks: Ranks) -> Ranks:
        """Return the whole of ``ranks`` with the hosts and racks of its processes.

        Hosts and racks specified here replace recorded ones; the others stay.

        Raises:
            UsageError: a rank has two hosts, a host has two racks, or no rack contains a host of
                the trace.
        """
        processes = ranks.whole.table("processes")
        host_of = {}
        for rank in (int(rank) for rank in np.unique(processes["rank"]).tolist() if rank >= 0):
            named = [name for name, ranks in self.hosts.items() if rank in ranks]
            host_of[rank] = _only(f"rank {rank}", "hosts", named)
        hosts = [
            host_of.get(rank) or str(recorded)
            for rank, recorded in zip(processes["rank"], processes["host"], strict=True)
        ]
        rack_of = {host: self._rack_of(host) for host in dict.fromkeys(hosts)}
        if self.racks and not any(rack_of.values()):
            known = ", ".join(filter(None, rack_of)) or "no host is known"
            raise UsageError(
                f"the racks contain no host of this trace ({known}): specify the hosts with "
                "--cluster or in a manifest"
            )

        return ranks.map(_place, host_of, rack_of)

    def _rack_of(self, host: str) -> str:
        names = {host, host.partition(".")[0]} - {""}
        found = [
            rack
            for rack, patterns in self.racks.items()
            if any(_pattern(pattern).fullmatch(name) for pattern in patterns for name in names)
        ]
        return _only(f"host {host}", "racks", found)


def parse_topology(text: str) -> Topology:
    """Return the cluster that the TOML ``text`` describes.

    Both tables are optional::

        [hosts]
        node1 = "0-7"                   # the ranks that ran there
        node2 = "8-15"

        [racks]
        r1 = "node[1-4]"
        r2 = ["node[5-8]", "spare*"]

    Raises:
        UsageError: the text is not TOML, or does not have this form.
    """
    document = parse_toml(text, "cluster")
    if set(document) - {"hosts", "racks"} or not document:
        raise UsageError("cluster file: expected the tables [hosts] and [racks]")
    hosts = {name: _ranks(name, value) for name, value in _table(document, "hosts").items()}
    cluster = Topology(hosts)
    for name, value in _table(document, "racks").items():
        for pattern in [value] if isinstance(value, str) else value:
            if not isinstance(pattern, str):
                raise UsageError(f"cluster file: rack {name}: expected host names")
            cluster = cluster._with_rack(name, pattern)
    return cluster


def _place(trace: Trace, host_of: Mapping[int, str], rack_of: Mapping[str, str]) -> Trace:
    processes = trace.processes
    hosts = [
        host_of.get(rank) or str(host)
        for rank, host in zip(processes["rank"], processes["host"], strict=True)
    ]
    racks = [
        rack_of[host] or str(rack) for host, rack in zip(hosts, processes["rack"], strict=True)
    ]
    return replace(trace, processes=processes.assign(host=hosts, rack=racks))


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name, {})
    kinds = (str, list)
    if not isinstance(table, dict) or not all(isinstance(v, (*kinds, int)) for v in table.values()):
        raise UsageError(f"cluster file: [{name}] must be a table of strings or lists of strings")
    if name == "racks" and any(isinstance(value, int) for value in table.values()):
        raise UsageError("cluster file: [racks] must contain host names, not numbers")
    return table


def _ranks(name: str, value: str | int | list[Any]) -> frozenset[int]:
    parts = value if isinstance(value, list) else [value]
    return frozenset(
        number for part in parts for number, _ in _numbers(str(part), f"ranks of host {name}")
    )


def _only(whose: str, what: str, found: list[str]) -> str:
    if len(found) > 1:
        raise UsageError(f"{whose} has two {what}: {found[0]} and {found[1]}")
    return found[0] if found else ""


def _split(hosts: str) -> Iterator[str]:
    """Yield the patterns between commas, except commas inside brackets."""
    for part in re.findall(r"(?:[^,\[]++|\[[^\]]*+\]?)++", hosts):
        if part.strip():
            yield part.strip()


def _pattern(text: str) -> re.Pattern[str]:
    """Return a host name pattern as a regular expression."""
    pieces = []
    for place, piece in enumerate(_LIST.split(text)):
        if place % 2:
            names = (f"{n:0{width}d}" for n, width in _numbers(piece, f"hosts {text!r}"))
            pieces.append(f"(?:{'|'.join(names)})")
        else:
            pieces.append(re.escape(piece).replace(r"\*", ".*").replace(r"\?", "."))
    return re.compile("".join(pieces))


def _numbers(text: str, where: str) -> Iterator[tuple[int, int]]:
    """Yield each number in ``0-7,12`` with the minimum number of digits to print."""
    for part in text.split(","):
        match = _SPAN.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"{where}: invalid numbers {text!r}; expected a list such as 0-7,12")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise UsageError(f"{where}: the range {part} ends before it begins")
        if int(last) - int(first) > _MAX_NUMBERS:
            raise UsageError(f"{where}: the range {part} contains too many numbers")
        for number in range(int(first), int(last) + 1):
            yield number, len(first)
