"""What must not be kept, wherever in a run it stands."""

from __future__ import annotations

from tests.summaries import make_summary
from traceprof.model.summary import SourceFile
from traceprof.store.summaries import masked_run

RUN = make_summary(
    command="python train.py --token s3cr3t --lr 1 https://me:pw@host/x",
    environment={
        "gpu": "H100",
        "wandb_api_key": "s3cr3t",
        "note": "ghp_0123456789abcdef",
        "command": "train --password s3cr3t --lr 1",
    },
    sources=(
        SourceFile("s3://me:s3cr3t@bucket/trace.sqlite"),
        SourceFile("/data/token=bpe/a b.sqlite"),
    ),
)


def test_secrets_are_masked_wherever_they_stand() -> None:
    masked = masked_run(RUN)
    assert masked.command == "python train.py --token *** --lr 1 https://***@host/x"
    assert masked.environment == {
        "gpu": "H100",
        "wandb_api_key": "***",
        "note": "***",
        "command": "train --password *** --lr 1",
    }
    assert [source.path for source in masked.sources] == [
        "s3://***@bucket/trace.sqlite",
        "/data/token=bpe/a b.sqlite",
    ]


def test_what_is_masked_stays_as_it_is() -> None:
    once = masked_run(RUN)
    twice = masked_run(once)
    assert (twice.command, twice.environment, twice.sources) == (
        once.command,
        once.environment,
        once.sources,
    )
