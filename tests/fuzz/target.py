"""What a target of the fuzzer is, and which there are.

Targets need no atheris: the corpus is replayed through them by the tests of the suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent
CORPUS: Final = FOLDER / "corpus"


class Target(NamedTuple):
    """`check` takes any bytes, and raises where the server does not do with them what it promises.

    `seeds` are well-formed inputs by name: `python -m tests.fuzz --seeds` writes them to the corpus. `words` are what
    inputs are made of. `mend` makes an input well-formed again where a mutation easily breaks it, as in lengths.
    """

    check: Callable[[bytes], None]
    seeds: Callable[[], Mapping[str, bytes]]
    words: Callable[[], Iterable[bytes]] = tuple
    mend: Callable[[bytes], bytes] | None = None
    most_bytes: int = 2048


def names() -> list[str]:
    """Of all targets: those of their modules."""
    return sorted(path.stem for path in (FOLDER / "targets").glob("*.py"))


def load(name: str) -> Target:
    """The target of that name."""
    target: Target = import_module(f"tests.fuzz.targets.{name}").TARGET
    return target


def corpus(name: str) -> list[Path]:
    """The inputs of that target which are kept in the repository."""
    return sorted((CORPUS / name).iterdir())
