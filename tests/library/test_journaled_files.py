"""The files of a journaled queue: format, restarts, archive, and several queues in a folder."""

from __future__ import annotations

import base64
import errno
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from kestrel.errors import QueueFailed, StorageError
from kestrel.library import JournaledQueue, JournaledQueueConfig, JournaledQueueReaderConfig
from kestrel.scroll.reader_file import read_state
from kestrel.storage.scroll.storage import ScrollStorage
from kestrel.testing.server import MemoryServer
from tests.journal.handwritten import BytesReader
from tests.library.journaled import START_MS, WORK, Program, config
from tests.scroll.independent import puts_in
from tests.storage.scroll.test_recorded import DIFFERENCES, EACH, Recorded, items_of

# Files of libkestrel.


@EACH
def test_folder_of_libkestrel_has_the_recorded_items(program: Program, case: Recorded) -> None:
    shutil.copytree(case.path, program.folder_path)
    program.reactor.advance((case.expected["now"] - START_MS) / 1000)
    queue = program.queue()
    expected = {f"items of {name}": items_of(reader) for name, reader in case.expected["readers"].items()}
    found: dict[str, object] = {}
    for reader in queue.readers:
        items = [program.get(reader) for _ in range(reader.items) if program.result(reader.peek(0))]
        found[f"items of {reader.name.decode()}"] = [
            (item.id, base64.b64encode(item.data).decode(), item.add_ms, item.expiry_ms or None, item.errors)
            for item in items
        ]
    differing = {what for what in expected.keys() | found.keys() if expected.get(what) != found.get(what)}
    listed = DIFFERENCES.get((case.case, case.folder), {})
    assert differing == {what for what in listed if what.startswith("items of ")}


# File format.


def test_item_is_one_record_for_all_readers(program: Program, queue: JournaledQueue) -> None:
    program.put(queue, b"one")
    queue.reader(b"a"), queue.reader(b"b")
    program.put(queue, b"two")
    queue.drop_reader(b"a")
    queue.put(b"three")
    program.reactor.settle()
    (writer,) = program.folder_path.glob("work.[0-9]*")
    assert [(put.item.data, put.targets) for put in puts_in(writer)] == [
        (b"one", None),
        (b"two", None),
        (b"three", None),
    ]


def test_reader_file_has_the_done_items(program: Program, queue: JournaledQueue) -> None:
    program.put(queue, b"1", b"2", b"3", b"4")
    reader = queue.reader()
    items = [program.get(reader) for _ in range(4)]
    reader.commit(items[0].id)
    reader.commit(items[2].id)
    program.result(queue.close())
    state, end = read_state(BytesReader((program.folder_path / "work.read.").read_bytes()))
    assert (state.done.head, state.done.ranges(), state.errors, end.problem) == (1, [(3, 3)], {}, None)


def ask_a_server(folder: Path, *requests: bytes) -> list[bytes]:
    """Return the replies of a server with the folder."""
    server = MemoryServer(folder=folder, make_storage=ScrollStorage)
    client = server.connect()
    replies = [client.ask(request) for request in requests]
    server.stop()
    server.settle()
    return replies


def test_server_can_use_the_folder(program: Program, queue: JournaledQueue) -> None:
    queue.reader(b"a"), queue.reader(b"b")
    program.put(queue, b"1", b"2")
    queue.reader(b"b").commit(program.get(queue.reader(b"b")).id)
    program.result(queue.close())
    answers = ask_a_server(program.folder_path, b"get work+a\r\n", b"get work+b\r\n", b"get work+b\r\n")
    assert answers == [b"VALUE work+a 0 1\r\n1\r\nEND\r\n", b"VALUE work+b 0 1\r\n2\r\nEND\r\n", b"END\r\n"]


