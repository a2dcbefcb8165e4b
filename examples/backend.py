"""A complete durable storage in one module, with one file per queue and all items in memory.

A file consists of JSON lines, and the first line names the queue. Each commit appends its records and syncs the file,
in a thread. A file that has grown is rewritten under the next number. The file of a failed queue is rewritten too,
because its contents are unknown after a failed sync. The file with the highest number is valid. `docs/storage.md`
describes what a backend has to do, and `tests/storage/test_example.py` runs the contract suite on this one.

To stay short, this backend reads and rewrites a failed queue on the reactor thread, reads whole files at a start, and
syncs at each commit regardless of `syncJournal`.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import count
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred, DeferredList, fail
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.disk.lock import FolderLock
from kestrel.disk.reader import FileReader
from kestrel.errors import BadStorageArgument, ItemTooLarge, QueueFailed, StorageError, StorageRefused
from kestrel.item import Item
from kestrel.storage.interfaces import InThread, IQueueStorage, IStorage, IStorageFactory, SettingsFor
from kestrel.storage.total_memory import ITEM_BYTES, MemoryLimit, MemoryShare

MAX_ITEM_BYTES: Final = 16 << 20
SLACK_BYTES: Final = 4096
"""A file is rewritten when it exceeds twice the size of its items by this many bytes."""


@implementer(IStorageFactory)
class LinesStorageFactory:
    """The factory of ``lines:FOLDER``. A restart loses error counts and the order of items that were put back."""

    name = "lines"
    help = "lines:FOLDER  keeps each queue in a file of JSON lines"
    capabilities = frozenset({"durable"})

    def storage(
        self, argument: str, options: Mapping[str, str], clock: IReactorTime, in_thread: InThread, memory: MemoryLimit
    ) -> LinesStorage:
        """Return a storage for a folder. It opens nothing yet."""
        if not argument or options:
            raise BadStorageArgument("lines: needs a folder, as in lines:/var/spool/kestrel, and takes no options")
        return LinesStorage(argument.encode("utf-8", "surrogateescape"), in_thread, memory)


class Entry(NamedTuple):
    """An item with its number in the queue."""

    number: int
    data: bytes
    add_ms: int
    expiry_ms: int
    errors: int = 0

    def line(self) -> bytes:
        """Return the record of the put."""
        return line("put", self.number, base64.b64encode(self.data).decode("ascii"), self.add_ms, self.expiry_ms)


def line(*fields: object) -> bytes:
    """Return a record: its fields as one JSON line."""
    return json.dumps(fields).encode("ascii") + b"\n"


@implementer(IQueueStorage)
class LinesQueue:
    """A queue. `recorded` holds its records until the next commit."""

    def __init__(self, name: bytes, path: bytes, memory: MemoryLimit, entries: Sequence[Entry] = ()) -> None:
        self.name = name
        self.path = path
        self.disk_bytes = 0
        """Size of the committed part of the file. 0: the file does not exist yet."""
        self.failure: str | None = None
        self.is_deleted = False
        self.replayed_items = len(entries)
        self.recorded: list[bytes] = [line("queue", name.decode("latin-1"))]
        self.memory = MemoryShare(memory)
        self._waiting = deque(entries)
        self._opened: dict[int, Entry] = {}
        self._xids = count(1)
        self._numbers = count(max((entry.number for entry in entries), default=0) + 1)
        self.bytes = sum(len(entry.data) for entry in entries)

    @property
    def items(self) -> int:
        """Number of items in the queue, without open reads."""
        return len(self._waiting)

    @property
    def mem_items(self) -> int:
        """Number of items in memory. All items are in memory."""
        return self.items

    @property
    def mem_bytes(self) -> int:
        """Bytes of the items in memory. All items are in memory."""
        return self.bytes

    @property
    def open_reads(self) -> int:
        """Number of open reads."""
        return len(self._opened)

    @property
    def stats(self) -> Mapping[str, int]:
        """Statistics that every backend reports."""
        return {"logsize": self.disk_bytes, "journal_rewrites": 0, "journal_rotations": 0}

    def check(self) -> None:
        """Raise `QueueFailed` if this queue has failed."""
        if self.failure is not None:
            raise QueueFailed(self.failure)

    def kept(self) -> list[Entry]:
        """Return all items that a restart restores, in order, including open reads."""
        return sorted((*self._opened.values(), *self._waiting))

    def append(self, data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Append an item."""
        entry = Entry(next(self._numbers), data, add_ms, expiry_ms)
        self._waiting.append(entry)
        self.bytes += len(data)
        self.recorded.append(entry.line())

    def fill(self) -> Deferred[None] | None:
        """Return None, because the head is always in memory."""
        self.check()
        return None

    def peek(self) -> Item | None:
        """Return the head without removing it, or None if the queue is empty."""
        self.check()
        return Item(*self._waiting[0][1:]) if self._waiting else None

    def take(self, opened: bool) -> Item | None:
        """Remove and return the head, or None if the queue is empty. `opened` makes it an open read."""
        self.check()
        if not self._waiting:
            return None
        entry = self._waiting.popleft()
        self.bytes -= len(entry.data)
        if not opened:
            self.recorded.append(line("done", [entry.number]))
            return Item(*entry[1:])
        xid = next(self._xids)
        # An open read is not recorded, so that the item is in the queue after a crash.
        self._opened[xid] = entry
        return Item(*entry[1:], xid)

    def is_open(self, xid: int) -> bool:
        """Return True if `xid` is an open read."""
        return xid in self._opened

    def _ended(self, xids: Iterable[int]) -> list[Entry]:
        return [self._opened.pop(xid) for xid in xids if xid in self._opened]

    def confirm(self, xids: Sequence[int]) -> int:
        """Remove the items of open reads. Return how many of the xids were open."""
        self.check()
        ended = self._ended(xids)
        self.recorded.append(line("done", [entry.number for entry in ended]))
        return len(ended)

    def put_back(self, xids: Sequence[int], failed: bool) -> None:
        """Put open reads back at the head, `xids[0]` first. `failed` adds one error to each."""
        self.check()
        for entry in self._ended(reversed(xids)):
            self._waiting.appendleft(entry._replace(errors=entry.errors + failed))
            self.bytes += len(entry.data)

    def clear(self) -> None:
        """Remove all items except open reads."""
        self.check()
        self._waiting.clear()
        self.bytes = 0
        self.recorded.append(line("only", [entry.number for entry in self._opened.values()]))


