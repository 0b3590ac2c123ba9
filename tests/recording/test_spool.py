import json

from traceprof.recording import spool
from traceprof.recording.spool import (
    read_children,
    read_events,
    read_process_records,
    window_files,
)


def test_a_line_that_was_cut_off_ends_what_can_be_read(tmp_path):
    rows = [
        {"pid": 7},
        [1, 2, "forward", 0, 7, "p"],
        [3, None, "batch", 8, 7, "m"],
        [4, 9, "step", 0, 7, "s"],
        [5, 6, "allreduce", 64, 8, "c", {"dtype": "float32"}],
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '[10, 11, "back'
    (tmp_path / "events.7.jsonl").write_text(text)
    (tmp_path / "events.12.jsonl").write_text('{"pid": 12}\n')
    first, second = read_events(tmp_path)
    assert first.pid == 7
    assert first.is_cut
    assert (first.n_ranges, first.n_marks, first.n_collectives) == (2, 1, 1)
    assert (first.first_ns, first.last_ns) == (1, 9)
    (block,) = first.blocks()
    assert [row[2] for row in block.ranges] == ["forward", "step"]
    assert [row[2] for row in block.marks] == ["batch"]
    assert [row[6] for row in block.collectives] == [{"dtype": "float32"}]
    assert (second.pid, second.n_events, second.is_cut) == (12, 0, False)
    assert (second.first_ns, list(second.blocks())) == (None, [])


def test_a_line_in_the_middle_that_is_no_event_costs_only_itself(tmp_path):
    """Names may look like the end of a line; a disk that was full for a while leaves half lines."""
    names = ['x", "m"]', "b", 'y, "s"]\n']
    rows = [[i, i + 1, name, 0, 7, "p"] for i, name in enumerate(names)]
    lines = [json.dumps(row) + "\n" for row in rows]
    text = '{"pid": 7}\n' + lines[0] + '[2, 3, "ba' + lines[1] + "\x00\n" + lines[2]
    (tmp_path / "events.7.jsonl").write_text(text)
    (events,) = read_events(tmp_path)
    assert (events.n_ranges, events.n_marks, events.is_cut) == (2, 0, True)
    assert [row[2] for block in events.blocks() for row in block.ranges] == [rows[0][2], rows[2][2]]


def test_many_events_come_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "_LINES_AT_ONCE", 10)
    lines = "".join(f'[{i}, {i + 1}, "work", 0, 7, "p"]\n' for i in range(25))
    (tmp_path / "events.7.jsonl").write_text('{"pid": 7}\n' + lines)
    (events,) = read_events(tmp_path)
    assert [len(block.ranges) for block in events.blocks()] == [10, 10, 5]
    assert (events.n_ranges, events.first_ns, events.last_ns) == (25, 0, 25)


def test_records_that_are_damaged_are_left_out_and_secrets_masked(tmp_path):
    record = {
        "pid": 7,
        "argv": ["train.py", "--token", "abc"],
        "rank": 1,
        "software": {"torch": "2"},
    }
    (tmp_path / "process.7.json").write_text(json.dumps(record))
    (tmp_path / "process.8.json").write_text('{"pid": 8, ')
    (only,) = read_process_records(tmp_path)
    assert (only.pid, only.command, only.rank) == (7, "train.py --token ***", 1)


def test_windows_that_were_not_finished_are_left_out(tmp_path):
    for name in ("window.7.0.json", "window.7.1.json", "window.7.2.json.tmp"):
        (tmp_path / name).write_text("{}")
    assert [(pid, path.name) for pid, path in window_files(tmp_path)] == [
        (7, "window.7.0.json"),
        (7, "window.7.1.json"),
    ]


def test_children_that_were_forked_have_their_parents(tmp_path):
    (tmp_path / "children.7").write_text("8\n9\n")
    (tmp_path / "children.9").write_text("10\n")
    assert read_children(tmp_path) == {8: 7, 9: 7, 10: 9}


def test_variables_that_the_launcher_sets_for_its_processes_are_kept_masked(tmp_path):
    record = {
        "pid": 7,
        "software": {"torch": "2.13.0", "mpi4py": "4.1.2"},
        "variables": {
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_MCA_pml": "ucx",
            "OMPI_MCA_orte_precondition_transports": "2b306202418a6715-4399f18eff2890d6",
            "NCCL_DEBUG": "INFO",
            "TORCH_AUTH_TOKEN": "x",
        },
    }
    (tmp_path / "process.7.json").write_text(json.dumps(record))
    (read,) = read_process_records(tmp_path)
    assert read.software == {
        "torch": "2.13.0",
        "mpi4py": "4.1.2",
        "env.OMPI_COMM_WORLD_SIZE": "2",
        "env.OMPI_MCA_pml": "ucx",
        "env.NCCL_DEBUG": "INFO",
    }
