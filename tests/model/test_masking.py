import pytest

from tests.summaries import make_summary
from traceprof.model.masking import masked_command, masked_run, secrets_of


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
        (["HF_TOKEN=abc", "python"], ["HF_TOKEN=***", "python"]),
        (["data.key=label", "LR=1"], ["data.key=label", "LR=1"]),
    ],
)
def test_secrets_on_the_command_line_are_masked(command, masked):
    assert masked_command(command) == masked


def test_what_is_hidden_of_a_command_line_is_known():
    command = ["train", "--api-key", "k1", "--token=abc", "https://me:pw@host/x", "--num-keys", "3"]
    assert [secret.hidden for secret in secrets_of(command)] == ["k1", "abc", "me:pw"]


def test_what_is_masked_stays_as_it_is():
    run = make_summary(command="A_KEY=x train --token y", environment={"command": "train --key z"})
    masked = masked_run(run)
    assert masked.command == "A_KEY=*** train --token ***"
    assert masked.environment == {"command": "train --key ***"}
    again = masked_run(masked)
    assert (again.command, again.environment) == (masked.command, masked.environment)
