"""Reading a queue by item ids: the same ids return the same items until the reader releases them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from kestrel.client.call import NOT_YET, Call
from kestrel.client.errors import RequestError, ServerError
from kestrel.client.thrift import RangeItem, ThriftCalls
from kestrel.config.load import loads
from kestrel.protocols.buffer import ReceiveBuffer
from kestrel.queues.ranges import MAX_READER_BYTES
from kestrel.storage.total_memory import MemoryShare
from kestrel.testing.server import EPOCH_MS, MemoryServer
from tests.memcache_text import END, STORED, set_, stat, value
from tests.promises.test_scroll import ScrollServer

T = TypeVar("T")

HOUR: Final = 3600


class Reader:
    """A client that reads a queue by ids under a reader name."""

    def __init__(self, server: MemoryServer, name: bytes = b"spark", queue: bytes = b"work") -> None:
        self._client = server.connect("thrift")
        self._calls = ThriftCalls()
        self._buffer = ReceiveBuffer()
        self.who = queue, name

    def ask(self, make_call: Callable[[ThriftCalls], Call[T]]) -> T:
        """Make a call and return its result, which must come at once."""
        call = make_call(self._calls)
        self._client.send(call.request)
        self._buffer.receive(self._client.take())
        answer = call.read(self._buffer)
        assert answer is not NOT_YET
        return answer

    def open(self, first_id: int = 0, max_items: int = 0) -> tuple[int, int, int]:
        """Open a range and return its first id, next id and end id."""
        state = self.ask(lambda calls: calls.open_range(*self.who, first_id, max_items))
        return state.first_id, state.next_id, state.end_id

    def read(self, first_id: int, end_id: int, max_bytes: int = 0) -> list[RangeItem]:
        """Return the items of a range."""
        return self.ask(lambda calls: calls.read_range(*self.who, first_id, end_id, max_bytes))

    def read_all(self) -> list[bytes]:
        """Return the data of all items that are kept."""
        first_id, next_id, _ = self.open()
        return [item.data for item in self.read(first_id, next_id)]

    def release(self, end_id: int) -> tuple[int, int]:
        """Release items and return the first id and the next id."""
        state = self.ask(lambda calls: calls.release_range(*self.who, end_id))
        return state.first_id, state.next_id

    def close(self) -> None:
        """Close the range."""
        self.ask(lambda calls: calls.close_range(*self.who))


def serving(folder: Path, config: str = "") -> Iterator[ScrollServer]:
    server = ScrollServer(folder, config)
    yield server
    server.end()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ScrollServer]:
    yield from serving(tmp_path)


def put(server: MemoryServer, *items: bytes, queue: bytes = b"work") -> None:
    client = server.connect()
    for data in items:
        assert client.ask(set_(queue, data)) == STORED


def figure(server: MemoryServer, name: str) -> int:
    """Return a figure of the queue "work"."""
    return int(stat(server.connect(), b"work", name))


def refused(ask: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(RequestError) as raised:
        ask(*arguments)
    return str(raised.value)


# Reading.


def test_items_come_with_ids_and_times(server: ScrollServer) -> None:
    reader = Reader(server)
    assert reader.open() == (1, 1, 1)
    put(server, b"a", b"b\0\r\n")
    assert server.connect().ask(b"set work 0 3600 1\r\nc\r\n") == STORED
    assert reader.open() == (1, 4, 4)
    assert reader.read(1, 4) == [
        RangeItem(1, b"a", EPOCH_MS, 0),
        RangeItem(2, b"b\0\r\n", EPOCH_MS, 0),
        RangeItem(3, b"c", EPOCH_MS, EPOCH_MS + HOUR * 1000),
    ]


def test_reading_takes_nothing(server: ScrollServer) -> None:
    put(server, b"a", b"b")
    reader = Reader(server)
    assert reader.read_all() == reader.read_all() == [b"a", b"b"]
    assert figure(server, "items") == 2
    assert server.connect().ask(b"get work\r\n") == value(b"work", b"a")


def test_removed_items_can_still_be_read(server: ScrollServer) -> None:
    reader = Reader(server)
    reader.open()
    put(server, b"a", b"b", b"c")
    client = server.connect()
    assert client.ask(b"set work 0 1 1\r\nd\r\n") == STORED
    client.ask(b"get work\r\nget work/open\r\nget work/close\r\n")
    server.advance(2)
    client.ask(b"flush_expired work\r\n")
    client.ask(b"flush work\r\n")
    assert figure(server, "items") == 0
    assert reader.read_all() == [b"a", b"b", b"c", b"d"]


def test_discarded_items_can_still_be_read(tmp_path: Path) -> None:
    config = "[[queues]]\nname = 'work'\nmaxItems = 2\ndiscardOldWhenFull = true\n"
    for server in serving(tmp_path, config):
        reader = Reader(server)
        reader.open()
        put(server, b"a", b"b", b"c", b"d")
        assert figure(server, "items") == 2
        assert reader.read_all() == [b"a", b"b", b"c", b"d"]


def test_empty_queue_with_a_reader_does_not_expire(tmp_path: Path) -> None:
    for server in serving(tmp_path, "expirationTimerFrequency = '1s'\n[default]\nmaxQueueAge = '10s'\n"):
        reader = Reader(server)
        reader.open()
        put(server, b"a")
        server.connect().ask(b"get work\r\n")
        server.advance(20)
        assert reader.read_all() == [b"a"]
        reader.close()
        server.advance(20)
        assert refused(reader.read, 1, 2).startswith("no range of the queue work is open")


def test_files_are_kept_until_reader_releases_them(tmp_path: Path) -> None:
    for server in serving(tmp_path, "[default]\ndefaultJournalSize = 1000\n"):
        reader = Reader(server)
        reader.open()
        items = [b"%03d" % number * 100 for number in range(20)]
        put(server, *items)
        server.connect().ask(b"flush work\r\n")
        put(server, b"last")
        kept = len(server.writer_files())
        assert kept > 5
        assert reader.read_all() == [*items, b"last"]
        assert figure(server, "scroll_held_bytes") > 6000
        reader.release(21)
        put(server, b"more")
        assert len(server.writer_files()) < kept - 4
        assert reader.read_all() == [b"last", b"more"]


def test_reply_fits_limits_of_thrift_clients(tmp_path: Path) -> None:
    for server in serving(tmp_path, 'maxRequestSize = "10 KiB"\nmaxThriftListSize = 5\n'):
        put(server, *[b"%d" % number for number in range(8)], *[b"x" * 3000] * 8)
        reader = Reader(server)
        assert reader.open() == (1, 17, 17)
        found: list[int] = []
        while more := reader.read(found[-1] + 1 if found else 1, 17):
            assert len(more) <= 5
            assert sum(len(item.data) for item in more) < 10_000
            found += [item.id for item in more]
        assert found == list(range(1, 17))


def test_replies_are_small_while_memory_is_full(tmp_path: Path) -> None:
    for server in serving(tmp_path, "maxTotalMemory = 200000\n"):
        reader = Reader(server)
        reader.open()
        put(server, *[b"x" * 10_000 for _ in range(15)])
        MemoryShare(server.manager.memory_limit).set_bytes(200_000)  # memory of another user
        assert server.manager.memory_limit.is_reached
        assert 1 <= len(reader.read(1, 16)) <= 6


# Releasing.


def test_released_items_leave_the_queue(server: ScrollServer) -> None:
    put(server, b"a", b"b", b"c")
    reader = Reader(server)
    reader.open()
    assert reader.release(3) == (3, 4)
    assert figure(server, "items") == 1
    assert server.connect().ask(b"get work\r\n") == value(b"work", b"c")


def test_release_can_be_repeated_and_never_moves_back(server: ScrollServer) -> None:
    put(server, b"a", b"b", b"c")
    reader = Reader(server)
    reader.open()
    assert [reader.release(end_id) for end_id in (3, 3, 2, 0, -5)] == [(3, 4)] * 5
    assert reader.read_all() == [b"c"]


def test_release_ends_open_reads_of_other_clients(server: ScrollServer) -> None:
    put(server, b"a", b"b")
    reader = Reader(server)
    reader.open()
    holder, aborter = server.connect(), server.connect()
    assert holder.ask(b"get work/open\r\n") == value(b"work/open", b"a")
    assert aborter.ask(b"get work/open\r\n") == value(b"work/open", b"b")
    reader.release(3)
    assert figure(server, "open_transactions") == 0
    assert holder.ask(b"get work/close\r\n") == END
    assert aborter.ask(b"get work/abort\r\n") == END
    aborter.disconnect()
    assert server.connect().ask(b"get work\r\n") == END


def test_reading_released_items_is_an_error(server: ScrollServer) -> None:
    put(server, b"a", b"b", b"c")
    reader = Reader(server)
    reader.open()
    reader.release(3)
    message = "the ids from 1 on of the queue work were released; its items begin at 3"
    assert refused(reader.read, 1, 4) == message
    assert refused(reader.read, 1, 2) == message
    assert refused(reader.open, 1) == message


def test_reading_future_ids_is_an_error(server: ScrollServer) -> None:
    put(server, b"a")
    reader = Reader(server)
    reader.open()
    message = "the queue work has no items from id 2 on, and none below "
    assert refused(reader.read, 1, 3) == message + "3"
    assert refused(reader.release, 3) == message + "3"
    assert refused(reader.open, 7) == message + "7"
    assert reader.read_all() == [b"a"]


def test_closing_gives_up_items_kept_for_the_reader(server: ScrollServer) -> None:
    reader = Reader(server)
    reader.open()
    put(server, b"a", b"b")
    server.connect().ask(b"get work\r\n")
    reader.close()
    reader.close()
    assert reader.open() == (2, 3, 3)
    assert reader.read_all() == [b"b"]


# Readers.


def test_queue_has_one_reader_at_a_time(server: ScrollServer) -> None:
    put(server, b"a")
    reader, other = Reader(server), Reader(server, b"other")
    reader.open()
    message = "the queue work is already read by another reader: spark"
    assert refused(other.open) == message
    assert refused(other.read, 1, 2) == message
    assert refused(other.release, 2) == message
    assert refused(other.close) == message
    reader.close()
    assert other.read_all() == [b"a"]


def test_reading_without_open_range_is_an_error(server: ScrollServer) -> None:
    put(server, b"a")
    reader = Reader(server)
    message = "no range of the queue work is open: it was never opened, was closed, or the queue was deleted"
    assert refused(reader.read, 1, 2) == message
    assert refused(reader.release, 2) == message
    assert refused(reader.open, 1) == message
    put(server, b"b")
    reader.open()
    server.connect().ask(b"delete work\r\n")
    put(server, b"c", b"d", b"e")
    assert refused(reader.read, 1, 2) == message


@pytest.mark.parametrize("name", [b"", b"x" * (MAX_READER_BYTES + 1)])
def test_reader_name_has_a_length_limit(server: ScrollServer, name: bytes) -> None:
    assert refused(Reader(server, name).open) == "the name of a reader must have 1 to 255 bytes"
    assert server.manager.existing(b"work") is None


def test_each_child_has_its_own_reader(server: ScrollServer) -> None:
    names = b"work+a", b"work+b"
    readers = [Reader(server, queue=name) for name in names]
    for reader in readers:
        reader.open()
    put(server, b"for all")
    put(server, b"for a", queue=b"work+a")
    assert [reader.read_all() for reader in readers] == [[b"for all", b"for a"], [b"for all"]]
    readers[0].release(3)
    assert [reader.read_all() for reader in readers] == [[], [b"for all"]]


def test_storage_without_ids_and_alias_refuse_ranges() -> None:
    server = MemoryServer(config=loads("[[aliases]]\nname = 'all'\ndestinationQueues = ['work']\n"))
    message = "the items of the queue work cannot be read by ids: its storage has no item ids; use the storage scroll"
    reader = Reader(server)
    assert {refused(reader.open), refused(reader.read, 1, 2), refused(reader.release, 2), refused(reader.close)} == {
        message
    }
    message = "an alias has no items: read the queues that it stands for"
    assert refused(Reader(server, queue=b"all").open) == message


def test_client_that_may_not_get_may_not_read(tmp_path: Path) -> None:
    for server in serving(tmp_path, "[[queues]]\nname = 'work'\nwhiteListClientIdForDequeue = 'orders'\n"):
        with pytest.raises(ServerError, match="may not get from work"):
            Reader(server).open()


# Restarts.


def test_restart_changes_nothing_for_the_reader(tmp_path: Path) -> None:
    for server in serving(tmp_path):
        reader = Reader(server)
        reader.open()
        put(server, b"a", b"b", b"c")
        reader.release(2)
        server.connect().ask(b"flush work\r\n")
    for server in serving(tmp_path):
        reader = Reader(server)
        assert [item.data for item in reader.read(2, 4)] == [b"b", b"c"]
        assert reader.open(4, 10)[2] == 4
        put(server, b"d")
        first_id, next_id, end_id = reader.open(4, 1)
        assert (first_id, end_id) == (2, next_id)
        assert [item.data for item in reader.read(4, end_id)] == [b"d"]


def test_ids_are_not_reused_after_power_failure(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    for server in serving(tmp_path / "before"):
        reader = Reader(server)
        reader.open()
        put(server, b"a", b"b", b"c")
        assert [item.id for item in reader.read(1, 4)] == [1, 2, 3]
        (writer_file,) = server.writer_files()
        files = server.files()
    after = tmp_path / "after"
    after.mkdir()
    for name, data in files.items():
        lost = len(b"bc") + 2 * 25 if name == writer_file else 0  # never synced
        (after / name).write_bytes(data[: len(data) - lost])
    for server in serving(after):
        put(server, b"d")
        reader = Reader(server)
        assert [item.data for item in reader.read(1, 4)] == [b"a"]
        _, next_id, end_id = reader.open(4, 10)
        ((id_, data),) = [item[:2] for item in reader.read(4, end_id)]
        assert (data, id_ > 3, next_id) == (b"d", True, id_ + 1)
