"""A storage plugin of another distribution, from its discovery to its factory. Each error is one sentence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Final

from kestrel.errors import BrokenStoragePlugin
from kestrel.storage.failures import describe_error
from kestrel.storage.interfaces import IStorageFactory

FAULTS: Final = (Exception, SystemExit)
"""Errors that a plugin's code may raise. A module that calls `sys.exit` on import must not stop the server."""


class Plugin(ABC):
    """A storage that was found under a name.

    `origin` says where it was found, for messages. `reference` names the object.
    """

    def __init__(self, name: str, origin: str, reference: str) -> None:
        self.name = name
        self.origin = origin
        self.reference = reference

    def __str__(self) -> str:
        return f"storage {self.name!r} of {self.origin}"

    @abstractmethod
    def load(self) -> object:
        """Return the object that should be a factory. Raises `BrokenStoragePlugin`."""

    def broken(self, why: str) -> BrokenStoragePlugin:
        """Return the error that says that this plugin cannot be used, and why."""
        return BrokenStoragePlugin(f"{self} cannot be used: {why}")

    @contextmanager
    def wrapping_errors(self, what_fails: str) -> Iterator[None]:
        """Turn any error in the block into `BrokenStoragePlugin`, which says that `what_fails` failed."""
        try:
            yield
        except BrokenStoragePlugin:
            raise
        except FAULTS as error:
            raise self.broken(f"{what_fails}: {describe_error(error)}") from error


class EntryPointPlugin(Plugin):
    """A plugin of an entry point, which names a factory or a class to call without arguments."""

    def __init__(self, entry: EntryPoint) -> None:
        words = () if entry.dist is None else (entry.dist.name, entry.dist.version)
        origin = " ".join(filter(None, words)) or "a distribution without a name"
        super().__init__(entry.name, origin, entry.value)
        self._entry = entry

    def load(self) -> object:
        """Import the object. If it is a class that is not a factory itself, call it."""
        entry = self._entry
        if entry.pattern.match(entry.value) is None:
            raise self.broken(f"its entry point {entry.value!r} does not name an object; write it as module:object")
        with self.wrapping_errors(f"{entry.module} cannot be imported"):
            found: object = import_module(entry.module)
        for word in filter(None, (entry.attr or "").split(".")):
            with self.wrapping_errors(f"{self.reference} cannot be looked up"):
                if not hasattr(found, word):
                    raise self.broken(f"{entry.module} has no {entry.attr}")
                found = getattr(found, word)
        if isinstance(found, type) and not IStorageFactory.providedBy(found):
            with self.wrapping_errors(f"{self.reference} cannot be created"):
                found = found()
        return found


class DropInPlugin(Plugin):
    """A factory in a module of a folder ``twisted/plugins``. The module has been imported already."""

    def __init__(self, name: str, origin: str, reference: str, factory: object) -> None:
        super().__init__(name, origin, reference)
        self._factory = factory

    def load(self) -> object:
        """Return the factory."""
        return self._factory
