"""The file that all nsys of a machine share, and when it may be removed."""

import os

import pytest

from traceprof.recording.recorders.nsys.report import advice_on, remove_leftovers

READY, MAKING = (2).to_bytes(4, "little"), (1).to_bytes(4, "little")


@pytest.fixture
def machine(tmp_path):
    """Return two folders: shared memory, and one process that uses none of it."""
    memory, processes = tmp_path / "shm", tmp_path / "proc"
    memory.mkdir()
    (processes / "7").mkdir(parents=True)
    (processes / "7" / "maps").write_text("7f-8f rw-s 00000000 00:18 4711 /dev/shm/other\n")
    (memory / "quadd-agent-instance-7").write_bytes(MAKING)
    return memory, processes


def opened_by_a_process(machine, path):
    inode = path.stat().st_ino
    line = f"7f-8f rw-s 00000000 00:18 {inode}    {path}\n"
    (machine[1] / "7" / "maps").write_text(line)


def removed(machine, pause=lambda _s: None):
    return remove_leftovers(*machine, pause)


def test_one_that_nobody_has_open_is_removed(machine):
    path = machine[0] / "NSys-2022.4.2.1"
    path.write_bytes(READY)
    assert removed(machine) == [path]
    assert [left.name for left in machine[0].iterdir()] == ["quadd-agent-instance-7"]


def test_one_that_is_in_use_stays(machine):
    path = machine[0] / "NSys-2022.4.2.1"
    path.write_bytes(READY)
    opened_by_a_process(machine, path)
    assert removed(machine) == []
    assert path.exists()
    assert advice_on(machine[0]) == ""


def test_a_broken_one_is_removed_even_when_those_that_wait_for_it_have_it_open(machine):
    path = machine[0] / "NSys-2022.4.2.1"
    path.write_bytes(MAKING)
    opened_by_a_process(machine, path)
    assert f"{path} is damaged; ask its owner to remove it" in advice_on(machine[0])
    assert removed(machine) == [path]
    assert advice_on(machine[0]) == ""


def test_one_that_is_just_being_made_stays(machine):
    path = machine[0] / "NSys-2022.4.2.1"
    path.write_bytes(MAKING)
    opened_by_a_process(machine, path)
    assert removed(machine, lambda _s: path.write_bytes(READY)) == []
    assert path.read_bytes() == READY


def test_one_that_was_made_anew_meanwhile_stays(machine):
    path = machine[0] / "NSys-2022.4.2.1"
    path.write_bytes(MAKING)

    def another_takes_its_place(_s):
        (machine[0] / "new").write_bytes(READY)
        (machine[0] / "new").replace(path)

    assert removed(machine, another_takes_its_place) == []
    assert path.read_bytes() == READY


def test_those_of_other_users_stay_and_are_named(machine, monkeypatch):
    path = machine[0] / "NSys-2022.4.2.1"
    path.write_bytes(MAKING)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert removed(machine) == []
    assert str(path) in advice_on(machine[0])
