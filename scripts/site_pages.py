"""What the site has from outside docs/, and where its links lead: mkdocs asks this (`hooks`)."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final[Mapping[str, str]] = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:)([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie beside docs/."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return the page with its links as they are on the site."""
    folder = "" if page.file.src_uri in PAGES.values() else "docs"
    return with_links(markdown, folder, config.repo_url or "")


def with_links(markdown: str, folder: str, repository: str) -> str:
    """Return the text of a page of ``folder`` with links to pages of the site.

    What is no page is linked in the repository; where that is not known its name stays.
    """

    def linked(found: re.Match[str]) -> str:
        image, text, path, anchor = found.group(1, 2, 3, 4)
        if not path:
            return found[0]
        target = posixpath.normpath(posixpath.join(folder, path))
        if target in PAGES:
            return f"{image}[{text}]({PAGES[target]}{anchor or ''})"
        if target.startswith("docs/"):
            return f"{image}[{text}]({target.removeprefix('docs/')}{anchor or ''})"
        return f"[{text}]({repository}/blob/main/{target})" if repository else text

    return _LINK.sub(linked, markdown)
