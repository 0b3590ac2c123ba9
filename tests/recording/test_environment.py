import subprocess

import pytest

from traceprof.recording.environment import (
    git_facts,
    kept_variables,
    masked_command,
    read_environment,
    secrets_of,
)
from traceprof.recording.machine import network_facts


def test_only_variables_about_training_are_kept():
    kept = kept_variables(
        {
            "NCCL_DEBUG": "INFO",
            "RANK": "3",
            "SLURM_JOB_ID": "17",
            "SLURM_TOPOLOGY_ADDR": "core.leaf2.node7",
            "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
            "HOME": "/home/someone",
            "AWS_SECRET_ACCESS_KEY": "x",
            "SLURM_JWT": "eyJhbGciOi",
            "CUDA_API_KEY": "x",
            "TORCH_AUTH_TOKEN": "x",
            "NCCL_PROXY": "http://user:pw@proxy:3128",
            "TORCH_HUB": "hf_abcdefghijklmnop",
        }
    )
    assert kept == {
        "NCCL_DEBUG": "INFO",
        "RANK": "3",
        "SLURM_JOB_ID": "17",
        "SLURM_TOPOLOGY_ADDR": "core.leaf2.node7",
        "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
        "NCCL_PROXY": "http://***@proxy:3128",
        "TORCH_HUB": "***",
    }


@pytest.mark.parametrize(
    ("command", "masked"),
    [
        (
            ["train.py", "--api-key", "abc", "--lr", "1"],
            ["train.py", "--api-key", "***", "--lr", "1"],
        ),
        (["--wandb_token=xyz"], ["--wandb_token=***"]),
        (["--num-keys", "3", "--tokenizer=bpe"], ["--num-keys", "3", "--tokenizer=bpe"]),
        (["s3://user:pw@host/x"], ["s3://***@host/x"]),
        (["sk-abcdefgh12345678"], ["***"]),
        (["--to=ghp_abcdefgh12345678"], ["***"]),
        (["--password", "--token", "x"], ["--password", "***", "***"]),
    ],
)
def test_secrets_on_the_command_line_are_masked(command, masked):
    assert masked_command(command) == masked


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


def test_what_is_hidden_of_a_command_line_is_known():
    command = ["train", "--api-key", "k1", "--token=abc", "https://me:pw@host/x", "--num-keys", "3"]
    assert [secret.hidden for secret in secrets_of(command)] == ["k1", "abc", "me:pw"]
