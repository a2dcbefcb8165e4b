"""The choice between the compiled extension and pure Python for the hot path.

The extension is compiled from the modules themselves (setup.py). It is not used with KESTREL_PURE=1 in the environment,
by another Python than it was built for, or in a checkout where a source has changed since.
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
"""A file that the build writes: each module of the extension, and the SHA-256 of its source."""
_SHARED_EXTENSION: Final = "kestrel__mypyc"
"""The shared extension beside the package. The extensions of the modules only refer to it."""


class SourceFinder(MetaPathFinder):
    """An import finder that prefers the sources of kestrel's modules to their extensions."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the import spec of a module's source file. None for packages and for modules of other packages."""
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
    except (FileNotFoundError, NotADirectoryError):  # or the build is incomplete, or the package is in a zip file
        return _Choice("pure", "there is no compiled extension")
    for module, digest in digests.items():
        if _digest(_PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")) != digest:
            return _Choice("pure", f"{module} has changed since the extension was built", is_outdated=True)
    if not any((_PACKAGE.parent / (_SHARED_EXTENSION + suffix)).exists() for suffix in EXTENSION_SUFFIXES):
        return _Choice("pure", "the extension was built for another Python", is_outdated=True)
    return _Choice("compiled")


def _digest(source: Path) -> str:
    """Return the digest of a source and of its version in C, if there is one. Empty if the source is missing."""
    if not source.exists():
        return ""
    in_c = source.with_suffix(".c")
    return hashlib.sha256(source.read_bytes() + (in_c.read_bytes() if in_c.exists() else b"")).hexdigest()


_CHOSEN: Final = _choose()
BUILD: Final = _CHOSEN.build
"""`compiled` or `pure`."""
REASON: Final = _CHOSEN.reason
"""The reason for the pure build, or an empty string."""
IS_OUTDATED: Final = _CHOSEN.is_outdated
"""Whether an extension exists but is outdated and has to be rebuilt."""

if BUILD == "pure":  # before any of the modules is imported
    sys.meta_path.insert(0, SourceFinder())
