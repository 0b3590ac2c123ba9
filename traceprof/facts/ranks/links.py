"""The link between two ranks."""

from __future__ import annotations

from collections.abc import Mapping

from traceprof.facts.collectives.members import Member, find_members
from traceprof.hardware.catalogue import Link, Peak
from traceprof.measures.device.peaks import peak_between, peak_of
from traceprof.measures.device.times import part_of_device
from traceprof.measures.facts import fact
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = ["peak_between_ranks"]


def peak_between_ranks(ranks: Ranks, source: int, target: int) -> Peak | None:
    """Return the peak of the link from one rank to another; places in `find_members`."""
    members = find_members(ranks)
    ends = members[source], members[target]
    hosts = {member.host for member in ends}
    if len(hosts) > 1 and all(hosts):
        return _network_peak(ranks)
    return _peak_between_devices(ranks, *(_device_of(ranks, member) for member in ends))


@fact
def _network_peak(ranks: Ranks) -> Peak | None:
    return peak_of(ranks.parts[0], ABSENT, Link.NIC)


@fact
def _peak_between_devices(ranks: Ranks, device: int, peer: int) -> Peak | None:
    part = part_of_device(ranks, device)
    return peak_between(part, device, peer) or peak_of(part, device, Link.PCIE)


def _device_of(ranks: Ranks, member: Member) -> int:
    if member.device != ABSENT:
        return member.device
    return _first_devices(ranks).get(member.process, ABSENT)


@fact
def _first_devices(ranks: Ranks) -> Mapping[int, int]:
    """Return the device on which each process first ran a kernel."""
    return {process: device for part in ranks for process, device in _first_of_part(part)}


def _first_of_part(trace: Trace) -> list[tuple[int, int]]:
    firsts = trace.kernels[["process", "device"]].drop_duplicates("process")
    return list(zip(firsts["process"].tolist(), firsts["device"].tolist(), strict=True))
