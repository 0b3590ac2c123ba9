"""Ranks that share a GPU have one GPU, wherever GPUs are counted."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.requirements import require
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.ranks import gpus_of
from traceprof.render.briefing import briefing_of
from traceprof.render.registry import render
from traceprof.render.report.places import StillPictures
from traceprof.render.timeline.lanes import build_lanes
from traceprof.session.answer import answer, hardware_of, page
from traceprof.session.contents import describe
from traceprof.session.options import Opening
from traceprof.session.run import open_run
from traceprof.session.run import run_of as run_of_ranks

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


def test_one_gpu_that_ranks_share_is_said_to_be_one_wherever_devices_are_listed(tmp_path):
    ranks = run_of(tmp_path, [UUID, UUID, OTHER], ["a", "a", "a"], [])
    names = [
        "rank 0 (shared by 2 ranks) NVIDIA H100",
        "rank 1 (the same GPU as GPU 0) NVIDIA H100",
        "rank 2 NVIDIA H100",
    ]
    assert run_of_ranks(ranks).result("breakdown").table["name"].tolist() == names
    assert [own.name for own in describe([tmp_path], Opening()).devices] == names
    text = render("text", answer(run_of_ranks(ranks), ["breakdown"]))
    assert "mean of 3 ranks that share 2 GPUs" in text
    labels = [own.label for own in build_lanes(ranks.merged(), ranks.span).groups]
    assert "GPU 1 (the same GPU as GPU 0) · rank 1 NVIDIA H100" in labels
    pictures = StillPictures(ranks)
    assert [pictures._label(device) for device in pictures.devices] == [
        "rank 0 · GPU 0",
        "rank 1 · GPU 0",
        "rank 2 · GPU 2",
    ]


@pytest.mark.traces
@pytest.mark.parametrize("name", ["ddp-gloo-2ranks-embedded", "ddp-gloo-2ranks-nsys2023.4"])
def test_two_ranks_on_one_h100_are_no_two_of_them(name):
    words = briefing_of(page(open_run([Path(require("traces")) / "h100" / name])))
    assert words.workload == "Training on 1× NVIDIA H100 80GB HBM3"
    if name.endswith("embedded"):  # of the other too much work is lost to say what devices did
        assert "mean over 2 ranks that share 1 GPU" in words.answer
