"""The report: every answer of traceprof about one trace on one page."""

from traceprof.render.report.render import REPORT, render_report

__all__ = ["REPORT", "render_report"]
