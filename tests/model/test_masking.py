import pytest

from traceprof.model.masking import kept_variables, masked_command, secrets_of


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


def test_what_is_hidden_of_a_command_line_is_known():
    command = ["train", "--api-key", "k1", "--token=abc", "https://me:pw@host/x", "--num-keys", "3"]
    assert [secret.hidden for secret in secrets_of(command)] == ["k1", "abc", "me:pw"]
