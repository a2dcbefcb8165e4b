"""docs/architecture.md and docs/internals.md name files, classes and methods that exist, and the layers of imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from tests.test_layout import LAYERS

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "kestrel"
ARCHITECTURE: Final = (ROOT / "docs" / "architecture.md").read_text()
INTERNALS: Final = (ROOT / "docs" / "internals.md").read_text()
BOTH: Final = ARCHITECTURE + INTERNALS
PICTURE: Final = ROOT / "docs" / "architecture" / "way.svg"
FILE: Final = re.compile(r"(?<![\w./-])((?:\w+/)*\w+\.py)\b")
FOLDER: Final = re.compile(r"`((?:\w+/)+)`")


def words_of_picture() -> list[str]:
    """Return the texts of the picture."""
    return [text.text or "" for text in ElementTree.parse(PICTURE).iter("{http://www.w3.org/2000/svg}text")]


def lost_files(lines: list[str]) -> Iterator[str]:
    """Yield the files named in lines that do not exist. A name without a folder is in a folder named before it."""
    folders = {PACKAGE}
    for line in lines:
        folders |= {PACKAGE / folder for folder in FOLDER.findall(line)}
        for name in FILE.findall(line):
            bases = {PACKAGE, ROOT} if "/" in name else folders
            found = [base / name for base in bases if (base / name).exists()]
            if not found:
                yield name
            folders |= {path.parent for path in found}


@pytest.mark.parametrize("page", [ARCHITECTURE, INTERNALS], ids=["architecture", "internals"])
def test_named_files_exist(page: str) -> None:
    assert len(FILE.findall(page)) > 40
    assert list(lost_files(page.split("\n"))) == []


def test_architecture_fits_on_two_pages() -> None:
    assert len(ARCHITECTURE.split()) < 1100


def test_named_folders_exist() -> None:
    folders = FOLDER.findall(BOTH)
    assert folders
    assert [folder for folder in folders if not any((base / folder).is_dir() for base in (PACKAGE, ROOT))] == []


def test_files_in_the_picture_exist() -> None:
    words = words_of_picture()
    assert len([word for word in words if FILE.search(word)]) > 10
    assert list(lost_files(words)) == []


def members_of_classes() -> dict[str, set[str]]:
    """Return the names that each class of the package defines or sets, by class name."""
    members: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                known = members.setdefault(node.name, set())
                for each in ast.walk(node):
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                        known.add(each.name)
                    elif isinstance(each, ast.Attribute):
                        known.add(each.attr)
                    elif isinstance(each, ast.AnnAssign):
                        known.add(ast.unparse(each.target))
    return members


def test_named_classes_and_methods_exist() -> None:
    members = members_of_classes()
    pairs = re.findall(r"`([A-Z][a-z]\w+|I[A-Z]\w+)\.(\w+)", BOTH)
    assert len(pairs) > 20
    assert [pair for pair in pairs if pair[1] not in members.get(pair[0], ())] == []
    classes = re.findall(r"`(_?[A-Z]+[a-z]\w*[A-Z]\w+)`", BOTH)
    assert [name for name in classes if name not in members] == []


def test_layers_are_those_of_the_import_test() -> None:
    (block,) = re.findall(r"^    spark\b.*\n(?:    .*\n)+", ARCHITECTURE, re.MULTILINE)
    shown = [set(re.findall(r"\w+", line)) for line in block.splitlines()]
    assert shown == [set(layer) for layer in LAYERS]


@pytest.mark.parametrize("step", [*"12345678", *"abcdef"])
def test_text_explains_each_step_of_the_picture(step: str) -> None:
    assert step in words_of_picture()
    ways = ("a put", "a reliable get")
    put, get = (INTERNALS.partition(f"\n## The way of {way}\n")[2].partition("\n## ")[0] for way in ways)
    assert re.search(rf"^{step}\. ", put, re.MULTILINE) if step.isdigit() else re.search(rf"[(; ]{step}[) ]", get)


def test_picture_is_shown_and_has_dark_colors() -> None:
    assert "(architecture/way.svg)" in ARCHITECTURE
    assert "prefers-color-scheme: dark" in PICTURE.read_text()
