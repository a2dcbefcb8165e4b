"""Kills, disk faults and power failures of an embedded database.

The database runs in a process of its own, which tests can kill.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from threading import Timer
from typing import Any, Final, NamedTuple, Self

import pytest

from kestrel.errors import DatabaseAway, OwnershipLost, StorageRefused
from kestrel.storage.database import IDatabase, StoredItem, StoredQueue, WriteBatch
from kestrel.storage.interfaces import InThread
from kestrel.testing.contract.database_backend import DatabaseBackend, OwnedDatabase, item
from kestrel.testing.contract.requirements import requires
from kestrel.testing.databases import MemoryDatabase, MemoryTables
from kestrel.testing.shim import (
    FileOperation,
    Shim,
    compiler,
    files_after_power_failure,
    unsynced_operations,
    write_files,
)

_PATIENCE_S: Final = 60.0
_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from kestrel.testing.contract.database_crashes import serve; serve(*sys.argv[2:])"
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
        return self._ask("open")

    def apply(self, batch: WriteBatch) -> CallOutcome:
        return self._ask("apply", batch)

    def contents(self, names: Sequence[bytes]) -> dict[bytes, list[StoredItem]]:
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


_NAMES: Final = (b"a", b"b", b"c")
_ITEM_BYTES: Final = 3000
"""The size of an item, so large that the items of a batch fill several pages of most databases."""

_BATCHES: Final = 8

_KILLS: Final = 3

_STATES: Final = 500

_SUBSETS: Final = 3
"""The number of random choices of lost writes for each moment of a power failure."""

_FAULTS: Final = 12
"""The n-th write of a batch fails, for n up to this number."""

_SYNCS: Final = 5
"""The n-th sync of a batch fails, for n up to this number."""

_FREE_BYTES: Final = (0, 20_000)
"""Free bytes on a full disk. The batch of that test needs more."""

_LARGE: Final = 20_000
_ITEMS: Final = 40


class BatchStep(NamedTuple):
    """A batch, and the contents of the database once it is applied."""

    batch: WriteBatch
    after: Contents


class _Model(DatabaseBackend):
    """A database in memory, which computes the expected contents."""

    def make_database(self, folder: Path, in_thread: InThread) -> IDatabase:
        return MemoryDatabase(MemoryTables(), in_thread)


def steps(number: int) -> list[BatchStep]:
    """Return that many batches with changes of all kinds."""
    model = OwnedDatabase(_Model(), Path("model"))
    found: list[BatchStep] = []
    for turn in range(1, number + 1):
        first = 4 * turn
        puts = [item(first + place, bytes([turn]) * _ITEM_BYTES) for place in range(4)]
        removed = [(first - 4, first - 3)]
        changes = [model.changes(b"a", puts=puts, removed=removed, errors={first - 2: turn} if turn > 1 else {})]
        changes.append(model.changes(b"b", is_new=turn % 3 == 1, puts=puts[:2]))
        changes.append(model.deletion(b"c") if turn % 3 == 0 else model.changes(b"c", puts=puts[2:]))
        batch = model.apply(*changes)
        found.append(BatchStep(batch, (model.queues.copy(), {name: model.read(name, 0) for name in _NAMES})))
    return found


NOTHING: Final[Contents] = ({}, {name: [] for name in _NAMES})


class _ShimTests(DatabaseBackend):
    """The base class of tests that run the database in a process with a shim."""

    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[Shim]:
        """Provide the shim of a process whose database is in `tmp_path / "database"`. It logs all operations."""
        if compiler() is None:
            pytest.skip("needs a C compiler: install gcc")
        with Shim(tmp_path, tmp_path / "database", has_log=True) as disk:
            yield disk

    def _process(self, folder: Path, disk: Shim) -> DatabaseProcess:
        return DatabaseProcess(self, folder, disk.environment)

    def _check_left(self, folder: Path, allowed: Sequence[Contents], moment: str) -> None:
        """Open the files that a crash has left. Check that the contents are among `allowed`."""
        try:
            owner = OwnedDatabase(self, folder)
            try:
                found = contents_of(owner, _NAMES)
            finally:
                owner.end()
        except Exception as error:
            raise AssertionError(f"{moment}: the database cannot be opened and read: {error}") from error
        assert found in allowed, f"{moment}: {_difference(found, allowed)}"


def _difference(found: Contents, allowed: Sequence[Contents]) -> str:
    items = {name: [each.position for each in found[1][name]] for name in _NAMES}
    expected = [{name: [each.position for each in contents[1][name]] for name in _NAMES} for contents in allowed]
    return f"the queues have items at {items}; whole batches allow {expected} (other fields may differ too)"


@requires("is_embedded")
class CrashTests(_ShimTests):
    """A process that is killed during batches, and a machine that loses power."""

    def test_kill_in_a_commit_keeps_acknowledged_and_whole_batches(self, tmp_path: Path, disk: Shim) -> None:
        script = steps(_BATCHES)
        self._record(tmp_path / "database", disk, script)
        total = disk["operations"]
        for place in range(1, _KILLS + 1):
            shutil.rmtree(tmp_path / "database", ignore_errors=True)
            disk["operations"], disk["dies_at"] = 0, place * total // (_KILLS + 1)
            with self._process(tmp_path / "database", disk) as process:
                applied, answer = 0, process.open()
                while answer.is_done and applied < len(script):
                    answer = process.apply(script[applied].batch)
                    applied += answer.is_done
                assert answer.kind == DIED, f"a call failed on a healthy disk: {answer.value}"
            allowed = _contents(script, applied, applied + 1)
            self._check_left(tmp_path / "database", allowed, f"killed at file operation {disk['dies_at']}")

    def test_kill_at_any_file_operation_leaves_whole_batches(self, tmp_path: Path, disk: Shim) -> None:
        self._check_crashes(tmp_path, disk, is_power_lost=False)

    def test_power_failure_keeps_acknowledged_and_whole_batches(self, tmp_path: Path, disk: Shim) -> None:
        self._check_crashes(tmp_path, disk, is_power_lost=True)

    def _check_crashes(self, tmp_path: Path, disk: Shim, *, is_power_lost: bool) -> None:
        script = steps(_BATCHES)
        sent, done = self._record(tmp_path / "database", disk, script)
        operations = disk.operations()
        self._check_that_all_writes_were_seen(tmp_path / "database", operations)
        dice = random.Random(1)
        crashes = [
            (moment, lost)
            for moment in range(1, len(operations) + 1)
            for lost in (_losses(operations[:moment], dice) if is_power_lost else [frozenset[int]()])
        ]
        for moment, lost in crashes if len(crashes) <= _STATES else dice.sample(crashes, _STATES):
            end = operations[moment - 1].end
            allowed = _contents(script, sum(each <= end for each in done), sum(each < end for each in sent))
            folder = tmp_path / "left"
            write_files(folder, files_after_power_failure(operations[:moment], lost))
            what = f"power failure, {len(lost)} unsynced writes lost," if is_power_lost else "kill"
            last = operations[moment - 1]
            self._check_left(folder, allowed, f"{what} after file operation {moment} ({last.kind} of {last.path})")
            shutil.rmtree(folder)

    def _record(self, folder: Path, disk: Shim, script: Sequence[BatchStep]) -> tuple[list[int], list[int]]:
        """Apply all batches in a process. Return the log sizes when each was sent, and when each was acknowledged."""
        sent, done = [], []
        with self._process(folder, disk) as process:
            answers = [process.open()]
            for step in script:
                sent.append(disk.log_size)
                answers.append(process.apply(step.batch))
                done.append(disk.log_size)
            assert all(answer.is_done for answer in answers), f"a call failed on a healthy disk: {answers}"
        return sent, done

    def _check_that_all_writes_were_seen(self, folder: Path, operations: Sequence[FileOperation]) -> None:
        """Fail if the files differ from the recorded operations: crashes could not be simulated then."""
        recorded = files_after_power_failure(operations, ())
        found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        unseen = sorted(
            name
            for name in recorded.keys() | found.keys()
            if recorded.get(name, b"") != found.get(name, b"")
            and not any(fnmatch(name, pattern) for pattern in self.unsafe_files)
        )
        assert operations and not unseen, (
            f"the database writes {unseen or 'all files'} without the C library's write functions (it maps memory, or"
            " runs in a server): unset is_embedded, or list the files that it rebuilds in unsafe_files"
        )


@requires("is_embedded")
class DiskErrorTests(_ShimTests):
    """A database that keeps running on a disk that fails or is full."""

    def test_failed_sync_in_a_commit_is_database_away(self, tmp_path: Path, disk: Shim) -> None:
        for answer, moment in self._apply_with_faults(tmp_path, disk, "sync_fails"):
            assert answer.is_done or answer.kind == "DatabaseAway", (
                f"{moment} failed with EIO: the contents of the disk are unknown, so apply must raise"
                f" DatabaseAway, not {answer.value}"
            )

    def test_failed_write_in_a_commit_reports_the_right_error(self, tmp_path: Path, disk: Shim) -> None:
        for answer, moment in self._apply_with_faults(tmp_path, disk, "write_fails"):
            assert answer.is_done or answer.kind in {"DatabaseAway", OTHER}, (
                f"{moment} failed with EIO: apply must raise DatabaseAway or StorageError, not {answer.value}"
            )

    def _apply_with_faults(self, tmp_path: Path, disk: Shim, field: str) -> Iterator[tuple[CallOutcome, str]]:
        """Apply batches. During the n-th, every n-th call fails. Yield the outcomes with faults; check the contents."""
        script = steps(_FAULTS)
        failures = f"failed_{field.removesuffix('_fails')}s"
        seen = 0
        with self._process(tmp_path / "database", disk) as process:
            assert process.open().is_done
            for each, step in enumerate(script, 1):
                before = _contents(script, each - 1, each - 1)
                disk["writes"] = disk["syncs"] = 0
                disk[field] = each
                answer = process.apply(step.batch)
                disk.heal()
                moment = f"each n-th {field.removesuffix('_fails')} (n = {each}) of batch {each}"
                if disk[failures] > seen:
                    seen = disk[failures]
                    yield answer, moment
                self._check_known(tmp_path, process, answer, [*before, step.after], moment)
                self._finish(process, step, answer, moment)
        # Or it never syncs. The test of a power failure finds that.
        is_synced_by_its_writes = field == "sync_fails"
        assert seen or is_synced_by_its_writes, "no write failed: the database bypasses the C library's write functions"

    def _check_known(
        self, tmp_path: Path, process: DatabaseProcess, answer: CallOutcome, contents: Sequence[Contents], moment: str
    ) -> None:
        """Check that the contents, now and after a kill, agree with the outcome of `apply`."""
        assert answer.kind != DIED, f"{moment}: the process died"
        before, after = contents
        allowed = [after] if answer.is_done else [before]
        if answer.kind == "DatabaseAway":
            allowed = [before, after]
        else:
            found = process.contents(_NAMES)
            assert found == allowed[0][1], f"{moment}: apply ended with {answer}: {_difference(({}, found), allowed)}"
        folder = tmp_path / "killed"
        shutil.copytree(tmp_path / "database", folder)
        self._check_left(folder, allowed, f"{moment}: apply ended with {answer}, then a kill")
        shutil.rmtree(folder)

    def _finish(self, process: DatabaseProcess, step: BatchStep, answer: CallOutcome, moment: str) -> None:
        """Apply the batch again on the healthy disk if `answer` says that it failed, and assert that this succeeds.

        In either case, assert that the database contains the state after the batch. `moment` describes the fault in
        messages.
        """
        if not answer.is_done:
            answer = process.apply(step.batch)
            assert answer.is_done, f"{moment}: the disk is healthy again, but apply still fails: {answer.value}"
        assert process.contents(_NAMES) == step.after[1]

    def test_batch_repeated_after_a_failed_sync_survives_power_failure(self, tmp_path: Path, disk: Shim) -> None:
        for place, step in enumerate(script := steps(_SYNCS)):
            folder = tmp_path / "database" / str(place)
            with self._process(folder, disk) as process:
                assert process.open().is_done
                for earlier in script[:place]:
                    assert process.apply(earlier.batch).is_done
                disk["syncs"], disk["sync_fails"] = 0, place + 1
                answer = process.apply(step.batch)
                disk.heal()
                while not answer.is_done:
                    answer = process.apply(step.batch)
                    assert answer.kind in {DONE, "DatabaseAway"}, f"apply failed on a healthy disk: {answer.value}"
                operations = [each for each in disk.operations() if each.path.startswith(f"{place}/")]
            left = tmp_path / "left"
            write_files(left, files_after_power_failure(operations, frozenset(unsynced_operations(operations))))
            moment = f"batch {place + 1} was sent again after a failed sync and acknowledged, then a power failure"
            self._check_left(left / str(place), [step.after], moment)
            shutil.rmtree(left)

    def test_full_disk_refuses_puts_and_accepts_removes(self, tmp_path: Path, disk: Shim) -> None:
        for number, free_bytes in enumerate(_FREE_BYTES):
            folder, moment = tmp_path / "database" / str(number), f"{free_bytes} bytes free"
            model = OwnedDatabase(_Model(), Path("model"))
            with self._process(folder, disk) as process:
                assert process.open().is_done
                # No item is removed yet: that might make room for later ones.
                for place in range(1, _ITEMS + 1):
                    changes = model.changes(b"a", puts=[item(place, b"x" * _LARGE)])
                    assert process.apply(model.apply(changes)).is_done
                before = model.queues.copy()
                disk.disk_is_full(free_bytes)
                answer = process.apply(model.batch(model.changes(b"a", puts=[item(_ITEMS + 1, b"y" * 3 * _LARGE)])))
                assert answer.kind == "StorageRefused", f"{moment}: a put ended with {answer}, not with StorageRefused"
                model.queues = before
                assert process.contents([b"a"]) == {b"a": model.read(b"a")}, f"{moment}: a refused batch left a trace"
                for first, last in [(1, _ITEMS - 4), (_ITEMS - 3, _ITEMS - 3), (_ITEMS - 1, _ITEMS)]:
                    answer = process.apply(model.apply(model.changes(b"a", removed=[(first, last)])))
                    assert answer.is_done, f"{moment}: items {first} to {last} cannot be removed: {answer.value}"
                disk.heal()
            after = (model.queues.copy(), {name: model.read(name, 0) for name in _NAMES})
            self._check_left(folder, [after], f"{moment}, then a kill")


def _contents(script: Sequence[BatchStep], least: int, most: int) -> list[Contents]:
    """Return the contents after the first `least` to `most` batches of the script."""
    return [NOTHING, *(step.after for step in script)][least : most + 1]


def _losses(operations: Sequence[FileOperation], dice: random.Random) -> list[frozenset[int]]:
    """Return sets of unsynced writes that a power failure may lose: all of them, and random subsets."""
    places = unsynced_operations(operations)
    random_ones = [frozenset(place for place in places if dice.random() < 0.5) for _ in range(_SUBSETS)]
    return list(dict.fromkeys([frozenset(places), *random_ones]))
