"""The pages of the site: docs/, the other documents, and each file that a document links to.

Here live the place of each file in the site, the navigation, and the rewriting of links.
A link from a document to a file outside of docs/ leads to a page of the site that shows the file:
the repository's public address is not known yet.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from website import reference
from website.lists import as_zensical_reads

DOCS = "docs"
PICTURE = ".png"
PROJECT = {  # documents outside of docs/, and their places in the site
    "README.md": "project/readme.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "benchmarks.md",
}
HIGHLIGHTED = {
    ".json": "json",
    ".lua": "lua",
    ".md": "markdown",
    ".py": "python",
    ".sh": "bash",
    ".toml": "toml",
    ".yml": "yaml",
}

Nav = list[tuple[str, "str | Nav"]]
# A page by its path in the site, or a folder (with a slash): all its pages, index.md first. A
# folder that does not exist is left out.
NAVIGATION: Nav = [
    ("Home", "index.md"),
    ("Tutorial", "tutorial.md"),
    (
        "Guides",
        [
            ("Which limit", "limits.md"),
            ("Redis", "redis.md"),
            ("Command line", "command-line.md"),
            ("HTTP clients and SDKs", "http.md"),
            ("Answers of providers", "answers.md"),
            ("The service still answers 429", "still-429.md"),
            ("Frameworks", "frameworks.md"),
            ("In your process", "in-your-process.md"),
            ("Telemetry", "telemetry.md"),
            ("Web page", "web.md"),
            ("In production", "in-production.md"),
            ("How much does it cost", "cost.md"),
            ("Testing", "testing.md"),
            ("Troubleshooting", "troubleshooting.md"),
        ],
    ),
    ("Migration", "migration/"),
    ("Recipes", "recipes/"),
    ("API reference", "reference/"),
    (
        "Proof",
        [
            ("Promises", "promises.md"),
            ("Guarantees", "guarantees.md"),
            ("Benchmarks", "benchmarks.md"),
        ],
    ),
    (
        "Inside",
        [
            ("Architecture", "architecture.md"),
            ("Decisions", "decisions/"),
            ("Wire format", "wire-format.md"),
            ("Contributing", "project/contributing.md"),
            ("Changelog", "project/changelog.md"),
            ("Security", "project/security.md"),
            ("README", "project/readme.md"),
        ],
    ),
    ("Glossary", "glossary.md"),
]

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


class PageError(Exception):
    """A document that cannot become a page: the message names the document and the fault."""


@dataclass
class Site:
    """The pages by their paths in the site; `linked` are files that pages link to, not yet
    shown.
    """

    root: Path
    pages: dict[str, str]
    linked: set[str]


def write(root: Path, folder: Path) -> None:
    """Write what Zensical reads: the pages and the configuration with the navigation."""
    pages = collect(root)
    shutil.rmtree(folder, ignore_errors=True)
    for page, text in pages.items():
        path = folder / "pages" / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for picture in (root / DOCS).rglob(f"*{PICTURE}"):
        path = folder / "pages" / place(picture.relative_to(root).as_posix())
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, path)
    settings = (root / "website/zensical.toml").read_text()
    nav = f"[project]\nnav = {in_toml(navigation(pages))}\n"
    settings = settings.replace("[project]\n", nav, 1)
    settings = settings.replace('"src"', json.dumps(f"{root}/src"), 1)
    (folder / "zensical.toml").write_text(settings)


def collect(root: Path) -> dict[str, str]:
    """Return the text of each page by its path in the site."""
    documents = [path.relative_to(root).as_posix() for path in sorted((root / DOCS).rglob("*.md"))]
    site = Site(root, reference.pages(root), set())
    for document in [*documents, *PROJECT]:
        site.pages[place(document)] = with_links(site, document)
    while site.linked:
        file = site.linked.pop()
        if place(file) not in site.pages:
            site.pages[place(file)] = shown(site, file)
    return site.pages


def place(file: str) -> str:
    """Return the path in the site of a file of the repository."""
    if file in PROJECT:
        return PROJECT[file]
    path = PurePosixPath(file)
    if path.parts[0] == DOCS:
        return path.relative_to(DOCS).as_posix()
    return f"source/{file}.md"


def with_links(site: Site, document: str) -> str:
    """Return the text of a document with the links of the site, and lists for Zensical."""
    text = (site.root / document).read_text()
    fences = [match.span() for match in FENCE.finditer(text)]

    def changed(match: re.Match[str]) -> str:
        within = any(begin <= match.start() < end for begin, end in fences)
        return match[0] if within else link(site, document, match[0])

    return as_zensical_reads(LINK.sub(changed, text))


def link(site: Site, document: str, target: str) -> str:
    """Return the link of the site for a link of a document; note the file that it leads to."""
    file, hash_, anchor = target.partition("#")
    if "://" in target or not file:
        return target
    path = (site.root / document).parent / file
    if not path.exists():
        raise PageError(f"{document}: dead link {target}")
    led = path.resolve().relative_to(site.root.resolve()).as_posix()
    if path.suffix != PICTURE:
        site.linked.add(led)
    return os.path.relpath(place(led), PurePosixPath(place(document)).parent) + hash_ + anchor


def shown(site: Site, file: str) -> str:
    """Return a page that shows a file of the repository, or lists the files of a folder."""
    path = site.root / file
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {file}\n\n"
    if path.is_dir():
        files = [each.relative_to(path).as_posix() for each in sorted(path.rglob("*.*"))]
        files = [each for each in files if "__pycache__" not in each]
        site.linked.update(f"{file}/{each}" for each in files)
        return head + "".join(f"- [{each}]({path.name}/{each}.md)\n" for each in files)
    fence = "`" * 6
    return f"{head}{fence}{HIGHLIGHTED.get(path.suffix, 'text')}\n{path.read_text()}{fence}\n"


# The navigation ---------------------------------------------------------------------------------


def navigation(pages: dict[str, str]) -> Nav:
    """Return the navigation with its folders filled in. Each document must have a place in it."""
    nav = filled(NAVIGATION, pages)
    placed = set(leaves(nav))
    if missing := sorted(placed - pages.keys()):
        raise PageError(f"website/pages.py names pages that do not exist: {missing}")
    homeless = [each for each in pages if each not in placed and not each.startswith("source/")]
    if homeless:
        raise PageError(f"website/pages.py gives no place in the navigation to {homeless}")
    return nav


def filled(nav: Nav, pages: dict[str, str]) -> Nav:
    full: Nav = []
    for name, entry in nav:
        if isinstance(entry, list):
            full.append((name, filled(entry, pages)))
        elif not entry.endswith("/"):
            full.append((name, entry))
        elif inside := [each for each in pages if each.startswith(entry)]:
            first = [each for each in inside if each == f"{entry}index.md"]
            rest = sorted((title(pages[each]), each) for each in inside if each not in first)
            full.append((name, [*((title(pages[each]), each) for each in first), *rest]))
    return full


def title(text: str) -> str:
    """Return the first heading of a page, as plain text."""
    found = TITLE.search(text)
    if not found:
        raise PageError(f"a page without a heading: {text[:60]!r}")
    return found[1].replace("`", "")


def leaves(nav: Nav) -> Iterator[str]:
    for _, entry in nav:
        if isinstance(entry, list):
            yield from leaves(entry)
        else:
            yield entry


def in_toml(nav: Nav) -> str:
    """Return the navigation as a value in TOML. Its strings are those of JSON."""
    rows = []
    for name, entry in nav:
        value = in_toml(entry) if isinstance(entry, list) else json.dumps(entry)
        rows.append(f"{{ {json.dumps(name)} = {value} }}")
    return f"[{', '.join(rows)}]"
