"""``traceprof info``: what is in a trace or a run."""

from __future__ import annotations

from pathlib import Path

from traceprof.cli.options import AsJson, TracePaths

__all__ = ["info"]


def info(trace: TracePaths, as_json: AsJson = False) -> None:
    """What is in a trace: profiler, machine, ranks, tables, steps, and what is suspicious."""
    import pandas as pd

    from traceprof.analysis.advice.quality import measure_quality, measure_run_quality
    from traceprof.cli.opening import open_members
    from traceprof.cli.output import out, print_view
    from traceprof.model.merge import merge_run
    from traceprof.render.contents import contents_view
    from traceprof.render.json_text import records_of, to_json
    from traceprof.session.contents import describe

    run = open_members(trace)
    whole = merge_run(run) if len(run) > 1 else run.members[0].trace
    contents = describe(whole)
    suspicious = measure_quality(whole).to_frame()
    ranks = pd.DataFrame()
    if len(run) > 1:
        ranks = run.to_frame()
        suspicious = pd.concat([suspicious, measure_run_quality(run).to_frame()])
        suspicious = suspicious.drop_duplicates("message", ignore_index=True)
    if as_json:
        more = {"ranks": records_of(ranks), "suspicious": records_of(suspicious)}
        out(to_json(contents.to_dict() | more))
    else:
        if len(ranks):
            ranks["path"] = [Path(path).name for path in ranks["path"]]
        print_view(lambda width: contents_view(contents, ranks, suspicious, width))
