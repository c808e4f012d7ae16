"""The documents: the reference of this package, and the Python in all pages."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "python"))

import reference  # noqa: E402

PAGES = [ROOT / "README.md", ROOT / "python/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_reference_is_of_this_package() -> None:
    why = "docs/reference/python.md is not of this package: run python3 python/reference.py"
    assert reference.PAGE.read_text() == reference.page(), why


def test_everything_public_says_what_it_is() -> None:
    assert reference.without_comment() == []


def test_the_reference_has_what_the_package_gives() -> None:
    made = reference.page()
    names = reference.exported(ast.parse(reference.module_file("polycast").read_text()))
    assert names is not None and len(names) > 20
    for name in names:
        if name not in ("__version__", "errors"):
            assert f"### `{name}" in made, name


def blocks(page: Path) -> list[tuple[int, str]]:
    """The blocks of Python of a page, with the lines that they begin on."""
    found: list[tuple[int, str]] = []
    is_open = False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if line.startswith("```"):
            is_open = line == "```python"
            if is_open:
                found.append((number, ""))
        elif is_open:
            found[-1] = (found[-1][0], found[-1][1] + line + "\n")
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_documents_is_python(page: Path) -> None:
    if page == reference.PAGE:
        return  # Signatures.
    for line, text in blocks(page):
        try:
            ast.parse(text)
        except SyntaxError as error:
            pytest.fail(f"{page.relative_to(ROOT)}:{line}: {error}")


def test_pages_have_python() -> None:
    assert sum(len(blocks(page)) for page in PAGES if page != reference.PAGE) > 10