def test_parent_queue_of_a_server_becomes_a_reader(program: Program) -> None:
    puts = [b"set work 0 0 1\r\n1\r\n", b"set work+x 0 0 1\r\n2\r\n", b"set work 0 0 1\r\n3\r\n"]
    assert ask_a_server(program.folder_path, *puts) == [b"STORED\r\n"] * 3
    queue = program.queue()
    program.put(queue, b"4")
    assert {reader.name: program.drain(reader) for reader in queue.readers} == {
        b":own": [b"1", b"3", b"4"],
        b"x": [b"2", b"3", b"4"],
    }


# Restarts.


def test_readers_items_and_ids_survive_a_restart(program: Program, queue: JournaledQueue) -> None:
    for name in (b"a", b"b"):
        queue.reader(name)
    program.put(queue, b"1", b"2", b"3")
    program.get(queue.reader(b"a"))
    queue.reader(b"a").commit(1)
    queue = program.restart(queue)
    assert [(reader.name, reader.items) for reader in queue.readers] == [(b"a", 2), (b"b", 3)]
    program.put(queue, b"4")
    assert program.drain(queue.reader(b"a")) == [b"2", b"3", b"4"]
    assert [program.get(queue.reader(b"b")).id for _ in range(4)] == [1, 2, 3, 4]


def test_default_reader_is_gone_after_a_takeover_and_a_restart(program: Program, queue: JournaledQueue) -> None:
    program.put(queue, b"x")
    queue.reader(b"a")
    program.result(queue.checkpoint())
    queue = program.restart(queue)
    assert [reader.name for reader in queue.readers] == [b"a"]
    assert program.drain(queue.reader(b"a")) == [b"x"]


def test_leftover_file_of_the_default_reader_is_ignored(program: Program, queue: JournaledQueue) -> None:
    queue.reader(b"a")
    program.put(queue, b"x")
    program.result(queue.close())
    shutil.copy(program.folder_path / "work.read.a", program.folder_path / "work.read.")
    queue = program.queue()
    assert [reader.name for reader in queue.readers] == [b"a"]
    program.result(queue.checkpoint())
    assert program.files == ["work", "work.read.a"]


def test_failed_takeover_changes_nothing(program: Program, queue: JournaledQueue) -> None:
    program.put(queue, b"x")
    program.disk.fail("rename", errno.EIO, times=1)
    with pytest.raises(QueueFailed):
        queue.reader(b"a")
    assert [reader.name for reader in queue.readers] == [b""]
    assert program.drain(queue.reader()) == [b"x"]
    assert queue.reader(b"a").name == b"a"


def after_power_failure(program: Program) -> Program:
    """Return a program with the synced contents of the folder."""
    after = Program(program.path)
    after.folder_path = program.path / "left"
    program.disk.medium.copy(str(program.folder_path).encode(), str(after.folder_path).encode())
    return after


@pytest.mark.parametrize("name", [b"", b"a"])
def test_synced_changes_survive_a_power_failure(program: Program, name: bytes) -> None:
    queue = program.queue(config(sync_journal_ms=0))
    program.put(queue, b"1", b"2")
    reader = queue.reader(name)
    reader.commit(program.get(reader).id)
    program.put(queue, b"3")
    program.result(queue.checkpoint())
    after = after_power_failure(program)
    assert {each.name: after.drain(each) for each in after.queue().readers} == {name: [b"2", b"3"]}
    after.stop()


def test_synced_error_count_survives_a_power_failure(program: Program) -> None:
    queue = program.queue(config(sync_journal_ms=0))
    program.put(queue, b"x")
    assert queue.reader().unget(program.get(queue.reader()).id)
    program.result(queue.checkpoint())
    after = after_power_failure(program)
    assert after.get(after.queue().reader()).errors == 1
    after.stop()


# Removal of files.


def test_unneeded_segments_move_to_the_archive(program: Program) -> None:
    archive = program.path / "archive"
    queue = program.queue(config(journal_size_bytes=100, save_archived_journals=archive))
    for number in range(10):
        program.put(queue, b"%050d" % number)
    program.drain(queue.reader())
    program.reactor.pass_time(11)
    archived = sorted(archive.glob("archive~work.*"))
    ids = [put.item.id for path in archived for put in puts_in(path)]
    assert ids and all(later == earlier + 1 for earlier, later in pairwise(ids))


