"""What a renderer is, and how it is called with an answer of the session."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, Union

from traceprof.render.options import Options
from traceprof.values import dataclass

if TYPE_CHECKING:
    from traceprof.comparison import Comparison
    from traceprof.session.answer import Document

__all__ = ["Answered", "Options", "Render", "Renderer"]


Answered: TypeAlias = Union["Document", "Comparison"]
"""What renderers show: an answer about a run, or about several beside one another."""


Render = Callable[[Answered, Options], str]


@dataclass(frozen=True, slots=True)
class Renderer:
    """One way out: its name, its files' suffix and media type, and the module with ``RENDER``.

    A module that begins with a dot is one of this package.
    """

    name: str
    summary: str
    suffix: str
    media_type: str
    module: str
