import platform
import subprocess

from traceprof.recording import machine
from traceprof.recording.machine import git_facts, memory_limit, network_facts, read_environment


def test_a_fact_that_is_not_known_is_left_out():
    facts = read_environment(["python", "train.py"])
    assert facts["command"] == "python train.py"
    assert int(facts["ram_bytes"]) > 0
    assert all(facts.values())


def test_git_facts(tmp_path):
    assert git_facts(tmp_path) == {}
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x"]
    (tmp_path / "train.py").write_text("pass\n")
    for arguments in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        ["commit", "-q", "-m", "first"],
        ["remote", "add", "origin", "https://me:secret@host/repo.git"],
    ):
        subprocess.run([*git, *arguments], check=True)
    facts = git_facts(tmp_path)
    assert len(facts.pop("git.commit")) == 40
    assert facts == {
        "git.branch": "main",
        "git.state": "clean",
        "git.remote": "https://host/repo.git",
    }
    (tmp_path / "train.py").write_text("fail\n")
    assert git_facts(tmp_path)["git.state"] == "changed"


def test_network_facts_have_units_and_no_unknown_speeds(tmp_path):
    for name, speed in (("eth0", "25000"), ("lo", "-1")):
        (tmp_path / "net" / name).mkdir(parents=True)
        (tmp_path / "net" / name / "speed").write_text(f"{speed}\n")
        (tmp_path / "net" / name / "mtu").write_text("1500\n")
    port = tmp_path / "ib" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    facts = dict(network_facts(tmp_path / "net", tmp_path / "ib"))
    assert facts["nic.eth0.speed_mbit_per_s"] == "25000"
    assert "nic.lo.speed_mbit_per_s" not in facts
    assert facts["rdma.mlx5_0.1.rate"] == "400 Gb/sec (4X NDR)"


def test_the_memory_limit_is_the_smallest_of_the_cgroups_above_the_process(tmp_path):
    own, root = tmp_path / "own", tmp_path / "cgroup"
    (root / "job" / "task").mkdir(parents=True)
    (root / "memory" / "job").mkdir(parents=True)
    own.write_text("0::/job/task\n")
    assert memory_limit(root, own) == ""
    (root / "job" / "task" / "memory.max").write_text("max\n")
    assert memory_limit(root, own) == ""
    (root / "job" / "memory.max").write_text("8000\n")
    assert memory_limit(root, own) == "8000"
    (root / "memory.max").write_text("4000\n")  # the root of a container
    assert memory_limit(root, own) == "4000"
    own.write_text("4:cpu:/other\n3:memory:/job\n")  # version 1
    (root / "memory" / "job" / "memory.limit_in_bytes").write_text("2000\n")
    assert memory_limit(root, own) == "2000"
    (root / "memory" / "job" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory_limit(root, own) == ""


def test_the_number_of_gpus_is_stated_only_where_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "has_gpu", lambda: False)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert machine.count_of_no_gpu(tmp_path) == {"gpu.count": "0"}
    (tmp_path / "kfd").touch()  # the driver of AMD
    assert machine.count_of_no_gpu(tmp_path) == {}
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    assert machine.count_of_no_gpu(tmp_path / "none") == {}
