"""`traceprof demo`: the page and the report of a sample trace, for somebody who has none yet.

The sample is a training run on an H100 that `traceprof record` recorded. It is part of the wheel;
in a clone of the repository it is in fixtures/. Only the folder of the demo is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from traceprof.cli.options import Force, option, with_options
from traceprof.errors import TraceError, UsageError, WritingError

if TYPE_CHECKING:
    from traceprof.render.registry import Answered

SAMPLE_NAME: Final = "h100-cnn.sqlite.gz"
_PACKAGE: Final = Path(__file__).parent.parent
_PLACES: Final = (_PACKAGE, _PACKAGE.parent / "fixtures" / "traces")
"""Where an installed package and a clone have the sample; pyproject.toml puts it into the wheel."""


@with_options
def demo(
    folder: Annotated[
        Path, option("--output -o", "Write the sample trace and its report to FOLDER.", "FOLDER")
    ] = Path("traceprof-demo"),
    browser: Annotated[
        bool | None,
        option("--browser/--no-browser", "Open the report in a browser. Default: yes, not in CI."),
    ] = None,
    force: Force = False,
) -> None:
    """Analyze a sample trace: print its page and open its report.

    The sample is a training run of a convolutional network on an H100. No GPU is needed.
    """
    from traceprof.cli.output import Printing, message, out, print_cached_answer
    from traceprof.cli.pages import write_report
    from traceprof.files import check_target, write_file
    from traceprof.session.options import Opening

    trace, page = folder / SAMPLE_NAME, folder / "report.html"
    sample = find_sample().read_bytes()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        is_no_folder = isinstance(error, FileExistsError | NotADirectoryError)
        kind = UsageError if is_no_folder else WritingError
        raise kind(f"{folder} cannot be created: {error.strerror}") from error
    # A second demo replaces the files of the first one; files of others stay.
    force = force or (trace.is_file() and trace.read_bytes() == sample)
    for target in (trace, page):
        check_target(target, force=force)
    write_file(trace, sample, force=force)

    def answered() -> Answered:
        from traceprof.session.answer import page
        from traceprof.session.run import open_run

        return page(open_run([trace]))

    print_cached_answer(("page", None), [trace], Opening(), answered, Printing(rows=5))
    write_report([trace], page, Opening(), force=force)
    out(
        "\nTry it on your program or trace:\n"
        "  traceprof record -- python train.py\n"
        "  traceprof TRACE\n"
        "  traceprof timeline TRACE\n"
    )
    opens = "CI" not in os.environ if browser is None else browser
    if opens and typer.launch(page.resolve().as_uri()):
        message(f"no browser was found: open {page}")


def find_sample() -> Path:
    """Return the path of the sample trace.

    Raises:
        TraceError: this installation does not contain it.
    """
    for place in _PLACES:
        if (place / SAMPLE_NAME).is_file():
            return place / SAMPLE_NAME
    raise TraceError(f"this installation of traceprof does not contain {SAMPLE_NAME}")
