"""The report: every answer of traceprof about one trace on one page."""
