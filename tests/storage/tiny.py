"""A durable storage that is as small as one can be: the contract suite is tried on it, and on what breaks it.

All queues of a fanout have one file, in which a line of JSON is a record: an item is written once for all of them, and
its number there is its id. Only `max_memory_size_bytes` of a queue count as in memory, though everything is: what is
behind comes when the file has been read.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.disk.lock import FolderLock
from kestrel.errors import BadStorageArgument, ItemTooLarge, QueueFailed, StorageError, StorageRefused
from kestrel.item import Item
from kestrel.names import parent_of
from kestrel.storage.interfaces import (
    IItemRanges,
    InThread,
    IQueueStorage,
    IStorage,
    IStorageFactory,
    SettingsFor,
)
from kestrel.storage.total_memory import MemoryLimit

MAX_ITEM_BYTES = 1 << 30


@implementer(IStorageFactory)
class TinyStorageFactory:
    name = "tiny"
    help = "tiny:FOLDER  for tests"
    capabilities = frozenset({"durable", "ranges", "shared_fanout", "errors_kept"})

    def storage(
        self, argument: str, options: Mapping[str, str], clock: IReactorTime, in_thread: InThread, memory: MemoryLimit
    ) -> TinyStorage:
        if not argument or options:
            raise BadStorageArgument("tiny: takes a folder and no options")
        return TinyStorage(os.fsencode(argument), clock, in_thread)


class Stored:
    """An item of a family."""

    def __init__(self, data: bytes, add_ms: int, expiry_ms: int) -> None:
        self.data = data
        self.add_ms = add_ms
        self.expiry_ms = expiry_ms


class Family:
    """All queues that share a file."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.queues: dict[bytes, TinyQueue] = {}
        self.pending: list[bytes] = []
        self.next_id = 1
        self.safe_id = 1
        """The first id that is not safe yet."""
        self.descriptor = -1
        self.size = 0
        self.safe_size = 0
        """What the file is cut to when something fails."""
        self.failure: str | None = None

    def record(self, **fields: object) -> None:
        self.pending.append(json.dumps(fields, separators=(",", ":")).encode() + b"\n")


