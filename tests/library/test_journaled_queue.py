"""A journaled queue: puts, the creation and removal of readers, and the end of the queue."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from kestrel.errors import BadQueueName, ItemTooLarge, QueueFailed, StorageError, StorageRefused
from kestrel.library import JournaledQueue, JournaledQueueConfig, JournaledQueueReaderConfig, Reader
from tests.library.journaled import START_MS, WORK, Program, config
from tests.programs import arrivals

# Names.


@pytest.mark.parametrize("name", [b"", b"a.b", b"a b", b"a+b", b"a/b", b"a~b", b"\xc3\xa9", b"x" * 181])
def test_queue_name_with_other_characters_is_rejected(name: bytes) -> None:
    with pytest.raises(BadQueueName):
        JournaledQueueConfig(name=name)


@pytest.mark.parametrize("name", [b"work", b"A-Z_0:9", b"x" * 180])
def test_name_is_used_in_file_names(program: Program, name: bytes) -> None:
    queue = program.queue(config(name))
    program.put(queue, b"x")
    assert program.files == [name.decode(), name.decode() + ".read."]
    queue.reader(b"x:y_Z-2")
    program.result(queue.checkpoint())
    assert program.files == [name.decode(), name.decode() + ".read.x:y_Z-2"]


@pytest.mark.parametrize("name", [b"a.b", b"a+b", b"x" * 217])
def test_reader_name_with_other_characters_is_rejected(queue: JournaledQueue, name: bytes) -> None:
    with pytest.raises(BadQueueName):
        queue.reader(name)
    with pytest.raises(BadQueueName):
        JournaledQueueConfig(name=WORK, reader_configs={name: JournaledQueueReaderConfig()})
    assert [reader.name for reader in queue.readers] == [b""]


# Puts.


def test_every_reader_gets_each_item(program: Program, queue: JournaledQueue) -> None:
    readers = [queue.reader(name) for name in (b"a", b"b", b"c")]
    program.put(queue, b"one", b"two")
    assert (queue.items, queue.bytes) == (6, 18)
    assert [program.drain(reader) for reader in readers] == [[b"one", b"two"]] * 3
    assert (queue.items, queue.bytes) == (0, 0)


def test_item_has_an_id_times_and_errors(program: Program, queue: JournaledQueue, reader: Reader) -> None:
    program.put(queue, b"first")
    program.reactor.pass_time(1)
    queue.put(b"second", START_MS + 9000)
    queue.put(b"third", add_ms=START_MS - 5)
    assert program.get(reader) == (1, b"first", START_MS, 0, 0)
    assert program.get(reader) == (2, b"second", START_MS + 1000, START_MS + 9000, 0)
    assert program.get(reader) == (3, b"third", START_MS - 5, 0, 0)


@pytest.mark.parametrize("sync_journal_ms", [None, 0, 500])
def test_put_fires_when_it_is_as_safe_as_configured(program: Program, sync_journal_ms: int | None) -> None:
    queue = program.queue(config(sync_journal_ms=sync_journal_ms))
    program.reactor.result(queue.checkpoint())
    program.disk.calls.clear()
    put = queue.put(b"x")
    assert put is not None
    told = arrivals(put)
    assert (told, program.disk.calls) == ([], [])
    program.reactor.settle()
    assert told == [None]
    assert program.disk.calls.count("sync") == (1 if sync_journal_ms == 0 else 0)


def test_failed_put_reaches_no_reader(program: Program, queue: JournaledQueue) -> None:
    readers = [queue.reader(b"a"), queue.reader(b"b")]
    program.put(queue, b"kept")
    program.disk.fail("write", errno.EIO, times=1)
    put = queue.put(b"lost")
    assert put is not None
    with pytest.raises(QueueFailed):
        program.result(put)
    with pytest.raises(QueueFailed):
        program.result(queue.checkpoint())
    program.put(queue, b"later")
    assert [program.drain(reader) for reader in readers] == [[b"kept", b"later"]] * 2


def test_full_disk_refuses_puts_but_not_gets(program: Program) -> None:
    queue = program.queue(reserve_bytes=4096)
    reader = queue.reader()
    program.put(queue, b"one")
    program.disk.room = 0
    program.put(queue, b"two")  # in the reserve
    with pytest.raises(StorageRefused):
        queue.put(b"three")
    assert program.drain(reader) == [b"one", b"two"]
    program.result(queue.checkpoint())


@pytest.mark.parametrize("journaled", [True, False])
def test_item_over_the_limit_is_refused(program: Program, journaled: bool) -> None:
    queue = program.queue(config(max_item_size_bytes=3, journaled=journaled))
    assert queue.put(b"1234") is None
    assert queue.put(b"123") is not None
    assert queue.items == 1


def test_item_over_16_mib_is_an_error(queue: JournaledQueue) -> None:
    with pytest.raises(ItemTooLarge):
        queue.put(bytes((16 << 20) + 1))
    assert queue.items == 0


def test_put_refused_by_one_reader_reaches_none(program: Program) -> None:
    queue = program.queue(config(reader_configs={b"small": JournaledQueueReaderConfig(max_items=1)}))
    small, large = queue.reader(b"small"), queue.reader(b"large")
    program.put(queue, b"one")
    assert queue.put(b"two") is None
    assert (small.items, large.items) == (1, 1)
    assert program.drain(small) == [b"one"]
    program.put(queue, b"three")
    assert program.drain(large) == [b"one", b"three"]


@pytest.mark.parametrize("use", [lambda queue: queue.put(b"new"), JournaledQueue.discard_expired])
def test_reader_dropped_by_a_hook_is_skipped(program: Program, use: Callable[[JournaledQueue], Any]) -> None:
    reader = JournaledQueueReaderConfig(max_age_ms=1000, process_expired_item=lambda item: queue.drop_reader(b"b"))
    queue = program.queue(config(reader_configs={b"a": reader}))
    queue.reader(b"a")
    queue.reader(b"b")
    program.put(queue, b"old")
    program.reactor.pass_time(1)
    program.result(use(queue))
    assert [reader.name for reader in queue.readers] == [b"a"]


@pytest.mark.parametrize("data", ["text", None, bytearray(b"x")])
def test_item_must_be_bytes(program: Program, data: Any) -> None:
    with pytest.raises(TypeError):
        program.queue().put(data)


@pytest.mark.parametrize("journaled", [True, False])
@pytest.mark.parametrize("time", ["expiry_ms", "add_ms"])
@pytest.mark.parametrize("wrong, error", [(1.5, TypeError), ("1", TypeError), (-1, ValueError), (1 << 63, ValueError)])
def test_invalid_time_is_rejected(
    program: Program, wrong: Any, error: type[Exception], time: str, journaled: bool
) -> None:
    queue = program.queue() if journaled else program.in_memory()
    with pytest.raises(error, match=time):
        queue.put(b"x", **{time: wrong})
    program.put(queue, b"one")
    assert program.get(queue.reader()).id == 1


# Settings.


@pytest.mark.parametrize(
    ("make", "setting", "value"),
    [
        (JournaledQueueReaderConfig, "max_items", -1),
        (JournaledQueueReaderConfig, "max_size_bytes", "1"),
        (JournaledQueueReaderConfig, "max_age_ms", 1.5),
        (JournaledQueueReaderConfig, "max_expire_sweep", -1),
        (JournaledQueueReaderConfig, "max_queue_age_ms", "1"),
        (JournaledQueueReaderConfig, "max_memory_size_bytes", None),
        (JournaledQueueReaderConfig, "full_policy", "drop the oldest"),
        (JournaledQueueReaderConfig, "error_handler", True),
        (config, "name", "work"),
        (config, "max_item_size_bytes", -1),
        (config, "journal_size_bytes", None),
        (config, "sync_journal_ms", 0.5),
        (config, "reader", 1),
        (config, "reader_configs", {b"mail": {"max_items": 1}}),
    ],
)
def test_invalid_settings_are_refused_by_name(make: Callable[..., object], setting: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=setting):
        make(**{setting: value})


# Creation of readers.


def test_default_reader_exists_until_there_is_a_named_one(queue: JournaledQueue) -> None:
    assert [reader.name for reader in queue.readers] == [b""]
    assert queue.reader() is queue.reader(b"")
    queue.reader(b"a")
    assert [reader.name for reader in queue.readers] == [b"a"]
    with pytest.raises(BadQueueName):
        queue.reader()


@pytest.mark.parametrize("journaled", [True, False])
def test_first_named_reader_takes_over_the_default_reader(program: Program, journaled: bool) -> None:
    queue = program.queue(config(journaled=journaled))
    default = queue.reader()
    program.put(queue, b"done", b"open", b"left")
    assert default.commit(program.get(default).id)
    held = program.get(default)
    named = queue.reader(b"a")
    assert named is default and named.name == b"a"
    assert named.commit(held.id)
    assert program.drain(named) == [b"left"]


def test_waiter_of_the_default_reader_is_taken_over(program: Program, queue: JournaledQueue) -> None:
    arrival = arrivals(queue.reader().get())
    queue.reader(b"a")
    program.put(queue, b"x")
    assert arrival == [b"x"]


def test_first_named_reader_uses_its_own_config(program: Program) -> None:
    queue = program.queue(config(reader_configs={b"small": JournaledQueueReaderConfig(max_items=2)}))
    program.put(queue, b"1", b"2")
    assert queue.put(b"3") is not None
    queue.reader(b"small")
    assert queue.put(b"4") is None


@pytest.mark.parametrize("journaled", [True, False])
def test_later_reader_starts_after_the_last_item(program: Program, journaled: bool) -> None:
    queue = program.queue(config(journaled=journaled))
    first = queue.reader(b"first")
    program.put(queue, b"one", b"two")
    later = queue.reader(b"later")
    assert (first.items, later.items) == (2, 0)
    program.put(queue, b"three")
    assert program.get(later)[:2] == (3, b"three")
    assert program.drain(first) == [b"one", b"two", b"three"]


# Removal of readers.


@pytest.mark.parametrize("journaled", [True, False])
def test_dropped_reader_loses_its_files_and_waiters(program: Program, journaled: bool) -> None:
    queue = program.queue(config(journaled=journaled))
    kept, gone = queue.reader(b"kept"), queue.reader(b"gone")
    program.put(queue, b"x")
    assert program.get(gone).data == b"x"
    waiting = arrivals(gone.get())
    program.result(queue.drop_reader(b"gone"))
    program.result(queue.drop_reader(b"gone"))
    assert waiting == [None]
    assert [reader.name for reader in queue.readers] == [b"kept"]
    assert program.files == (["work", "work.read.kept"] if journaled else [])
    with pytest.raises(StorageError):
        gone.commit(1)
    assert program.drain(kept) == [b"x"]
    again = queue.reader(b"gone")
    assert again is not gone and again.items == 0


def test_dropping_the_last_reader_leaves_an_empty_default_reader(program: Program, queue: JournaledQueue) -> None:
    named = queue.reader(b"a")
    program.put(queue, b"open", b"left")
    held = program.get(named)
    program.result(queue.drop_reader(b"a"))
    assert [reader.name for reader in queue.readers] == [b""]
    assert (queue.items, named.commit(held.id)) == (0, False)
    program.put(queue, b"next")
    queue = program.restart(queue)
    assert program.drain(queue.reader()) == [b"next"]


def test_callback_of_a_dropped_reader_sees_the_queue_without_it(program: Program, queue: JournaledQueue) -> None:
    queue.reader(b"kept")
    gone = queue.reader(b"gone")
    gone.get().addCallback(lambda _: queue.put(b"x"))
    program.result(queue.drop_reader(b"gone"))
    assert program.drain(queue.reader(b"kept")) == [b"x"]


# All readers at once.


@pytest.mark.parametrize("journaled", [True, False])
def test_flush_drops_all_items_except_open_reads(program: Program, journaled: bool) -> None:
    queue = program.queue(config(journaled=journaled))
    a, b = queue.reader(b"a"), queue.reader(b"b")
    program.put(queue, b"one", b"two")
    held = program.get(a)
    queue.flush()
    assert (a.items, b.items, a.counts.flushes, b.counts.flushes) == (1, 0, 1, 1)
    assert a.unget(held.id)
    assert program.drain(a) == [b"one"]


def test_discard_expired_counts_items_of_all_readers(program: Program, queue: JournaledQueue) -> None:
    queue.reader(b"a"), queue.reader(b"b")
    for number in range(4):
        queue.put(b"%d" % number, START_MS + 1000)
    program.put(queue, b"stays")
    program.reactor.pass_time(1)
    assert program.result(queue.discard_expired()) == 8
    assert queue.items == 2


def test_evicted_waiters_get_none(queue: JournaledQueue) -> None:
    waiting = [arrivals(queue.reader(name).get(60)) for name in (b"a", b"b")]
    queue.evict_waiters()
    assert waiting == [[None], [None]]


# The end.


CALLS: list[Callable[[JournaledQueue], object]] = [
    lambda queue: queue.put(b"x"),
    lambda queue: queue.reader(),
    lambda queue: queue.reader(b"a"),
    lambda queue: queue.flush(),
    lambda queue: queue.evict_waiters(),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("journaled", [True, False])
def test_closed_queue_rejects_all_calls(
    program: Program, call: Callable[[JournaledQueue], object], journaled: bool
) -> None:
    queue = program.queue(config(journaled=journaled))
    reader = queue.reader()
    waiting = arrivals(reader.get())
    closing = queue.close()
    assert waiting == [None]
    with pytest.raises(StorageError):
        call(queue)
    program.result(closing)
    with pytest.raises(StorageError):
        call(queue)
    with pytest.raises(StorageError):
        reader.commit(1)
    with pytest.raises(StorageError):
        program.result(reader.get())
    assert queue.is_closed


def test_second_close_waits_for_the_first(program: Program, queue: JournaledQueue) -> None:
    queue.put(b"x")
    closings = [arrivals(queue.close()), arrivals(queue.close()), arrivals(queue.folder.close())]
    assert closings == [[], [], []]
    program.reactor.settle()
    assert closings == [[None], [None], [None]]
    program.result(queue.close())
    assert program.drain(program.queue().reader()) == [b"x"]


def test_close_during_setup_follows_it(program: Program) -> None:
    queue = JournaledQueue(config(), program.folder_path, program.reactor, reserve_bytes=1, disk=program.disk)
    told = [arrivals(queue.setup()), arrivals(queue.close())]
    program.reactor.settle()
    assert ([type(each) for each in told[0]], told[1], queue.is_closed) == ([StorageError], [None], True)
    assert queue.readers == []
    program.put(program.queue(), b"x")


def test_closing_the_folder_closes_the_queue(program: Program, queue: JournaledQueue) -> None:
    queue.put(b"x")
    program.result(queue.folder.close())
    assert queue.is_closed
    assert program.drain(program.queue().reader()) == [b"x"]


def test_close_reports_a_loss_since_the_last_checkpoint(program: Program, queue: JournaledQueue) -> None:
    program.put(queue, b"x")
    item = program.get(queue.reader())
    program.disk.fail("write", errno.EIO)
    queue.reader().commit(item.id)
    with pytest.raises(QueueFailed):
        program.result(queue.close())
    program.disk.mend()
    assert program.drain(program.queue().reader()) == [b"x"]


def test_erased_queue_leaves_no_file(program: Program, queue: JournaledQueue) -> None:
    queue.reader(b"a"), queue.reader(b"b")
    program.put(queue, b"x")
    program.result(queue.erase())
    assert program.files == []
    queue = program.queue()
    assert ([reader.name for reader in queue.readers], queue.items) == ([b""], 0)


def test_failed_erase_can_be_repeated(program: Program) -> None:
    folder = program.folder()
    queue = folder.queue(config())
    queue.reader(b"a"), queue.reader(b"b")
    program.put(queue, b"x")
    program.disk.fail("erase", errno.EIO, times=1)
    with pytest.raises(StorageError):
        program.result(queue.erase())
    assert [(reader.name, reader.items) for reader in queue.readers] == [(b"a", 1), (b"b", 1)]
    program.put(queue, b"y")
    program.result(queue.erase())
    assert program.files == []


def test_queue_before_setup_rejects_puts(program: Program) -> None:
    queue = JournaledQueue(config(), program.folder_path, program.reactor, disk=program.disk)
    with pytest.raises(StorageError):
        queue.put(b"x")
    assert (queue.items, queue.bytes, queue.journal_bytes) == (0, 0, 0)
    assert program.disk.calls == []
    program.result(queue.close())


# In memory.


def test_queue_without_a_path_writes_nothing(program: Program) -> None:
    queue = program.in_memory()
    reader = queue.reader()
    program.put(queue, b"one", b"two")
    assert [program.get(reader).id for _ in range(2)] == [1, 2]
    assert reader.unget(1)
    program.result(queue.checkpoint())
    assert (queue.journal_bytes, program.folder_path.exists(), program.disk.calls) == (0, False, [])


def test_queue_that_is_not_journaled_writes_nothing(program: Program) -> None:
    queue = program.queue(config(journaled=False))
    program.put(queue, b"x")
    queue = program.restart(queue)
    assert queue.items == 0
    assert not program.folder_path.exists()
