"""Launchers of one job share a folder: none takes the name of another's file."""

import json
import os
import socket
import time

import pytest

from tests.recording.conftest import NAMED_STEPS, record
from traceprof.errors import UsageError
from traceprof.formats.runs.files import attempts_of_run, open_run
from traceprof.recording import RecordRequest
from traceprof.recording.job import Places, announced, is_joining, job_of
from traceprof.recording.outputs import check_output

HOST = socket.gethostname()
TORCHRUN = ["torchrun", "--nnodes=1:2", "--rdzv-id=mine", "train.py"]


def names(paths):
    return [path.name for path in paths]


def test_two_launchers_get_names_of_their_own(tmp_path):
    one, other = (Places(tmp_path, time.time(), replaces=False) for _ in range(2))
    taken = [one.take("rank0", ".sqlite") for _ in range(3)]
    assert names(taken) == ["rank0.sqlite", "rank0-2.sqlite", "rank0-3.sqlite"]
    others = [other.take("rank0", ".sqlite") for _ in range(2)]
    assert names(others) == [f"rank0-{HOST}.sqlite", f"rank0-{HOST}-2.sqlite"]
    manifests = [place.take(f"manifest-{HOST}", ".json") for place in (one, other)]
    assert names(manifests) == [f"manifest-{HOST}.json", f"manifest-{HOST}-2.json"]
    taken[0].write_text("a trace")
    one.give_back()
    assert taken[0].exists()
    assert not taken[1].exists()
    assert others[0].exists()


def test_what_is_older_makes_way_once_where_it_is_asked_for(tmp_path):
    old = tmp_path / "rank0.sqlite"
    old.write_text("old")
    os.utime(old, (0, 0))
    places = Places(tmp_path, time.time(), replaces=True)
    assert names([places.take("rank0", ".sqlite"), places.take("rank0", ".sqlite")]) == [
        "rank0.sqlite",
        "rank0-2.sqlite",
    ]
    kept = Places(tmp_path, time.time(), replaces=False)
    assert kept.take("rank0", ".sqlite").name == f"rank0-{HOST}.sqlite"


@pytest.mark.parametrize(
    ("command", "job"),
    [
        (TORCHRUN, "mine"),
        (["torchrun", "--rdzv_id", "other", "train.py"], "other"),
        (["torchrun", "--rdzv-id"], ""),
        (["python", "train.py"], ""),
    ],
)
def test_the_name_of_a_job(command, job, monkeypatch):
    monkeypatch.delenv("TRACEPROF_RUN", raising=False)
    assert job_of(command) == job
    monkeypatch.setenv("TRACEPROF_RUN", "given")
    assert job_of(command) == "given"


@pytest.fixture
def outside_of_jobs(monkeypatch):
    for name in ("TRACEPROF_RUN", "WORLD_SIZE", "SLURM_NTASKS", "SLURM_NNODES"):
        monkeypatch.delenv(name, raising=False)


def test_a_folder_is_joined_while_another_launcher_records_into_it(tmp_path, outside_of_jobs):
    command = ["torchrun", "--nnodes", "2", "--node-rank=1", "train.py"]
    request = RecordRequest(command, tmp_path, is_folder=True)
    (tmp_path / f"manifest-{HOST}.json").write_text('{"traceprof_run": 1, "ranks": []}')
    with pytest.raises(UsageError, match="exists; choose another name or use --force"):
        check_output(request)
    with announced(request) as first_joins:
        assert not first_joins
        assert is_joining(request)
        check_output(request)
        with announced(request) as second_joins:
            assert second_joins
    (tmp_path / f".recording-{HOST}-7").touch()  # of one that was killed: nobody holds it
    assert not is_joining(request)


ALONE = (["python", "train.py"], "")
MANY = (["torchrun", "--nnodes=2", "train.py"], "")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *((ALONE, ALONE), (ALONE, MANY), (MANY, ALONE)),
        ((["torchrun", "--nproc-per-node=2", "--nnodes=1", "a.py"], ""), ALONE),
        *(((ALONE[0], "mine"), (ALONE[0], "other")), ((MANY[0], "mine"), MANY)),
    ],
)
def test_recordings_that_are_not_one_job_do_not_share_a_folder(
    tmp_path, monkeypatch, outside_of_jobs, first, second
):
    """Each would have a rank 0: the folder could not be read."""
    requests = [
        RecordRequest(one, tmp_path, is_folder=True, force=True) for one, _ in (first, second)
    ]
    monkeypatch.setenv("TRACEPROF_RUN", first[1])
    with announced(requests[0]):
        monkeypatch.setenv("TRACEPROF_RUN", second[1])
        for look in (is_joining, check_output, lambda one: announced(one).__enter__()):
            with pytest.raises(UsageError, match="another recording writes to this folder"):
                look(requests[1])
    with announced(requests[1]) as joins:
        assert not joins
    assert list(tmp_path.iterdir()) == []


