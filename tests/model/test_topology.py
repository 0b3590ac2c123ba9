"""Hosts and racks as the user says them."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder, plain
from traceprof.errors import UsageError
from traceprof.model.ranks import Ranks
from traceprof.model.topology import Topology, parse_topology


def trace_on(*hosts: str) -> Ranks:
    builder = TraceBuilder()
    for rank, host in enumerate(hosts):
        builder.process(100 + rank, rank=rank, host=host)
    return Ranks.of(builder.build())


def racks(cluster: Topology, *hosts: str) -> list[str]:
    return cluster.placed(trace_on(*hosts)).table("processes").to_frame()["rack"].tolist()


@pytest.mark.parametrize(
    ("pattern", "hosts"),
    [
        ("r=node1", "r...."),
        ("r=node[1-3]", "rr..."),
        ("r=node[01-12,40]", "..r.."),
        ("r=gpu-*", "...r."),
        ("r=node?", "rr..."),
        ("r=node[1,3],gpu-a", "r..r."),
        ("r=NODE1", None),
        ("r=login", "....r"),
    ],
)
def test_patterns_of_hosts_are_those_of_slurm(pattern: str, hosts: str | None) -> None:
    names = ("node1", "node2", "node07", "gpu-a", "login.cluster.example")
    cluster = Topology().with_rack(pattern)
    if hosts is None:
        with pytest.raises(UsageError, match="the racks contain no host of this trace"):
            racks(cluster, *names)
        return
    assert racks(cluster, *names) == [mark.replace(".", "") for mark in hosts]


def test_a_file_names_the_hosts_of_ranks_and_the_racks_of_hosts() -> None:
    cluster = parse_topology(
        """
        [hosts]
        alpha = "0,2-3"
        beta = 1
        [racks]
        left = ["alpha", "gamma"]
        right = "beta"
        """
    )
    placed = cluster.placed(trace_on("", "recorded", "", "", "gamma"))
    assert plain(placed.table("processes").to_frame(), "rank", "host", "rack") == [
        (0, "alpha", "left"),
        (1, "beta", "right"),
        (2, "alpha", "left"),
        (3, "alpha", "left"),
        (4, "gamma", "left"),
    ]


def test_what_nobody_says_stays_unknown() -> None:
    assert racks(Topology().with_rack("a=node1"), "node1", "", "node2") == ["a", "", ""]


def test_racks_of_the_command_line_add_to_those_of_the_file() -> None:
    cluster = parse_topology('[racks]\na = "node1"').with_rack("a=node2").with_rack("b=node3")
    assert racks(cluster, "node1", "node2", "node3") == ["a", "a", "b"]


@pytest.mark.parametrize(
    "text", ["", "node1", "=node1", "a=", "a=node[1-]", "a=node[x]", "a=node[2-1]"]
)
def test_a_rack_that_makes_no_sense(text: str) -> None:
    with pytest.raises(UsageError):
        Topology().with_rack(text)


@pytest.mark.parametrize(
    "text",
    [
        "[racks",
        "",
        "[hosts]\na = 'x'",
        "[hosts]\na = 1.5",
        "[hosts]\na = '1-0'",
        "[racks]\na = 1",
        "[racks]\na = [1]",
        "[rack]\na = 'b'",
        "hosts = 'a'",
        "[racks]\na = 'node[0-999999999]'",
    ],
)
def test_a_file_that_makes_no_sense(text: str) -> None:
    with pytest.raises(UsageError):
        parse_topology(text)


def test_a_host_is_in_one_rack_and_a_rank_on_one_host() -> None:
    with pytest.raises(UsageError, match="host node1 has two racks: a and b"):
        racks(Topology().with_rack("a=node*").with_rack("b=node1"), "node1")
    with pytest.raises(UsageError, match="rank 0 has two hosts: x and y"):
        racks(parse_topology("[hosts]\nx = '0-3'\ny = '0'"), "node1")
