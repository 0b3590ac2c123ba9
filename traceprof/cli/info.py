"""``traceprof info``: what is in a trace or a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.cli.options import AsJson, TracePaths, opens_traces

if TYPE_CHECKING:
    from traceprof.session.options import Opening

__all__ = ["info"]


@opens_traces
def info(opening: Opening, trace: TracePaths, as_json: AsJson = False) -> None:
    """What is in a trace or a run: profiler, machines, ranks, tables; reads no database whole."""
    from traceprof.cli.output import out, terminal_options
    from traceprof.session.run_cache import RunCache

    options = None if as_json else terminal_options()

    def described() -> list[str]:
        from traceprof.session.contents import describe

        contents = describe(trace, opening)
        if options is None:
            from traceprof.render.json_text import plain, to_json

            return [to_json(plain(contents.to_dict()))]
        from traceprof.render.text.contents import render_contents

        return [render_contents(contents, options)]

    out(RunCache.of(trace, opening).texts(("info", options), described)[0])
