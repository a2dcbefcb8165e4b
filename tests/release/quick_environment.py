"""An environment for a wheel, made without a network: its requirements come from the running environment."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from tests.child import LONG_S

LAUNCHER: Final = "#!{python}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"


def make_quick_environment(folder: Path, wheel: Path, requires: list[str]) -> Path:
    """Install a wheel in a new environment, with links to its requirements instead of copies.

    The links are in a separate folder, because the wheel has a file in Twisted's folder and must not change the
    linked one.
    """
    environment = folder / "environment"
    venv.create(environment, symlinks=True, with_pip=False)
    python = environment / "bin" / "python"
    linked = environment / "linked"
    linked.mkdir()
    for each in required(requires):
        link(each, linked)
        for entry_point in each.entry_points.select(group="console_scripts"):
            launcher = environment / "bin" / entry_point.name
            launcher.write_text(LAUNCHER.format(python=python, module=entry_point.module, function=entry_point.attr))
            launcher.chmod(0o755)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (environment / "lib" / version / "site-packages" / "linked.pth").write_text(f"{linked}\n")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install", "--quiet")
    # A checkout on the path would look like an installation.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [*pip, "--no-index", "--no-deps", str(wheel)]
    subprocess.run(command, cwd=folder, env=variables, check=True, timeout=LONG_S)
    return environment


def required(requires: list[str]) -> list[Distribution]:
    """Return the required distributions with their own requirements."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(line), "") for line in requires]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        each = found.setdefault(requirement.name, distribution(requirement.name))
        for wanted in ("", *requirement.extras):
            if (requirement.name, wanted) not in seen:
                seen.add((requirement.name, wanted))
                waiting += [(Requirement(line), wanted) for line in each.requires or ()]
    return list(found.values())


def link(installed: Distribution, folder: Path) -> None:
    """Create links to the modules, packages and metadata of a distribution."""
    for name in {file.parts[0] for file in installed.files or () if file.parts[0] not in ("..", "__pycache__")}:
        source = Path(str(installed.locate_file(name)))
        if not (folder / name).exists():
            (folder / name).symlink_to(source)
        elif not (folder / name).samefile(source):
            raise AssertionError(f"{name} is in two distributions")
