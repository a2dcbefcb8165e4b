"""Which build of the hot path runs: the compiled extension, or the same modules as Python.

The extension is made of the modules themselves (setup.py). It is used where it was built, unless KESTREL_PURE=1 is in
the environment, or a source has changed since, in a checkout: code that is not what one reads would be worse than slow.
Nor is it used by a Python that it was not built for.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

_PACKAGE: Final = Path(__file__).parent
_DIGESTS_FILE: Final = _PACKAGE / "compiled.json"
"""Written by the build: each module that went into it, and the SHA-256 of its source."""
_SHARED_EXTENSION: Final = "kestrel__mypyc"
"""The extension that holds them all, beside the package; those of the modules only point there."""


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


class _Choice(NamedTuple):
    build: str
    reason: str = ""
    is_outdated: bool = False


def _choose() -> _Choice:
    if os.environ.get("KESTREL_PURE", "") not in ("", "0"):
        return _Choice("pure", "KESTREL_PURE is set")
    try:
        digests: dict[str, str] = json.loads(_DIGESTS_FILE.read_text())
    except FileNotFoundError:  # or it is half built
        return _Choice("pure", "there is no compiled extension")
    for module, digest in digests.items():
        if _digest(_PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")) != digest:
            return _Choice("pure", f"{module} has changed since the extension was built", is_outdated=True)
    if not any((_PACKAGE.parent / (_SHARED_EXTENSION + suffix)).exists() for suffix in EXTENSION_SUFFIXES):
        return _Choice("pure", "the extension was built for another Python", is_outdated=True)
    return _Choice("compiled")


def _digest(source: Path) -> str:
    """Empty for a source that is gone."""
    return hashlib.sha256(source.read_bytes()).hexdigest() if source.exists() else ""


_CHOSEN: Final = _choose()
BUILD: Final = _CHOSEN.build
"""`compiled` or `pure`."""
REASON: Final = _CHOSEN.reason
"""Why it is pure; empty when it is not."""
IS_OUTDATED: Final = _CHOSEN.is_outdated
"""Whether there is an extension that is not used, though nobody said so: it has to be built anew."""

if BUILD == "pure":  # before any of the modules is imported
    sys.meta_path.insert(0, SourceFinder())
