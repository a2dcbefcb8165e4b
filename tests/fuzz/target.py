"""The fuzz targets.

Targets do not need atheris. The test suite runs the corpus through them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent
CORPUS: Final = FOLDER / "corpus"


class Target(NamedTuple):
    """A fuzz target. `check` takes any bytes, and raises if the server does not handle them as promised.

    `words` are the dictionary. `repair` corrects what a mutation easily breaks, such as lengths.
    """

    check: Callable[[bytes], None]
    words: Callable[[], Iterable[bytes]] = tuple
    repair: Callable[[bytes], bytes] | None = None
    max_bytes: int = 2048


def names() -> list[str]:
    """Return the names of all targets, which are the modules in the folder `targets`."""
    return sorted(path.stem for path in (FOLDER / "targets").glob("*.py"))


def load(name: str) -> Target:
    """Return the target with that name."""
    target: Target = import_module(f"tests.fuzz.targets.{name}").TARGET
    return target


def corpus(name: str) -> list[Path]:
    """Return the inputs of a target that are kept in the repository."""
    return sorted((CORPUS / name).iterdir())
