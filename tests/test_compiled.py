"""Which build runs: the one that is expected, from the extension or from the sources, and never an old extension."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from kestrel import compiled
from tests.child import PATIENCE_S
from tests.conftest import check_build, pytest_report_header

ROOT = Path(__file__).parent.parent

LISTS = """
import runpy, setuptools
setuptools.setup = lambda **_: None
found = runpy.run_path("setup.py")
print(*found["COMPILED"])
print(*found["NOTED"])
"""
"""A program that prints what setup.py compiles, and whose sources it notes."""

SAYS = """
import json, kestrel.compiled as compiled, kestrel.item as item
print(json.dumps([compiled.BUILD, compiled.REASON, compiled.IS_OUTDATED, item.__file__]))
"""
"""A program that prints which build it runs, why, whether that is to be mended, and where a module was loaded from."""


def lists() -> tuple[list[str], list[str]]:
    """What setup.py compiles, and whose sources it notes."""
    command = [sys.executable, "-c", LISTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    found = [line.split() for line in done.stdout.splitlines()]
    return found[0], found[1]


def said(folder: Path, **environment: str) -> list[object]:
    """What a Python says of the package in that folder."""
    inherited = {name: value for name, value in os.environ.items() if name != "KESTREL_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", SAYS],
        cwd=folder,
        env=inherited | {"PYTHONPATH": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return list(json.loads(done.stdout))


class Package:
    """What the choice needs of the package, with a note, and an extension whose code says that it was taken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "kestrel" / "item.py"
        self.source.parent.mkdir()
        for name in ("__init__.py", "compiled.py", "item.py"):
            shutil.copy(ROOT / "kestrel" / name, self.source.with_name(name))

    def note(self, **digests: str) -> None:
        """The note of a build of these digests."""
        noted = {f"kestrel.{module}": digest for module, digest in digests.items()}
        (self.folder / "kestrel" / "compiled.json").write_text(json.dumps(noted))

    def build(self) -> None:
        """Leave what a build leaves; the extension itself is empty."""
        self.note(item=hashlib.sha256(self.source.read_bytes()).hexdigest())
        (self.folder / f"kestrel__mypyc{EXTENSION_SUFFIXES[0]}").touch()


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


def test_every_module_is_what_the_build_says() -> None:
    modules, _ = lists()
    loaded = {module: importlib.import_module(module).__file__ or "" for module in modules}
    ending = ".so" if compiled.BUILD == "compiled" else ".py"
    assert len(loaded) > 20
    assert {module: path for module, path in loaded.items() if not path.endswith(ending)} == {}


def test_where_there_is_no_note_it_is_pure(package: Package) -> None:
    assert said(package.folder) == ["pure", "there is no compiled extension", False, str(package.source)]


def test_an_extension_of_these_sources_is_used(package: Package) -> None:
    package.build()
    assert said(package.folder)[:3] == ["compiled", "", False]


def test_kestrel_pure_in_the_environment_makes_it_pure(package: Package) -> None:
    package.build()
    assert said(package.folder, KESTREL_PURE="1") == ["pure", "KESTREL_PURE is set", False, str(package.source)]
    assert said(package.folder, KESTREL_PURE="0")[0] == "compiled"
    assert said(package.folder, KESTREL_PURE="")[0] == "compiled"


def test_this_checkout_is_pure_where_the_environment_says_so() -> None:
    build, _, is_outdated, path = said(ROOT, KESTREL_PURE="1")
    assert (build, is_outdated, path) == ("pure", False, str(ROOT / "kestrel" / "item.py"))


def test_a_source_that_has_changed_makes_it_pure(package: Package) -> None:
    package.build()
    with package.source.open("a") as source:
        source.write("# A thought that came later.\n")
    why = "kestrel.item has changed since the extension was built"
    assert said(package.folder) == ["pure", why, True, str(package.source)]


def test_a_source_that_is_gone_makes_it_pure(package: Package) -> None:
    package.build()
    package.note(gone="0")
    assert said(package.folder)[:3] == ["pure", "kestrel.gone has changed since the extension was built", True]


def test_an_extension_of_another_python_is_not_used(package: Package) -> None:
    package.build()
    (extension,) = package.folder.glob("*.so")
    extension.rename(package.folder / "kestrel__mypyc.cpython-27-x86_64-linux-gnu.so")
    why = "the extension was built for another Python"
    assert said(package.folder) == ["pure", why, True, str(package.source)]


def test_the_note_has_the_modules_whose_constants_are_compiled_into_others() -> None:
    modules, noted = lists()
    assert noted[: len(modules)] == modules
    assert {"kestrel.errors", "kestrel.names"} <= set(noted)
    assert len(noted) == len(set(noted))


def test_a_run_of_the_tests_says_which_build_it_is_and_why() -> None:
    header = pytest_report_header()
    assert header.startswith(f"kestrel: {compiled.BUILD}")
    assert compiled.REASON in header


def test_a_run_that_expects_the_other_build_ends_at_once() -> None:
    other = {"compiled": "pure", "pure": "compiled"}[compiled.BUILD]
    run = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", "tests/test_compiled.py"]
    environment = os.environ | {"KESTREL_EXPECT_BUILD": other}
    ended = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"KESTREL_EXPECT_BUILD is {other}, and what runs is {compiled.BUILD}" in ended.stderr
    assert compiled.REASON in ended.stderr


def test_a_run_that_expects_this_build_or_none_goes_on() -> None:
    check_build(None)
    check_build(compiled.BUILD)