@implementer(IQueueStorage, IItemRanges)
class TinyQueue:
    replayed_items = 0

    def __init__(self, name: bytes, family: Family, storage: TinyStorage) -> None:
        self.name = name
        self.settings = QueueSettings()
        self.failure: str | None = None
        self.is_deleted = False
        self.family = family
        self.storage = storage
        self.kept: dict[int, Stored] = {}
        """All from `first_id` on, those that are done as well."""
        self.order: deque[int] = deque()
        self.window_items = 0
        """How many of the order, from its head, are in memory."""
        self.opened: dict[int, int] = {}
        self.errors: dict[int, int] = {}
        self.xids = itertools.count(1)
        self.reader: bytes | None = None
        self.held_id = 0
        """What the reader has not released begins there."""

    # Figures.

    @property
    def items(self) -> int:
        return len(self.order)

    @property
    def bytes(self) -> int:
        return sum(len(self.kept[item_id].data) for item_id in self.order)

    @property
    def mem_items(self) -> int:
        return self.window_items

    @property
    def mem_bytes(self) -> int:
        return sum(len(self.kept[item_id].data) for item_id in itertools.islice(self.order, self.window_items))

    @property
    def open_reads(self) -> int:
        return len(self.opened)

    @property
    def disk_bytes(self) -> int:
        return self.family.size

    @property
    def stats(self) -> Mapping[str, int]:
        return {"logsize": self.family.size, "journal_rewrites": 0, "journal_rotations": 0}

    # What a server asks.

    def check(self) -> None:
        if self.failure is not None:
            raise QueueFailed(self.failure)

    def peek(self) -> Item | None:
        self.check()
        return self.item(self.order[0]) if self.window_items else None

    def item(self, item_id: int, xid: int = 0) -> Item:
        stored = self.kept[item_id]
        return Item(stored.data, stored.add_ms, stored.expiry_ms, self.errors.get(item_id, 0), xid)

    def take(self, opened: bool) -> Item | None:
        self.check()
        if not self.window_items:
            return None
        item_id = self.order.popleft()
        self.window_items -= 1
        if not opened:
            item = self.item(item_id)
            self.end([item_id])
            return item
        xid = next(self.xids)
        self.opened[xid] = item_id
        return self.item(item_id, xid)

    def end(self, ids: Sequence[int]) -> None:
        """These items are done, for good."""
        if ids:
            self.family.record(op="done", queue=text(self.name), ids=ids)
            self.forget_head()

    def forget_head(self) -> None:
        first_id = self.first_id
        for item_id in [item_id for item_id in self.kept if item_id < first_id]:
            del self.kept[item_id]
            self.errors.pop(item_id, None)

    def is_open(self, xid: int) -> bool:
        return xid in self.opened

    def confirm(self, xids: Sequence[int]) -> int:
        self.check()
        ids = [self.opened.pop(xid) for xid in dict.fromkeys(xids) if xid in self.opened]
        self.end(ids)
        return len(ids)

    def put_back(self, xids: Sequence[int], failed: bool) -> None:
        self.check()
        ids = [self.opened.pop(xid) for xid in dict.fromkeys(xids) if xid in self.opened]
        self.order.extendleft(reversed(ids))
        self.window_items += len(ids)
        if failed:
            for item_id in ids:
                self.errors[item_id] = self.errors.get(item_id, 0) + 1
                self.family.record(op="failed", queue=text(self.name), id=item_id, errors=self.errors[item_id])

    def clear(self) -> None:
        self.check()
        ids = list(self.order)
        self.order.clear()
        self.window_items = 0
        self.end(ids)

    def fill(self) -> Deferred[None] | None:
        self.check()
        if self.window_items or not self.order:
            return None
        return self.storage.in_thread(self.storage.read_file, self.family).addCallback(lambda _: self.widen())

    def widen(self) -> None:
        """Let in as many items as there is memory for, or one."""
        room = self.settings.max_memory_size_bytes - self.mem_bytes
        for item_id in list(itertools.islice(self.order, self.window_items, None)):
            room -= len(self.kept[item_id].data)
            if room < 0 and self.window_items:
                break
            self.window_items += 1

    def append(self, item_id: int, stored: Stored) -> None:
        """One more item at the tail."""
        self.kept[item_id] = stored
        self.order.append(item_id)
        if self.window_items == len(self.order) - 1:
            self.widen()

    # Ranges.

    @property
    def first_id(self) -> int:
        if self.reader is not None:
            return self.held_id
        return min([*self.order, *self.opened.values()], default=self.family.next_id)

    def hold(self, reader: bytes) -> None:
        self.set_held(reader, self.first_id)

    def end_hold(self) -> None:
        self.set_held(None, 0)
        self.forget_head()

    def set_held(self, reader: bytes | None, first_id: int) -> None:
        self.check()
        self.reader, self.held_id = reader, first_id
        self.family.record(op="hold", queue=text(self.name), reader=reader and text(reader), id=first_id)

    def end_of(self, first_id: int, max_items: int) -> int:
        ids = [item_id for item_id in sorted(self.kept) if first_id <= item_id < self.next_id][:max_items]
        return ids[-1] + 1 if ids else first_id

    @property
    def next_id(self) -> int:
        return self.family.safe_id

    def read_range(self, first_id: int, end_id: int, max_bytes: int) -> Deferred[list[tuple[int, Item]]]:
        found: list[tuple[int, Item]] = []
        size = 0
        for item_id in sorted(self.kept):
            size += len(self.kept[item_id].data)
            if found and size > max_bytes:
                break
            if max(first_id, self.first_id) <= item_id < min(end_id, self.next_id):
                found.append((item_id, self.item(item_id)))
            else:
                size -= len(self.kept[item_id].data)
        return succeed(found)

    def release(self, end_id: int) -> None:
        self.check()
        ids = [item_id for item_id in self.order if item_id < end_id]
        for item_id in ids:
            self.window_items -= self.order.index(item_id) < self.window_items
            self.order.remove(item_id)
        opened = [xid for xid, item_id in self.opened.items() if item_id < end_id]
        self.end([*ids, *(self.opened.pop(xid) for xid in opened)])
        if self.reader is not None and end_id > self.held_id:
            self.set_held(self.reader, end_id)
            self.forget_head()


