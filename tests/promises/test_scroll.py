"""The scroll storage: a parent and its children share a journal, and each reads it at its own pace."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from kestrel.config.load import loads
from kestrel.errors import StorageError
from kestrel.storage.scroll.storage import CHECKPOINTS_EVERY_S, ScrollStorage
from kestrel.testing.server import MemoryClient, MemoryServer
from tests.memcache_text import END, STORED, items, put, set_, stat, value
from tests.storage.threaded_server import ThreadedServer

GOLDEN: Final = Path(__file__).parents[1] / "scroll" / "golden"

SMALL_FILES: Final = """
[default]
defaultJournalSize = 1000
"""


class ScrollServer(ThreadedServer):
    """A server over a folder of scrolls.

    Work in threads ends at once unless `stand_still` is set.
    """

    stand_still = False

    def __init__(self, folder: Path, config: str = "", **options: Any) -> None:
        super().__init__(folder, loads(config), ScrollStorage, **options)

    def settle(self) -> None:
        """Run all pending work, also in threads."""
        super().settle()
        while len(self.threads) and not self.stand_still:
            self.threads.run_one()
            super().settle()

    def end(self) -> None:
        """Stop the server in an orderly way."""
        self.stop()
        self.settle()

    def files(self) -> dict[str, bytes]:
        """Return the files of the folder with their contents."""
        return {path.name: path.read_bytes() for path in self.queues.iterdir() if path.is_file()}

    def writer_files(self) -> list[str]:
        """Return the names of the files that hold items."""
        return sorted(name for name in self.files() if ".read." not in name)


def some(count: int) -> list[bytes]:
    """Return distinct items of 100 bytes."""
    return [b"%04d" % number * 25 for number in range(count)]


@pytest.fixture
def server(tmp_path: Path) -> ScrollServer:
    return ScrollServer(tmp_path / "queues")


@pytest.fixture
def client(server: ScrollServer) -> MemoryClient:
    return server.connect()


def restarted(server: ScrollServer) -> ScrollServer:
    server.end()
    return ScrollServer(server.queues)


def crashed(server: ScrollServer) -> ScrollServer:
    """Return a server over a copy of the files as they are now."""
    copy = server.queues.with_name(server.queues.name + "-copy")
    shutil.copytree(server.queues, copy)
    return ScrollServer(copy)


# Sharing of journals.


def test_item_for_parent_is_written_once(server: ScrollServer, client: MemoryClient) -> None:
    client.ask(b"get a+x\r\nget a+y\r\nget a+z\r\n")
    put(client, b"a", b"hello")
    assert sum(contents.count(b"hello") for contents in server.files().values()) == 1
    assert [items(client, queue) for queue in (b"a", b"a+x", b"a+y", b"a+z")] == [[b"hello"]] * 4


def test_item_of_one_child_never_reaches_another(server: ScrollServer, client: MemoryClient) -> None:
    client.ask(b"get a+x\r\nget a+y\r\n")
    put(client, b"a+x", b"for x")
    put(client, b"a", b"for all")
    for each in (crashed(server), restarted(server)):
        client = each.connect()
        found = [items(client, queue) for queue in (b"a", b"a+x", b"a+y")]
        assert found == [[b"for all"], [b"for x", b"for all"], [b"for all"]]


def test_put_waits_for_strictest_sync_journal_in_shared_journal(tmp_path: Path) -> None:
    strict = "[[queues]]\nname = 'a+x'\nsyncJournal = 0\n"
    server = ScrollServer(tmp_path / "queues", strict)
    client = server.connect()
    client.ask(b"get a+x\r\nget b\r\n")
    server.stand_still = True
    put(client, b"b", b"alone")
    assert client.ask(set_(b"a", b"with a strict child")) == b""
    server.stand_still = False
    assert client.ask(b"") == STORED


def test_failed_write_affects_only_its_parent_and_children(server: ScrollServer, client: MemoryClient) -> None:
    client.ask(b"get a+x\r\n")
    put(client, b"a", b"before")
    put(client, b"b", b"elsewhere")
    holder, other = server.connect(), server.connect()
    assert holder.ask(b"get a+x/open\r\n") == value(b"a+x/open", b"before")
    assert other.ask(b"get b/open\r\n") == value(b"b/open", b"elsewhere")
    server.disk.fail("write", errno.EIO, times=1)
    assert client.ask(set_(b"a", b"lost")).startswith(b"SERVER_ERROR ")
    assert holder.ask(b"get a+x/close\r\n").startswith(b"SERVER_ERROR ")
    assert other.ask(b"get b/close\r\n") == END
    put(client, b"a", b"after")
    assert items(client, b"a") == items(client, b"a+x") == [b"before", b"after"]


@pytest.mark.parametrize(
    ("creates", "puts", "replies"),
    [
        (set_(b"work+a", b"1"), set_(b"work", b"2"), [b"SERVER_ERROR", b"SERVER_ERROR"]),
        (b"get work+a\r\n", set_(b"work", b"2"), [b"SERVER_ERROR", b"SERVER_ERROR"]),
        (b"get work+a\r\n", set_(b"work+b", b"2"), [b"SERVER_ERROR", b"STORED"]),
    ],
)
def test_put_is_in_no_queue_if_its_child_cannot_be_created(
    creates: bytes, puts: bytes, replies: list[bytes], tmp_path: Path
) -> None:
    server = ScrollServer(tmp_path / "queues", "[default]\nsyncJournal = 0\n")
    client = server.connect()
    assert client.ask(b"get work+b\r\n") == END
    put(client, b"work", b"old")
    server.stand_still = True
    client.send(creates + puts)
    server.settle()
    server.disk.fail("sync", errno.EIO, times=1)
    server.stand_still = False
    assert [line.split()[0] for line in client.take().splitlines()] == replies
    found = [items(client, name) for name in (b"work", b"work+a", b"work+b")]
    assert found == [[b"old"], [], [b"old", b"2"] if STORED.strip() in replies else [b"old"]]


def test_refused_put_is_not_in_the_files_of_its_family(tmp_path: Path) -> None:
    server = ScrollServer(tmp_path / "queues", "[default]\nsyncJournal = 0\n")
    client, other = server.connect(), server.connect()
    assert client.ask(b"get work\r\nget work+a\r\n") == END * 2
    server.stand_still = True
    client.send(set_(b"work+a", b"1"))
    server.settle()
    client.send(set_(b"work+a", b"2"))
    other.send(set_(b"work", b"3"))
    server.settle()
    while len(server.threads):
        server.threads.run_one()  # without a tick
    server.disk.fail("write", errno.EIO, times=1)
    client.send(set_(b"work+a", b"4"))
    server.stand_still = False
    replies = [line.split()[0] for line in client.take().splitlines()]
    found = items(server.connect(), b"work+a")
    assert [b"2" in found, b"4" in found] == [reply == b"STORED" for reply in replies[1:]]


# After a restart.


def test_items_keep_put_order_after_restart(server: ScrollServer, client: MemoryClient) -> None:
    put(client, b"work", b"1", b"2", b"3", b"4")
    holders = [server.connect() for _ in range(3)]
    for holder in holders:
        holder.ask(b"get work/open\r\n")
    assert holders[1].ask(b"get work/close\r\n") == END
    holders[2].ask(b"get work/abort\r\n")
    holders[0].ask(b"get work/abort\r\n")
    holders[1].ask(b"get work/open\r\n")
    for again in (crashed(server), restarted(server)):
        assert items(again.connect(), b"work") == [b"1", b"3", b"4"]


def test_files_of_libkestrel_can_be_read(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "L03_readers" / "journal_crash", tmp_path / "queues")
    client = ScrollServer(tmp_path / "queues").connect()
    figures = client.ask(b"stats\r\n").decode()
    assert "STAT queue_work+a_items" in figures and "STAT queue_work+b_items" in figures
    assert items(client, b"work+a") and items(client, b"work+b")


def test_position_hints_are_optional(tmp_path: Path) -> None:
    server = ScrollServer(tmp_path / "queues")
    data = some(5000)
    client = server.connect()
    for start in range(0, 5000, 500):
        client.ask(b"".join(set_(b"work", each) for each in data[start : start + 500]))
    for _ in range(2500):
        client.ask(b"get work\r\n")
    server.end()
    (hint,) = (tmp_path / "queues" / ".kestrel" / "hints").iterdir()
    found = {}
    for name, contents in {"hint": hint.read_bytes(), "none": None, "wrong": b"x" + hint.read_bytes()[1:]}.items():
        folder = tmp_path / name
        shutil.copytree(tmp_path / "queues", folder)
        path = folder / ".kestrel" / "hints" / hint.name
        path.unlink() if contents is None else path.write_bytes(contents)
        found[name] = items(ScrollServer(folder).connect(), b"work")
    assert found == dict.fromkeys(["hint", "none", "wrong"], data[2500:])


# Memory and disk.


def test_only_a_window_of_a_queue_is_in_memory(server: ScrollServer, client: MemoryClient) -> None:
    put(client, b"large", *[bytes(10_000)] * 100)
    client.ask(set_(b"small", b"x") * 5000)
    assert stat(client, b"large", "items") == "100"
    assert int(stat(client, b"large", "mem_bytes")) <= 256 * 1024 + 10_000
    assert (stat(client, b"small", "items"), stat(client, b"small", "mem_items")) == ("5000", "4096")
    assert items(client, b"large") == [bytes(10_000)] * 100


def test_files_stay_until_slowest_reader_is_done(tmp_path: Path) -> None:
    server = ScrollServer(tmp_path / "queues", SMALL_FILES)
    client = server.connect()
    client.ask(b"get a+slow\r\n")
    put(client, b"a", *some(50))
    files = server.writer_files()
    assert len(files) > 5
    assert len(items(client, b"a")) == 50
    assert server.writer_files() == files
    for _ in range(25):
        client.ask(b"get a+slow\r\n")
    assert 1 < len(server.writer_files()) < len(files)
    holder = server.connect()
    holder.ask(b"get a+slow/open\r\n")
    assert len(items(client, b"a+slow")) == 24
    assert len(server.writer_files()) > 1
    holder.ask(b"get a+slow/close\r\n")
    assert server.writer_files() == files[-1:]


def test_unneeded_files_go_to_the_archive(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    server = ScrollServer(tmp_path / "queues", SMALL_FILES, archive=os.fsencode(archive))
    client = server.connect()
    data = some(50)
    put(client, b"work", *data)
    written = server.files()
    assert items(client, b"work") == data
    kept = {path.name: path.read_bytes() for path in archive.iterdir()}
    gone = set(written) - set(server.files())
    assert gone and kept == {f"archive~{name}": written[name] for name in gone}


def test_full_disk_can_be_drained_without_packing(server: ScrollServer, client: MemoryClient) -> None:
    put(client, b"work", *[b"x"] * 2000)
    server.disk.room = 0
    put(client, b"work", b"last")
    assert client.ask(set_(b"work", b"refused")) == b"SERVER_ERROR disk full\r\n"
    server.disk.room = 600
    assert len(items(client, b"work")) == 2001


def test_reader_files_are_shortened_periodically(server: ScrollServer, client: MemoryClient) -> None:
    put(client, b"work", *[b"x"] * 1000)
    assert len(items(client, b"work")) == 1000
    assert len(server.files()["work.read."]) > 4096
    server.clock.advance(CHECKPOINTS_EVERY_S)
    server.settle()
    assert len(server.files()["work.read."]) == 36


# Folders.


def test_folder_belongs_to_one_storage(server: ScrollServer, client: MemoryClient) -> None:
    put(client, b"work", b"hello")
    server.end()
    before = server.files()
    with pytest.raises(StorageError, match="belongs to scroll: start with --storage scroll:"):
        MemoryServer(folder=server.queues)
    assert server.files() == before
    assert items(ScrollServer(server.queues).connect(), b"work") == [b"hello"]
