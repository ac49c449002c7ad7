"""Documents, docstrings and comments are in plain English: short sentences with a named subject.

This module has the words and forms that the documents do not use. Add a file to `PAGES` when its
text is done.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.definitions import definitions_in

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "docs/decisions",
    "docs/migration",
    "docs/recipes",
)  # all their pages are in plain English
PAGES: list[str] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "docs/answers.md",
    "docs/architecture.md",
    "docs/command-line.md",
    "docs/frameworks.md",
    "docs/glossary.md",
    "docs/guarantees.md",
    "docs/http.md",
    "docs/in-production.md",
    "docs/in-your-process.md",
    "docs/index.md",
    "docs/limits.md",
    "docs/promises.md",
    "docs/redis.md",
    "docs/still-429.md",
    "docs/telemetry.md",
    "docs/testing.md",
    "docs/troubleshooting.md",
    "docs/tutorial.md",
    "docs/web.md",
    "docs/wire-format.md",
    *(
        str(path.relative_to(ROOT))
        for each in FOLDERS
        for path in sorted((ROOT / each).glob("*.md"))
    ),
]
SOURCES = [
    path
    for folder in ("src", "tests", "benchmarks", "examples", "demo", "website")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path != Path(__file__)
]
MOST_WORDS, MOST_COLUMNS = 25, 100

# Each form that the pages do not use: a sentence with it, and the words to write instead. The first
# one is allowed in headings. The heads of tables are not read.
BARE = r"(?:^|[;:] )\W*(?:who|whoever|whom|whose|what|whatever)\b"
BANNED = {
    BARE: (
        "Whose lease is lost must stop.",
        "name the subject: the caller, the process, the server",
    ),
    r"\bwhoever\b": ("The next permit goes to whoever waits.", "name the subject"),
    r"\b(?:no|some|any|every)body\b": (
        "Nobody overtakes.",
        "no caller, another process, all waiters",
    ),
    r"\b(?:is|are|was|were|be|been|being) told\b": (
        "A holder is told.",
        "say which call or error tells it",
    ),
    r"\bheed(?:s|ed|ing)?\b": ("A pause is heeded.", "apply, follow"),
    r"\blet(?:s|ting)? (?:\w+ )?in\b": ("The server lets us in.", "grant, accept"),
    r"\bmint(?:s|ed|ing)?\b": ("Another rate mints nothing.", "grant extra tokens"),
    r"\bfrom hand to hand\b": ("A permit goes from hand to hand.", "local hand-off"),
    r"\b(?:announcement|booking|errand|ticket)s?\b": (
        "A booking is lost.",
        "the glossary's word: a reservation",
    ),
}
HEADING = re.compile(r"#+ ")
# A command prints the text between these comments of docs/guarantees.md.
PRINTED = re.compile(r"<!-- (peers|loops) -->.*<!-- end of \1 -->", re.DOTALL)
COMMENTS = re.compile(r"(?:^ *# .*\n)+|(?<=\S)  # .*", re.MULTILINE)
# A comment for a tool, or a heading of a part of a file.
NO_WORDS = re.compile(r"(?:noqa|type:|mypy:).*|.*-{9,}")
SUSPECT = re.compile("|".join([r"\b(?:who|what)", *BANNED]), re.IGNORECASE)
# A constant or a function, and the file that defines it.
ASCRIBED = re.compile(r"(\b[A-Z_]{3,}|\b\w+\(\))(?: and \w+)? (?:in|of) ([\w/]+\.(?:py|lua))\b")
DEFINED = r"^ *(?:local |async )?(?:(?:def|function) (?:\w+\.)?{0}\(|(?:\w+, )*{0}(?:, \w+)* = )"
TABLE_HEAD = re.compile(r"^\|.*\n(?=\|[-|]+\|$)", re.MULTILINE)
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?: {4,}\S.*\n+)+")
CODE = re.compile(r"``.+?``|`[^`]+`", re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
# Where a passage begins: after an empty line, with an item of a list, around rows of a table.
BEGIN = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=\|)|(?<=\n)(?=#+ )")
ITEM = re.compile(r"\A\s*(?:[-*]|\d+\.) ")


def passages(text: str) -> Iterator[str]:
    """Each paragraph, item of a list, heading and cell of a table, without code and addresses."""
    for block in (PRINTED, BLOCK, COMMENT, INDENTED, TABLE_HEAD):
        text = block.sub("\n", text)
    for part in map(str.strip, BEGIN.split(f"{text}\n\n")):
        row = part.startswith("|")
        yield from filter(has_words, part.strip("|").split(" | ") if row else [ITEM.sub("", part)])


def has_words(passage: str) -> bool:
    """A list of links and names, as a command writes it, has none."""
    return bool(re.search(r"\w", LINK.sub("", CODE.sub("", passage))))


def sentences(passage: str) -> list[str]:
    """A piece of code counts as one word."""
    plain = LINK.sub(r"\1", CODE.sub("`code`", passage)).replace("**", "")
    return [each for each in re.split(r"(?<=[.!?])[\"')*]*\s+", " ".join(plain.split())) if each]


def wrong(text: str) -> Iterator[str]:
    """Each breach in a page, with its reason."""
    for passage in passages(text):
        forms = [form for form in BANNED if form != BARE or not HEADING.match(passage)]
        for sentence in sentences(passage):
            if len(sentence.split()) > MOST_WORDS:
                yield f"{len(sentence.split())} words: {sentence}"
            for form in forms:
                if re.search(form, sentence, re.IGNORECASE):
                    yield f"{BANNED[form][1]}: {sentence}"
    for line in INDENTED.sub("\n", COMMENT.sub("", text)).splitlines():
        if len(LINK.sub(r"[\1]", line)) > MOST_COLUMNS and not line.startswith("|"):
            yield f"{len(line)} columns: {line}"


@pytest.mark.parametrize("path", PAGES)
def test_the_page_is_in_plain_english(path: str) -> None:
    assert list(wrong((ROOT / path).read_text(encoding="utf-8"))) == []


def docstrings(text: str) -> Iterator[str]:
    for node in definitions_in(text):
        yield ast.get_docstring(node) or ""


def comments(text: str) -> Iterator[str]:
    """Each comment. Whole lines that follow one another are one comment."""
    for block in COMMENTS.finditer(text):
        lines = (line.strip() for line in block[0].splitlines())
        yield " ".join(NO_WORDS.sub("", line[line.index("# ") + 2 :]) for line in lines)


def wrong_in(path: Path) -> Iterator[str]:
    """Each breach in a source. Only in the package must sentences be short, too."""
    text = path.read_text(encoding="utf-8")
    ours = path.is_relative_to(ROOT / "src")
    for passage in (*docstrings(text), *comments(text)):
        if ours or SUSPECT.search(passage):
            for breach in wrong(passage):
                kind = breach.partition(":")[0]
                if not kind.endswith(" columns") and (ours or not kind.endswith(" words")):
                    yield f"{path.relative_to(ROOT)}: {breach}"


def test_docstrings_and_comments_are_in_plain_english() -> None:
    assert [breach for path in SOURCES for breach in wrong_in(path)] == []


def test_the_names_of_tests_have_a_subject() -> None:
    bare = re.compile(r"def (test_(?:who|whom|whose|whoever|what|whatever|nobody)_\w*)")
    found = [name for path in SOURCES for name in bare.findall(path.read_text(encoding="utf-8"))]
    assert found == []


def test_each_name_that_a_comment_ascribes_to_a_file_is_defined_there() -> None:
    """Such as "Twin: KEEP in next_call.py" or "score_since() of membership.lua"."""
    files = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".lua")]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    wrong_names = []
    for path, text in texts.items():
        for name, file in ASCRIBED.findall(re.sub(r"\n *(?:#|--) ", " ", text)):
            found = [each for it, each in texts.items() if f"/{it}".endswith(f"/{file}")]
            defined = DEFINED.format(name.removesuffix("()"))
            if not any(re.search(defined, each, re.MULTILINE) for each in found):
                wrong_names.append(f"{path.relative_to(ROOT)}: {name} in {file}")
    assert wrong_names == []


@pytest.mark.parametrize("form", BANNED)
def test_each_banned_form_is_found(form: str) -> None:
    example, instead = BANNED[form]
    for page in (
        f"{example}\n",
        f"- A list.\n- {example}\n",
        f"| a | b |\n|---|---|\n| cell | {example} |\n",
    ):
        assert f"{instead}: {example}" in list(wrong(page))


def test_long_sentences_and_long_lines_are_found() -> None:
    long, allowed = "word " * 25 + "`two words`.", "word " * 24 + "`two words`."
    page = (
        f"{allowed[:60]}\n{allowed[60:]}\n\n- Short.\n- {long[:60]}\n  {long[60:]}\n\n{'-' * 101}\n"
    )
    assert [breach.partition(":")[0] for breach in wrong(page)] == ["26 words", "101 columns"]
