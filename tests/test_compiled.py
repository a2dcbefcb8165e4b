"""The choice between the compiled extension and the sources. An outdated extension is never used."""

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

PRINT_MODULES = """
import runpy, setuptools
setuptools.setup = lambda **_: None
found = runpy.run_path("setup.py")
print(*found["COMPILED"])
print(*found["NOTED"])
"""
"""A program that prints the compiled modules of setup.py, and the modules whose digests it records."""

PRINT_BUILD = """
import json, kestrel.compiled as compiled, kestrel.item as item
print(json.dumps([compiled.BUILD, compiled.REASON, compiled.IS_OUTDATED, item.__file__]))
"""
"""A program that prints its build, the reason, whether the extension is outdated, and the file of a module."""


def compiled_modules() -> tuple[list[str], list[str]]:
    """Return the compiled modules of setup.py, and the modules whose digests it records."""
    command = [sys.executable, "-c", PRINT_MODULES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    found = [line.split() for line in done.stdout.splitlines()]
    return found[0], found[1]


def build_of(folder: Path, **environment: str) -> list[object]:
    """Return what the second program prints for the package in that folder."""
    inherited = {name: value for name, value in os.environ.items() if name != "KESTREL_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", PRINT_BUILD],
        cwd=folder if folder.is_dir() else folder.parent,
        env=inherited | {"PYTHONPATH": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return list(json.loads(done.stdout))


class Package:
    """The modules of the package that choose the build, with recorded digests and an empty extension."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "kestrel" / "item.py"
        self.source.parent.mkdir()
        for name in ("__init__.py", "compiled.py", "item.py"):
            shutil.copy(ROOT / "kestrel" / name, self.source.with_name(name))

    def note(self, **digests: str) -> None:
        """Write the digests of a build."""
        noted = {f"kestrel.{module}": digest for module, digest in digests.items()}
        (self.folder / "kestrel" / "compiled.json").write_text(json.dumps(noted))

    def build(self) -> None:
        """Write the files of a build. The extension is empty."""
        sources = [path.read_bytes() for path in (self.source, self.source.with_suffix(".c")) if path.exists()]
        self.note(item=hashlib.sha256(b"".join(sources)).hexdigest())
        (self.folder / f"kestrel__mypyc{EXTENSION_SUFFIXES[0]}").touch()


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


def test_every_module_is_of_the_reported_build() -> None:
    modules, _ = compiled_modules()
    modules.append("kestrel.net.socket_io")  # in C
    loaded = {module: importlib.import_module(module).__file__ or "" for module in modules}
    ending = ".so" if compiled.BUILD == "compiled" else ".py"
    assert len(loaded) > 20
    assert {module: path for module, path in loaded.items() if not path.endswith(ending)} == {}


def test_without_digests_the_build_is_pure(package: Package) -> None:
    assert build_of(package.folder) == ["pure", "there is no compiled extension", False, str(package.source)]


def test_package_in_a_zip_file_is_pure(package: Package) -> None:
    package.build()
    archive = Path(shutil.make_archive(str(package.folder / "packed"), "zip", package.folder, "kestrel"))
    shutil.rmtree(package.source.parent)
    source = str(archive / "kestrel" / "item.py")
    assert build_of(archive) == ["pure", "there is no compiled extension", False, source]


def test_extension_of_these_sources_is_used(package: Package) -> None:
    package.build()
    assert build_of(package.folder)[:3] == ["compiled", "", False]


def test_environment_selects_the_pure_build(package: Package) -> None:
    package.build()
    assert build_of(package.folder, KESTREL_PURE="1") == ["pure", "KESTREL_PURE is set", False, str(package.source)]
    assert build_of(package.folder, KESTREL_PURE="0")[0] == "compiled"
    assert build_of(package.folder, KESTREL_PURE="")[0] == "compiled"


def test_environment_selects_the_pure_build_in_the_checkout() -> None:
    build, _, is_outdated, path = build_of(ROOT, KESTREL_PURE="1")
    assert (build, is_outdated, path) == ("pure", False, str(ROOT / "kestrel" / "item.py"))


def test_changed_source_disables_the_extension(package: Package) -> None:
    package.build()
    with package.source.open("a") as source:
        source.write("# A later change.\n")
    why = "kestrel.item has changed since the extension was built"
    assert build_of(package.folder) == ["pure", why, True, str(package.source)]


def test_changed_version_in_c_disables_the_extension(package: Package) -> None:
    in_c = package.source.with_suffix(".c")
    in_c.write_bytes(b"int one;\n")
    package.build()
    assert build_of(package.folder)[0] == "compiled"
    in_c.write_bytes(b"int two;\n")
    assert build_of(package.folder)[0] == "pure"


def test_missing_source_disables_the_extension(package: Package) -> None:
    package.build()
    package.note(gone="0")
    assert build_of(package.folder)[:3] == ["pure", "kestrel.gone has changed since the extension was built", True]


def test_extension_of_another_python_is_not_used(package: Package) -> None:
    package.build()
    (extension,) = package.folder.glob("*.so")
    extension.rename(package.folder / "kestrel__mypyc.cpython-27-x86_64-linux-gnu.so")
    why = "the extension was built for another Python"
    assert build_of(package.folder) == ["pure", why, True, str(package.source)]


def test_digests_include_modules_whose_constants_are_inlined() -> None:
    modules, noted = compiled_modules()
    assert noted[: len(modules)] == modules
    assert {"kestrel.errors", "kestrel.names"} <= set(noted)
    assert len(noted) == len(set(noted))


def test_pytest_header_shows_build_and_reason() -> None:
    header = pytest_report_header()
    assert header.startswith(f"kestrel: {compiled.BUILD}")
    assert compiled.REASON in header


def test_run_with_unexpected_build_ends() -> None:
    other = {"compiled": "pure", "pure": "compiled"}[compiled.BUILD]
    run = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", "tests/test_compiled.py"]
    environment = os.environ | {"KESTREL_EXPECT_BUILD": other}
    ended = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"KESTREL_EXPECT_BUILD is {other}, but the build is {compiled.BUILD}" in ended.stderr
    assert compiled.REASON in ended.stderr


def test_run_with_expected_build_continues() -> None:
    check_build(None)
    check_build(compiled.BUILD)
