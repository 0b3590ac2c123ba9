"""``traceprof findings``: ranked advice."""

from __future__ import annotations

from traceprof.cli.show import shown_alone

__all__ = ["findings"]

findings = shown_alone("findings")
findings.__doc__ = "Ranked advice: what costs time, the evidence, what to do, when it may be wrong."
