"""Ranks that share a GPU have one GPU, wherever GPUs are counted."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.requirements import require
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.ranks import gpus_of
from traceprof.render.briefing import briefing_of
from traceprof.session.answer import hardware_of, page
from traceprof.session.run import open_run

UUID = "GPU-ff50c0bd-0ee8-3fb7-6d83-97ac253b8eab"
OTHER = "3f4db687-fea8-acc6-cc07-4f373ecd0de0"


def run_of(folder: Path, uuids: list[str], hosts: list[str], of_hosts: list[str]):
    for rank, (uuid, host) in enumerate(zip(uuids, hosts, strict=True)):
        builder = TraceBuilder().device(0, "NVIDIA H100", uuid=uuid)
        builder.process(100 + rank, rank=rank, world_size=len(uuids), host=host)
        builder.kernel("gemm", 10, 20, process=100 + rank)
        for number, one in enumerate(of_hosts):
            builder.setting(f"gpu.{number}.uuid", one)
        trace = builder.build()
        trace = replace(trace, info=replace(trace.info, host=host, utc_epoch_ns=10**18))
        write_nsys(trace, folder / f"rank{rank}.sqlite")
    return open_run([folder]).of_ranks()


@pytest.mark.parametrize(
    ("uuids", "hosts", "of_hosts", "n_gpus"),
    [
        ([UUID, UUID], ["a", "a"], [], 1),
        ([UUID, UUID.lower().removeprefix("gpu-")], ["a", "a"], [], 1),
        ([UUID, OTHER], ["a", "a"], [], 2),
        (["", ""], ["a", "a"], [UUID], 1),  # torch's profiler, on a host with one GPU
        (["", ""], ["a", "a"], [UUID, OTHER], 2),
        (["", ""], ["a", "b"], [UUID], 2),
        (["", ""], ["a", "a"], [], 2),  # not known: as many as ranks have
    ],
)
def test_gpus_are_counted_by_what_they_are(tmp_path, uuids, hosts, of_hosts, n_gpus):
    ranks = run_of(tmp_path, uuids, hosts, of_hosts)
    assert len(set(gpus_of(ranks).values())) == n_gpus
    assert hardware_of(ranks) == {"NVIDIA H100": n_gpus}


@pytest.mark.traces
@pytest.mark.parametrize("name", ["ddp-gloo-2ranks-embedded", "ddp-gloo-2ranks-nsys2023.4"])
def test_two_ranks_on_one_h100_are_no_two_of_them(name):
    words = briefing_of(page(open_run([Path(require("traces")) / "h100" / name])))
    assert words.workload == "training on NVIDIA H100 80GB HBM3"
    if name.endswith("embedded"):  # of the other too much work is lost to say what devices did
        assert "mean of 2 ranks' shares of 1 GPU" in words.answer
