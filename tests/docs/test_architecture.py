"""docs/architecture.md speaks of the code of today: its files, classes and methods are there, and its floors hold."""

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
PAGE: Final = (ROOT / "docs" / "architecture.md").read_text()
PICTURE: Final = ROOT / "docs" / "architecture" / "way.svg"
FILE: Final = re.compile(r"(?<![\w./-])((?:\w+/)*\w+\.py)\b")
FOLDER: Final = re.compile(r"`((?:\w+/)+)`")


def words_of_picture() -> list[str]:
    """What is written in it, text by text."""
    return [text.text or "" for text in ElementTree.parse(PICTURE).iter("{http://www.w3.org/2000/svg}text")]


def lost_files(lines: list[str]) -> Iterator[str]:
    """The files named in lines that are not there. One without a folder is in one that was named before it."""
    folders = {PACKAGE}
    for line in lines:
        folders |= {PACKAGE / folder for folder in FOLDER.findall(line)}
        for name in FILE.findall(line):
            bases = {PACKAGE, ROOT} if "/" in name else folders
            found = [base / name for base in bases if (base / name).exists()]
            if not found:
                yield name
            folders |= {path.parent for path in found}


def test_every_file_of_the_page_is_there() -> None:
    assert len(FILE.findall(PAGE)) > 100
    assert list(lost_files(PAGE.split("\n"))) == []


def test_every_folder_of_the_page_is_there() -> None:
    folders = FOLDER.findall(PAGE)
    assert folders
    assert [folder for folder in folders if not any((base / folder).is_dir() for base in (PACKAGE, ROOT))] == []


def test_every_file_of_the_picture_is_there() -> None:
    words = words_of_picture()
    assert len([word for word in words if FILE.search(word)]) > 10
    assert list(lost_files(words)) == []


def test_a_file_that_is_not_there_is_found() -> None:
    pages = ["`net/hub.py`, `hub_transport.py`", "`net/bus.py`, `nobody.py`"]
    assert list(lost_files(pages)) == ["net/bus.py", "nobody.py"]


def members_of_classes() -> dict[str, set[str]]:
    """Of each class of the package, by its name, what is defined or set in it, whichever module it is in."""
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


def test_every_class_and_method_of_the_page_is_there() -> None:
    members = members_of_classes()
    pairs = re.findall(r"`([A-Z][a-z]\w+|I[A-Z]\w+)\.(\w+)", PAGE)
    assert len(pairs) > 20
    assert [pair for pair in pairs if pair[1] not in members.get(pair[0], ())] == []
    classes = re.findall(r"`(_?[A-Z]+[a-z]\w*[A-Z]\w+)`", PAGE)
    assert [name for name in classes if name not in members] == []


def test_the_floors_are_those_that_imports_are_held_to() -> None:
    (block,) = re.findall(r"^    spark\b.*\n(?:    .*\n)+", PAGE, re.MULTILINE)
    shown = [set(re.findall(r"\w+", line)) for line in block.splitlines()]
    assert shown == [set(layer) for layer in LAYERS]


@pytest.mark.parametrize("step", [*"12345678", *"abcdef"])
def test_each_step_of_the_picture_is_one_of_the_text(step: str) -> None:
    assert step in words_of_picture()
    ways = ("a put", "a reliable get")
    put, get = (PAGE.partition(f"\n## The way of {way}\n")[2].partition("\n## ")[0] for way in ways)
    assert re.search(rf"^{step}\. ", put, re.MULTILINE) if step.isdigit() else re.search(rf"[(; ]{step}[) ]", get)


def test_the_picture_is_shown_and_reads_in_the_dark_as_well() -> None:
    assert "(architecture/way.svg)" in PAGE
    assert "prefers-color-scheme: dark" in PICTURE.read_text()
