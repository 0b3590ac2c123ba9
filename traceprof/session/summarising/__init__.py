"""What is kept of a run: its traces, made into a `Summary` of a few hundred kB."""

from traceprof.session.summarising.summarise import KEPT, summarise

__all__ = ["KEPT", "summarise"]
