"""The documentation site: each page has a place, each link leads somewhere, each name is there.

The long tests build the site with Zensical, as `./run docs` does.
"""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import pytest

from website import check, pages, reference
from website.__main__ import build
from website.docstrings import with_lists

ROOT = Path(__file__).parents[2]
HEADING = "# A page\n\n## A part\n"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository whose documents are headings, with the sources of the package."""
    root = tmp_path / "repository"
    root.mkdir()
    (root / "src").symlink_to(ROOT / "src")
    shutil.copytree(ROOT / "website", root / "website")
    places = [place for place in pages.leaves(pages.NAVIGATION) if not place.endswith("/")]
    documents = [f"docs/{place}" for place in places if place not in pages.PROJECT.values()]
    for name in (*documents, *pages.PROJECT, "tests/a_test.py", "examples/one.py"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEADING)
    return root


def say(root: Path, text: str) -> None:
    (root / "docs/index.md").write_text(f"{HEADING}\n{text}\n")


# The pages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "changed"),
    [
        ("limits.md", "limits.md"),
        ("limits.md#a-part", "limits.md#a-part"),
        ("#a-part", "#a-part"),
        ("../README.md#a-part", "project/readme.md#a-part"),
        ("../benchmarks/README.md", "benchmarks.md"),
        ("../tests/a_test.py", "source/tests/a_test.py.md"),
        ("../examples", "source/examples.md"),
        ("https://semver.org/", "https://semver.org/"),
    ],
)
def test_a_link_of_a_document_becomes_one_of_the_site(link: str, changed: str, small: Path) -> None:
    say(small, f"See [this]({link}).")
    assert f"See [this]({changed})." in pages.collect(small)["index.md"]


def test_a_link_of_a_page_in_a_folder_counts_from_there(small: Path) -> None:
    (small / "docs/recipes").mkdir()
    (small / "docs/recipes/a.md").write_text(f"{HEADING}[b](../limits.md) [c](../../CHANGELOG.md)")
    text = pages.collect(small)["recipes/a.md"]
    assert "[b](../limits.md) [c](../project/changelog.md)" in text


def test_the_code_of_a_document_stays_as_it_is(small: Path) -> None:
    code = "```python\nx = found[0](../tests/a_test.py)\n```"
    say(small, code)
    assert code in pages.collect(small)["index.md"]


def test_a_file_that_a_document_links_to_has_a_page(small: Path) -> None:
    say(small, "[a](../tests/a_test.py) and [b](../examples)")
    found = pages.collect(small)
    assert HEADING in found["source/tests/a_test.py.md"]
    assert "[one.py](examples/one.py.md)" in found["source/examples.md"]
    assert HEADING in found["source/examples/one.py.md"]


def test_a_picture_stands_beside_its_page(small: Path, tmp_path: Path) -> None:
    (small / "docs/recipes").mkdir()
    (small / "docs/recipes/a.png").write_bytes(b"\x89PNG")
    say(small, "![a](recipes/a.png)")
    pages.write(small, tmp_path / "site")
    assert "![a](recipes/a.png)" in (tmp_path / "site/pages/index.md").read_text()
    assert (tmp_path / "site/pages/recipes/a.png").read_bytes() == b"\x89PNG"


def test_a_link_to_a_file_that_does_not_exist_is_an_error(small: Path) -> None:
    say(small, "[a](../nowhere.py)")
    with pytest.raises(pages.PageError, match=r"docs/index\.md: dead link \.\./nowhere\.py"):
        pages.collect(small)


# The navigation ----------------------------------------------------------------------------------


def test_every_document_of_the_repository_has_a_place() -> None:
    found = pages.collect(ROOT)
    shown = set(pages.leaves(pages.navigation(found)))
    assert shown == {each for each in found if not each.startswith("source/")}


def test_a_document_without_a_place_is_an_error(small: Path) -> None:
    (small / "docs/lost.md").write_text(HEADING)
    with pytest.raises(pages.PageError, match=r"no place in .* \['lost\.md'\]"):
        pages.navigation(pages.collect(small))


def test_a_place_without_a_document_is_an_error(small: Path) -> None:
    (small / "docs/glossary.md").unlink()
    with pytest.raises(pages.PageError, match=r"do not exist: \['glossary\.md'\]"):
        pages.navigation(pages.collect(small))


def test_the_pages_of_a_folder_are_found_by_themselves(small: Path) -> None:
    assert "Recipes" not in dict(pages.navigation(pages.collect(small)))
    (small / "docs/recipes").mkdir()
    for name, title in (("zebra", "Antelopes"), ("index", "Recipes"), ("ant", "Zebras")):
        (small / f"docs/recipes/{name}.md").write_text(f"# {title}\n")
    recipes = dict(pages.navigation(pages.collect(small)))["Recipes"]
    assert recipes == [
        ("Recipes", "recipes/index.md"),
        ("Antelopes", "recipes/zebra.md"),
        ("Zebras", "recipes/ant.md"),
    ]


# The API reference -------------------------------------------------------------------------------


def with_names() -> list[str]:
    """The modules beside the package that list their offers, by their files."""
    groups = [ROOT / "src/headgate/http", ROOT / "src/headgate/frameworks"]
    files = [path for group in groups for path in sorted(group.glob("*.py"))]
    found = [path for path in files if "\n__all__ = " in path.read_text()]
    return [f"headgate.{path.parent.name}.{path.stem}" for path in found]


def test_every_public_module_has_a_page_in_the_reference() -> None:
    modules = ["headgate", "headgate.testing", "headgate.web", *with_names()]
    assert sorted(reference.pages(ROOT)) == sorted(f"reference/{each}.md" for each in modules)


SLOW = [each for each in with_names() if not each.endswith(".litellm")]  # which is not installed
MODULES = [
    "headgate",
    "headgate.testing",
    "headgate.web",
    *(pytest.param(each, marks=pytest.mark.proof("imports clients")) for each in SLOW),
]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    lines = reference.pages(ROOT)[f"reference/{module}.md"].splitlines()
    names = import_module(module).__all__
    assert names
    assert [name for name in names if f"::: {module}.{name}" not in lines] == []


def test_a_name_that_the_built_reference_leaves_out_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    for module, names in reference.public_names(ROOT).items():
        anchors = [f'<h2 id="{module}.{name}">' for name in names if name != "Limiter"]
        (tmp_path / f"reference/{module}.html").write_text("\n".join(anchors))
    fault = "reference/headgate.md: the reference leaves out headgate.Limiter"
    assert reference.left_out(ROOT, tmp_path) == [fault]


def test_lines_that_explain_arguments_become_a_list() -> None:
    text = "Asks.\n`a`: one\nand more\n`b`: two\n\nRaises."
    listed = "Asks.\n\n- `a`: one\n    and more\n- `b`: two\n\nRaises."
    assert with_lists(text) == listed
    assert with_lists("Asks for `a`: one.") == "Asks for `a`: one."


# The built site ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<a href="b.html">', None),
        ('<a href="b.html#part">', None),
        ('<a href="#here">', None),
        ('<a href="https://semver.org/">', None),
        ('<img src="b.png">', None),
        ('<a href="c.html">', "a.html: dead link c.html"),
        ('<a href="b.html#lost">', "a.html: dead link b.html#lost"),
        ('<a href="#lost">', "a.html: dead link #lost"),
        ('<img src="c.png">', "a.html: dead link c.png"),
        ('<script src="//b.org/x.js">', "a.html: loads //b.org/x.js from elsewhere"),
    ],
)
def test_the_links_of_a_page_are_checked(text: str, fault: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(f'<p id="here">{text}</p>')
    (tmp_path / "b.html").write_text('<p id="part"></p>')
    (tmp_path / "b.png").touch()
    assert check.faults(tmp_path) == ([fault] if fault else [])


@pytest.mark.proof
def test_the_site_of_this_repository_has_no_fault(tmp_path: Path) -> None:
    assert build(ROOT, tmp_path / "site") == []


@pytest.mark.proof
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("All is well.", None),
        ("[a](nowhere.md)", "dead link nowhere.md"),
        ("[a](limits.md#nowhere)", "anchor does not exist"),
        ("A note.[^1]", "unresolved footnote"),
        ('<a href="limits.html#nowhere">a</a>', "index.html: dead link limits.html#nowhere"),
        ("::: headgate.Nothing", "headgate.Nothing"),
    ],
)
def test_a_build_with_a_fault_fails(text: str, fault: str | None, small: Path) -> None:
    """A dead link and a warning of Zensical, or of mkdocstrings, are faults."""
    say(small, text)
    faults = build(small, small / "build")
    assert bool(faults) == bool(fault)
    assert fault is None or any(fault in each for each in faults)
