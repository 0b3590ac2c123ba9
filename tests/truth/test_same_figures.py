"""The same thing has the same figure, to the ns, wherever it is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.real_traces import ALL
from tests.truth.judged import result
from tests.truth.scenarios import SCENARIOS

ROUNDING = 1e-9
CASES = {
    "communication fully hidden": "exposed_communication",
    "data loading free": "data",
    "launch gaps closed": "launch",
    "host code free": "host",
    "synchronization free": "synchronizing",
}
"""A case of `whatif`, and the same among the losses of `findings`, the parts of `breakdown` and
the causes of `idle`."""
RULES = {
    "input_bound": ("data",),
    "exposed_communication": ("exposed_communication",),
    "launch_bound": ("launch",),
    "host_code": ("host",),
    "host_sync": ("synchronizing", "launch", "host"),
    "exposed_copies": ("exposed_transfer",),
    "pageable_copies": ("exposed_transfer", "synchronizing", "launch", "host"),
    "unpinned_memory": ("exposed_transfer", "synchronizing", "launch", "host"),
    "blocking_copies": ("exposed_transfer", "synchronizing", "launch", "host"),
}
"""What a rule may claim of the time that is no compute."""

TRACES = [name for name in ALL if name != "nvprof/zero-kernels.sql"]
REAL = [pytest.param(name, marks=pytest.mark.traces) for name in TRACES]
PLANTED = [pytest.param(one.name) for one in SCENARIOS]


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def by(frame: pd.DataFrame, key: str, value: str) -> dict[str, int]:
    sums = frame.groupby(key)[value].sum()
    return {str(name): int(ns) for name, ns in sums.items()}


def lost(name: str) -> dict[str, int]:
    """Return what all devices lose in the window to what, as `breakdown` and `idle` have it."""
    breakdown, idle = result(name, "breakdown"), result(name, "idle")
    found: dict[str, int] = {}
    if breakdown is not None and len(breakdown.table.to_frame()):
        parts = ("exposed_communication", "exposed_transfer", "device_memory")
        sums = breakdown.to_frame("devices")
        found |= {part: int(sums[f"{part}_ns"].sum()) for part in parts}
    if idle is not None:
        found |= by(idle.to_frame("causes"), "cause", "total_ns")
    return {key: ns for key, ns in found.items() if ns}


@pytest.mark.parametrize("name", [*REAL, *PLANTED])
def test_compute_and_losses_are_the_judged_time(name: str) -> None:
    findings = result(name, "findings")
    assert findings is not None
    table, scalars = findings.to_frame("losses"), findings.scalars
    if table.empty and not scalars["compute_ns"]:
        return
    assert scalars["compute_ns"] + table["total_ns"].sum() == scalars["analyzed_ns"]
    assert (table["claimed_ns"] <= table["total_ns"]).all()


@pytest.mark.parametrize("name", [*REAL, *PLANTED])
def test_whatif_and_findings_judge_the_same_time(name: str) -> None:
    whatif, findings = result(name, "whatif"), result(name, "findings")
    assert findings is not None
    if whatif is None or whatif.table.to_frame().empty:
        return
    losses = findings.to_frame("losses").set_index("loss")
    for row in records(whatif.to_frame("cases")):
        if row["case"] in CASES:
            of = CASES[row["case"]]
            assert row["device_ns"] == (losses.loc[of, "total_ns"] if of in losses.index else 0)
            share = losses.loc[of, "share_ratio"] if of in losses.index else 0
            assert row["device_ratio"] == pytest.approx(share, abs=ROUNDING)


@pytest.mark.parametrize("name", [*REAL, *PLANTED])
def test_whatif_of_the_window_is_what_breakdown_and_idle_say(name: str) -> None:
    whatif, of_window = result(name, "whatif"), lost(name)
    if whatif is None or whatif.table.to_frame().empty:
        return
    is_whole = whatif.scalars["analyzed_ns"] == whatif.scalars["window_ns"]
    for row in records(whatif.to_frame("cases")):
        if row["case"] in CASES:
            assert row["window_ns"] == of_window.get(CASES[row["case"]], 0), row["case"]
            if is_whole:
                assert row["device_ns"] == row["window_ns"]
                assert row["device_ratio"] == row["window_ratio"]


@pytest.mark.parametrize("name", [*REAL, *PLANTED])
def test_losses_of_a_window_that_is_judged_whole_are_those_of_the_window(name: str) -> None:
    whatif, findings = result(name, "whatif"), result(name, "findings")
    assert findings is not None
    if whatif is None or whatif.scalars["analyzed_ns"] != whatif.scalars["window_ns"]:
        return
    table = findings.to_frame("losses")
    assert dict(zip(table["loss"], table["total_ns"], strict=True)) == lost(name)


@pytest.mark.parametrize("name", [*REAL, *PLANTED])
def test_waits_of_the_host_are_in_what_idle_calls_synchronizing(name: str) -> None:
    """The time until work is launched again after a wait is the other part of it."""
    sync = result(name, "sync")
    if sync is None or sync.table.to_frame()["idle_ns"].isna().any():
        return
    assert sync.table.to_frame()["idle_ns"].sum() <= lost(name).get("synchronizing", 0)


@pytest.mark.parametrize("name", [*REAL, *PLANTED])
def test_rules_claim_of_their_subject_alone(name: str) -> None:
    findings = result(name, "findings")
    assert findings is not None
    losses = findings.to_frame("losses")
    claims = findings.to_frame().groupby("rule")["claimed_ratio"].sum()
    for row in records(losses):
        for rule in filter(None, row["rules"].split(", ")):
            assert row["loss"] in RULES.get(rule, (row["loss"],)), (rule, row["loss"])
    for rule, subject in RULES.items():
        own = losses[losses["loss"].isin(subject)]
        if rule in claims.index:
            ns = claims[rule] * findings.scalars["analyzed_ns"]
            assert ns <= own["total_ns"].sum() * (1 + ROUNDING) + 1
            if (own["rules"].isin((rule, ""))).all():
                assert ns == pytest.approx(own["claimed_ns"].sum(), abs=1)


@pytest.mark.parametrize("window", [None, "all"])
@pytest.mark.parametrize("name", [*REAL, *PLANTED])
def test_waiting_for_other_ranks_is_the_same_everywhere(name: str, window: str | None) -> None:
    stragglers, shared = result(name, "stragglers", window), result(name, "shared", window)
    if stragglers is None or shared is None or not stragglers.scalars.get("waited_ns"):
        return
    waited_ns = stragglers.scalars["waited_ns"]
    table = shared.to_frame("collectives")
    assert table["waited_ns"].sum() == waited_ns
    assert (table["waited_ns"].fillna(0) <= table["arrival_skew_ns"].fillna(0)).all()
    peers, collectives = result(name, "peers", window), result(name, "collectives", window)
    if peers is not None:
        columns = ["receiver_waited_ns", "sender_waited_ns"]
        assert np.nansum(peers.to_frame("edges")[columns].astype(float)) <= waited_ns
    if collectives is not None:
        assert collectives.to_frame("classes")["waited_ns"].sum() == waited_ns


@pytest.mark.parametrize("name", [*REAL, *PLANTED])
def test_a_straggler_costs_what_stragglers_says(name: str) -> None:
    findings, stragglers = result(name, "findings"), result(name, "stragglers")
    assert findings is not None
    if stragglers is None:
        return
    costs = stragglers.to_frame("ranks")["cost_ns"].tolist()
    costs += stragglers.to_frame("late_groups")["cost_ns"].tolist()
    for row in findings.table.take(findings.table["rule"] == "straggler").rows():
        values = row["evidence"][0].values
        if "cost" in values:
            assert values["cost"] in costs


@pytest.mark.parametrize("name", [*REAL, *PLANTED])
def test_exposed_collectives_are_the_exposed_communication_of_the_devices(name: str) -> None:
    collectives, breakdown = result(name, "collectives", "all"), result(name, "breakdown", "all")
    if collectives is None or breakdown is None or breakdown.table.to_frame().empty:
        return
    exposed_ns = breakdown.to_frame("devices")["exposed_communication_ns"].sum()
    assert collectives.to_frame("classes")["exposed_ns"].sum() == exposed_ns
