"""Installed distributions and drop-ins with storage plugins, made in a folder on the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import invalidate_caches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

import pytest
import twisted.plugins

import kestrel.storage.plugins

GROUP: Final = "kestrel.storage_backends"

ACME: Final = '''
from kestrel.errors import BadStorageArgument
from kestrel.storage.interfaces import IStorageFactory
from kestrel.storage.memory import MemoryStorage
from twisted.plugin import IPlugin
from zope.interface import implementer


@implementer(IStorageFactory, IPlugin)
class AcmeFactory:
    name = "acme"
    help = "acme:  keeps queues nowhere for long."
    capabilities = frozenset({"errors_kept"})
    unused_settings = frozenset({"max_journal_size_bytes"})
    largest_used = {"max_memory_size_bytes": 1024}

    def storage(self, argument, options, clock, in_thread, memory):
        if options:
            raise BadStorageArgument("acme: takes no options, and says so")
        return MemoryStorage(memory)
'''
"""A module with a correct factory. Tests append lines to it."""


def install(folder: Path, entry_points: str, *, name: str = "acme-storage", version: str = "1.2") -> None:
    """Install a distribution in the folder, with these lines of entry points for storages."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entry_points}\n")


def module(folder: Path, *lines: str, name: str = "acme") -> None:
    """Write the module `ACME` with these additional lines."""
    (folder / f"{name}.py").write_text("\n".join([ACME, *lines]) + "\n")
    invalidate_caches()


def drop_in(folder: Path, name: str, source: str) -> Path:
    """Write a module to `twisted/plugins` in the folder, and return its path."""
    module = folder / "twisted" / "plugins" / f"{name}.py"
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text(source)
    return module


@contextmanager
def on_the_path(folder: Path) -> Iterator[None]:
    """Make the storages in the folder the only installed ones. Modules imported from it are removed at the end."""

    def entry_points_in_folder(group: str) -> list[EntryPoint]:
        return [each for each in entry_points(group=group) if each.dist and each.dist.locate_file("") == folder]

    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(kestrel.storage.plugins, "entry_points", entry_points_in_folder)
        plugins = str(folder / "twisted" / "plugins")
        patch.setattr(twisted.plugins, "__path__", [*twisted.plugins.__path__, plugins])
        yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
