"""``traceprof info``: what is in a trace."""

from __future__ import annotations

from traceprof.cli.options import AsJson, TracePath

__all__ = ["info"]


def info(trace: TracePath, as_json: AsJson = False) -> None:
    """What is in a trace: profiler, machine, processes, tables, ranges and steps."""
    from traceprof.cli.output import out, print_view
    from traceprof.formats import open_trace
    from traceprof.model.contents import describe
    from traceprof.render.contents import contents_view
    from traceprof.render.json_text import to_json

    contents = describe(open_trace(trace))
    if as_json:
        out(to_json(contents.to_dict()))
    else:
        print_view(lambda _: contents_view(contents))