@implementer(IStorage)
class LinesStorage:
    """A storage that keeps all queues of one folder."""

    def __init__(self, folder: bytes, in_thread: InThread, memory: MemoryLimit, disk: Disk | None = None) -> None:
        self._folder = folder
        self._in_thread = in_thread
        self._memory = memory
        self._disk = disk or Disk()
        self._queues: dict[bytes, LinesQueue] = {}
        self._deleted: list[LinesQueue] = []
        self._file_numbers = count(1)
        self._jobs: set[Deferred[None]] = set()
        """Deferreds of the running thread jobs, which fire when the job has ended."""

    @property
    def refusal(self) -> str | None:
        """Reason why puts are refused, or None. All items are in memory, so puts need free memory."""
        return "the server's memory is full" if self._memory.is_reached else None

    # Opening queues.

    def start(self, settings_for: SettingsFor) -> Deferred[dict[bytes, IQueueStorage | Failure]]:
        """Lock the folder, and read all queues in a thread."""
        try:
            self._disk.make_folder(self._folder)
            self._lock = FolderLock(self._folder + b"/lock")
        except OSError as error:
            raise StorageError(f"the storage folder cannot be used: {error}") from error
        return self._in_thread(self._load_all)

    def _load_all(self) -> dict[bytes, IQueueStorage | Failure]:
        numbers: dict[bytes, int] = {}
        names = self._disk.list_files(self._folder)
        for stem, number in [_split(name) for name in names if name.endswith(b".lines")]:
            numbers[stem] = max(number, numbers.get(stem, 0))
        self._file_numbers = count(max(numbers.values(), default=0) + 1)
        newest = {b"%b.%d.lines" % each for each in numbers.items()}
        for name in names:
            if name.endswith((b".lines", b".new")) and name not in newest:
                self._disk.erase(self._folder + b"/" + name)
        for name in newest:
            path = self._folder + b"/" + name
            queue = self._load(path, self._disk.length(path))
            if queue is not None:
                self._queues[queue.name] = queue
        return dict(self._queues)

    def _load(self, path: bytes, size: int) -> LinesQueue | None:
        """Return the queue in the first `size` bytes of a file, or None if they hold no complete line.

        Truncate the file behind its last complete line.
        """
        with FileReader(self._disk, path) as reader:
            data = reader.read(0, size)
        whole = data[: data.rfind(b"\n") + 1]
        descriptor = self._disk.open_append(path)
        try:
            self._disk.cut(descriptor, len(whole))
        finally:
            self._disk.close(descriptor)
        entries: dict[int, Entry] = {}
        name = b""
        for kind, first, *rest in map(json.loads, whole.splitlines()):
            if kind == "queue":
                name = first.encode("latin-1")
            elif kind == "put":
                entries[first] = Entry(first, base64.b64decode(rest[0]), *rest[1:])
            else:
                gone = first if kind == "done" else entries.keys() - set(first)
                for number in list(gone):
                    entries.pop(number, None)
        if not whole:
            return None
        queue = LinesQueue(name, path, self._memory, list(entries.values()))
        queue.disk_bytes = len(whole)
        queue.recorded.clear()
        return queue

    def queue(self, name: bytes, settings: QueueSettings) -> LinesQueue:
        """Return the queue of that name. Create a missing queue, and reopen a failed one."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = LinesQueue(name, self._new_path(name), self._memory)
        elif queue.failure is not None:
            try:
                queue = self._queues[name] = self._opened_again(queue)
            except OSError as error:
                raise QueueFailed(f"the queue cannot be opened: {error}") from error
        return queue

    def _opened_again(self, dead: LinesQueue) -> LinesQueue:
        """Return a new queue with the committed items of a failed one, in a new file."""
        path = self._new_path(dead.name)
        queue = self._load(dead.path, dead.disk_bytes) if dead.disk_bytes else None
        if queue is None:
            self._disk.erase(dead.path)
            return LinesQueue(dead.name, path, self._memory)
        self._write_anew(path, _all_lines(queue))
        self._disk.erase(dead.path)
        queue.path = path
        queue.disk_bytes = self._disk.length(path)
        return queue

    def _new_path(self, name: bytes) -> bytes:
        stem = blake2b(name, digest_size=16).hexdigest().encode("ascii")
        return b"%b/%b.%d.lines" % (self._folder, stem, next(self._file_numbers))

    # Recording changes.

    def put(self, queues: Sequence[LinesQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Append an item to all of the queues, or raise without changing any."""
        if len(data) > MAX_ITEM_BYTES:
            raise ItemTooLarge(f"an item holds at most {MAX_ITEM_BYTES} bytes")
        if self.refusal is not None:
            raise StorageRefused(self.refusal)
        for queue in queues:
            queue.check()
        for queue in queues:
            queue.append(data, add_ms, expiry_ms)

    def delete(self, queue: LinesQueue) -> None:
        """Delete a queue from memory. Its next commit deletes the file."""
        if queue.is_deleted:
            return
        # If the queue had failed and was reopened, these are two objects.
        for each in {queue, self._queues.pop(queue.name, queue)}:
            each.is_deleted = True
            each.failure = "the queue was deleted"
            each.memory.set_bytes(0)
        self._deleted.append(queue)

    # Commits.

    def commit(self, queues: Sequence[LinesQueue]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        """Start a thread job for each queue with records. Return the queues of each job with its Deferred."""
        pairs: list[tuple[Sequence[IQueueStorage], Deferred[Any]]] = []
        for queue in queues:
            if queue in self._deleted:
                self._deleted.remove(queue)
                pairs.append(([queue], self._run(self._erase, queue.path)))
            elif queue.failure is not None and not queue.is_deleted:
                pairs.append(([queue], fail(QueueFailed(queue.failure))))
            elif queue.recorded and not queue.is_deleted:
                data, kept = b"".join(queue.recorded), queue.kept()
                queue.recorded.clear()
                queue.memory.set_bytes(sum(len(entry.data) + ITEM_BYTES for entry in kept))
                pairs.append(([queue], self._write(queue, data, kept)))
        return pairs

    def _write(self, queue: LinesQueue, data: bytes, kept: list[Entry]) -> Deferred[None]:
        size, path = queue.disk_bytes + len(data), queue.path
        if size > SLACK_BYTES + 2 * sum(len(entry.data) * 4 // 3 for entry in kept):
            data = _all_lines(queue)
            size, path = len(data), self._new_path(queue.name)
            job = self._run(self._replace, queue.path, path, data)
        else:
            job = self._run(self._append, path, data, not queue.disk_bytes)

        def written(_: object) -> None:
            queue.path, queue.disk_bytes = path, size

        def failed(failure: Failure) -> Failure:
            queue.failure = queue.failure or f"the file of the queue failed: {failure.getErrorMessage()}"
            return Failure(QueueFailed(queue.failure))

        return job.addCallbacks(written, failed)

    def _append(self, path: bytes, data: bytes, is_new: bool) -> None:
        descriptor = self._disk.open_append(path)
        try:
            self._disk.write(descriptor, data)
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)
        if is_new:
            self._disk.sync_folder(self._folder)

    def _write_anew(self, path: bytes, data: bytes) -> None:
        self._disk.erase(path + b".new")
        self._append(path + b".new", data, False)
        self._disk.rename(path + b".new", path)
        self._disk.sync_folder(self._folder)

    def _replace(self, old: bytes, path: bytes, data: bytes) -> None:
        self._write_anew(path, data)
        self._disk.erase(old)

    def _erase(self, path: bytes) -> None:
        self._disk.erase(path)
        self._disk.sync_folder(self._folder)

    def _run(self, function: Any, *args: object) -> Deferred[None]:
        ended: Deferred[None] = Deferred()
        self._jobs.add(ended)

        def end(result: Any) -> Any:
            self._jobs.discard(ended)
            ended.callback(None)
            return result

        job: Deferred[None] = self._in_thread(function, *args)
        return job.addBoth(end)

    # Stop.

    def close(self, compacts: bool = False) -> Deferred[None]:
        """Wait for running jobs, commit the remaining records, and unlock the folder."""

        def commit_all(_: object) -> Deferred[Any]:
            pairs = self.commit([*self._queues.values(), *self._deleted])
            return DeferredList([done for _, done in pairs], consumeErrors=True)

        def release(_: object) -> None:
            for queue in self._queues.values():
                queue.failure = queue.failure or "the server is stopping"
            self._lock.release()

        return DeferredList([*self._jobs]).addCallback(commit_all).addCallback(release)


def _split(file_name: bytes) -> tuple[bytes, int]:
    stem, number, _ = file_name.split(b".")
    return stem, int(number)


def _all_lines(queue: LinesQueue) -> bytes:
    """Return the bytes of a new file with exactly the items of the queue."""
    lines = (entry.line() for entry in queue.kept())
    return b"".join((line("queue", queue.name.decode("latin-1")), *lines))
