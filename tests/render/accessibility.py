"""What axe (Deque's rules, WCAG 2 A and AA) says of a page in the browser."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

_ASK = """async () => {
  const options = { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] };
  const { violations } = await axe.run(document, options);
  return violations.map(({ id, impact, nodes }) =>
    [impact, id, nodes.map(({ target, failureSummary }) => `${target}: ${failureSummary}`)]);
}"""


@cache
def _axe() -> str:
    return (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")


def serious_violations(frame: Any) -> list[Any]:
    """Return what axe holds to be serious or critical in a page or frame, with the first places."""
    frame.evaluate(_axe())
    found = frame.evaluate(_ASK)
    return [
        (name, places[:4]) for impact, name, places in found if impact in ("serious", "critical")
    ]
