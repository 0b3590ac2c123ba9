"""The report: every answer of traceprof about one trace on one page."""

from traceprof.render.report.render import render_report

__all__ = ["render_report"]
