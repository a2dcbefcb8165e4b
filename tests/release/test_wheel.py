"""The released source distribution is complete, and the wheel works without a checkout."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

import pytest

import kestrel
from tests.child import LONG_S
from tests.release.quick_environment import make_quick_environment
from tests.release.smoke import Action, Installed, SmokeFailed, commands_of, smoke

ROOT: Final = Path(__file__).parents[2]
SETUP: Final = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")

MADE: Final = shutil.ignore_patterns(
    ".*cache", ".git", ".gitignore", ".hypothesis", ".venv", "*.egg-info", "*.py[cod]", "*.so", "__pycache__",
    "_trial_temp*", "build", "compiled.json", "dist", "dropin.cache", "twistd.log*", "var",
)  # fmt: skip
"""Files of a checkout that are no sources."""

BUILD: Final = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def build(what: str, source: Path, target: Path) -> Path:
    """Build a distribution without the extension and without a network."""
    target.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["KESTREL_EXTENSION"] = "none"
    command = [sys.executable, "-c", BUILD, f"build_{what}", str(target)]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 0, done.stderr
    (made,) = target.iterdir()
    return made


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


class Release:
    """A copy of the sources without built files, and the distributions built from it."""

    def __init__(self, folder: Path) -> None:
        self.sources = folder / "sources"
        shutil.copytree(ROOT, self.sources, ignore=MADE)
        self.source_files = files_below(self.sources)
        archive = build("sdist", self.sources, folder / "sdist")
        with tarfile.open(archive) as unpacked:
            unpacked.extractall(folder / "unpacked")
        (self.unpacked,) = (folder / "unpacked").iterdir()
        self.unpacked_files = files_below(self.unpacked)
        self.wheel = build("wheel", self.unpacked, folder / "wheel")
        self.wheel_of_the_tree = build("wheel", self.sources, folder / "wheel-of-the-tree")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return Release(tmp_path_factory.mktemp("release"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_source_distribution_has_every_source_file(release: Release) -> None:
    made = {name for name in release.unpacked_files if name == "PKG-INFO" or name.startswith("kestrel_mq.egg-info/")}
    assert release.unpacked_files - made == release.source_files


def test_wheel_of_the_source_distribution_equals_that_of_the_sources(release: Release) -> None:
    assert release.wheel.name == f"kestrel_mq-{kestrel.__version__}-py3-none-any.whl"
    assert contents(release.wheel) == contents(release.wheel_of_the_tree)


def test_wheel_has_only_the_package_plugins_and_configurations(release: Release) -> None:
    names = contents(release.wheel).keys()
    data = f"kestrel_mq-{kestrel.__version__}.data/data/share/kestrel/tap-configs"
    assert {name for name in names if name.startswith("twisted/")} == {
        "twisted/plugins/kestrel_endpoints.py",
        "twisted/plugins/kestrel_plugin.py",
    }
    assert {name for name in names if name.startswith(data)} == {
        f"{data}/{path.name}" for path in (ROOT / "tap-configs").iterdir()
    }
    assert {"kestrel/py.typed", "kestrel/protocols/kestrel.thrift", "kestrel/admin/pages/index.html"} <= names
    folders = {f"kestrel_mq-{kestrel.__version__}.{kind}" for kind in ("data", "dist-info")}
    assert {name.split("/")[0] for name in names} == {"kestrel", "pyspark_kestrel", "twisted", *folders}


def test_description_has_no_relative_links_and_names_real_commands(release: Release) -> None:
    metadata = contents(release.wheel)[f"kestrel_mq-{kestrel.__version__}.dist-info/METADATA"].decode()
    _, _, shown = metadata.partition("\n\n")
    assert shown == (ROOT / "docs" / "package.md").read_text()
    assert "](" not in shown
    assert set(re.findall(r"\bkestrel-(?!mq\b)\w+", shown)) <= set(commands_of(release.wheel))


def test_every_command_of_the_wheel_works_without_the_checkout(release: Release, tmp_path: Path) -> None:
    requires = SETUP["options"]["install_requires"].split("\n")
    environment = make_quick_environment(tmp_path, release.wheel, [line for line in requires if line])
    folder = tmp_path / "work"
    folder.mkdir()
    installed = Installed(environment, folder)
    where = installed.run(Action("python -c 'import kestrel; print(kestrel.__file__)'"))
    assert where.startswith(str(environment))
    smoke(release.wheel, installed)


def test_command_without_an_action_fails(release: Release, tmp_path: Path) -> None:
    wheel = tmp_path / release.wheel.name
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "kestrel_mq.dist-info/entry_points.txt",
            "[console_scripts]\nkestrel-cli = a:b\nkestrel-new = a:b\n\n[other]\nx = a:b\n",
        )
    assert commands_of(wheel) == ["kestrel-cli", "kestrel-new"]
    with pytest.raises(SmokeFailed, match="nothing is done with kestrel-new"):
        smoke(wheel, Installed(tmp_path, tmp_path))
