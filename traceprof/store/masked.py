"""A run as it may be kept or given away: without secrets, whoever wrote its command."""

from __future__ import annotations

from dataclasses import replace

from traceprof.model.summary import Summary
from traceprof.secrets import MASK, masked_command

__all__ = ["masked_run"]


def masked_run(run: Summary) -> Summary:
    """Return ``run`` without the secrets in its command, its environment and its addresses."""
    return replace(
        run,
        command=_line(run.command),
        environment={name: _variable(name, value) for name, value in run.environment.items()},
        sources=tuple(replace(s, path=_address(s.path)) for s in run.sources),
    )


def _address(path: str) -> str:
    """Return an address without its login; a path of this machine is one whatever it is called."""
    return masked_command([path])[0] if "://" in path else path


def _line(text: str) -> str:
    return " ".join(masked_command(text.split(" ")))


def _variable(name: str, value: str) -> str:
    """Return the value of a variable, whose name may say that it is a secret."""
    option = f"--{name}="
    (shown,) = masked_command([option + value])
    return _line(shown.removeprefix(option)) if shown.startswith(option) else MASK
