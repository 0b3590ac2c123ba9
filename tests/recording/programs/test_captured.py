"""What is captured beside the events: sizes, machine, software."""

import os

import pytest

from tests.recording.programs.test_training import PARAMETER_BYTES

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("nsys")]


def values_of(trace, metric):
    samples = trace.samples.to_frame()[trace.samples.to_frame()["metric"] == metric]
    return {str(row.source): row.value for row in samples.itertuples()}


def test_sizes_of_the_parameters_and_of_what_ddp_keeps_in_step(ddp_with_torch):
    trace = ddp_with_torch.trace
    ranks = [f"process:{pid}" for pid in trace.processes.to_frame()["process"]]
    assert len(ranks) == 2
    for metric in ("parameter_bytes", "ddp_parameter_bytes"):
        assert values_of(trace, metric) == dict.fromkeys(ranks, PARAMETER_BYTES)


def test_machine_and_software(ddp_with_torch):
    environment = ddp_with_torch.trace.environment.to_frame()
    facts = dict(zip(environment["name"], environment["value"], strict=True))
    wanted = {"os", "kernel", "cpu", "cpu.count", "ram_bytes", "host", "python", "torch"}
    wanted |= {"started", "command", "env.OMP_NUM_THREADS"}
    assert wanted <= set(facts)
    assert facts["kernel"] == os.uname().release
    assert not {name for name in facts if name.endswith((".PATH", ".HOME", "_TOKEN"))}


def test_samples_of_network_and_processes(ddp_with_torch):
    pytest.importorskip("psutil")
    samples = ddp_with_torch.trace.samples.to_frame()
    found = set(zip(samples["source"].astype(str), samples["metric"].astype(str), strict=True))
    assert {("nic:lo", "bytes_sent"), ("nic:lo", "bytes_received")} <= found
    for pid in ddp_with_torch.trace.processes.to_frame()["process"]:
        mine = {metric for source, metric in found if source == f"process:{pid}"}
        assert {"cpu_seconds", "memory_bytes", "tcp_bytes_sent", "tcp_bytes_received"} <= mine
    memory = samples[samples["metric"] == "memory_bytes"]
    assert (memory["value"] > 0).all()
