"""A Python environment of its own, in which distributions are built and installed. It inherits the running one."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.child import LONG_S
from tests.server.running import ROOT, TWISTD
from tests.storage.distributions import GROUP, drop_in

BUILDER: Final = '[build-system]\nrequires = ["setuptools >= 77"]\nbuild-backend = "setuptools.build_meta"\n'


class ScratchEnvironment:
    """An environment in an empty folder. Its server is that of the checkout."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        environment = folder / "environment"
        venv.create(environment, symlinks=True, with_pip=False)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self._python = environment / "bin" / "python"
        self.site = environment / "lib" / version / "site-packages"
        running = [path for path in sys.path if Path(path).name == "site-packages"]
        (self.site / "running.pth").write_text("\n".join([str(ROOT), *running]) + "\n")

    @property
    def twistd(self) -> tuple[str, ...]:
        """The command that runs its twistd."""
        return str(self._python), str(TWISTD)

    def package(self, name: str, source: str, entry_points: Mapping[str, str], version: str = "1.0") -> Path:
        """Write the folder of a distribution with one module, and return it."""
        folder = self._folder / name
        module = name.replace("-", "_")
        folder.mkdir()
        (folder / "pyproject.toml").write_text(BUILDER)
        (folder / "setup.cfg").write_text(
            f"[metadata]\nname = {name}\nversion = {version}\n\n[options]\npy_modules = {module}\n\n"
            f"[options.entry_points]\n{GROUP} =\n"
            + "".join(f"    {word} = {module}:{value}\n" for word, value in entry_points.items())
        )
        (folder / f"{module}.py").write_text(source)
        return folder

    def install(self, *arguments: str, folder: Path | None = None) -> None:
        """Run ``pip install`` with these arguments in that folder, without a network."""
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self._python), "install")
        options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
        command, folder = [*pip, *options, *arguments], folder or self._folder
        installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONG_S)
        assert installed.returncode == 0, installed.stderr

    def drop_in(self, name: str, source: str) -> Path:
        """Write a module in its ``twisted/plugins``."""
        return drop_in(self.site, name, source)
