"""The links of the built site.

Here lives the check that each link and each anchor in the pages leads somewhere, and that no page
loads anything from elsewhere. It reads the HTML, so it also sees the links that Zensical's theme
and the API reference make.
"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LEADS = {("a", "href"), ("area", "href")}  # elements with an address that the reader may follow
LOADS = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src")}
TEMPLATE = "404.html"  # its links are those of a site at the root of a host


class Page(HTMLParser):
    """The anchors of one page, its links, and the files that it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name"):
                self.anchors.add(value or "")
            elif (tag, name) in LEADS | LOADS and value is not None:
                self.links.append(value)
                if (tag, name) in LOADS:
                    self.loads.append(value)


def faults(html: Path) -> list[str]:
    """Return a line for each link in the folder `html` that is dead, and for each foreign file."""
    html = html.resolve()
    files = sorted(path for path in html.rglob("*.html") if path.name != TEMPLATE)
    pages = {path: Page(path.read_text()) for path in files}
    found = []
    for path, page in pages.items():
        dead = [link for link in page.links if not leads(path, link, pages)]
        foreign = [file for file in page.loads if urlsplit(file).netloc]
        found += [f"{path.relative_to(html)}: dead link {link}" for link in dead]
        found += [f"{path.relative_to(html)}: loads {file} from elsewhere" for file in foreign]
    return found


def leads(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True  # a site elsewhere: tests/examples/test_docs.py says which ones may be named
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if target not in pages:
        return target.is_file()
    return not parts.fragment or unquote(parts.fragment) in pages[target].anchors