def test_a_second_recording_into_a_folder_runs_nothing(tmp_path, outside_of_jobs):
    request = RecordRequest(NAMED_STEPS, tmp_path / "run", is_folder=True)
    check_output(request)
    with announced(request):
        touch = ["touch", str(tmp_path / "ran")]
        recorded = record(tmp_path, touch, "-o", f"{tmp_path}/run/", "--with", "torch")
    assert recorded.done.returncode == 2
    assert "run: another recording writes to this folder" in recorded.done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "SLURM_NTASKS"])
def test_ranks_that_record_themselves_share_a_folder(
    tmp_path, monkeypatch, outside_of_jobs, variable
):
    monkeypatch.setenv(variable, "2")
    request = RecordRequest(ALONE[0], tmp_path, is_folder=True)
    with announced(request), announced(request) as joins:
        assert joins


def test_a_job_with_a_name_goes_on_in_its_folder(tmp_path):
    manifest = {"traceprof_run": 1, "job": "mine", "ranks": []}
    (tmp_path / f"manifest-{HOST}.json").write_text(json.dumps(manifest))
    assert is_joining(RecordRequest(TORCHRUN, tmp_path, is_folder=True))
    assert not is_joining(RecordRequest(TORCHRUN, tmp_path, is_folder=True, force=True))
    assert not is_joining(RecordRequest(["python"], tmp_path, is_folder=True))


ONCE = 'RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID=job TORCHELASTIC_RESTART_COUNT=$n "$@" || exit 1'


def test_two_recordings_of_a_named_job_are_two_lives(tmp_path):
    """A launcher that starts its program twice, and one that comes when the first is gone."""
    command = ["sh", "-c", f"for n in 0 1; do {ONCE}; done", "sh", *NAMED_STEPS, "0"]
    for _ in range(2):
        recorded = record(
            tmp_path, command, "-o", f"{tmp_path}/run/", "--with", "torch", TRACEPROF_RUN="j"
        )
        assert recorded.done.returncode == 0, recorded.done.stderr
    folder = tmp_path / "run"
    assert sorted(names(folder.glob("*.sqlite"))) == sorted(
        ["rank0.sqlite", "rank0-2.sqlite", f"rank0-{HOST}.sqlite", f"rank0-{HOST}-2.sqlite"]
    )
    attempts, _, _ = attempts_of_run([folder])
    assert [(one.number, one.rank, one.ended) for one in attempts] == [
        (attempt, 0, "finished") for attempt in range(4)
    ]
    run = open_run([folder], attempt=1)
    assert run.ranks == (0,)
    assert (run.traces[0].ranges.to_frame()["name"] == "work").sum() == 3


def test_force_replaces_the_recording_that_was_there(tmp_path):
    command = [*NAMED_STEPS, "0"]
    for options in ([], [], ["--force"]):
        recorded = record(
            tmp_path,
            command,
            "-o",
            f"{tmp_path}/run/",
            "--with",
            "torch",
            *options,
            TRACEPROF_RUN="j",
        )
        assert recorded.done.returncode == 0, recorded.done.stderr
    run = open_run([tmp_path / "run"])
    assert (len(run), run.warnings) == (1, ())
    assert names((tmp_path / "run").glob("*.json")) == [f"manifest-{HOST}.json"]


def test_a_program_that_a_shell_starts_again_is_one_rank_with_two_lives(tmp_path):
    command = ["sh", "-c", '"$@"; "$@"', "sh", *NAMED_STEPS, "0"]
    recorded = record(tmp_path, command, "-o", f"{tmp_path}/run/", "--with", "torch")
    assert recorded.done.returncode == 0, recorded.done.stderr
    run = open_run([tmp_path / "run"])
    assert run.ranks == (0,)
    assert [(one.number, one.rank) for one in run.attempts] == [(0, 0), (1, 0)]


def test_programs_that_run_at_the_same_time_are_no_lives_of_one(tmp_path):
    command = ["sh", "-c", '"$@" & "$@"; wait', "sh", *NAMED_STEPS, "fork"]
    recorded = record(tmp_path, command, "-o", f"{tmp_path}/run/", "--with", "torch")
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert open_run([tmp_path / "run"]).attempts == ()


def test_one_file_has_one_start_of_each_rank(tmp_path):
    command = ["sh", "-c", f"for n in 0 1; do {ONCE}; done", "sh", *NAMED_STEPS, "0"]
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch")
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert "use -o FOLDER/ to keep all attempts" in recorded.done.stderr
    assert sorted(recorded.trace.processes.to_frame()["rank"]) == [0]
