"""Racks that the batch system names."""

from __future__ import annotations

import pytest

from traceprof.formats.shared.launchers import rack_of


@pytest.mark.parametrize(
    ("address", "pattern", "rack"),
    [
        # As clusters print them: a tree of switches, one with an unnamed root, and none.
        ("sh04.sh04-isw-16.sh04-16n05", "switch.switch.node", "sh04-isw-16"),
        (".ib-core.tors-r1pac16.gpu027", "switch.switch.switch.node", "tors-r1pac16"),
        ("localhost.localdomain", "node", ""),
        ("leaf3.node7.cluster.example", "switch.node", "leaf3"),
        ("node7", "switch.node", ""),
        ("", "", ""),
    ],
)
def test_the_switch_of_a_node_stands_for_its_rack(address: str, pattern: str, rack: str) -> None:
    variables = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    assert rack_of(variables) == rack
    assert rack_of({f"env.{name}": value for name, value in variables.items()}) == rack


def test_nothing_is_guessed_from_one_of_the_two() -> None:
    assert rack_of({"SLURM_TOPOLOGY_ADDR": "core.leaf.node"}) == ""
    assert rack_of({}) == ""
