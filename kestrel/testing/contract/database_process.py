"""A database in a process of its own, so that tests can kill it and inject disk faults."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import Any, Final, NamedTuple, Self

from kestrel.errors import DatabaseAway, OwnershipLost, StorageRefused
from kestrel.storage.database import StoredItem, StoredQueue, WriteBatch
from kestrel.testing.contract.database_backend import DatabaseBackend, OwnedDatabase

_PATIENCE_S: Final = 60.0
_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from kestrel.testing.contract.database_process import serve; serve(*sys.argv[2:])"
)
_MEANINGS: Final = (DatabaseAway, OwnershipLost, StorageRefused)
"""The errors that the server distinguishes. All others are reported as `OTHER`."""

DONE: Final = "done"
DIED: Final = "the process died"
OTHER: Final = "StorageError"

Contents = tuple[dict[bytes, StoredQueue], dict[bytes, list[StoredItem]]]
"""The row of each queue, and the items of each queue, by name."""


class CallOutcome(NamedTuple):
    """The outcome of a call to a database process."""

    kind: str
    """`DONE`, `DIED`, the name of an error of `_MEANINGS`, or `OTHER`."""
    value: Any = None
    """The result, or the error as text."""

    @property
    def is_done(self) -> bool:
        """True if the call succeeded."""
        return self.kind == DONE


class DatabaseProcess:
    """A process that owns a database of a test class and is controlled over pipes. It is killed when the block ends."""

    def __init__(self, backend: DatabaseBackend, folder: Path, environment: Mapping[str, str]) -> None:
        """Start the process. Call `open` to take ownership of the database in that folder."""
        tests = type(backend)
        where = [inspect.getfile(tests), tests.__module__, tests.__qualname__, str(folder)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), *where],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def open(self) -> CallOutcome:
        """Call `list_queues`."""
        return self._ask("open")

    def apply(self, batch: WriteBatch) -> CallOutcome:
        """Apply a batch."""
        return self._ask("apply", batch)

    def contents(self, names: Sequence[bytes]) -> dict[bytes, list[StoredItem]]:
        """Return the items of these queues."""
        answer = self._ask("read", names)
        assert answer.is_done, f"items cannot be read: {answer.kind}: {answer.value}"
        found: dict[bytes, list[StoredItem]] = answer.value
        return found

    def _ask(self, *command: object) -> CallOutcome:
        assert self._process.stdin is not None and self._process.stdout is not None
        timer = Timer(_PATIENCE_S, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            pickle.dump(command, self._process.stdin)
            self._process.stdin.flush()
            return CallOutcome(*pickle.load(self._process.stdout))
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            return CallOutcome(DIED)
        finally:
            timer.cancel()


def contents_of(owner: OwnedDatabase, names: Sequence[bytes]) -> Contents:
    """Return the queues that the owner found, and the items of these queues."""
    return owner.found, {name: owner.read(name, 0) for name in names}


def serve(file: str, module: str, test_class: str, folder: str) -> None:
    """Answer commands on standard input until it ends: the main function of the process."""
    answers = os.fdopen(os.dup(1), "wb")
    # Output of the plugin goes to standard error.
    os.dup2(2, 1)
    backend = _class_of(file, module, test_class)()
    owner: OwnedDatabase | None = None
    while True:
        try:
            command, *args = pickle.load(sys.stdin.buffer)
        except EOFError:
            # Exit as if killed: close nothing.
            os._exit(0)
        try:
            result: object = None
            if command == "open":
                owner = OwnedDatabase(backend, Path(folder))
            elif owner is not None and command == "apply":
                owner.wait(owner.database.apply(*args))
            elif owner is not None:
                result = {name: owner.read(name, 0) for name in args[0]}
            answer = (DONE, result)
        except Exception as error:
            kind = next((each.__name__ for each in _MEANINGS if isinstance(error, each)), OTHER)
            answer = (kind, f"{type(error).__name__}: {error}")
        pickle.dump(answer, answers)
        answers.flush()


def _class_of(file: str, module: str, test_class: str) -> Any:
    """Import a test module by its file, as pytest may have done, and return one of its classes."""
    if module not in sys.modules:
        specification = importlib.util.spec_from_file_location(module, file)
        assert specification is not None and specification.loader is not None
        sys.modules[module] = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(sys.modules[module])
    found: Any = sys.modules[module]
    for name in test_class.split("."):
        assert name != "<locals>", f"{test_class}: define the class at the top level of its module"
        found = getattr(found, name)
    return found
