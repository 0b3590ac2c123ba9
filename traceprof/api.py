"""The public API: what ``import traceprof`` gives for reading traces."""

from __future__ import annotations

from dataclasses import fields

from traceprof.model.results import Result
from traceprof.session.run import Run as SessionRun

__all__ = ["Run", "ShownResult", "open_traces"]


class ShownResult(Result):
    """A result that shows itself: its tables by `to_frame`, scalars, notes."""

    @classmethod
    def of(cls, result: Result) -> ShownResult:
        """Return ``result`` as one that shows itself."""
        return cls(**{field.name: getattr(result, field.name) for field in fields(Result)})

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(frame)} rows" for name, frame in self.tables.items())
        return f"<traceprof {self.name}: {sizes}>"

    def _repr_html_(self) -> str:
        from traceprof.render.page.tables import result_html

        return result_html(self)


class Run(SessionRun):
    """A run whose results show themselves."""

    def within(self, window: str | None) -> Run:
        """Return the same run seen through another window, as ``--window`` takes it."""
        return Run(self._source, window)

    def result(self, name: str) -> ShownResult:
        """Return the result of the analysis called ``name``."""
        return ShownResult.of(super().result(name))
