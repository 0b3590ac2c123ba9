"""Secrets that a header tells, to be looked for in everything else."""

from __future__ import annotations

from traceprof.formats.shared.redaction import secrets_of_values


def test_names_and_shapes_tell_secrets_at_any_depth() -> None:
    told = {
        "env": {"API_KEY": "hunter2-and-more", "PATH": "/usr/bin", "TOKEN": 1234567890},
        "command": ["train.py", "--password", "s3cret-word"],
        "pip": "google-auth==2.40.3\nhf_transfer==0.1.9",
        "block": "A=1\0DB_PASSWORD=between-nuls\0",
        "short": {"key": "abc"},
        "note": ["uses hf_Abcdefgh12345678"],
    }
    assert secrets_of_values(told) == [
        *("hf_Abcdefgh12345678", "hunter2-and-more", "between-nuls", "s3cret-word", "1234567890"),
    ]
