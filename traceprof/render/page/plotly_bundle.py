"""plotly.js, as the installed plotly package ships it, made small enough to put into a page."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from plotly.offline import get_plotlyjs

from traceprof.values import dataclass

__all__ = ["PLOTLY_CONFIG", "PlotlyBundle", "plotly_bundle"]

PLOTLY_CONFIG: Final[Mapping[str, Any]] = {
    "displaylogo": False,
    # plotly.js 4 shows a button that uploads the chart unless both are switched off.
    "showSendToCloud": False,
    "plotlyServerURL": "",
}
"""What every plotly figure of traceprof is shown with: nothing may leave the machine."""


@dataclass(frozen=True, slots=True)
class PlotlyBundle:
    """The script as gzip, and the CSP source that lets exactly this script run."""

    gzip: bytes
    csp_source: str


@cache
def plotly_bundle() -> PlotlyBundle:
    """Return plotly.js of the installed plotly package (about 1.5 MB; compressed once)."""
    script = get_plotlyjs().encode()
    packed = gzip.compress(script, compresslevel=6, mtime=0)
    return PlotlyBundle(packed, csp_hash(script))


def csp_hash(script: bytes) -> str:
    """Return the CSP source expression that allows an inline script with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"