# Several queues in one folder.


def test_queues_of_a_folder_are_independent(program: Program) -> None:
    folder = program.folder()
    work, mail = folder.queue(config(b"work")), folder.queue(config(b"mail"))
    assert folder.queue(config(b"work")) is work
    program.put(work, b"one")
    program.put(mail, b"two")
    work.reader(b"a")
    assert [[reader.name for reader in queue.readers] for queue in (work, mail)] == [[b"a"], [b""]]
    program.result(folder.close())
    folder = program.folder()
    assert program.drain(folder.queue(config(b"work")).reader(b"a")) == [b"one"]
    assert program.drain(folder.queue(config(b"mail")).reader()) == [b"two"]


def test_queue_in_memory_may_share_the_folder(program: Program) -> None:
    folder = program.folder()
    kept, gone = folder.queue(config(b"kept")), folder.queue(config(b"gone", journaled=False))
    program.put(kept, b"x")
    program.put(gone, b"x")
    assert program.files == ["kept", "kept.read."]


def test_closed_queue_can_be_opened_again(program: Program) -> None:
    folder = program.folder()
    work, mail = folder.queue(config(b"work")), folder.queue(config(b"mail"))
    program.put(work, b"one", b"two")
    program.get(work.reader())
    work.put(b"three")
    closing = work.close()
    with pytest.raises(StorageError):
        folder.queue(config(b"work"))
    program.result(closing)
    program.put(mail, b"x")
    again = folder.queue(config(b"work"))
    assert again is not work
    assert program.drain(again.reader()) == [b"one", b"two", b"three"]


def test_erased_queue_can_be_created_again(program: Program) -> None:
    folder = program.folder()
    work, mail = folder.queue(config(b"work")), folder.queue(config(b"mail"))
    program.put(work, b"x")
    program.put(mail, b"y")
    program.result(work.erase())
    work = folder.queue(config(b"work"))
    program.put(work, b"z")
    assert program.files == ["mail", "mail.read.", "work", "work.read."]
    program.result(folder.close())
    folder = program.folder()
    assert program.drain(folder.queue(config(b"work")).reader()) == [b"z"]


def test_queues_share_the_archive_of_the_folder(program: Program) -> None:
    folder = program.folder(archive=program.path / "archive")
    with pytest.raises(ValueError, match="archive"):
        folder.queue(config(save_archived_journals=program.path / "another"))


# Folders that cannot be used.


def test_folder_with_journals_is_refused_and_unchanged(program: Program) -> None:
    server = MemoryServer(folder=program.folder_path)
    server.connect().ask(b"set work 0 0 1\r\nx\r\n")
    server.stop()
    server.settle()
    before = (program.folder_path / "work").read_bytes()
    with pytest.raises(StorageError):
        program.queue()
    assert (program.folder_path / "work").read_bytes() == before


def test_unreadable_queue_can_be_opened_after_the_repair(program: Program, queue: JournaledQueue) -> None:
    program.put(queue, b"x")
    program.result(queue.close())
    program.disk.fail("read", errno.EIO)
    folder = program.folder()
    with pytest.raises(QueueFailed):
        folder.queue(config())
    program.disk.mend()
    assert program.drain(folder.queue(config()).reader()) == [b"x"]


def test_settings_are_those_of_each_reader(program: Program) -> None:
    small = JournaledQueueReaderConfig(max_memory_size_bytes=7)
    both = JournaledQueueConfig(name=WORK, reader_configs={b"small": small}, sync_journal_ms=0)
    assert both.settings_for(b"small").max_memory_size_bytes == 7
    assert both.settings_for(b"large").max_memory_size_bytes > 7
    assert both.settings_for(b"small").sync_journal_ms == both.settings_for(b"large").sync_journal_ms == 0
