"""docs/promises.md: every promise has a number and existing tests, and tests/promises holds only tests of promises."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from kestrel.testing.contract.suite import StorageContract

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "promises.md").read_text()

PROMISES: Final = [
    (int(number), " ".join(sentence.split()), re.findall(r"`([^`]*)`", tests))
    for number, sentence, tests in re.findall(
        r"^- \*\*P(\d+)\.\*\* ((?:.+\n)+?)((?:  `tests/[^`]*`\n)+)", PAGE, re.MULTILINE
    )
]
"""Number, sentence and tests of each promise."""

TESTS: Final = list(dict.fromkeys(test for _, _, tests in PROMISES for test in tests))
MODULES: Final = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/promises/test_*.py"))


@cache
def names_of_tests(path: str) -> set[str]:
    """Return the names of the tests in a file; a method includes its class: `test_a`, `TestB::test_c`."""
    file = ROOT / path
    if not file.is_file():
        return set()
    tests: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            tests.add(node.name)
        elif isinstance(node, ast.ClassDef):
            tests |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
            if any(isinstance(base, ast.Name) and base.id == "StorageContract" for base in node.bases):
                tests |= {f"{node.name}::{name}" for name in inherited_tests(path, node.name)}
    return tests


def inherited_tests(path: str, name: str) -> set[str]:
    """Return the names of the contract tests that a class inherits and does not leave out."""
    module = import_module(path.removesuffix(".py").replace("/", "."))
    contract: type[StorageContract] = getattr(module, name)
    return {each for each in dir(contract) if each.startswith("test_")} - contract.left_out.keys()


def test_promises_are_numbered_from_1_without_gaps() -> None:
    assert sorted(number for number, _, _ in PROMISES) == list(range(1, len(PROMISES) + 1))


def test_every_promise_names_a_test() -> None:
    assert len(PROMISES) == len(re.findall(r"\*\*P\d", PAGE))


def test_every_promise_is_one_sentence_of_its_own() -> None:
    sentences = [sentence for _, sentence, _ in PROMISES]
    assert len(set(sentences)) == len(sentences)
    assert [sentence for sentence in sentences if re.search(r"[.!?] ", sentence) or not sentence.endswith(".")] == []


def test_every_heading_has_promises() -> None:
    assert [part.splitlines()[0] for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:] if "**P" not in part] == []


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.rpartition("::")[2])
def test_test_of_a_promise_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert name.rpartition("::")[2].startswith("test_")
    assert name in names_of_tests(path)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_in_tests_promises_verifies_a_promise(module: str) -> None:
    assert any(test.startswith(f"{module}::") for test in TESTS)