@implementer(IStorage)
class TinyStorage:
    refusal: str | None = None

    def __init__(
        self, folder: bytes, clock: IReactorTime, in_thread: InThread, disk: Disk | None = None
    ) -> None:
        self.folder = folder
        self.clock = clock
        self.in_thread = in_thread
        self.disk = disk or Disk()
        self.families: dict[bytes, Family] = {}

    # Start and stop.

    def start(self, settings_for: SettingsFor) -> Deferred[dict[bytes, IQueueStorage | Failure]]:
        self.disk.make_folder(self.folder)
        self.lock = FolderLock(self.folder + b"/lock")
        return self.in_thread(self.load_all, settings_for)

    def load_all(self, settings_for: SettingsFor) -> dict[bytes, IQueueStorage]:
        loaded: dict[bytes, IQueueStorage] = {}
        for file_name in self.disk.list_files(self.folder):
            if file_name.endswith(b".tiny"):
                name = unquote_to_bytes(file_name.removesuffix(b".tiny"))
                family = self.families[name] = self.load(name, settings_for)
                loaded |= family.queues
        return loaded

    def load(self, name: bytes, settings_for: SettingsFor) -> Family:
        """A family as its file has it; an unfinished last line is cut."""
        family = Family(name)
        family.descriptor = self.disk.open_append(self.path(name))
        family.size = self.disk.size(family.descriptor)
        data = self.disk.read(family.descriptor, 0, family.size)
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) != family.size:
            self.disk.cut(family.descriptor, len(whole))
        family.size = family.safe_size = len(whole)
        for line in whole.splitlines():
            self.replay(family, json.loads(line), settings_for)
        family.safe_id = family.next_id
        for queue in family.queues.values():
            queue.replayed_items = len(queue.order)
            queue.forget_head()
        return family

    def replay(self, family: Family, record: dict[str, Any], settings_for: SettingsFor) -> None:
        """Do again what a record says."""
        names = [name.encode("latin-1") for name in record.get("queues", [record.get("queue", "")])]
        queues = [family.queues[name] for name in names if name in family.queues]
        match record["op"]:
            case "make":
                queue = family.queues[names[0]] = TinyQueue(names[0], family, self)
                queue.settings = settings_for(names[0])
            case "drop":
                del family.queues[names[0]]
            case "next":
                family.next_id = record["id"]
            case "put":
                family.next_id = max(family.next_id, record["id"] + 1)
                data = self.decoded(record["data"])
                for queue in queues:
                    queue.append(record["id"], Stored(data, record["add"], record["expiry"]))
            case "done":
                for item_id in record["ids"]:
                    self.replay_done(queues[0], item_id)
            case "hold":
                reader = record["reader"]
                queues[0].reader, queues[0].held_id = reader and reader.encode("latin-1"), record["id"]
            case "failed":
                queues[0].errors[record["id"]] = record["errors"]

    def replay_done(self, queue: TinyQueue, item_id: int) -> None:
        if item_id in queue.order:
            queue.window_items -= queue.order.index(item_id) < queue.window_items
            queue.order.remove(item_id)

    def close(self, compacts: bool = False) -> Deferred[None]:
        return self.in_thread(self.close_all)

    def close_all(self) -> None:
        for family in self.families.values():
            if family.failure is None:
                self.write(family)
                self.sync(family)
            self.let_go(family)
        self.lock.release()

    def let_go(self, family: Family) -> None:
        """No more is written to that file."""
        for queue in family.queues.values():
            queue.failure = queue.failure or "the server is stopping"
        if family.descriptor >= 0:
            self.disk.close(family.descriptor)
            family.descriptor = -1

    # Queues.

    def path(self, family_name: bytes) -> bytes:
        return self.folder + b"/" + quote_from_bytes(family_name, safe="").encode() + b".tiny"

    def family_of(self, name: bytes, settings: QueueSettings) -> Family:
        """The live family of that queue, opened anew if it failed."""
        family_name = parent_of(name) or name
        family = self.families.get(family_name)
        try:
            if family is None:
                family = Family(family_name)
                family.descriptor = self.disk.open_append(self.path(family_name))
            elif family.failure is not None:
                self.repair(family)
                family = self.load(family_name, lambda _: settings)
        except OSError as error:
            raise QueueFailed(f"the queue cannot be loaded: {error}") from error
        self.families[family_name] = family
        return family

    def queue(self, name: bytes, settings: QueueSettings) -> TinyQueue:
        family = self.family_of(name, settings)
        queue = family.queues.get(name)
        if queue is None:
            queue = family.queues[name] = TinyQueue(name, family, self)
            family.record(op="make", queue=text(name))
        queue.settings = settings
        return queue

    def delete(self, queue: TinyQueue) -> None:
        if queue.is_deleted:
            return
        if queue.failure is not None:  # what it is now goes with it
            try:
                live = self.queue(queue.name, queue.settings)
            except QueueFailed as failure:
                raise StorageError(str(failure)) from failure
            self.delete(live)
            queue.family = live.family
        else:
            del queue.family.queues[queue.name]
            queue.family.record(op="drop", queue=text(queue.name))
        queue.failure = "the queue was deleted"
        queue.is_deleted = True

    def put(self, queues: Sequence[TinyQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        if self.refusal is not None:
            raise StorageRefused(self.refusal)
        if len(data) > MAX_ITEM_BYTES:
            raise ItemTooLarge(f"an item holds at most {MAX_ITEM_BYTES} bytes")
        for queue in queues:
            queue.check()
        families = {queue.family.name: queue.family for queue in queues}
        for family in families.values():
            members = [queue for queue in queues if queue.family is family]
            self.record_put(family, family.next_id, members, Stored(data, add_ms, expiry_ms))
            for queue in members:
                queue.append(family.next_id, Stored(data, add_ms, expiry_ms))
            family.next_id += 1

    def record_put(self, family: Family, item_id: int, queues: Iterable[TinyQueue], stored: Stored) -> None:
        family.record(
            op="put",
            id=item_id,
            queues=[text(queue.name) for queue in queues],
            data=self.encoded(stored.data),
            add=stored.add_ms,
            expiry=stored.expiry_ms,
        )

    def encoded(self, data: bytes) -> str:
        return base64.b64encode(data).decode()

    def decoded(self, data: str) -> bytes:
        return base64.b64decode(data)

    # Commits.

    def commit(self, queues: Sequence[TinyQueue]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        pairs: list[tuple[Sequence[IQueueStorage], Deferred[Any]]] = []
        for family in {id(queue.family): queue.family for queue in queues}.values():
            members = [queue for queue in queues if queue.family is family]
            outcome = self.commit_family(family, [queue.settings.sync_journal_ms for queue in members])
            if outcome is not None:
                pairs.append((members, outcome))
        return pairs

    def commit_family(self, family: Family, syncs: Sequence[int | None]) -> Deferred[None] | None:
        try:
            if family.failure is not None:
                raise QueueFailed(family.failure)
            self.write(family)
        except OSError as error:
            return fail(self.kill(family, error))
        except QueueFailed as error:
            return fail(error)
        if 0 in syncs:
            return self.begin_sync(family)
        self.is_safe(family, family.size, family.next_id)
        if any(syncs):
            self.clock.callLater(min(filter(None, syncs)) / 1000, self.begin_sync, family)
        return None

    def write(self, family: Family) -> None:
        data = b"".join(family.pending)
        family.pending.clear()
        if data:
            self.disk.write(family.descriptor, data)
            family.size += len(data)

    def begin_sync(self, family: Family) -> Deferred[None]:
        size, next_id = family.size, family.next_id
        return self.in_thread(self.sync, family).addCallbacks(
            lambda _: self.synced(family, size, next_id), lambda failure: self.sync_failed(family, failure)
        )

    def sync(self, family: Family) -> None:
        if family.descriptor >= 0:
            self.disk.sync(family.descriptor)
            self.disk.sync_folder(self.folder)

    def synced(self, family: Family, size: int, next_id: int) -> None:
        if family.failure is not None:
            raise QueueFailed(family.failure)
        self.is_safe(family, size, next_id)

    def is_safe(self, family: Family, size: int, next_id: int) -> None:
        family.safe_size, family.safe_id = max(family.safe_size, size), max(family.safe_id, next_id)

    def sync_failed(self, family: Family, failure: Failure) -> None:
        raise self.kill(family, failure.value)

    def kill(self, family: Family, error: Exception) -> QueueFailed:
        """Nothing that is not safe will come back."""
        if family.failure is None:
            family.failure = f"queue storage failed: {error}"
            for queue in family.queues.values():
                queue.failure = family.failure
            self.let_go(family)
            with suppress(OSError):  # queue() tries again
                self.repair(family)
        return QueueFailed(family.failure)

    def repair(self, family: Family) -> None:
        """Write what is safe to a new file."""
        self.replace(family.name, self.read_file(family)[: family.safe_size])

    def replace(self, name: bytes, contents: bytes) -> None:
        self.disk.close(self.write_new(name, contents))
        self.disk.rename(self.path(name) + b".new", self.path(name))
        self.disk.sync_folder(self.folder)

    def write_new(self, name: bytes, contents: bytes) -> int:
        """The descriptor of a new file with these contents, which are on the medium."""
        new = self.path(name) + b".new"
        self.disk.erase(new)
        descriptor = self.disk.open_append(new)
        try:
            self.disk.write(descriptor, contents)
            self.disk.sync(descriptor)
        except OSError:
            self.disk.close(descriptor)
            raise
        return descriptor

    def read_file(self, family: Family) -> bytes:
        descriptor = self.disk.open_read(self.path(family.name))
        try:
            return self.disk.read(descriptor, 0, self.disk.size(descriptor))
        finally:
            self.disk.close(descriptor)

    # Upkeep.

    def compact(self, family: Family) -> None:
        """Write a new file with what there is, all of which is safe."""
        contents = Family(family.name)
        contents.record(op="next", id=family.next_id)
        for queue in family.queues.values():
            contents.record(op="make", queue=text(queue.name))
        for item_id, stored in self.live_items(family):
            queues = [queue for queue in family.queues.values() if item_id in queue.kept]
            self.record_put(contents, item_id, queues, stored)
            for queue in queues:
                if item_id not in queue.order and item_id not in queue.opened.values():
                    contents.record(op="done", queue=text(queue.name), ids=[item_id])
                if item_id in queue.errors:
                    contents.record(op="failed", queue=text(queue.name), id=item_id, errors=queue.errors[item_id])
        data = b"".join(contents.pending)
        try:
            descriptor = self.write_new(family.name, data)
        except OSError:
            return
        try:
            self.disk.rename(self.path(family.name) + b".new", self.path(family.name))
        except OSError:
            self.disk.close(descriptor)
            return
        self.disk.close(family.descriptor)
        family.descriptor = descriptor
        family.size = family.safe_size = len(data)

    def live_items(self, family: Family) -> Iterator[tuple[int, Stored]]:
        kept = {item_id: stored for queue in family.queues.values() for item_id, stored in queue.kept.items()}
        yield from sorted(kept.items(), key=lambda pair: pair[0])


def text(name: bytes) -> str:
    """A name as JSON has it."""
    return name.decode("latin-1")
