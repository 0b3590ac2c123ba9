"""A reader at a timeline who counts what he does, and the traces that he looks at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.builders import TraceBuilder
from tests.render.browser import OpenPage
from traceprof.model.trace import Trace

__all__ = ["Reader", "steps_of_ten", "two_ranks"]

MS = 1_000_000


def two_ranks(n_steps: int = 6) -> Trace:
    """Two ranks of some steps of 10 ms: rank 1 is late in step 3, and waits nowhere else.

    Backward kernels are launched by a thread of their own, which carries no ranges.
    """
    builder = TraceBuilder()
    for rank in range(2):
        process, device = rank + 1, rank
        here = {"process": process, "device": device}
        builder.process(process, rank=rank, name="python", host=f"node{rank + 1}")
        builder.device(device, "H100").thread_name(process, "python", process=process)
        for number in range(n_steps):
            t = number * 10 * MS
            late = 2 * MS if (rank, number) == (1, 3) else 0
            builder.step(t, t + 10 * MS, number, process=process, thread=process)
            mine = {"process": process, "thread": process}
            builder.range("forward", t, t + 4 * MS, **mine).range(
                "layer", t + MS, t + 2 * MS, **mine
            )
            builder.range("backward", t + 4 * MS, t + 8 * MS, **mine)
            call = (t + MS + 100_000, t + MS + 110_000)
            builder.kernel(
                "gemm",
                t + 2 * MS,
                t + 4 * MS + number * 1000,
                launched_ns=call,
                thread=process,
                **here,
            )
            call = (t + 5 * MS, t + 5 * MS + 10_000)
            start = t + 5 * MS + 500_000 + late
            builder.kernel(
                "dgrad", start, t + 8 * MS, launched_ns=call, thread=process + 90, **here
            )
            builder.kernel("ncclDevKernel_AllReduce", start + 10_000, t + 9 * MS, stream=20, **here)
            builder.copy("h2d", t + 9 * MS, t + 9 * MS + 100_000, n_bytes=2_500_000, **here)
    return builder.build()


def steps_of_ten(setup_ms: int, slower_ms: int = 0, n_steps: int = 4) -> Trace:
    """One device, steps of 10 ms; from step 2 on gemm and the step take ``slower_ms`` more.

    The kernel "late" begins in each step and ends 1 ms into the next one.
    """
    builder = TraceBuilder().process(1, rank=0, name="python").device(0, "H100")
    builder.range("set-up", 0, setup_ms * MS, process=1, thread=1)
    t = setup_ms * MS
    for number in range(n_steps):
        more = slower_ms * MS if number >= 2 else 0
        builder.step(t, t + 10 * MS + more, number, process=1, thread=1)
        builder.range("forward", t, t + 5 * MS + more, process=1, thread=1)
        builder.kernel("gemm", t + 2 * MS, t + 4 * MS + more, process=1, device=0, stream=7)
        builder.kernel("late", t + 9 * MS + more, t + 11 * MS + more, process=1, device=0, stream=9)
        t += 10 * MS + more
    return builder.build()


class Reader:
    """Acts on an open timeline as a person would, and counts the actions."""

    def __init__(self, page: OpenPage) -> None:
        self.page = page
        self.actions = 0

    def begin(self) -> None:
        """Forget what earlier tests left, the focus too: a page that was just opened."""
        self.page.js(
            "(localStorage.clear(), document.activeElement.blur(), scrollTo(0, 0),"
            " traceprof.begin())"
        )
        self.page.page.mouse.move(0, 0)
        self.until("!traceprof.frame")

    def click(self, target: Any, **more: Any) -> None:
        """Click an element."""
        self.actions += 1
        target.click(**more)

    def click_at(self, time_ns: float, lane: str, nth: int = 0, *, shift: bool = False) -> None:
        """Click an instant of the lane of this name."""
        self.actions += 1
        x, y = self.place(time_ns, lane, nth)
        if shift:
            self.page.page.keyboard.down("Shift")
        self.page.page.mouse.click(x, y)
        if shift:
            self.page.page.keyboard.up("Shift")

    def place(self, time_ns: float, lane: str, nth: int = 0) -> tuple[float, float]:
        """Return where on the screen an instant of a lane is."""
        x, y = self.page.js(
            f"[traceprof.xOf({time_ns}), (() => {{ const line = traceprof.lines.filter("
            f"(l) => l.type !== 'section' && l.label.startsWith('{lane}'))[{nth}];"
            " return line.y + line.height / 2; })()]"
        )
        box = self.page.page.locator(".overlay").bounding_box()
        return box["x"] + x, box["y"] + y

    def press(self, *keys: str) -> None:
        """Press keys, each an action."""
        for key in keys:
            self.actions += 1
            self.page.page.keyboard.press(key)

    @property
    def title(self) -> str:
        """What the panel is about."""
        text: str = self.page.page.locator(".details h3").inner_text()
        return text

    @property
    def facts(self) -> dict[str, str]:
        """What the panel says of it: the rows of two cells."""
        rows = self.page.js(
            "[...document.querySelectorAll('.details .facts tr')]"
            ".map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        return dict(rows)

    def table(self, caption: str) -> dict[str, list[str]]:
        """The rows of a table of the panel by their first cell."""
        rows = self.page.js(
            "[...document.querySelectorAll('.details table')].filter("
            f"(t) => t.caption?.textContent.startsWith({caption!r}))"
            ".flatMap((t) => [...t.tBodies[0].rows])"
            ".map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        return {first: rest for first, *rest in rows}

    def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        for _ in range(600):
            if self.page.js(expression):
                return
            self.page.page.wait_for_timeout(10)
        raise AssertionError(f"never true: {expression}")


Read = Callable[..., Reader]
