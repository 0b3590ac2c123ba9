"""A run is found in files, directories, patterns and manifests; each rank is told apart."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from tests.builders import TraceBuilder
from tests.formats.folders import write_tables
from tests.formats.kineto_file import kernel, write
from tests.formats.nvprof_database import NvprofDatabase
from tests.requirements import TRACES, require
from traceprof.errors import SeveralRunsError, TraceError
from traceprof.formats import ReadOptions, open_trace
from traceprof.formats.nsys.writer import write_nsys
from traceprof.formats.runs.files import files_of, is_run, open_run
from traceprof.model.placement import place_run
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow


def kineto(path: Path, rank: int | None = None, size: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": size}}
    return write(path, [kernel(f"kernel of {rank}", 0, 1000)], **told)


def nvprof(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with NvprofDatabase(path) as file:
        file.add("CONCURRENT_KERNEL", start=5, end=9, name=file.string("k"))
    return path


def test_a_directory_of_torch_traces(tmp_path: Path) -> None:
    for rank in (2, 0, 3):
        kineto(tmp_path / "job" / f"node{rank // 2}_{100 + rank}.17.pt.trace.json.gz", rank, 4)
    (tmp_path / "job" / "notes.txt").write_text("not a trace")
    (tmp_path / "job" / "config.json").write_text("{}")
    run = open_run([tmp_path / "job"])
    assert run.label == "job"
    assert run.ranks == (0, 2, 3)
    assert run.missing_ranks == (1,)
    assert run.warnings == ("no trace of 1 of the 4 ranks: 1",)
    assert [member.host for member in run] == ["node0", "node1", "node1"]
    assert {member.detected_by for member in run} == {"distributedInfo"}
    assert run.traces[2].kernels.to_frame()["name"].tolist() == ["kernel of 3"]


def test_a_pattern_finds_files_in_natural_order(tmp_path: Path) -> None:
    for number in range(11):
        nvprof(tmp_path / f"out.{number}.nvprof")
    run = open_run([tmp_path / "out.*.nvprof"])
    assert run.ranks == tuple(range(11))
    assert run.members[10].trace.info.path.endswith("out.10.nvprof")
    assert run.members[0].detected_by == "number in the file name"
    assert "no file contains its rank" in run.warnings[0]


def test_digits_that_are_no_numbers_are_sorted_as_letters(tmp_path: Path) -> None:
    for name in ("rank1\u00b22.json", "rank1a.json"):
        kineto(tmp_path / name)
    assert len(files_of([tmp_path])) == 2


def test_a_link_to_itself_beside_tables_is_left_out(tmp_path: Path) -> None:
    write_tables(TraceBuilder().kernel("k", 0, 10).build(), tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert files_of([tmp_path]) == [tmp_path]


@pytest.mark.parametrize("name", ["a\0b", "a" * 300, "a/" * 3000, "\ud800", "*" * 300])
def test_names_that_no_file_can_have_are_refused(name: str) -> None:
    for ask in (files_of, is_run, open_run):
        with pytest.raises(TraceError, match="is not a valid file name") as refused:
            ask([name])
        assert len(str(refused.value)) < 2000


def test_one_file_of_nvprof_for_each_process(tmp_path: Path) -> None:
    """`nvprof -o out.%p.nvprof` numbers the files by process, which says no rank."""
    paths = [nvprof(tmp_path / f"out.{process}.nvprof") for process in (9001, 312)]
    with pytest.raises(SeveralRunsError, match="no file contains its rank"):
        open_run([nvprof(tmp_path / f"{name}.nvprof") for name in ("before", "after")])
    run = open_run(paths)
    assert [(m.rank, m.detected_by, Path(m.trace.info.path).name) for m in run] == [
        (0, "order of files", "out.312.nvprof"),
        (1, "order of files", "out.9001.nvprof"),
    ]
    assert "no file contains its rank" in run.warnings[0]


def test_file_names_that_say_the_rank(tmp_path: Path) -> None:
    paths = [nvprof(tmp_path / name) for name in ("r10_hostA_77.nvprof", "Rank-9.nvprof")]
    run = open_run(paths)
    assert [(member.rank, member.detected_by) for member in run] == [
        (9, "file name"),
        (10, "file name"),
    ]
    assert run.missing_ranks == tuple(range(9))


def test_a_name_is_overruled_by_what_the_trace_says(tmp_path: Path) -> None:
    assert open_run([kineto(tmp_path / "rank7.json", rank=1)]).ranks == (1,)


def test_mixed_formats_and_a_manifest(tmp_path: Path) -> None:
    kineto(tmp_path / "a.json", rank=5)
    nvprof(tmp_path / "deep" / "b.bin")
    manifest = {
        "traceprof_run": 1,
        "label": "night run",
        "world_size": 3,
        "ranks": [
            {"rank": 0, "file": "a.json", "host": "alpha", "local_rank": 0},
            {"rank": 2, "file": "deep/b.bin", "host": "beta", "local_rank": 0},
        ],
    }
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    for given in (tmp_path / "run.json", tmp_path):
        run = open_run([given])
        assert [(member.rank, member.host) for member in run] == [(0, "alpha"), (2, "beta")]
        assert [trace.info.format for trace in run.traces] == ["kineto", "nvprof"]
        assert {member.detected_by for member in run} == {"manifest"}
        assert run.missing_ranks == (1,)
    assert open_run([tmp_path / "run.json"]).label == "night run"


def test_traces_beside_the_files_of_a_manifest_are_named(tmp_path: Path) -> None:
    kineto(tmp_path / "rank0.json", 0, 1)
    kineto(tmp_path / "others-vm.json")
    (tmp_path / "notes.json").write_text("{}")
    listed = [{"rank": 0, "file": "rank0.json"}]
    manifest = {"traceprof_run": 1, "world_size": 1, "ranks": listed, "others": ["others-vm.json"]}
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    assert open_run([tmp_path]).warnings == ()
    first = kineto(tmp_path / "a b.pt.trace.json")
    assert open_run([tmp_path]).warnings == (
        "traceprof ignored a trace that the manifest of the run does not list (a b.pt.trace.json); "
        f"to analyze it, run `traceprof '{first}'`",
    )
    for number in range(3):
        nvprof(tmp_path / f"c{number}.nvprof")
    (warning,) = open_run([tmp_path]).warnings
    assert "ignored 4 traces" in warning
    assert "(a b.pt.trace.json, c0.nvprof, c1.nvprof …); to analyze one," in warning


def test_folders_that_must_not_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kineto(tmp_path / "rank0.json", 0, 1)
    for name in ("sub", ".hidden"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("os.access", lambda path, _: Path(path).suffix or Path(path) == tmp_path)
    assert open_run([tmp_path]).warnings == (
        f"traceprof ignored {tmp_path}/sub: Permission denied",
    )


def test_texts_of_a_manifest_that_utf8_cannot_hold_can_be_shown(tmp_path: Path) -> None:
    kineto(tmp_path / "a.json", rank=5)
    (tmp_path / "run.json").write_text(
        '{"traceprof_run": 1, "ranks": [{"rank": 0, "file": "a.json", "host": "\\ud800"}]}'
    )
    assert [member.host for member in open_run([tmp_path])] == ["\ufffd" * 3]


def test_manifests_of_the_recorder(tmp_path: Path) -> None:
    for rank in (0, 1):
        nvprof(tmp_path / f"part-{rank}.sqlite")
        host = f"node{rank}"
        listed = [{"file": f"part-{rank}.sqlite", "rank": rank, "host": host, "rack": f"r{rank}"}]
        if rank == 1:
            listed.append({"file": "part-2.sqlite", "rank": 2, "host": host})  # it died
        manifest = {"traceprof_run": 1, "run_id": "job 7", "world_size": 3, "ranks": listed}
        (tmp_path / f"manifest-node{rank}.json").write_text(json.dumps(manifest))
    run = open_run([tmp_path])
    assert run.label == "job 7"
    assert [(m.rank, m.host, m.rack, m.detected_by) for m in run] == [
        (0, "node0", "r0", "manifest"),
        (1, "node1", "r1", "manifest"),
    ]
    assert "part-2.sqlite: No such file" in run.warnings[0]


def test_files_of_two_runs_are_told(tmp_path: Path) -> None:
    for rank in (0, 1):
        nvprof(tmp_path / f"r{rank}.sqlite")
        listed = [{"file": f"r{rank}.sqlite", "rank": rank}]
        manifest = {"traceprof_run": 1, "run_id": f"job {rank}", "world_size": 2, "ranks": listed}
        (tmp_path / f"manifest-{rank}.json").write_text(json.dumps(manifest))
    with pytest.raises(SeveralRunsError, match="they belong to job 0, job 1") as caught:
        open_run([tmp_path])
    assert caught.value.runs == [(tmp_path / f"manifest-{n}.json",) for n in (0, 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"traceprof_run": 1}', 'the manifest has no "ranks" list'),
        ('{"traceprof_run": 1, "ranks": [{"rank": 1}]}', 'an entry in "ranks" has no "file"'),
    ],
)
def test_a_manifest_that_lists_no_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(TraceError, match=message):
        open_run([tmp_path / "run.json"])


def test_ranks_of_one_process_tree_in_one_file(tmp_path: Path) -> None:
    trace = (
        TraceBuilder()
        .kernel("on 1", 0, 10, process=11, device=1)
        .kernel("on 0", 5, 30, process=12, device=0)
        .range("step", 0, 40, process=12)
        .range("workers of the loader", 0, 40, process=13)
        .process(11, rank=1, world_size=2, local_rank=1)
        .process(12, rank=0, world_size=2, local_rank=0)
        .build()
    )
    path = tmp_path / "torchrun.sqlite"
    write_nsys(trace, path)
    run = open_run([path])
    assert run.ranks == (0, 1)
    assert run.missing_ranks == ()
    first, second = (member.trace for member in run)
    assert first.kernels.to_frame()["name"].tolist() == ["on 0"]
    assert first.ranges.to_frame()["name"].tolist() == ["step"]
    assert first.devices.to_frame().query("used == 1")["device"].tolist() == [0]
    assert second.kernels.to_frame()["name"].tolist() == ["on 1"]
    assert second.span == trace.span  # one clock, one time


def test_processes_without_ranks_go_by_their_devices(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel("a", 0, 10, process=11, device=1).kernel("b", 0, 10, process=12)
    path = tmp_path / "two.sqlite"
    write_nsys(trace.build(), path)
    run = open_run([path])
    assert [(m.rank, m.local_rank, m.detected_by) for m in run] == [
        (0, 0, "order of devices"),
        (1, 1, "order of devices"),
    ]
    assert run.traces[0].kernels.to_frame()["name"].tolist() == ["b"]


def test_the_environment_in_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    write_nsys(TraceBuilder().kernel("a", 0, 10).build(), path)
    slurm = ("SLURM_TOPOLOGY_ADDR=core.leaf2.n7", "SLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.node")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)")
        for value in (
            "RANK=3",
            "WORLD_SIZE=4",
            "LOCAL_RANK=1",
            "AWS_SECRET=x",
            "RANK_FILE=/a",
            *slurm,
        ):
            row = ("PROCESS_0:ENVIRONMENT_VARIABLE", value)
            connection.execute("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", row)
    run = open_run([path])
    assert [(m.rank, m.local_rank, m.rack) for m in run] == [(3, 1, "leaf2")]
    assert run.members[0].detected_by == "environment"
    assert run.world_size == 4
    processes = open_trace(path).processes  # also where the file is opened alone
    assert processes.select("rank", "local_rank", "world_size").row(0) == {
        "rank": 3,
        "local_rank": 1,
        "world_size": 4,
    }
    assert "x" not in run.traces[0].environment.to_frame()["value"].tolist()


def test_two_files_of_one_rank(tmp_path: Path) -> None:
    for name in ("step10.json", "step20.json"):
        kineto(tmp_path / name, rank=0, size=1)
    with pytest.raises(SeveralRunsError, match=r"step10.json and step20.json both have rank 0"):
        open_run([tmp_path])
    with pytest.raises(TraceError, match="both have rank 0, but a run has each rank once"):
        open_run([tmp_path], is_one=True)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    kineto(tmp_path / "rank0.json", rank=0)
    bad = tmp_path / "rank1.json"
    bad.write_text('{"traceEvents": []}')
    for named in ([tmp_path], [tmp_path / "rank0.json", bad]):
        with pytest.raises(TraceError, match=r"is empty.*; use --allow-missing"):
            open_run(named)
        run = open_run(named, allow_missing=True)
        assert run.missing_ranks == (1,)
        assert "traceprof ignored a file" in run.warnings[0]


def test_json_without_a_bottom_is_left_out_by_name(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    kineto(tmp_path / "rank0.json", rank=0, size=1)
    for rank, text in enumerate(
        (
            f'{{"deviceProperties": {deep}, "traceEvents": []}}',
            f'{{"traceEvents": [{{"ph": "X", "args": {deep}}}, {{"ph": "X"}}]}}',
            f'{{"traceprof_run": {deep}}}',
        ),
        start=1,
    ):
        (tmp_path / f"rank{rank}.json").write_text(text)
    run = open_run([tmp_path], allow_missing=True)
    assert run.ranks == (0,)
    assert run.warnings == tuple(
        f"traceprof ignored a file: {tmp_path / name}: not a trace (the JSON is nested too deeply)"
        for name in ("rank1.json", "rank2.json")
    )
    assert place_run(run).info.warnings == run.warnings


@pytest.mark.parametrize("name", ["a\\u0000.json", "\\ud800.json"])
def test_a_manifest_with_a_name_that_no_file_has(tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(f'{{"traceprof_run": 1, "ranks": [{{"rank": 0, "file": "{name}"}}]}}')
    with pytest.raises(TraceError, match="is not a valid file name"):
        open_run([path])


def test_numbers_that_no_rank_has(tmp_path: Path) -> None:
    kineto(tmp_path / "r20241122.json")
    kineto(tmp_path / "b.json")
    manifest = tmp_path / "run.json"
    ranks = [{"rank": 10**30, "file": "r20241122.json"}, {"rank": 3, "file": "b.json"}]
    text = json.dumps({"traceprof_run": 1, "world_size": 10**9, "ranks": ranks})
    manifest.write_text(text)
    run = open_run([manifest])
    assert [member.rank for member in run] == [3, ABSENT]
    assert run.missing_ranks == (0, 1, 2)
    assert "traceprof ignored an implausible world size of 1000000000 ranks" in run.warnings


def test_one_file_is_a_run_of_one(tmp_path: Path) -> None:
    run = open_run([nvprof(tmp_path / "a.nvprof")])
    assert [(m.rank, m.detected_by) for m in run] == [(0, "order of files")]
    assert run.world_size == ABSENT
    assert run.missing_ranks == ()
    assert run.warnings == ()


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no traces found"):
        open_run([tmp_path])
    with pytest.raises(TraceError, match="No such file"):
        open_run([tmp_path / "missing.sqlite"])


def test_a_folder_without_traces_names_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "7_hip_api_trace.csv").write_text('"Domain","Function","Process_Id"\n')
    (folder / "notes.txt").write_text("none")
    said = r"no traces found \(7_hip_api_trace.csv: traceprof cannot read rocprofv3 CSV tables"
    with pytest.raises(TraceError, match=said):
        open_run([tmp_path])


@pytest.mark.traces
@pytest.mark.parametrize(
    ("folder", "n_ranks"),
    [("dlrm-8ranks-v100", 8), ("torchrec-4ranks-v100", 4), ("resnet18-2ranks-v100", 2)],
)
def test_real_runs(folder: str, n_ranks: int) -> None:
    require("traces")
    run = open_run([TRACES / "kineto" / folder])
    assert run.ranks == tuple(range(n_ranks))
    assert run.world_size == n_ranks
    assert run.warnings == ()


@pytest.mark.traces
def test_two_gpus_in_a_real_file() -> None:
    require("traces")
    run = open_run([TRACES / "nsys/2026.2-2gpu-nccl-before.sqlite"])
    # nsys.md 1.9: 4010 kernels, on two devices of two processes.
    assert [sorted(set(member.trace.kernels.to_frame()["device"])) for member in run] == [[0], [1]]
    assert sum(len(member.trace.kernels.to_frame()) for member in run) == 4010


@pytest.mark.parametrize("ranks", [(ABSENT, ABSENT), (1, 0)])
def test_ranks_and_their_devices_are_known_whatever_is_read(
    ranks: tuple[int, int], tmp_path: Path
) -> None:
    trace = (
        TraceBuilder()
        .kernel("a", 0, 10, device=1, process=7)
        .kernel("b", 20, 30, device=0, process=9)
        .device(0)
        .device(1)
        .process(7, rank=ranks[0])
        .process(9, rank=ranks[1])
        .build()
    )
    write_nsys(trace, tmp_path / "node.sqlite")
    whole = open_run([tmp_path])
    for options in (
        ReadOptions(tables=frozenset({"devices"})),
        ReadOptions(window=TimeWindow(25, 26)),
        ReadOptions(tables=frozenset({"devices", "ranges"}), window=TimeWindow(0, 1)),
    ):
        part = open_run([tmp_path], options)
        assert part.ranks == whole.ranks == (0, 1)
        for one, other in zip(part, whole, strict=True):
            pd.testing.assert_frame_equal(
                one.trace.devices.to_frame(), other.trace.devices.to_frame()
            )
            assert one.trace.span == other.trace.span
            assert one.trace.devices.to_frame()["used"].sum() == 1


def test_a_report_beside_a_json_trace_of_its_name_is_another_recording(tmp_path: Path) -> None:
    trace = kineto(tmp_path / "a.json")
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report" + bytes(64))
    assert files_of([tmp_path]) == [trace, report]
    (tmp_path / "a.sqlite").write_bytes(b"")
    write_nsys(TraceBuilder().build(), tmp_path / "b.sqlite")
    (tmp_path / "b.sqlite").replace(tmp_path / "a.sqlite")
    assert report not in files_of([tmp_path])
