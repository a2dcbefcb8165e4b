"""Which build of the hot path runs: the compiled extension, or the same modules as Python.

The extension is made of the modules themselves (setup.py). It is used where it was built, unless KESTREL_PURE=1 is in
the environment, or a source has changed since, in a checkout: code that is not what one reads would be worse than slow.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

_PACKAGE: Final = Path(__file__).parent
_NOTE: Final = _PACKAGE / "compiled.json"
"""Written by the build: each compiled module, and the SHA-256 of the source that it was made of."""


class SourceFinder(MetaPathFinder):
    """Finds the sources of kestrel's modules, also where an extension lies beside them and would be found first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The source of a module; None for packages, and for modules of others."""
        package, _, name = fullname.rpartition(".")
        if package.partition(".")[0] == __package__:
            for folder in path or ():
                source = os.path.join(folder, name + ".py")
                if os.path.isfile(source):
                    return spec_from_file_location(fullname, source)
        return None


def _use() -> tuple[str, str]:
    """Choose, before any of the modules is imported. Returns the build and, where it is not compiled, why."""
    why = _why_pure()
    if why:
        sys.meta_path.insert(0, SourceFinder())
    return "pure" if why else "compiled", why


def _why_pure() -> str:
    if os.environ.get("KESTREL_PURE", "") not in ("", "0"):
        return "KESTREL_PURE is set"
    try:
        digests: dict[str, str] = json.loads(_NOTE.read_text())
    except FileNotFoundError:  # or it is half built
        return "there is no compiled extension"
    for module, digest in digests.items():
        if _digest(_PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")) != digest:
            return f"{module} has changed since the extension was built"
    return ""


def _digest(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


_CHOSEN: Final = _use()
BUILD: Final = _CHOSEN[0]
"""`compiled` or `pure`."""
REASON: Final = _CHOSEN[1]
"""Why it is pure; empty when it is not."""
